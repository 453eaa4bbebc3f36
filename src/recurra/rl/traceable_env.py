"""Environments that are pure JAX functions of one instance, as part of the compiled program.

    reset(u) -> state, o                            u: uniform draws f32[draws]
    step(u, state, a) -> state, o, r, term, trunc   trunc: None if it is not known

The state, a tree of arrays, becomes a recurrence per element type. With autoreset every step also
draws the first state of a next episode, which it takes where this one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurra.analysis.graph_builder import current
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.context import jax_fn
from recurra.frontend.dims import Index
from recurra.frontend.functions import dims_of, uniform, where
from recurra.frontend.index_arguments import unwrap
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import all_of, compare
from recurra.ir.types import Domain, Type
from recurra.rl.space import (
    AnySpace,
    CompositeSpace,
    Space,
    children,
    leaves,
    tensors_of,
    tree_of,
)
from recurra.rl.transitions import (
    HasLast,
    Stepped,
    Transition,
    declared,
    define_next,
    plain_exchange,
    recurrence,
    stepped_domain,
)

Tensors = list[RecurrentTensor]


class TraceableEnv(HasLast):
    """An environment in jax.numpy whose state is its observation; see `rl.env.traceable`.

    From the step that ends an episode on, the state does not change.
    """

    def __init__(
        self,
        reset: Callable[..., Any],
        step: Callable[..., Any],
        observation: Type,
        action_space: Space,
        reward: float,
        draws: int,
        via: Callable[..., Any],
    ):
        self.observation_space, self.action_space = Space(observation), action_space
        self.actions, self.reward, self.draws = action_space.actions, reward, draws
        self._reset, self._step = via(reset), via(step)

    def reset(self, domain: Sequence[Index]) -> RecurrentTensor:
        """The first observation of one episode per point: f32[obs] over `domain`."""
        self._domain, self._last = dims_of(domain), None
        self._start = self._reset(uniform(self._domain, (self.draws,)))
        return self._start

    def step(self, action: RecurrentTensor) -> Stepped:
        """The next observation, the reward and `done` of taking action `a`; no gradient passes."""
        domain, t = stepped_domain(self._domain, [as_tensor(action)])
        state = recurrence("state", domain, self.observation_space.type, t, self._start)
        alive = recurrence("alive", domain, Type(state.dtype), t, as_tensor(1.0, state.dtype))
        new_state, *rewards, done = self._step(state.detach(), action)
        next_alive = where(done, 0.0, alive)
        live = alive > 0.0
        after = where(live, new_state, state).detach()
        define_next(state, t, after)
        define_next(alive, t, next_alive)
        reward = where(live, rewards[0], 0.0) if rewards else alive * self.reward
        reward, ended = reward.detach(), next_alive == 0.0
        self._last = Transition(after, reward, ended, ended, as_tensor(False), live, after)
        start = [self._start]
        plain_exchange("a traceable environment", t, self, [action], start, self._last).note(
            current()
        )
        return self._last.stepped


class StatefulEnv(HasLast):
    """An environment with a state and an observation, as the module says; see `rl.env` for
    episodes."""

    def __init__(
        self,
        name: str,
        reset: Callable[..., Any],
        step: Callable[..., Any],
        action_space: AnySpace,
        draws: int = 2,
        episodes: str = "absorbing",
        via: Callable[..., Any] = jax_fn,
    ):
        from recurra.backends.jax.foreign_function import Packing, result_tree

        self.name, self.draws, self.carried = name, draws, episodes == "autoreset"
        self.action_space = action_space
        state, observation = result_tree(reset, [Type("f32", (draws,))])
        packing, self.observation_space = Packing(state), space_of(observation)
        self._state_size = len(packing.types)
        self._box: Domain | None = None
        self._along: str | None = None  # the dim along which episodes continue

        def first(draw: object) -> list[object]:
            state, o = reset(draw)
            return [*packing.pack(state), *arrays_of(self.observation_space, o)]

        def after(draw: object, *xs: object) -> list[object]:
            state, action = packing.unpack(xs[: self._state_size]), xs[self._state_size :]
            state, o, reward, *ended = step(draw, state, plain(tree_of(action_space, action)))
            flags = [x.astype(bool) for x in ended if x is not None]
            observation = arrays_of(self.observation_space, o)
            return [*packing.pack(state), *observation, reward, *flags]

        stem = name.replace(" ", "_")
        self._first, self._after = via(first, f"{stem}_reset"), via(after, f"{stem}_step")

    @property
    def actions(self) -> int | None:
        """The number of actions, if they are discrete."""
        return self.action_space.actions

    def reset(self, domain: Sequence[Index]) -> Any:
        """The first observation at each point of `domain`: a tensor, or a tree as the space is.

        With autoreset, episodes continue along the last of several dims of `domain`.
        """
        self._box, self._last = dims_of(domain), None
        self._along = str(unwrap(domain[-1])) if len(domain) > 1 else None
        start = [x.detach() for x in self._first(uniform(self._box, (self.draws,)))]
        self._begin = self._continued(start, self._box) if self.carried else start
        return self._observation(self._begin)

    def step(self, action: object) -> Stepped:
        """The next observation, the reward and `done` of taking action `a`; no gradient passes."""
        if self._box is None:
            raise RecurraError.at_user_line(
                f"{self.name} is stepped before its reset",
                hint="write o[b, i, 0] = env.reset(domain=(b, i)) first",
            )
        actions = tensors_of(self.action_space, action)
        domain, t = stepped_domain(self._box, actions)
        n = self._state_size
        now = [
            recurrence("state", domain, x.type, t, x)
            for x in self._begin[: n if self.carried else None]
        ]
        actions = self._checked(actions)
        draw, inputs = uniform(domain, (self.draws,)), [x.detach() for x in actions]
        results = [x.detach() for x in self._after(draw, *now[:n], *inputs)]
        k = len(self._begin)
        new, (reward, *ended) = results[:k], results[k:]
        transition = self._autoreset if self.carried else self._absorbing
        self._last = transition(domain, now, new, reward, ended, t)
        plain_exchange(self.name, t, self, actions, self._begin[n:], self._last).note(current())
        return self._last.stepped

    def _absorbing(
        self,
        domain: Domain,
        now: Tensors,
        new: Tensors,
        reward: RecurrentTensor,
        ended: Tensors,
        time: str,
    ) -> Transition:
        """The transition after which nothing changes where the episode is over."""
        over = [recurrence("over", domain, Type("bool"), time, as_tensor(False)) for _ in ended]
        live = ~(over[0] | over[-1])
        for x, y in zip(now, new, strict=True):
            define_next(x, time, where(live, y, x))
        after = [where(live, y, x) for x, y in zip(over, ended, strict=True)]
        for x, y in zip(over, after, strict=True):
            define_next(x, time, y)
        o = self._observation([where(live, y, x) for x, y in zip(now, new, strict=True)])
        reward = where(live, reward, reward * 0)
        term, trunc = self._ends(after, domain)
        return Transition(o, reward, after[0] | after[-1], term, trunc, live, o)

    def _autoreset(
        self,
        domain: Domain,
        now: Tensors,
        new: Tensors,
        reward: RecurrentTensor,
        ended: Tensors,
        time: str,
    ) -> Transition:
        """The transition after which the next episode begins where one is over."""
        done = ended[0] | ended[-1]
        fresh = [x.detach() for x in self._first(uniform(domain, (self.draws,)))]
        after = [where(done, x, y) for x, y in zip(fresh, new, strict=True)]
        for x, y in zip(now, after, strict=False):
            define_next(x, time, y)
        for x, y in zip(self._begin, after, strict=True):
            self._carry(x, y, time)
        next_o, final_o = self._observation(after), self._observation(new)
        term, trunc = self._ends(ended, domain)
        live = always(True, domain)
        return Transition(next_o, reward, done, term, trunc, live, final_o)

    def _continued(self, start: Tensors, box: Domain) -> Tensors:
        """The state at the start of an iteration, of which only the first starts episodes."""
        out = [declared("begin", box, x.type) for x in start]
        begins = all_of(*(compare("==", r.sym, r.lo) for r in box if r.dim == self._along))
        for x, y in zip(out, start, strict=True):
            x[Index(begins)] = y
        return out

    def _carry(self, first: RecurrentTensor, after: RecurrentTensor, time: str) -> None:
        """Define first[b, i] = after[b, i-1, T-1], along the last dim of the reset's domain."""
        for r in first.domain:
            if r.dim == self._along:
                ends = {time: after.domain[time].hi - 1, r.dim: r.sym - 1}
                index = tuple(ends.get(q.dim, q.sym) for q in after.domain)
                first[Index(compare(">", r.sym, r.lo))] = after[index]

    def _ends(self, ended: Tensors, domain: Domain) -> Tensors:
        """Terminated and truncated, which is false if the environment does not tell them apart."""
        return [ended[0], ended[1] if len(ended) > 1 else always(False, domain)]

    def _observation(self, arrays: Tensors) -> object:
        return tree_of(self.observation_space, arrays[self._state_size :])

    def _checked(self, actions: Tensors) -> Tensors:
        out: Tensors = []
        for x, (_, s) in zip(actions, leaves(self.action_space), strict=True):
            if x.shape != s.type.shape:
                raise ShapeError.at_user_line(
                    f"{self.name} takes actions {s.type}", facts=f"this one is {x!r}"
                )
            out.append(x.cast(s.type.dtype))
        return out


