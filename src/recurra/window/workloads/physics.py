"""Rigid-body simulation as in deep-RL simulators: many environments at once, body by body.

Maximal coordinates: every body has its own position, rotation, velocity and spin, [batch, 3 or 4],
joints are springs with damping and a motor, contacts are penalties. Contacts are computed for pairs
of bodies that are near each other: one read by the host in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

BATCH, STEPS, DT = 2048, 2, 0.002
NEAR = 1.0  # distance below which a pair may touch


@dataclass(frozen=True)
class System:
    """The numbers of bodies, the joints between two of them, the feet on the ground, and the pairs
    that may touch.
    """

    bodies: int
    joints: tuple[tuple[int, int], ...]
    feet: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


def _chain(*bodies: int) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(bodies))


def _legs(torso: int, first: int, legs: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return the joints of legs of `parts` bodies each, numbered from `first`."""
    return tuple(
        joint
        for leg in range(legs)
        for joint in _chain(torso, *range(first + leg * parts, first + (leg + 1) * parts))
    )


SYSTEMS = {
    # a torso with four legs of two parts
    "ant": System(9, _legs(0, 1, 4, 2), (2, 4, 6, 8), ()),
    # a hand of a palm and four fingers of three parts, around an object
    "grasp": System(14, _legs(0, 1, 4, 3), (13,), tuple((13, k) for k in range(13))),
    # torso, waist, pelvis; legs of thigh, shin; arms of two parts
    "humanoid": System(
        11, _chain(0, 1, 2) + _legs(2, 3, 2, 2) + _legs(0, 7, 2, 2), (4, 6), ((8, 2), (10, 2))
    ),
    "cheetah": System(7, _legs(0, 1, 2, 3), (3, 6), ()),
    "walker": System(7, _legs(0, 1, 2, 3), (3, 6), ((3, 6),)),
}


@dataclass
class Bodies:
    """The state of all bodies, a list of tensors for each kind."""

    place: list[Tensor]
    rotation: list[Tensor]
    speed: list[Tensor]
    spin: list[Tensor]


def make_program(name: str, batch: int, seed: int) -> Callable[[], list[Tensor]]:
    """Return a function of two steps from a random state to every body's place and rotation."""
    system = SYSTEMS[name]
    batch = batch or BATCH
    rng = torch.Generator().manual_seed(seed)

    def normal(width: int, scale: float) -> list[Tensor]:
        return [scale * torch.randn(batch, width, generator=rng) for _ in range(system.bodies)]

    place, rotation = normal(3, 0.7), [torch.nn.functional.normalize(q) for q in normal(4, 1.0)]
    speed, spin = normal(3, 0.1), normal(3, 0.1)
    anchor = 0.2 * torch.randn(len(system.joints), 2, 3, generator=rng)
    motor = torch.randn(len(system.joints), batch, 1, generator=rng)

    def run() -> list[Tensor]:
        state = Bodies(list(place), list(rotation), list(speed), list(spin))
        with torch.no_grad():
            for _ in range(STEPS):
                _step(system, state, anchor, motor)
        return state.place + state.rotation

    return run


def _step(system: System, state: Bodies, anchor: Tensor, motor: Tensor) -> None:
    zero = torch.zeros_like(state.place[0])
    force = [zero for _ in range(system.bodies)]
    torque = [zero for _ in range(system.bodies)]
    for k, (a, b) in enumerate(system.joints):
        _joint(state, (a, b), anchor[k], motor[k], force, torque)
    for foot in system.feet:
        _ground(state, foot, force)
    for a, b in _close(state, system.pairs):
        _contact(state, a, b, force)
    for body in range(system.bodies):
        _integrate(state, body, force[body], torque[body])


def _joint(
    state: Bodies,
    pair: tuple[int, int],
    anchor: Tensor,
    motor: Tensor,
    force: list[Tensor],
    torque: list[Tensor],
) -> None:
    """Add a spring between two anchors, damping, and a motor around their common axis."""
    a, b = pair
    here = rotate(state.rotation[a], anchor[0].expand_as(state.place[a]))
    there = rotate(state.rotation[b], anchor[1].expand_as(state.place[b]))
    gap = (state.place[b] + there) - (state.place[a] + here)
    pull = 50.0 * gap - (state.speed[a] - state.speed[b])
    turn = motor * rotate(state.rotation[a], _axis(state.place[a]))
    force[a], force[b] = force[a] + pull, force[b] - pull
    torque[a] = torque[a] + torch.linalg.cross(here, pull) + turn
    torque[b] = torque[b] - torch.linalg.cross(there, pull) - turn


def _ground(state: Bodies, foot: int, force: list[Tensor]) -> None:
    """Add the contact force and friction of the plane z = 0."""
    depth = torch.relu(-state.place[foot][:, 2:])
    up = torch.cat([-state.speed[foot][:, :2] * depth, 100.0 * depth], 1)
    force[foot] = force[foot] + up


def _close(state: Bodies, pairs: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the pairs that are near in any environment, by one read of the host."""
    if not pairs:
        return []
    distances = [(state.place[a] - state.place[b]).square().sum(1).amin() for a, b in pairs]
    near = torch.stack(distances) < NEAR**2
    bits = int((near * 2 ** torch.arange(len(pairs))).sum().item())
    return [pair for k, pair in enumerate(pairs) if bits >> k & 1]


def _contact(state: Bodies, left: int, right: int, force: list[Tensor]) -> None:
    """Add the contact force of two spheres of radius 1/4."""
    apart = state.place[right] - state.place[left]
    distance = apart.norm(dim=1, keepdim=True) + 1e-6
    push = 100.0 * torch.relu(0.5 - distance) * apart / distance
    force[left], force[right] = force[left] - push, force[right] + push


def _integrate(state: Bodies, body: int, force: Tensor, torque: Tensor) -> None:
    """Integrate by semi-implicit Euler; the rotation stays a unit quaternion."""
    state.speed[body] = state.speed[body] + DT * force
    state.place[body] = state.place[body] + DT * state.speed[body]
    state.spin[body] = state.spin[body] + DT * torque
    w, q = state.spin[body], state.rotation[body]
    scalar = -(w * q[:, 1:]).sum(1, keepdim=True)
    vector = q[:, :1] * w + torch.linalg.cross(w, q[:, 1:])
    q = q + 0.5 * DT * torch.cat([scalar, vector], 1)
    state.rotation[body] = q / q.norm(dim=1, keepdim=True)


def rotate(quaternions: Tensor, vectors: Tensor) -> Tensor:
    """Rotate vectors [batch, 3] by unit quaternions [batch, 4]."""
    scalar, axis = quaternions[:, :1], quaternions[:, 1:]
    once = torch.linalg.cross(axis, vectors)
    return vectors + 2.0 * (scalar * once + torch.linalg.cross(axis, once))


def _axis(like: Tensor) -> Tensor:
    return torch.tensor([0.0, 0.0, 1.0]).expand_as(like)
