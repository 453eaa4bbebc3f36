"""A Gymnasium vector environment as B absorbing episodes, whatever its autoreset mode.

    NextStep   the step after an episode's end is a fake one, that resets: the row is finished
    SameStep   the observation at the end is already the next episode's: the last is in `final_obs`
    Disabled   a finished row may not be stepped: it is reset, by mask, before the others go on

Finished rows may play on inside the environment; nothing of that is seen outside.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from recurra.errors import RecurraError, here
from recurra.ir.types import Type
from recurra.rl.env import Space

Array = np.ndarray[Any, Any]
Vector = Any  # gymnasium.vector.VectorEnv, of unknown spaces
MODES = ("NextStep", "SameStep", "Disabled")
DRAW = 1 << 23  # a uniform f32 draw is a multiple of 1 / DRAW


@dataclass(frozen=True)
class Spec:
    """Which environment: the arguments of `gymnasium.make_vec`."""

    id: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.id}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"

    def make(self, rows: int) -> Vector:
        """`rows` environments: the native vector form if there is one, else one after another."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*AutoresetMode.*")  # `mode` says it better
            try:
                return gymnasium.make_vec(self.id, num_envs=rows, **self.options)
            except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
                raise RecurraError(
                    f"Gymnasium cannot make {self}",
                    facts=str(error),
                    hint="gymnasium.pprint_registry() lists the ids",
                    loc=here(),
                ) from None