def always(value: bool, domain: Domain) -> RecurrentTensor:
    """A truth value that is the same at every point of a domain."""
    x = declared("always", domain, Type("bool"))
    x[tuple(Index(r.sym) for r in domain)] = value
    return x


def space_of(types: Any) -> AnySpace:
    """The space of an observation, from its types."""
    if isinstance(types, Type):
        return Space(types)
    if isinstance(types, Mapping):
        return CompositeSpace({str(k): space_of(x) for k, x in types.items()})
    if type(types) in (tuple, list):
        return CompositeSpace(tuple(map(space_of, types)))
    raise RecurraError.at_user_line(
        "an observation is an array, or a dict or tuple of observations",
        facts=f"this one is of type {type(types).__name__}",
    )


def arrays_of(space: AnySpace, observation: Any) -> list[object]:
    """The arrays of an observation, in the order of `leaves`."""
    if isinstance(space, Space):
        return [observation]
    parts = children(space.parts)
    return [x for k, s in parts.items() for x in arrays_of(s, observation[k])]


def plain(tree: object) -> object:
    """Convert a tree to dicts and tuples."""
    parts = getattr(tree, "parts", None)
    if isinstance(parts, tuple):
        return tuple(map(plain, parts))
    return {k: plain(x) for k, x in parts.items()} if isinstance(parts, Mapping) else tree
