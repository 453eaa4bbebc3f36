"""Cut acting out of a program: a graph from an observation to an action.

    o[b<B,i<I,t<T] = merge(reset_0, step_0[b,i,t-1], ..)   →   o[b<B] = input()
    W1[i<I] = merge(mul_4, W1_next[i-1], ..)                   W1 = input()
    h[b<B,i<I,t<T] = merge(h0, h_next[b,i,t-1], ..)            h_next_1[b<B] = input()
                                                               h[b<B] = where(first, h0, h_next_1)
    pi[b<B,i<I,t<T] = add(..)                                  pi[b<B] = add(..)
    a[b<B,i<I,t<T] = .. drawn of a distribution by pi          a[b<B] = input()

The graph is one step of rows b, without iteration and time. A value of an earlier step is an input,
whose next value is an output. A value that varies with neither rows nor time, such as a parameter,
is an input that keeps its value. A draw from a distribution is an input, too: the caller draws it,
or takes the most likely value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from numpy.typing import ArrayLike

from recurra.analysis.graph_builder import GraphBuilder
from recurra.errors import RecurraError
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.dims import Dim
from recurra.ir.effects import Export, ProgramPart
from recurra.ir.expr import Expr, Sym, compare, evaluate, lin, maximum, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import LETTERS, Op
from recurra.ir.types import AnyType, Domain, Range, Type
from recurra.ir.user_objects import ArrayResource
from recurra.ops.control import Merge
from recurra.ops.elementwise import Where
from recurra.ops.random import Uniform
from recurra.ops.source import Input
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import lag
from recurra.report.runs import POLICY

FORMAT = "recurra-policy-1"
ROW = Domain((Range("row", Sym("rows")),))
FIRST = "episode begins"  # the name of the input that is true where one does


class SpacePartJson(TypedDict):
    """An array of a space, as JSON: its key path, and its form in the environment."""

    path: Sequence[str | int]
    dtype: str
    start: ArrayLike
    classes: int | None


class SpacesJson(TypedDict):
    """The spaces of an environment, as JSON."""

    seen: Sequence[SpacePartJson]
    taken: Sequence[SpacePartJson]


class DrawJson(TypedDict):
    """A draw from a distribution, as JSON."""

    kind: str
    params: list[str]


class PolicyJson(TypedDict):
    """A saved policy, without its arrays, as JSON."""

    env: str
    spaces: SpacesJson
    graph: str
    seen: Mapping[str, int]
    actions: list[str]
    state: Mapping[str, str]
    draws: Mapping[str, DrawJson]
    constants: list[str]


@dataclass(frozen=True)
class EnvInteraction:
    """The tensors that a program and its environment exchange in a step."""

    env: str
    time: str
    actions: Sequence[RecurrentTensor]
    resets: Sequence[RecurrentTensor]  # observations after a reset
    steps: Sequence[RecurrentTensor]  # observations after a step
    ended: Sequence[RecurrentTensor]  # true where an episode is over after a step
    others: Sequence[RecurrentTensor]  # other results of a step
    spaces: SpacesJson

    def note(self, builder: GraphBuilder) -> None:
        """Let runs of the program save the policy; of several environments, the first one's."""
        if not builder.exports:
            builder.exports.append(Export(POLICY, FORMAT, partial(self.cut, builder)))

    def cut(self, builder: GraphBuilder, sizes: Mapping[str, int]) -> ProgramPart:
        """Cut acting out of the program; raises RecurraError if it does not fit in a step."""
        own = (*self.actions, *self.resets, *self.steps, *self.ended, *self.others)
        drawn = (x for d in builder.drawn for x in (d.sample, *d.params))
        names = dict.fromkeys(x.name for x in (*own, *drawn))
        return ActingCut(self, builder, builder.graph([*names]), sizes).part()


