"""Transitions, the results of a step, and helpers for recurrences: o[b, i, t+1] = o'[b, i, t]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from recurra.analysis.argument_checks import check_arguments, names_unpacked
from recurra.analysis.graph_builder import current
from recurra.errors import RecurraError, caller
from recurra.frontend.dims import Index
from recurra.frontend.foreign_names import no_attribute
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.graph import Ref
from recurra.ir.types import NUMPY_NAME, Domain, Type
from recurra.rl.acting import EnvInteraction, SpacePartJson, SpacesJson
from recurra.rl.space import AnySpace, leaves, tensors_of

Stepped = tuple[Any, RecurrentTensor, RecurrentTensor]


_OTHER_NAMES = {
    **dict.fromkeys(("obs_space", "observation", "state_space"), "env.observation_space"),
    **dict.fromkeys(("act_space", "actions_space"), "env.action_space"),
}
_STEP = "o[b, i, t + 1], r, d = env.step(a)"


class StepResult(tuple[Any, RecurrentTensor, RecurrentTensor]):
    """The three parts of a step's result; unpacking them to another number of names is refused."""

    def __iter__(self) -> Iterator[Any]:
        count = names_unpacked(caller())
        if count not in (None, len(self)):
            raise RecurraError.at_user_line(
                f"env.step gives three parts, and {count} names are there for them",
                facts="they are the next observation, the reward and `done`, the end by a terminal "
                "state or by a limit of time",
                hint=f"write {_STEP}; which of the ends it was is told by "
                "env.last.term and env.last.trunc",
            )
        return super().__iter__()


@dataclass(frozen=True)
class Transition:
    """Everything about the step (b, i, t): the results of `step`, and how the episode ended.

    `live`: the episode had not ended before the step, so the transition is real.
    `done` = `term` (a terminal state) or `trunc` (cut off: bootstrap from the value of `final_o`).
    The next action is chosen from `next_o`; `final_o` is the observation after this one. They
    differ only with autoreset, where an episode ends.
    """

    next_o: object
    reward: RecurrentTensor
    done: RecurrentTensor
    term: RecurrentTensor
    trunc: RecurrentTensor
    live: RecurrentTensor
    final_o: object

    @property
    def stepped(self) -> Stepped:
        """The result of `step`."""
        return StepResult((self.next_o, self.reward, self.done))


class Env(Protocol):
    """The interface of both kinds of environment."""

    @property
    def observation_space(self) -> AnySpace:
        """The space of observations."""
        ...

    @property
    def action_space(self) -> AnySpace:
        """The space of actions."""
        ...

    @property
    def last(self) -> Transition:
        """The transition that `step` wrote."""
        ...

    @property
    def actions(self) -> int | None:
        """The number of actions, if they are discrete."""
        ...

    def reset(self, domain: Sequence[Index]) -> Any:
        """The first observation at each point: a tensor, or a tree as the space is."""
        ...

    def step(self, action: Any) -> Stepped:
        """The next observation, the reward and `done` of taking an action; no gradient passes."""
        ...


class HasLast:
    """A base of environments that keep the transition that `step` wrote."""

    _last: Transition | None = None

    def __init_subclass__(cls) -> None:
        own = dict(vars(cls))
        examples = {"reset": "o[b, i, 0] = env.reset(domain=(b, i))", "step": _STEP}
        for word in examples.keys() & own.keys():
            setattr(cls, word, check_arguments(own[word], f"env.{word}", f"write {examples[word]}"))

    @property
    def last(self) -> Transition:
        """The transition that `step` wrote."""
        if self._last is None:
            raise RecurraError.at_user_line(
                "env.last is read before env.step is written",
                facts="it is the transition that the step writes, with its reward and its end",
                hint="write o[b, i, t + 1], r, d = env.step(a) first; what the action needs of the "
                "last step may be written after it, as h[b, i, t + 1] = ..",
            )
        return self._last

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("the environment", self, name, _OTHER_NAMES)


def plain_exchange(
    name: str,
    time: str,
    env: Env,
    actions: Sequence[RecurrentTensor],
    resets: Sequence[RecurrentTensor],
    last: Transition,
) -> EnvInteraction:
    """The exchange with an environment whose arrays have the program's types."""

    def parts(space: AnySpace) -> list[SpacePartJson]:
        return [
            {"path": path, "dtype": NUMPY_NAME[s.type.dtype], "start": 0, "classes": None}
            for path, s in leaves(space)
        ]

    spaces = SpacesJson(seen=parts(env.observation_space), taken=parts(env.action_space))
    ended, others = [last.done, last.term], [last.reward, last.trunc, last.live]
    steps = tensors_of(env.observation_space, last.next_o)
    return EnvInteraction(name, time, actions, resets, steps, ended, others, spaces)


def require_known(episodes: str) -> None:
    if episodes not in ("absorbing", "autoreset"):
        hint = "use episodes='absorbing' or episodes='autoreset'"
        raise RecurraError.at_user_line(f"episodes={episodes!r} is not known", hint=hint)


def stepped_domain(start: Domain, action: Sequence[RecurrentTensor]) -> tuple[Domain, str]:
    """The domain of a step by an action after a reset over `start`, and the dim it steps along."""
    builder = current()
    ranges = {r.dim: r for x in action for r in x.domain}
    new = [d for d in ranges if d not in start]
    if len(new) != 1:
        raise RecurraError.at_user_line(
            f"the action varies with {', '.join(builder.domain(set(ranges)).dims) or 'no dim'}",
            facts=f"episodes start over {start or '[]'}, and one more dim counts their steps",
            hint="choose the action from the observation o[b, i, t]",
        )
    ranges = {r.dim: r for r in start} | ranges
    return builder.domain(set(ranges), ranges), new[0]


def declared(name: str, domain: Domain, type_: Type) -> RecurrentTensor:
    """A tensor over `domain` that is defined later."""
    node = current().declare(name, domain, type_)
    return RecurrentTensor(current(), Ref(node.name, node.domain.identity))


def recurrence(
    name: str, domain: Domain, type_: Type, time: str, first: RecurrentTensor
) -> RecurrentTensor:
    """A tensor that is `first` at the first point of `time`; `define_next` defines the rest."""
    x = declared(name, domain, type_)
    x[tuple(r.lo if r.dim == time else r.sym for r in domain)] = first
    return x


def define_next(tensor: RecurrentTensor, time: str, new: RecurrentTensor) -> None:
    """Define x[.., t+1] = new[.., t]."""
    tensor[tuple(r.sym + 1 if r.dim == time else r.sym for r in tensor.domain)] = new