class Episodes:
    """The host functions of one environment: `reset` and `step`, called in the order of a token."""

    def __init__(self, spec: Spec):
        self.spec = spec
        probe = spec.make(1)
        self.mode = mode(spec, probe)
        self.observation_space = observed(spec, probe.single_observation_space)
        self.action_space = taken(spec, probe.single_action_space)
        self.shown = one_hot if isinstance(probe.single_observation_space, Discrete) else floats
        self.first_shown = int(getattr(probe.single_observation_space, "start", 0))
        self.first_action = int(getattr(probe.single_action_space, "start", 0))
        probe.close()
        self.env: Vector = None
        self.rows = 0

    def reset(self, draw: Array, rows: Array, token: Array) -> tuple[Array, Array]:
        """All rows start anew, seeded by two uniform draws: observation f32[B,..], next token."""
        if self.rows != int(rows):
            if self.env is not None:
                self.env.close()
            self.rows = int(rows)
            self.env = self.spec.make(self.rows)
        raw, _ = self.env.reset(seed=seed(draw))
        self.raw = np.array(raw)
        self.o = self._show(self.raw)
        self.live = np.ones(self.rows, bool)
        self.term, self.trunc, self.ended = ~self.live, ~self.live, ~self.live
        self.token = int(token)
        return self.o, self._tick(token)

    def step(self, action: Array, token: Array) -> tuple[Array, ...]:
        """observation f32[B,..], reward f32[B], done, term, trunc, live bool[B], next token"""
        live, reward = self.live, np.zeros(self.rows, np.float32)
        next_token = self._tick(token)
        if live.any():
            raw, gained, term, trunc = self._advance(action)
            shown = self._show(raw)
            self.o = np.where(live.reshape(-1, *(1,) * (shown.ndim - 1)), shown, self.o)
            self.term = np.where(live, term, self.term)
            self.trunc = np.where(live, trunc, self.trunc)
            reward[live] = gained[live]
            self.live = live & ~term & ~trunc
        return self.o, reward, ~self.live, self.term, self.trunc, live, next_token

    def _tick(self, token: Array) -> Array:
        """The token of the next call."""
        assert self.env is not None, f"{self.spec} is stepped before its reset"
        expected = f"{self.spec}: a call is lost, repeated or out of order, {token} != {self.token}"
        assert int(token) == self.token, expected
        self.token = (self.token + 1) & 0x7FFFFFFF
        return np.asarray(self.token, np.int32)

    def _advance(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """One step of the environment: the raw observation after it, also where an episode ends."""
        if self.mode == "Disabled" and self.ended.any():
            self._restart(self.ended)
        dtype = self.env.action_space.dtype
        act = (np.asarray(action) + self.first_action).astype(dtype)
        raw, reward, term, trunc, info = self.env.step(act)
        self.raw, term, trunc = np.array(raw), np.array(term, bool), np.array(trunc, bool)
        self.ended = term | trunc
        if self.mode != "SameStep" or not self.ended.any():
            return self.raw, np.asarray(reward), term, trunc
        last = self.raw.copy()
        last[self.ended] = np.stack(list(self._final(info)[self.ended]))
        return last, np.asarray(reward), term, trunc

    def _final(self, info: Mapping[str, Any]) -> Array:
        for key in ("final_obs", "final_observation"):
            if key in info:
                return np.asarray(info[key])
        raise RecurraError(
            f"{self.spec} hides the last observation of an episode",
            facts="it resets in the same step, and its info has no 'final_obs'",
            hint="mend the environment, or use vectorization_mode='sync'",
        )

    def _restart(self, rows: Array) -> None:
        raw, _ = self.env.reset(options={"reset_mask": rows.copy()})
        kept, before = np.asarray(raw)[~rows], self.raw[~rows]
        if not np.array_equal(kept, before, equal_nan=before.dtype.kind == "f"):
            raise RecurraError(
                f"{self.spec} resets rows that it should leave alone",
                facts="its autoreset mode is Disabled, but it ignores options['reset_mask']",
                hint="mend the environment, or use vectorization_mode='sync'",
            )

    def _show(self, raw: Any) -> Array:
        """Raw observations as the program sees them; always a new array."""
        (width, *_) = (*self.observation_space.type.shape, 0)
        return self.shown(np.asarray(raw) - self.first_shown if self.first_shown else raw, width)


def floats(raw: Any, width: Any) -> Array:
    return np.array(raw, np.float32)


def one_hot(raw: Any, width: Any) -> Array:
    return np.eye(width, dtype=np.float32)[np.asarray(raw)]


def seed(draw: Array) -> int:
    """46 bits from two uniform draws: row k of a SyncVectorEnv gets seed + k."""
    high, low = (int(x * DRAW) for x in np.asarray(draw, np.float64))
    return high * DRAW + low


def mode(spec: Spec, env: Vector) -> str:
    """The autoreset mode, as the environment's metadata says."""
    said = (env.metadata or {}).get("autoreset_mode")
    name = getattr(said, "value", said)
    if name not in MODES:
        raise RecurraError(
            f"{spec} does not say when it resets",
            facts=f"metadata['autoreset_mode'] is {said!r}, not one of {', '.join(MODES)}",
            hint="set it in the environment's metadata, or use vectorization_mode='sync'",
            loc=here(),
        )
    return name


def observed(spec: Spec, space: Any) -> Space:
    """Box: f32 of its shape.  Discrete(n): one-hot f32[n]."""
    match space:
        case Box():
            return Space(Type("f32", tuple(space.shape)))
        case Discrete():
            return Space(Type("f32", (int(space.n),)), int(space.n))
        case _:
            raise _unknown(spec, "observation", space, "gymnasium.wrappers.FlattenObservation")


def taken(spec: Spec, space: Any) -> Space:
    """Discrete(n): i32[] in 0..n-1.  Box: f32 of its shape."""
    match space:
        case Discrete():
            return Space(Type("i32"), int(space.n))
        case Box():
            return Space(Type("f32", tuple(space.shape)))
        case _:
            raise _unknown(spec, "action", space, "a wrapper with a Box or Discrete action")


def _unknown(spec: Spec, kind: str, space: Any, wrapper: str) -> RecurraError:
    return RecurraError(
        f"the {kind} space of {spec} is not supported",
        facts=f"it is {space}; Box and Discrete are",
        hint=f"make_vec(wrappers=[...]) with {wrapper}",
        loc=here(),
    )
