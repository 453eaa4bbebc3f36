"""The host functions of an environment: `reset` and `step`, called in the order of a token.

Absorbing episodes: rows that have finished may play on inside the environment; nothing of that is
seen outside. Autoreset: rows go on, also from one reset call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from recurra.ir.types import Type
from recurra.rl.gym_spaces import Array, Values, spaces
from recurra.rl.space import leaves
from recurra.rl.vector import Rows, Spec

DRAW = 1 << 23  # a uniform f32 draw is a multiple of 1 / DRAW


class Episodes:
    """Absorbing: one episode per row and reset; from its end on the row stays as it is."""

    carried = False  # does a row go on where the last iteration left it?

    def __init__(self, spec: Spec):
        self.spec = spec
        probe = spec.make(1)
        show, take = probe.single_observation_space, probe.single_action_space
        self.observation_space = spaces(spec, "observation", show)
        self.action_space = spaces(spec, "action", take)
        self.seen, self.taken = (
            Values(show, self.observation_space),
            Values(take, self.action_space),
        )
        self.has_unreal_steps = Rows(spec, probe, self.seen, self.taken).has_unreal_steps
        spec.close(probe)
        self.rows: Rows | None = None

    @property
    def observed(self) -> list[Type]:
        """The types of what `reset` gives."""
        return [s.type for _, s in leaves(self.observation_space)]

    @property
    def stepped(self) -> list[Type]:
        """The types of what `step` gives, less the token."""
        return [*self.observed, Type("f32"), *[Type("bool")] * 4]

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """The results of `reset` and `step`, in words."""
        keys = ["".join(f"[{k!r}]" for k in p.path) for p in self.seen.parts]
        seen = [f"the observation{key}" for key in keys]
        last = [f"the last observation{key} of an episode" for key in keys]
        given = [*seen, *(last if self.carried else []), "the reward"]
        return {"reset": tuple(seen), "step": tuple(given)}

    def another(self) -> Self:
        """The same, with an environment of its own."""
        new = copy(self)
        new.rows = None
        return new

    def reset(
        self, draw: Array, count: Array | int, *rest: Array, first: int = 0
    ) -> tuple[Array | np.int32, ...]:
        """All rows start anew, seeded by two uniform draws: observation [B, ..], next token.

        They are those from `first` on of all rows that are seeded so.
        """
        (token,) = rest
        self._begin(token)
        rows = self._rows(int(count))
        self.o = self.seen.show(rows.reset(seed(draw) + first))
        self.live = np.ones(int(count), bool)
        self.term, self.trunc = ~self.live, ~self.live
        self.token = int(token)
        return *self.o, self._tick(token)

    def step(self, *given: Array) -> tuple[Array | np.int32, ...]:
        """observation [B, ..], reward f32[B], done, term, trunc, live bool[B], next token"""
        *action, token = given
        next_token, live = self._tick(token), self.live
        reward = np.zeros(len(live), np.float32)
        if live.any():
            assert self.rows is not None
            s = self.rows.step(action)
            shown = self.seen.show(s.final)
            self.o = [
                np.where(live.reshape(-1, *(1,) * (x.ndim - 1)), x, kept)
                for x, kept in zip(shown, self.o, strict=True)
            ]
            self.term = np.where(live, s.term, self.term)
            self.trunc = np.where(live, s.trunc, self.trunc)
            reward = np.where(live, s.reward, reward)
            self.live = live & ~s.term & ~s.trunc
        return *self.o, reward, ~self.live, self.term, self.trunc, live, next_token

    def state_dict(self) -> object:
        """Nothing: every iteration begins with a seeded reset."""
        return {}

    def load_state_dict(self, tree: Any) -> None:
        """Puts back what `state_dict` gave; None: the rows start anew."""

    def _begin(self, token: Array) -> None:
        """Lets every run have an environment of its own: wrappers remember what they have seen."""
        if int(token) == 0:
            self._close()

    def _close(self) -> None:
        if self.rows is not None:
            self.spec.close(self.rows.env)
            self.rows = None

    def _rows(self, count: int) -> Rows:
        if self.rows is None or self.rows.env.num_envs != count:
            self._close()
            self.rows = Rows(self.spec, self.spec.make(count), self.seen, self.taken)
        return self.rows

    def _tick(self, token: Array) -> np.int32:
        """The token of the next call."""
        assert self.rows is not None, f"{self.spec} is stepped before its reset"
        assert int(token) == self.token, (
            f"{self.spec}: a call is lost, repeated or out of order, {token} != {self.token}"
        )
        self.token = (self.token + 1) & 0x7FFFFFFF
        return np.int32(self.token)


class Carried(Episodes):
    """Autoreset: a row goes on into its next episode, and from iteration to iteration."""

    carried = True
    going = False  # is there a state to go on from?

    @property
    def stepped(self) -> list[Type]:
        return [*self.observed, *super().stepped]

    def another(self) -> Self:
        new = super().another()
        new.going = False
        return new

    def reset(
        self, draw: Array, count: Array | int, *rest: Array, first: int = 0
    ) -> tuple[Array | np.int32, ...]:
        """Rows start anew if `fresh`, else they stand where they were left; next token."""
        fresh, token = rest
        self._begin(token)
        if fresh or not self.going or self.rows is None or self.rows.env.num_envs != int(count):
            self.o = self.seen.show(self._rows(int(count)).reset(seed(draw) + first))
            self.going = True
        self.token = int(token)
        return *self.o, self._tick(token)

    def step(self, *given: Array) -> tuple[Array | np.int32, ...]:
        """next and final observation [B, ..], reward f32[B], done, .., live bool[B], next token"""
        *action, token = given
        next_token = self._tick(token)
        assert self.rows is not None
        s = self.rows.step(action)
        self.o = self.seen.show(s.o)
        final = self.o if s.final is s.o else self.seen.show(s.final)
        return *self.o, *final, s.reward, s.ended, s.term, s.trunc, s.real, next_token

    def state_dict(self) -> object:
        """The environment between two steps; raises Unsaved."""
        from recurra.rl.state import capture

        if self.rows is None or not self.going:
            return {"rows": 0}
        self.rows.expect_at_hand()
        held = {"env": self.rows.env, "waiting": self.rows.waiting, "o": self.o}
        return {"rows": self.rows.env.num_envs, "held": capture(held, str(self.spec))}

    def load_state_dict(self, tree: Any) -> None:
        from recurra.rl.state import restore

        self.going = bool(tree and tree["rows"])
        if self.going:
            rows = self._rows(tree["rows"])
            held = {"env": rows.env, "waiting": rows.waiting, "o": self.seen.show(rows.reset(0))}
            found = restore(held, tree["held"], str(self.spec))
            rows.wait_for(found["waiting"])
            self.o = found["o"]


class InGroups:
    """Episodes whose rows take turns: each group of them has an environment of its own.

    Every call is told first which group it is for, of how many.
    """

    def __init__(self, whole: Episodes):
        self.whole, self.spec = whole, whole.spec
        self.groups: list[Episodes] = []

    def reset(
        self, group: Array, size: Array, draw: Array, count: Array, *rest: Array
    ) -> tuple[Array | np.int32, ...]:
        """`Episodes.reset` of a group; `count` is of all rows."""
        self._expect(int(size))
        rows = int(count) // int(size)
        return self.groups[int(group)].reset(draw, rows, *rest, first=int(group) * rows)

    def step(self, group: Array, size: Array, *given: Array) -> tuple[Array | np.int32, ...]:
        """`Episodes.step` of a group."""
        return self.groups[int(group)].step(*given)

    def state_dict(self) -> object:
        """The state of every group; raises Unsaved."""
        return {"groups": [g.state_dict() for g in self.groups]}

    def load_state_dict(self, tree: Any) -> None:
        """Puts back what `state_dict` gave; None: the rows start anew."""
        trees = tree["groups"] if tree else [None] * len(self.groups)
        self._expect(len(trees))
        for g, x in zip(self.groups, trees, strict=True):
            g.load_state_dict(x)

    def _expect(self, count: int) -> None:
        if len(self.groups) != count:
            self.groups = [self.whole.another() for _ in range(count)]


def episodes(spec: Spec) -> Episodes:
    return Carried(spec) if spec.episodes == "autoreset" else Episodes(spec)


def seed(draw: Sequence[float] | Array) -> int:
    """46 bits from two uniform draws: row k of a SyncVectorEnv gets seed + k."""
    high, low = (int(x * DRAW) for x in np.asarray(draw, np.float64))
    return high * DRAW + low
