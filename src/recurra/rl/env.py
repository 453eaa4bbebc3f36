"""Environments: `env.reset(domain=(b, i))` starts an episode per point, `env.step(a)` goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recurra.errors import RecurraError, here
from recurra.ir.graph import Ref
from recurra.ir.types import Domain, Type
from recurra.lang.dims import Index
from recurra.lang.functions import dims_of, uniform, where
from recurra.lang.tensor import RecurrentTensor, as_tensor
from recurra.lang.tracer import current
from recurra.session import jax_fn


@dataclass(frozen=True)
class Space:
    """What an environment shows or takes."""

    type: Type
    actions: int | None = None


class TraceableEnv:
    """An environment written in jax.numpy, for one instance: it becomes part of the compiled program.

    reset(u) -> state, from `draws` uniform numbers;  step(state, a) -> (state, done).
    `episodes="absorbing"`: after done the state freezes and the reward is 0, until the next iteration.
    """

    def __init__(
        self,
        reset: Callable[..., Any],
        step: Callable[..., Any],
        observation: Type,
        actions: int,
        reward: float = 1.0,
        draws: int | None = None,
        episodes: str = "absorbing",
    ):
        if episodes != "absorbing":
            raise RecurraError(
                f"episodes={episodes!r} is not known", hint='use episodes="absorbing"', loc=here()
            )
        self.observation_space, self.action_space = Space(observation), Space(Type("i32"), actions)
        self.actions, self.reward = actions, reward
        (width,) = observation.shape
        self.draws = draws if draws is not None else width
        self._reset, self._step = jax_fn(reset), jax_fn(step)
        self._state: RecurrentTensor | None = None

    def reset(self, domain: Sequence[Index]) -> RecurrentTensor:
        """The first observation of each episode: f32[obs] over `domain`."""
        assert isinstance(self.draws, int)
        self._domain = dims_of(domain)
        self._start = self._reset(uniform(domain, (self.draws,)))
        self._state = None
        return self._start

    def step(self, a: RecurrentTensor) -> tuple[RecurrentTensor, RecurrentTensor, RecurrentTensor]:
        """The next observation, the reward and `done` of taking action `a`; no gradient passes."""
        state, alive, t = self._recurrences(a)
        moved, done = self._step(state.detach(), a)
        going = where(done, 0.0, alive)
        after = where(going > 0.0, moved, state).detach()
        _follow(state, t, after)
        _follow(alive, t, going)
        return after, (alive * self.reward).detach(), done

    def _recurrences(self, a: RecurrentTensor) -> tuple[RecurrentTensor, RecurrentTensor, str]:
        tracer = current()
        (t,) = [d for d in a.domain.dims if d not in self._domain]
        domain = a.domain
        state = _declare("state", domain, self.observation_space.type)
        alive = _declare("alive", domain, Type(self.observation_space.type.dtype))
        first = tuple(Index(r.sym) if r.dim != t else 0 for r in domain)
        state[first] = self._start
        alive[first] = as_tensor(1.0, alive.dtype)
        del tracer
        return state, alive, t


def _declare(name: str, domain: Domain, type_: Type) -> RecurrentTensor:
    tracer = current()
    node = tracer.declare(name, domain, type_)
    return RecurrentTensor(tracer, Ref(node.name, node.domain.identity))


def _follow(x: RecurrentTensor, t: str, new: RecurrentTensor) -> None:
    x[tuple(Index(r.sym) + 1 if r.dim == t else Index(r.sym) for r in x.domain)] = new


def traceable(reset: Callable[..., Any], step: Callable[..., Any], **options: Any) -> TraceableEnv:
    """See TraceableEnv."""
    return TraceableEnv(reset, step, **options)
