"""PPO's arithmetic in plain NumPy, derived by hand: what every program here must agree with.

Float64, loops over time, no code shared with what is checked. Axes [T, B, ..] as the paper has them
(Schulman et al. 2017; GAE: Schulman et al. 2016); `done[t]` says that the step t ended an episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.ppo.workload import (
    ADVANTAGE_EPS,
    BETA1,
    BETA2,
    CLIP,
    ENTROPY,
    EPS,
    GAMMA,
    LAMBDA,
    LR,
    NETS,
    NORM,
    VALUE,
    Net,
    Theta,
)

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """One iteration's steps: o [T+1, B, features], a [T, B], r [T, B], done [T, B].

    `log_p` and `value` [T, B] are those of the policy that acted.
    """

    o: F64
    a: NDArray[np.int64]
    r: F64
    done: NDArray[np.bool_]
    log_p: F64
    value: F64


def forward(theta: Theta, net: Net, x: F64) -> list[F64]:
    """[.., inputs] of each layer, and the output of the last one."""
    depth = sum(k.startswith(f"{net}_W") for k in theta)
    through = [x]
    for k in range(1, depth + 1):
        z = through[-1] @ theta[f"{net}_W{k}"] + theta[f"{net}_b{k}"]
        through.append(np.tanh(z) if k < depth else z)
    return through


def log_softmax(logits: F64) -> F64:
    """ln p along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def recorded(theta: Theta, o: F64, a: NDArray[np.int64], r: F64, done: NDArray[np.bool_]) -> Batch:
    """The batch of a policy θ that acted so."""
    log_p = np.take_along_axis(log_softmax(forward(theta, "actor", o[:-1])[-1]), a[..., None], -1)
    value = forward(theta, "critic", o[:-1])[-1][..., 0]
    return Batch(o, a, r, done, log_p[..., 0], value)


def advantages(theta: Theta, batch: Batch) -> tuple[F64, F64]:
    """Generalized advantages and the returns that the critic learns, [T, B]."""
    after = forward(theta, "critic", batch.o[-1])[-1][..., 0]
    adv, following = np.zeros_like(batch.r), np.zeros_like(after)
    for t in reversed(range(len(batch.r))):
        on = 1.0 - batch.done[t]
        delta = batch.r[t] + GAMMA * on * after - batch.value[t]
        following = delta + GAMMA * LAMBDA * on * following
        adv[t], after = following, batch.value[t]
    return adv, adv + batch.value


def normalized(adv: F64) -> F64:
    """Over all steps and rows, by the deviation of the population."""
    return (adv - adv.mean()) / (adv.std() + ADVANTAGE_EPS)


def loss(theta: Theta, batch: Batch, adv: F64, target: F64) -> float:
    """-E min(ρ A, clip(ρ) A) - 0.01 E H + 0.5 · ½ E max((v - R)², (clipped v - R)²)"""
    log_p = log_softmax(forward(theta, "actor", batch.o[:-1])[-1])
    value = forward(theta, "critic", batch.o[:-1])[-1][..., 0]
    ratio = np.exp(np.take_along_axis(log_p, batch.a[..., None], -1)[..., 0] - batch.log_p)
    policy = -np.minimum(ratio * adv, np.clip(ratio, 1 - CLIP, 1 + CLIP) * adv).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    near = batch.value + np.clip(value - batch.value, -CLIP, CLIP)
    squares = np.maximum((value - target) ** 2, (near - target) ** 2)
    return float(policy - ENTROPY * entropy + VALUE * 0.5 * squares.mean())


def gradient(theta: Theta, batch: Batch, adv: F64, target: F64) -> Theta:
    """∇θ of `loss`; at a tie of the clipped with the plain term, the plain one's."""
    n = batch.r.size
    actor, critic = (forward(theta, net, batch.o[:-1]) for net in NETS)
    log_p = log_softmax(actor[-1])
    p, chosen = np.exp(log_p), np.eye(log_p.shape[-1])[batch.a]
    ratio = np.exp((log_p * chosen).sum(-1) - batch.log_p)
    clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP) * adv < ratio * adv  # and so has no slope
    weight = np.where(clipped, 0.0, ratio * adv)
    entropy = -(p * log_p).sum(-1, keepdims=True)
    d_logits = (-weight[..., None] * (chosen - p) + ENTROPY * p * (log_p + entropy)) / n

    value = critic[-1][..., 0]
    moved = value - batch.value
    near = batch.value + np.clip(moved, -CLIP, CLIP)
    far = (abs(moved) > CLIP) & ((near - target) ** 2 > (value - target) ** 2)  # no slope there
    d_value = VALUE * np.where(far, 0.0, value - target) / n
    return {
        **_backward(theta, "actor", actor, d_logits),
        **_backward(theta, "critic", critic, d_value[..., None]),
    }


def _backward(theta: Theta, net: Net, through: list[F64], d: F64) -> Theta:
    """Gradients of a network's parameters from the cotangent of its output."""
    found: Theta = {}
    for k in reversed(range(1, len(through))):
        x = through[k - 1]
        found[f"{net}_W{k}"] = np.einsum("tbi,tbo->io", x, d)
        found[f"{net}_b{k}"] = d.sum((0, 1))
        if k > 1:
            d = (d @ theta[f"{net}_W{k}"].T) * (1 - x * x)
    return found


@dataclass(frozen=True)
class Adam:
    """Parameters and their moments after n steps."""

    theta: Theta
    m: Theta
    v: Theta
    n: int = 0

    def after(self, gradient: Theta) -> Adam:
        """One step with a gradient whose global norm is held to 0.5."""
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        g = {k: x * min(1.0, NORM / norm) for k, x in gradient.items()}
        n = self.n + 1
        m = {k: BETA1 * self.m[k] + (1 - BETA1) * x for k, x in g.items()}
        v = {k: BETA2 * self.v[k] + (1 - BETA2) * x * x for k, x in g.items()}
        c1, c2 = 1 - BETA1**n, 1 - BETA2**n
        theta = {
            k: x - LR * (m[k] / c1) / (np.sqrt(v[k] / c2) + EPS) for k, x in self.theta.items()
        }
        return Adam(theta, m, v, n)


def start(theta: Theta) -> Adam:
    """Before the first step."""
    theta = {k: x.astype(np.float64) for k, x in theta.items()}
    zeros = {k: np.zeros_like(x) for k, x in theta.items()}
    return Adam(theta, zeros, zeros)


def learned(state: Adam, batch: Batch) -> tuple[Theta, Adam]:
    """The gradient of one iteration, before its norm is held, and what Adam makes of it."""
    adv, target = advantages(state.theta, batch)
    g = gradient(state.theta, batch, normalized(adv), target)
    return g, state.after(g)
