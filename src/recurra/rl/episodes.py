"""The host functions of an environment, `reset` and `step`, called in the order of a token.

With absorbing episodes, rows that have finished may play on inside the environment, which the
program does not see. With autoreset, rows continue, also from one reset call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from recurra.ir.types import Type
from recurra.rl.gym_spaces import Array, Values, convert_space
from recurra.rl.space import leaves
from recurra.rl.vector_env import Rows, Spec

DRAW = 1 << 23  # a uniform f32 draw is a multiple of 1 / DRAW


class Episodes:
    """Absorbing episodes: one per row and reset; after its end the row does not change."""

    carried = False  # do rows continue from iteration to iteration?

    def __init__(self, spec: Spec):
        self.spec = spec
        probe = spec.make(1)
        observed, acted = probe.single_observation_space, probe.single_action_space
        self.observation_space = convert_space(spec, "observation", observed)
        self.action_space = convert_space(spec, "action", acted)
        self.observations = Values(observed, self.observation_space)
        self.actions = Values(acted, self.action_space)
        self.has_unreal_steps = Rows(spec, probe, self.observations, self.actions).has_unreal_steps
        spec.close(probe)
        self.rows: Rows | None = None

    @property
    def observed(self) -> list[Type]:
        """The types of the results of `reset`, without the token."""
        return [s.type for _, s in leaves(self.observation_space)]

    @property
    def stepped(self) -> list[Type]:
        """The types of the results of `step`, without the token."""
        return [*self.observed, Type("f32"), *[Type("bool")] * 4]

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """Names of the results of `reset` and `step`, for error messages."""
        keys = ["".join(f"[{k!r}]" for k in p.path) for p in self.observations.parts]
        first = [f"the observation{key}" for key in keys]
        last = [f"the last observation{key} of an episode" for key in keys if self.carried]
        return {"reset": tuple(first), "step": (*first, *last, "the reward")}

    def begin_next(self) -> Self:
        """A copy with an environment of its own."""
        new = copy(self)
        new.rows = None
        return new

    def reset(
        self, draw: Array, count: Array | int, *rest: Array, first: int = 0
    ) -> tuple[Array | np.int32, ...]:
        """Start all rows anew; returns the observation [B, ..] and the next token.

        Row k is seeded by two uniform draws and `first` + k.
        """
        (token,) = rest
        self._begin(token)
        rows = self._rows(int(count))
        self.o = self.observations.show(rows.reset(seed(draw) + first))
        self.live = np.ones(int(count), bool)
        self.term, self.trunc = ~self.live, ~self.live
        self.token = int(token)
        return *self.o, self._tick(token)

    def step(self, *args: Array) -> tuple[Array | np.int32, ...]:
        """Step by actions and a token; returns observation [B, ..], reward f32[B], done, term,
        trunc and live, bool[B], and the next token."""
        *action, token = args
        next_token, live = self._tick(token), self.live
        reward = np.zeros(len(live), np.float32)
        if live.any():
            assert self.rows is not None
            s = self.rows.step(action)
            self.o = [
                np.where(live.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
                for new, old in zip(self.observations.show(s.final), self.o, strict=True)
            ]
            self.term = np.where(live, s.term, self.term)
            self.trunc = np.where(live, s.trunc, self.trunc)
            reward = np.where(live, s.reward, reward)
            self.live = live & ~s.term & ~s.trunc
        return *self.o, reward, ~self.live, self.term, self.trunc, live, next_token

    def state_dict(self) -> object:
        """The empty state, as every iteration begins with a seeded reset."""
        return {}

    def load_state_dict(self, tree: Any) -> None:
        """Restore the result of `state_dict`; None: the rows start anew."""

    def _begin(self, token: Array) -> None:
        """Close the environment at the start of a run, because wrappers keep state."""
        if int(token) == 0:
            self._close()

    def _close(self) -> None:
        if self.rows is not None:
            self.spec.close(self.rows.env)
            self.rows = None

    def _rows(self, count: int) -> Rows:
        if self.rows is None or self.rows.env.num_envs != count:
            self._close()
            self.rows = Rows(self.spec, self.spec.make(count), self.observations, self.actions)
        return self.rows

    def _tick(self, token: Array) -> np.int32:
        """The token of the next call."""
        assert self.rows is not None, f"{self.spec} is stepped before its reset"
        assert int(token) == self.token, (
            f"{self.spec}: a call is lost, repeated or out of order, {token} != {self.token}"
        )
        self.token = (self.token + 1) & 0x7FFFFFFF
        return np.int32(self.token)


class AutoresetEpisodes(Episodes):
    """Autoreset: a row continues with its next episode, and from iteration to iteration."""

    carried = True
    started = False  # is there a state to continue from?

    @property
    def stepped(self) -> list[Type]:
        return [*self.observed, *super().stepped]

    def another(self) -> Self:
        new = super().begin_next()
        new.started = False
        return new

    def reset(
        self, draw: Array, count: Array | int, *rest: Array, first: int = 0
    ) -> tuple[Array | np.int32, ...]:
        """Start rows anew if `fresh`, else return their last observation; and the next token."""
        fresh, token = rest
        self._begin(token)
        if fresh or not self.started or self.rows is None or self.rows.env.num_envs != int(count):
            self.o = self.observations.show(self._rows(int(count)).reset(seed(draw) + first))
            self.started = True
        self.token = int(token)
        return *self.o, self._tick(token)

    def step(self, *args: Array) -> tuple[Array | np.int32, ...]:
        """Step as `Episodes.step`, but return the next and the final observation, [B, ..] each."""
        *action, token = args
        next_token = self._tick(token)
        assert self.rows is not None
        s = self.rows.step(action)
        self.o = self.observations.show(s.o)
        final = self.o if s.final is s.o else self.observations.show(s.final)
        return *self.o, *final, s.reward, s.ended, s.term, s.trunc, s.real, next_token

    def state_dict(self) -> object:
        """The state of the environment between two steps; raises Unsaved."""
        from recurra.rl.state_serialization import capture

        if self.rows is None or not self.started:
            return {"rows": 0}
        self.rows.expect_at_hand()
        held = {"env": self.rows.env, "waiting": self.rows.waiting, "o": self.o}
        return {"rows": self.rows.env.num_envs, "held": capture(held, str(self.spec))}

    def load_state_dict(self, tree: Any) -> None:
        from recurra.rl.state_serialization import restore

        self.started = bool(tree and tree["rows"])
        if self.started:
            rows = self._rows(tree["rows"])
            held = {
                "env": rows.env,
                "waiting": rows.waiting,
                "o": self.observations.show(rows.reset(0)),
            }
            held = restore(held, tree["held"], str(self.spec))
            rows.wait_for(held["waiting"])
            self.o = held["o"]


class GroupedEpisodes:
    """Episodes whose rows take turns: each group of rows has an environment of its own.

    The first arguments of every call are the group's index and the number of groups.
    """

    def __init__(self, episodes: Episodes):
        self.episodes, self.spec = episodes, episodes.spec
        self.groups: list[Episodes] = []

    def reset(
        self, group: Array, size: Array, draw: Array, count: Array, *rest: Array
    ) -> tuple[Array | np.int32, ...]:
        """Reset a group; `count` is the number of rows of all groups."""
        self._expect(int(size))
        rows = int(count) // int(size)
        return self.groups[int(group)].reset(draw, rows, *rest, first=int(group) * rows)

    def step(self, group: Array, size: Array, *args: Array) -> tuple[Array | np.int32, ...]:
        """Step a group."""
        return self.groups[int(group)].step(*args)

    def state_dict(self) -> object:
        """The state of every group; raises Unsaved."""
        return {"groups": [g.state_dict() for g in self.groups]}

    def load_state_dict(self, tree: Any) -> None:
        """Restore the result of `state_dict`; None: the rows start anew."""
        trees = tree["groups"] if tree else [None] * len(self.groups)
        self._expect(len(trees))
        for g, x in zip(self.groups, trees, strict=True):
            g.load_state_dict(x)

    def _expect(self, count: int) -> None:
        if len(self.groups) != count:
            self.groups = [self.episodes.begin_next() for _ in range(count)]


def make_episodes(spec: Spec) -> Episodes:
    return AutoresetEpisodes(spec) if spec.episodes == "autoreset" else Episodes(spec)


def seed(draw: Sequence[float] | Array) -> int:
    """Return a seed of 46 bits from two uniform draws; row k of a SyncVectorEnv gets seed + k."""
    high, low = (int(x * DRAW) for x in np.asarray(draw, np.float64))
    return high * DRAW + low
