"""Environments outside the program: one call per reset and per step, for all rows at once.

    reset[i]: (f32[B,4], i32[]) = call(draw, rows, order, fn='CartPole-v1().reset', ...)
    step[i,t]: (f32[B,4], .., i32[]) = call(a[0:B,i,t], token, fn='CartPole-v1().step', ...)

An i32 token orders the calls, each of which reads and returns it: token[i,0] is from reset[i],
token[i,t+1] from step[i,t], and order[i] from step[i-1,T-1]. Every reset is seeded by draws keyed
by the program's seed and i. With absorbing episodes only the token goes from one i to the next;
with autoreset the environment continues, and only the first i is `fresh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recurra.analysis.graph_builder import GraphBuilder, current
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.dims import Index, wrap
from recurra.frontend.functions import call, dims_of, uniform
from recurra.frontend.host_calls import first_token, in_order, where_taken
from recurra.frontend.index_arguments import unwrap
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import Expr, all_of, compare
from recurra.ir.graph import Graph
from recurra.ir.types import Domain, Type, is_float
from recurra.ir.user_objects import HostFunction
from recurra.ops.control import Call, Item
from recurra.rl.acting import EnvInteraction, SpacesJson
from recurra.rl.episodes import Episodes, GroupedEpisodes, make_episodes
from recurra.rl.space import leaves, tensors_of, tree_of
from recurra.rl.transitions import (
    HasLast,
    Stepped,
    Transition,
    define_next,
    recurrence,
    stepped_domain,
)
from recurra.rl.vector_env import Spec

TOKEN = Type("i32")


class HostEnv(HasLast):
    """A Gymnasium environment that the host steps; see `rl.env` for episodes."""

    def __init__(self, spec: Spec):
        self.episodes = make_episodes(spec)
        self.observation_space = self.episodes.observation_space
        self.action_space = self.episodes.action_space
        self._builder: GraphBuilder | None = None  # of the program that the reset is written in

    @property
    def actions(self) -> int | None:
        """The number of actions, if they are discrete."""
        return self.action_space.actions

    def reset(self, domain: Sequence[Index], rows: Index | tuple[()] | None = None) -> Any:
        """The first observation at each point of `domain`: a tensor, or a tree as the space is.

        One call resets all points of the dim `rows`, by default the first of `domain`; calls over
        the other dims are made in order. With rows=() each call is for one point.
        """
        if self._builder is current():
            raise self._twice("reset")
        self._builder, self._last, self._loc = current(), None, here()
        self._box = dims_of(domain)
        row = str(unwrap(domain[0] if rows is None and domain else rows))
        self._rows = tuple(r for r in self._box if r.dim == row)
        self._functions = host_functions(self.episodes)
        outer = self._box.without(row)
        self._expect_order(outer, [name for d in domain if (name := str(unwrap(d))) != row])
        self._order = first_token(outer, "order")
        args = [uniform(outer, (2,)), as_tensor(wrap(self._count))]
        if self.episodes.carried:
            starts = (compare("==", r.sym, r.lo) for r in outer.ranges[-1:])
            args.append(as_tensor(Index(all_of(*starts))))
        *self._first, self._start = self._call(
            "reset", self.episodes.observed, args, self._box, self._order
        )
        return tree_of(self.observation_space, self._first)

    def _expect_order(self, outer: Domain, written: Sequence[str]) -> None:
        """Raise RecurraError if episodes cannot continue along the last dim that is written."""
        if self.episodes.carried and outer.dims[-1:] != tuple(written[-1:]):
            raise RecurraError.at_user_line(
                f"episodes cannot go on along {written[-1]}, the last dim of "
                f"({', '.join(written)})",
                facts=f"calls are made in the order of the context, ({', '.join(outer.dims)}): "
                f"along {outer.dims[-1]} first",
                hint=f"write the context's dims in that order: rc.Context(dims="
                f'".. {" ".join(written)} ..")',
            )

    def step(self, action: Any) -> Stepped:
        """The next observation, the reward and `done` of taking an action; no gradient passes."""
        if self._builder is not current():
            raise RecurraError.at_user_line(
                f"{self.episodes.spec} is stepped before its reset",
                facts="an action is taken in the observation that reset, or the step before, gave",
                hint="write o[b, i, 0] = env.reset(domain=(b, i)) first",
            )
        if self._last is not None:
            raise self._twice("step")
        actions = tensors_of(self.action_space, action)
        domain, t = stepped_domain(self._box, actions)
        outer = domain.without(*(r.dim for r in self._rows))
        token = recurrence("token", outer, TOKEN, t, self._start)
        inputs = [
            self._action(x, s.type)
            for x, (_, s) in zip(actions, leaves(self.action_space), strict=True)
        ]
        *results, after = self._call("step", self.episodes.stepped, inputs, domain, token)
        define_next(token, t, after)
        in_order(self._order, after, outer.without(t))
        current().finishing[where_taken] = None
        self._last = self._transition(results)
        self._exchange(t, actions, results).note(current())
        if self.episodes.has_unreal_steps and self.episodes.carried:
            current().checks.append(self._live_is_read)
        return self._last.stepped

    def _exchange(
        self, time: str, actions: Sequence[RecurrentTensor], results: Sequence[RecurrentTensor]
    ) -> EnvInteraction:
        n = len(self.episodes.observed)
        reward, done, term, trunc, live = results[-5:]
        spaces: SpacesJson = {
            "seen": [p.json for p in self.episodes.observations.parts],
            "taken": [p.json for p in self.episodes.actions.parts],
        }
        ended, others = [done, term], [*results[n:-5], reward, trunc, live]
        name = str(self.episodes.spec)
        return EnvInteraction(name, time, actions, self._first, results[:n], ended, others, spaces)

    def _transition(self, results: Sequence[RecurrentTensor]) -> Transition:
        n, space = len(self.episodes.observed), self.observation_space
        next_o = tree_of(space, results[:n])
        final_o = tree_of(space, results[n : 2 * n]) if self.episodes.carried else next_o
        return Transition(next_o, *results[-5:], final_o=final_o)

    def _live_is_read(self, graph: Graph) -> None:
        """Raise RecurraError if the program does not read which steps are real."""
        last = len(self.episodes.stepped) - 1
        for n in graph.nodes.values():
            if isinstance(n.op, Item) and n.op.k == last:
                call = graph.nodes[n.args[0].name].op
                if isinstance(call, Call) and call.fn == self._functions["step"]:
                    return
        raise RecurraError(
            f"{self.episodes.spec} has steps that are only resets, and the program uses them all",
            facts="its autoreset mode is NextStep: the step after an episode's end has no action "
            "and no reward; env.last.live is false there, and nothing reads it",
            hint="weigh what is learned by env.last.live.cast('f32'), or make it with "
            "vectorization_mode='sync'",
            loc=self._loc,
        )

    @property
    def _count(self) -> Expr | int:
        """The number of rows in a call."""
        return self._rows[0].hi - self._rows[0].lo if self._rows else 1

    def _call(
        self,
        name: str,
        types: Sequence[Type],
        xs: Sequence[RecurrentTensor],
        domain: Domain,
        token: RecurrentTensor,
    ) -> tuple[RecurrentTensor, ...]:
        """The results of `reset` or `step`, per row, and the next token."""
        fn, rows = self._functions[name], [Index(r.sym) for r in self._rows]
        if rows:
            return call(fn, types, xs, rows, domain, token=token, stem=name)
        lone = [Type(t.dtype, (1, *t.shape)) for t in types]
        *results, after = call(fn, lone, xs, (), domain, token=token, stem=name)
        return *(x.index(0) for x in results), after

    def _action(self, action: RecurrentTensor, want: Type) -> RecurrentTensor:
        """An action in the environment's type, over its rows."""
        if action.shape != want.shape or is_float(action.dtype) != is_float(want.dtype):
            raise ShapeError.at_user_line(
                f"{self.episodes.spec} takes actions {want}",
                facts=f"this one is {action!r}",
                hint=f"write .reshape({', '.join(map(str, want.shape))})"
                if action.shape != want.shape and want.shape
                else "sample it from a policy over its actions, or .cast('i32') what counts them",
            )
        action = action.cast(want.dtype)
        varies = any(r.dim in action.domain for r in self._rows)
        return action if varies else action.expand(self._count)

    def _twice(self, what: str) -> RecurraError:
        return RecurraError.at_user_line(
            f"{self.episodes.spec}: {what} is written twice in one program",
            facts="the order of its calls would be open",
            hint="make another environment for the other one",
        )


def host_functions(episodes: Episodes) -> dict[str, HostFunction]:
    """The functions `reset` and `step` as resources of the program, for all rows and for groups:
    `CartPole-v1().reset`, or `CartPole-v1() 2.reset` of a second environment."""
    builder, groups, spec = current(), GroupedEpisodes(episodes), str(episodes.spec)
    k, name = 1, spec
    while f"{name}.reset" in builder.resources:
        k += 1
        name = f"{spec} {k}"
    calls = {"reset": (episodes.reset, groups.reset), "step": (episodes.step, groups.step)}
    words = episodes.words
    functions = {
        what: HostFunction(
            f"{name}.{what}",
            function,
            HostFunction(f"{name} in groups.{what}", in_groups, results=words[what]),
            words[what],
        )
        for what, (function, in_groups) in calls.items()
    }
    builder.resources.update({fn.key: fn for fn in functions.values()})
    return functions
