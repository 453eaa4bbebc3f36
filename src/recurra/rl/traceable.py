"""Environments that are pure JAX functions of one instance, as part of the compiled program.

    reset(u) -> state, o                            u: uniform draws f32[draws]
    step(u, state, a) -> state, o, r, term, trunc   trunc: None where it does not tell

The state, a tree of arrays, becomes a recurrence per element type; with autoreset every step also
draws the first state of the episode that would follow, and takes it where this one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurra.analysis.program_tracer import current
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.context import jax_fn
from recurra.frontend.dims import Index
from recurra.frontend.functions import dims_of, uniform, where
from recurra.frontend.index_arguments import unwrap
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import both, compare
from recurra.ir.types import Domain, Type
from recurra.rl.space import AnySpace, CompositeSpace, Space, leaves, tensors_of, tree_of
from recurra.rl.transitions import (
    HasLast,
    Stepped,
    Transition,
    declared,
    follow,
    plain_exchange,
    recurrence,
    stepped_domain,
)

Tensors = list[RecurrentTensor]


class TraceableEnv(HasLast):
    """An environment in jax.numpy whose state is what it shows; `rl.env.traceable` makes it.

    From the step that ends an episode on all stays as it is.
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
        moved, *paid, done = self._step(state.detach(), action)
        going = where(done, 0.0, alive)
        live = alive > 0.0
        after = where(live, moved, state).detach()
        follow(state, t, after)
        follow(alive, t, going)
        given = where(live, paid[0], 0.0) if paid else alive * self.reward
        reward, ended = given.detach(), going == 0.0
        self._last = Transition(after, reward, ended, ended, as_tensor(False), live, after)
        start = [self._start]
        plain_exchange("a traceable environment", t, self, [action], start, self._last).note(
            current()
        )
        return self._last.stepped


