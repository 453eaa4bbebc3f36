"""rematerialize: what a phase needs of an earlier one is stored, or computed again, as is cheaper.

    h = tanh(x)          (acting, at t)              h = tanh(x)
    d = mul(g, h)        (learning, later)     →     k = tanh(x);  d = mul(g, k)

A phase is a loop, or one shift of a loop. For each later phase the cheapest set of stored equations
is a minimum cut between what must be stored (states, samples) and what is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recurra.cost.model import compute_ns, keep_ns
from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import MEMORY_PRICE
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.min_cut import ONE, OTHER, Network
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold, Reduction
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.plan import free_dims


@dataclass(frozen=True)
class RecomputeChoice:
    """The values that one phase stores of the others, and those that it computes again."""

    phase: Phase
    stored: tuple[str, ...]
    again: tuple[str, ...]

    def __str__(self) -> str:
        stored, again = (", ".join(x) or "nothing" for x in (self.stored, self.again))
        return f"stored {stored}; again {again}"


def keep(
    graph: Graph,
    sizes: Mapping[str, int],
    phases: Mapping[str, Phase],
    held: float = MEMORY_PRICE,
    prices: Prices = PRICES,
) -> tuple[Graph, tuple[RecomputeChoice, ...]]:
    """The graph with copies for later phases. `phases`: of each equation that runs in a loop.

    `held` is what a byte that is held costs, times its traffic: 0 keeps everything.
    """
    choices: list[RecomputeChoice] = []
    everywhere = _read_everywhere(graph, phases)
    for phase in dict.fromkeys(phases.values()):
        work = _Phase(graph, sizes, phases, phase, everywhere, held, prices)
        again = work.cut()
        if again and not fuel().burn("stored → computed again", ", ".join(again)):
            again = []
        if again:
            graph, copies = work.copy(again)
            phases = {**phases, **dict.fromkeys(copies, phase)}
        if work.needed:
            stored = work.boundary(again)
            everywhere |= set(stored)
            choices.append(RecomputeChoice(phase, tuple(stored), tuple(again)))
    return graph.live(), tuple(choices)


def _read_everywhere(graph: Graph, phases: Mapping[str, Phase]) -> set[str]:
    """Equations that are stored whatever we do: somebody reads them at another point of a loop."""
    out = set(graph.outputs)
    for n in graph.nodes.values():
        for a in n.args:
            streams = isinstance(n.op, (Merge, Fold, Reduction))
            if a.name in phases and not streams and not graph.is_identity(a):
                out.add(a.name)
    return out


@dataclass
class _Phase:
    """One phase that reads others."""

    graph: Graph
    sizes: Mapping[str, int]
    phases: Mapping[str, Phase]
    phase: Phase
    free: set[str]
    held: float
    prices: Prices
    needed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for n in self.graph.nodes.values():
            if self.phases.get(n.name) == self.phase:
                self.needed |= {a.name for a in self.sources(n)}

    def sources(self, node: Node) -> list[Ref]:
        """The reads of other phases over the same dims: at its own point, or of a state."""
        out: list[Ref] = []
        for a in node.args:
            other = self.phases.get(a.name)
            same = self.graph[a.name].domain == node.domain and self.standing(a)
            if other is not None and other != self.phase and same:
                out.append(a)
        return out

    def again(self, node: Node) -> bool:
        """May this equation be computed in another phase?"""
        kept = isinstance(node.op, (Merge, Fold)) or node.op.name in ("item", "input", "allreduce")
        if not node.op.pure or kept:
            return False
        return all(a.name not in self.phases or self.reachable(a, node) for a in node.args)

    def standing(self, ref: Ref) -> bool:
        """A read of this point; or of any point of a state, which is never computed again."""
        state = isinstance(self.graph[ref.name].op, Merge)
        return self.graph.is_identity(ref) or (state and ref.name in self.free)

    def reachable(self, ref: Ref, node: Node) -> bool:
        """Is the operand there in a later phase too: of this point, or from a loop further out?"""
        if not self.standing(ref):
            return False
        around, here = self.phases[ref.name][:-1], self.phases[node.name][:-1]
        return self.graph[ref.name].domain == node.domain or (
            len(around) < len(here) and here[: len(around)] == around
        )

    def closure(self) -> list[str]:
        """Everything that computing again could reach."""
        seen: dict[str, None] = {}
        todo = self.graph.in_order(self.needed)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen[name] = None
            n = self.graph[name]
            if self.again(n):
                todo += [a.name for a in self.sources(n)]
        return list(seen)

    def cut(self) -> list[str]:
        """The equations to compute again: the source side of a minimum cut."""
        names = self.closure()
        if not names:
            return []
        network = Network(unit=16)  # sixteenths of a nanosecond
        for name in names:  # (name,): computed again
            n = self.graph[name]
            if name in self.needed:
                network.edge(ONE, name)
            stored = 0.0 if name in self.free else keep_ns(n, self.sizes, self.held, self.prices)
            network.edge(name, (name,), stored)
            if not self.again(n):
                network.edge((name,), OTHER)
                continue
            network.edge((name,), OTHER, compute_ns(self.graph, n, self.sizes, self.prices))
            for a in self.sources(n):
                network.edge((name,), a.name)
        side, _ = network.one_side()
        return [n for n in names if (n,) in side and self.again(self.graph[n])]

    def boundary(self, again: list[str]) -> list[str]:
        chosen = set(again)
        wants = self.needed | {a.name for n in again for a in self.sources(self.graph[n])}
        return self.graph.in_order(wants - chosen)

    def copy(self, again: list[str]) -> tuple[Graph, list[str]]:
        """The graph with copies of `again` that only this phase reads."""
        names: dict[str, str] = {}
        for n in again:
            names[n] = self.graph.fresh(f"{n}_again", names.values())

        def redirect(ref: Ref) -> Ref:
            return (
                Ref(names[ref.name], ref.index)
                if ref.name in names and self.graph.is_identity(ref)
                else ref
            )

        nodes = dict(self.graph.nodes)
        for n in list(nodes.values()):
            if self.phases.get(n.name) == self.phase:
                nodes[n.name] = replace(n, args=tuple(map(redirect, n.args)))
        for old, new in names.items():
            n = self.graph[old]
            nodes[new] = replace(n, name=new, args=tuple(map(redirect, n.args)))
        return Graph(nodes, self.graph.outputs, self.graph.dims), list(names.values())


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether anything runs in a loop."""
    axes = set(free_dims(graph, cx).all)
    return any(not axes.issuperset(n.domain.dims) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Decide what later loops read of earlier ones from memory, and what they compute again."""
    phases = cx.phases(graph, free_dims(graph, cx).all)
    held = MEMORY_PRICE if cx.tuning.held is None else cx.tuning.held
    new, choices = keep(graph, cx.sizes, phases, held, cx.target.prices)
    cx.remark(*choices)
    return new


REMATERIALIZE = Pass("rematerialize", run, applies)