class ActingCut:
    """The construction of the graph; equations are built as they are now, or `ago` steps ago."""

    def __init__(
        self,
        exchange: EnvInteraction,
        builder: GraphBuilder,
        graph: Graph,
        sizes: Mapping[str, int],
    ) -> None:
        self.exchange, self.graph, self.sizes = exchange, graph, sizes
        self.clocks = builder.clocks
        self.drawn = {d.sample.name: d for d in builder.drawn}
        self.steps = {x.name: k for k, x in enumerate(exchange.steps)}
        self.observed = {**{x.name: k for k, x in enumerate(exchange.resets)}, **self.steps}
        self.ended = {x.name for x in exchange.ended}
        self.others = {x.name for x in exchange.others}
        self.nodes: dict[str, Node] = {}
        self.built: dict[tuple[str, int], str] = {}
        self.step_results: dict[str, bool] = {}
        self.inputs: dict[str, int] = {}  # inputs that are observations
        self.values: list[str] = []  # inputs that keep their value
        self.earlier: dict[str, tuple[str, int]] = {}  # inputs, and their values in the next step
        self.draws: dict[str, DrawJson] = {}

    def part(self) -> ProgramPart:
        actions = [self.build(x.name, 0) for x in self.exchange.actions]
        state: dict[str, str] = {}
        while left := [x for x in self.earlier if x not in state]:
            for x in left:
                state[x] = self.build(*self.earlier[x])
        params = (p for d in self.draws.values() for p in d["params"])
        outputs = tuple(dict.fromkeys([*actions, *state.values(), *params]))
        graph = Graph(self.nodes, outputs, (Dim(ROW.ranges[0]),))
        constants = graph.resources()
        functions = [x.key for x in constants if not isinstance(x, ArrayResource)]
        if functions:
            raise self.refusal(f"it calls {functions[0]}, which is Python of the program's")
        data: PolicyJson = {
            "env": self.exchange.env,
            "spaces": self.exchange.spaces,
            "graph": str(graph),
            "seen": self.inputs,
            "actions": actions,
            "state": state,
            "draws": self.draws,
            "constants": [x.key for x in constants],
        }
        return ProgramPart(self.values, {x.key: x.get() for x in constants}, data)

    def refusal(self, why: str, node: Node | None = None) -> RecurraError:
        return RecurraError(
            f"the policy that acts in {self.exchange.env} is not saved",
            facts=why,
            hint="let it read observations, parameters and its own past, step by step",
            loc=None if node is None else node.loc,
        )

    # ---- equations

    def build(self, name: str, ago: int) -> str:
        """The name in the new graph of a program's equation, some steps ago."""
        key = (name, ago)
        if key not in self.built:
            self.built[key] = self.build_node(self.graph[name], ago)
        return self.built[key]

    def build_node(self, node: Node, ago: int) -> str:
        observation = self.observation(node)
        if not self.is_acting(node):
            return self.constant(node)
        if observation is not None and (not ago or (node.name in self.steps and ago == 1)):
            return self.observe(node, observation)
        if node.name in self.ended and ago == 1:
            return self.input(FIRST, Type("bool"))
        if node.name in self.steps | dict.fromkeys((*self.ended, *self.others), 0) and ago <= 1:
            raise self.refusal(
                f"it reads {node.name}, which the environment gives after the step", node
            )
        if ago and not (ago == 1 and self.is_step_result(node)):
            return self.past_input(node, ago)
        if node.name in self.drawn:
            return self.draw(node)
        if isinstance(node.op, Uniform):
            self.draws[node.name] = {"kind": "uniform", "params": []}
            return self.input(node.name, node.type)
        return self.merge(node, ago) if isinstance(node.op, Merge) else self.copy(node, ago)

    def is_acting(self, node: Node) -> bool:
        """Tell whether an equation varies within an episode."""
        return self.exchange.time in node.domain or self.observation(node) is not None

    def is_step_result(self, node: Node) -> bool:
        """Tell whether an equation depends on the results of the same step."""
        if node.name not in self.step_results:
            is_result = node.name in {*self.steps, *self.ended, *self.others}
            self.step_results[node.name] = is_result
            if not is_result and self.is_acting(node) and self.observation(node) is None:
                reads = [self.arm(node, 1)] if isinstance(node.op, Merge) else node.args
                now = [a.name for a in reads if self.steps_back(node, a)[0] == 0]
                self.step_results[node.name] = any(self.is_step_result(self.graph[x]) for x in now)
        return self.step_results[node.name]

    def observation(self, node: Node) -> int | None:
        """The index of the observation's array, if a node is one."""
        names = [node.name, *(a.name for a in node.args if isinstance(node.op, Merge))]
        return next((self.observed[x] for x in names if x in self.observed), None)

    def observe(self, node: Node, index: int) -> str:
        name = next((x for x, j in self.inputs.items() if j == index), None)
        if name is None:
            name = self.input(node.name, node.type)
            self.inputs[name] = index
        return name

    def constant(self, node: Node) -> str:
        """A value that is the same in all steps: computed from constants, or saved by the run."""
        if not isinstance(node.op, (Merge, Uniform, Input)):
            return self.copy(node, 0)
        others = set(node.domain.dims) - set(self.clocks.get(node.name, node.domain.dims[-1:]))
        if others:
            raise self.refusal(f"{node.name} is another at every {', '.join(sorted(others))}", node)
        self.values.append(node.name)
        return self.input(node.name, node.type, Domain(()))

    def input(self, name: str, type_: AnyType, domain: Domain = ROW) -> str:
        if name not in self.nodes:
            assert isinstance(type_, Type)
            op = Input(dtype=type_.dtype, shape=type_.shape)
            self.nodes[name] = Node(name, op, (), domain, type_)
        return name

    def past_input(self, node: Node, ago: int) -> str:
        """An input with the value of an earlier step."""
        name = self.graph.fresh(f"{node.name}_{ago}", self.nodes)
        self.earlier[name] = (node.name, ago - 1)
        return self.input(name, node.type)

    def draw(self, node: Node) -> str:
        d = self.drawn[node.name]
        params = [self.build(x.name, 0) for x in d.params]
        self.draws[node.name] = {"kind": d.kind, "params": params}
        return self.input(node.name, node.type)

    def merge(self, node: Node, ago: int) -> str:
        """Select a branch: one in the first step of an episode, the other in later ones."""
        begin, later = (self.arm(node, t) for t in (0, 1))
        after = self.read(node, later, ago)
        if begin == later:
            return after
        return self.choose(node.name, self.read(node, begin, ago, begins=True), after, ago)

    def choose(self, name: str, left: str, right: str, ago: int) -> str:
        type_ = self.nodes[right].type
        letters = LETTERS[: type_.rank]  # pyright: ignore[reportAttributeAccessIssue]
        labels = f",{letters},{letters}->{letters}" if letters else ""
        first = self.began(ago) if ago else self.input(FIRST, Type("bool"))
        return self.add(name, Where(labels=labels), (first, left, right), type_)

    def began(self, ago: int) -> str:
        """An input that is true where the episode began so many steps ago."""
        name = f"{FIRST}_{ago}"
        before = FIRST if ago == 1 else self.began(ago - 1)
        self.input(name, Type("bool"))
        self.input(FIRST, Type("bool"))
        self.built[FIRST, ago - 1] = before
        self.earlier[name] = (FIRST, ago - 1)
        return name

    def arm(self, node: Node, step: int) -> Ref:
        """The branch that holds at a time step; at step 0, in the first iteration."""
        assert isinstance(node.op, Merge)
        at = {r.dim: step if r.dim == self.exchange.time else min(step, 1) for r in node.domain}
        far = dict.fromkeys(symbols_of(node.op.when) - at.keys(), 1 << 20)
        return node.args[node.op.arm({**far, **self.sizes, **at})]

    def read(self, node: Node, ref: Ref, ago: int, begins: bool = False) -> str:
        """The operand of an equation, now or some steps earlier."""
        back, stays = self.steps_back(node, ref)
        source = self.graph[ref.name]
        if back is None:
            return self.build(ref.name, 0)
        if begins:  # the first step has no past
            back = 0
        if source.name in self.observed and source.name not in self.steps:
            return self.observe(source, self.observed[source.name])
        past = self.build(ref.name, ago + back)
        if not stays or not back:
            return past
        for k in range(1, back + 1):  # x[max(t - k, 0)]: not before the first step
            newer = self.build(ref.name, ago + back - k)
            past = self.choose(f"{ref.name}_from_{back - k}", newer, past, ago + back - k)
        return past

    def steps_back(self, node: Node, ref: Ref) -> tuple[int | None, bool]:
        """The number of steps back of a read (None: it has no time), and whether it stops at the
        first step."""
        source = self.graph[ref.name]
        if any(isinstance(e, Slice) for e in ref.index) and self.is_acting(source):
            raise self.refusal(f"it reads {ref}, many points at once", node)
        if self.exchange.time not in source.domain:
            return (0, False) if self.is_acting(source) else (None, False)
        if self.exchange.time not in node.domain:
            raise self.refusal(f"it reads {ref}", node)
        t = node.domain[self.exchange.time]
        index = ref.index[source.domain.dims.index(self.exchange.time)]
        assert not isinstance(index, Slice)
        index = substitute(index, {k: v for k, v in self.sizes.items() if k not in symbols(t.hi)})
        ago = lag(t.dim, index, node.domain)  # for any number of steps
        back, stays = ago.high, ago.exact is None
        if back is None or back < 0:
            raise self.refusal(f"it reads {ref}", node)
        first = maximum(lin([(t.sym, 1), (-back, 1)]), 0)
        if stays and not isl.always(compare("==", index, first), node.domain):
            raise self.refusal(f"it reads {ref}", node)
        return back, stays

    def copy(self, node: Node, ago: int) -> str:
        """The same equation, on operands of one step."""
        last = {
            r.dim: int(evaluate(r.hi, self.sizes)) - 1
            for r in node.domain
            if r.dim != self.exchange.time and not symbols(r.hi) - self.sizes.keys()
        }
        op = node.op.at({k: last[k] for k in node.op.mentions() & last.keys()})
        op = op.at({k: v for k, v in self.sizes.items() if k in op.mentions()})
        if op.mentions() & set(node.domain.dims) or not op.pure:
            raise self.refusal(f"it needs {node.name}, which varies with the time", node)
        args = tuple(self.read(node, a, ago) for a in node.args)
        return self.add(node.name, op, args, node.type)

    def add(self, name: str, op: Op, args: Sequence[str], type_: AnyType) -> str:
        """Add an equation, over rows if one of its operands is."""
        over = any(len(self.nodes[x].domain) for x in args)
        name = self.graph.fresh(name, self.nodes) if name in self.nodes else name
        refs = tuple(Ref(x, self.nodes[x].domain.identity) for x in args)
        type_ = type_.at(self.sizes)
        self.nodes[name] = Node(name, op, refs, ROW if over else Domain(()), type_)
        return name


def symbols_of(conditions: Sequence[Expr]) -> set[str]:
    return set().union(*map(symbols, conditions))