class StatefulEnv(HasLast):
    """See the module; `rl.env` says what its episodes are."""

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
        state, shown = result_tree(reset, [Type("f32", (draws,))])
        packing, self.observation_space = Packing(state), space_of(shown)
        self._held = len(packing.types)
        self._box: Domain | None = None
        self._along: str | None = None  # the dim along which episodes are carried on

        def first(draw: object) -> list[object]:
            state, o = reset(draw)
            return [*packing.pack(state), *self._seen(o)]

        def after(draw: object, *xs: object) -> list[object]:
            state, action = packing.unpack(xs[: self._held]), xs[self._held :]
            state, o, reward, *ended = step(draw, state, plain(tree_of(action_space, action)))
            flags = [x.astype(bool) for x in ended if x is not None]
            return [*packing.pack(state), *self._seen(o), reward, *flags]

        stem = name.replace(" ", "_")
        self._first, self._after = via(first, f"{stem}_reset"), via(after, f"{stem}_step")

    @property
    def actions(self) -> int | None:
        """The number of actions, if they are discrete."""
        return self.action_space.actions

    def reset(self, domain: Sequence[Index]) -> Any:
        """The first observation at each point of `domain`: a tensor, or a tree as the space is.

        With autoreset, episodes go on along the last dim of `domain` as written, if it has several.
        """
        self._box, self._last = dims_of(domain), None
        self._along = str(unwrap(domain[-1])) if len(domain) > 1 else None
        start = [x.detach() for x in self._first(uniform(self._box, (self.draws,)))]
        self._begin = self._going_on(start, self._box) if self.carried else start
        return self._tree_of_seen(self._begin)

    def step(self, action: object) -> Stepped:
        """The next observation, the reward and `done` of taking action `a`; no gradient passes."""
        if self._box is None:
            raise RecurraError(
                f"{self.name} is stepped before its reset",
                hint="write o[b, i, 0] = env.reset(domain=(b, i)) first",
                loc=here(),
            )
        actions = tensors_of(self.action_space, action)
        domain, t = stepped_domain(self._box, actions)
        n = self._held
        now = [
            recurrence("state", domain, x.type, t, x)
            for x in self._begin[: n if self.carried else None]
        ]
        taken = [x.detach() for x in self._taken(actions)]
        made = [x.detach() for x in self._after(uniform(domain, (self.draws,)), *now[:n], *taken)]
        k = len(self._begin)
        moved, (reward, *ended) = made[:k], made[k:]
        if self.carried:
            self._last = self._into_the_next(domain, now, moved, reward, ended, t)
        else:
            self._last = self._to_the_end(domain, now, moved, reward, ended, t)
        plain_exchange(self.name, t, self, actions, self._begin[n:], self._last).note(current())
        return self._last.stepped

    def _to_the_end(
        self,
        domain: Domain,
        now: Tensors,
        moved: Tensors,
        reward: RecurrentTensor,
        ended: Tensors,
        text: str,
    ) -> Transition:
        """Absorbing: all stays as it is where the episode is over."""
        flag = [as_tensor(False) for _ in ended]
        over = [recurrence("over", domain, Type("bool"), text, x) for x in flag]
        live = ~(over[0] | over[-1])
        for x, new in zip(now, moved, strict=True):
            follow(x, text, where(live, new, x))
        after = [where(live, new, x) for x, new in zip(over, ended, strict=True)]
        for x, new in zip(over, after, strict=True):
            follow(x, text, new)
        o = self._tree_of_seen([where(live, new, x) for x, new in zip(now, moved, strict=True)])
        reward = where(live, reward, reward * 0)
        term, trunc = self._told(after, domain)
        return Transition(o, reward, after[0] | after[-1], term, trunc, live, o)

    def _into_the_next(
        self,
        domain: Domain,
        now: Tensors,
        moved: Tensors,
        reward: RecurrentTensor,
        ended: Tensors,
        text: str,
    ) -> Transition:
        """Autoreset: where the episode is over the next one begins."""
        done = ended[0] | ended[-1]
        fresh = [x.detach() for x in self._first(uniform(domain, (self.draws,)))]
        after = [where(done, x, y) for x, y in zip(fresh, moved, strict=True)]
        for x, new in zip(now, after, strict=False):
            follow(x, text, new)
        for x, new in zip(self._begin, after, strict=True):
            self._carry(x, new, text)
        next_o, final_o = self._tree_of_seen(after), self._tree_of_seen(moved)
        term, trunc = self._told(ended, domain)
        live = always(True, domain)
        return Transition(next_o, reward, done, term, trunc, live, final_o)

    def _going_on(self, start: Tensors, box: Domain) -> Tensors:
        """The state at the begin of an iteration: only the first one starts an episode."""
        out = [declared("begin", box, x.type) for x in start]
        for x, new in zip(out, start, strict=True):
            begins = [compare("==", r.sym, r.lo) for r in box if r.dim == self._along]
            x[Index(both(*begins))] = new
        return out

    def _carry(self, first: RecurrentTensor, after: RecurrentTensor, text: str) -> None:
        """first[b, i] = after[b, i-1, T-1]: along the last dim that the reset was written over."""
        for r in first.domain:
            if r.dim == self._along:
                ends = {text: after.domain[text].hi - 1, r.dim: r.sym - 1}
                index = tuple(ends.get(q.dim, q.sym) for q in after.domain)
                first[Index(compare(">", r.sym, r.lo))] = after[index]

    def _told(self, ended: Tensors, domain: Domain) -> Tensors:
        """Terminated and truncated; what does not tell them apart only terminates."""
        return [ended[0], ended[1] if len(ended) > 1 else always(False, domain)]

    def _tree_of_seen(self, made: Tensors) -> object:
        return tree_of(self.observation_space, made[self._held :])

    def _seen(self, other: object) -> list[object]:
        """The arrays of an observation."""
        return arrays_of(self.observation_space, other)

    def _taken(self, actions: Tensors) -> Tensors:
        out: Tensors = []
        for x, (_, s) in zip(actions, leaves(self.action_space), strict=True):
            if x.shape != s.type.shape:
                raise ShapeError(
                    f"{self.name} takes actions {s.type}", facts=f"this one is {x!r}", loc=here()
                )
            out.append(x.cast(s.type.dtype))
        return out


def always(value: bool, domain: Domain) -> RecurrentTensor:
    """The same at every point of a domain."""
    x = declared("always", domain, Type("bool"))
    x[tuple(Index(r.sym) for r in domain)] = value
    return x


def space_of(shown: Any) -> AnySpace:
    """The space of an observation, from its types."""
    if isinstance(shown, Type):
        return Space(shown)
    if isinstance(shown, Mapping):
        return CompositeSpace({str(k): space_of(x) for k, x in shown.items()})
    if type(shown) in (tuple, list):
        return CompositeSpace(tuple(map(space_of, shown)))
    raise RecurraError(
        "an observation is an array, or a dict or tuple of observations",
        facts=f"this one is of type {type(shown).__name__}",
        loc=here(),
    )


def arrays_of(space: AnySpace, other: Any) -> list[object]:
    """The arrays of an observation, in the order of `leaves`."""
    if isinstance(space, Space):
        return [other]
    keys = range(len(space.parts)) if isinstance(space.parts, tuple) else space.parts
    parts: Any = space.parts
    return [x for k in keys for x in arrays_of(parts[k], other[k])]


def plain(tree: object) -> object:
    """A tree as dicts and tuples."""
    parts = getattr(tree, "parts", None)
    if isinstance(parts, tuple):
        return tuple(map(plain, parts))
    return {k: plain(x) for k, x in parts.items()} if isinstance(parts, Mapping) else tree
