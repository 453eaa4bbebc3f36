"""rematerialize: decide what a phase reads of an earlier one from memory, and what it recomputes.

    h = tanh(x)          (acting, at t)              h = tanh(x)
    d = mul(g, h)        (learning, later)     →     k = tanh(x);  d = mul(g, k)

A phase is a loop, or one shift of a loop. For each later phase the cheapest set of stored equations
is a minimum cut between what must be stored (states, samples) and what the phase reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recurra.cost.model import compute_ns, keep_ns
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.min_cut import ONE, OTHER, Network
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold, Reduction
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.plan import free_dims


def _stored_anyway(graph: Graph, phases: Mapping[str, Phase]) -> set[str]:
    """The outputs, and the equations that are read at another point of a loop."""
    out = set(graph.outputs)
    for n in graph.nodes.values():
        for a in n.args:
            streams = isinstance(n.op, (Merge, Fold, Reduction))
            if a.name in phases and not streams and not graph.is_identity(a):
                out.add(a.name)
    return out


@dataclass
class _Phase:
    """One phase, and what it reads of others; `free` are stored anyway."""

    graph: Graph
    cx: CompileContext
    phases: Mapping[str, Phase]
    phase: Phase
    free: set[str]
    needed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for n in self.graph.nodes.values():
            if self.phases.get(n.name) == self.phase:
                self.needed |= {a.name for a in self.sources(n)}

    def sources(self, node: Node) -> list[Ref]:
        """The reads of other phases over the same dims: at the own point, or of a state."""
        out: list[Ref] = []
        for a in node.args:
            other = self.phases.get(a.name)
            same = self.graph[a.name].domain == node.domain and self.is_available(a)
            if other is not None and other != self.phase and same:
                out.append(a)
        return out

    def can_recompute(self, node: Node) -> bool:
        """Tell whether an equation may run in another phase."""
        fixed = isinstance(node.op, (Merge, Fold)) or node.op.name in ("item", "input", "allreduce")
        if not node.op.pure or fixed:
            return False
        return all(a.name not in self.phases or self.is_reachable(a, node) for a in node.args)

    def is_available(self, ref: Ref) -> bool:
        """Tell whether a read is of the own point, or of a state, which is never recomputed."""
        state = isinstance(self.graph[ref.name].op, Merge)
        return self.graph.is_identity(ref) or (state and ref.name in self.free)

    def is_reachable(self, ref: Ref, node: Node) -> bool:
        """Tell whether an operand is available to a later phase, or from a loop further out."""
        if not self.is_available(ref):
            return False
        around, here = self.phases[ref.name][:-1], self.phases[node.name][:-1]
        return self.graph[ref.name].domain == node.domain or (
            len(around) < len(here) and here[: len(around)] == around
        )

    def closure(self) -> list[str]:
        """Everything that recomputing could reach."""
        seen: dict[str, None] = {}
        todo = self.graph.in_order(self.needed)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen[name] = None
            n = self.graph[name]
            if self.can_recompute(n):
                todo += [a.name for a in self.sources(n)]
        return list(seen)

    def recomputed(self) -> list[str]:
        """The equations to recompute: the source side of a minimum cut."""
        names = self.closure()
        if not names:
            return []
        sizes, prices = self.cx.sizes, self.cx.target.prices
        network = Network(unit=16)  # sixteenths of a nanosecond
        for name in names:  # (name,): recomputed
            n = self.graph[name]
            if name in self.needed:
                network.edge(ONE, name)
            is_free = name in self.free
            price = 0.0 if is_free else keep_ns(n, sizes, self.cx.memory_price, prices)
            network.edge(name, (name,), price)
            if not self.can_recompute(n):
                network.edge((name,), OTHER)
                continue
            network.edge((name,), OTHER, compute_ns(self.graph, n, sizes, prices))
            for a in self.sources(n):
                network.edge((name,), a.name)
        side, _ = network.source_side()
        return [n for n in names if (n,) in side and self.can_recompute(self.graph[n])]

    def stored(self, recomputed: list[str]) -> list[str]:
        """The equations of other phases that this one reads from memory."""
        reads = self.needed | {a.name for n in recomputed for a in self.sources(self.graph[n])}
        return self.graph.in_order(reads.difference(recomputed))

    def with_copies(self, recomputed: list[str]) -> tuple[Graph, list[str]]:
        """The graph with copies of equations that only this phase reads, and their names."""
        names: dict[str, str] = {}
        for n in recomputed:
            names[n] = self.graph.fresh(f"{n}_again", names.values())

        def redirect(node: Node) -> Node:
            args = (
                replace(a, name=names[a.name])
                if a.name in names and self.graph.is_identity(a)
                else a
                for a in node.args
            )
            return replace(node, args=tuple(args))

        nodes = dict(self.graph.nodes)
        for n in list(nodes.values()):
            if self.phases.get(n.name) == self.phase:
                nodes[n.name] = redirect(n)
        for old, new in names.items():
            nodes[new] = replace(redirect(self.graph[old]), name=new)
        return replace(self.graph, nodes=nodes), list(names.values())


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether anything runs in a loop."""
    axes = set(free_dims(graph, cx).all)
    return any(not axes.issuperset(n.domain.dims) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Decide which values of earlier loops are read from memory, and which are recomputed."""
    phases = dict(cx.phases(graph, free_dims(graph, cx).all))
    free = _stored_anyway(graph, phases)
    for phase in dict.fromkeys(phases.values()):
        work = _Phase(graph, cx, phases, phase, free)
        again = work.recomputed()
        if again and not fuel().burn("stored → computed again", ", ".join(again)):
            again = []
        if again:
            graph, copies = work.with_copies(again)
            phases = phases | dict.fromkeys(copies, phase)
        if work.needed:
            stored = work.stored(again)
            free |= set(stored)
            names = (", ".join(x) or "nothing" for x in (stored, again))
            cx.remark("stored {}; again {}".format(*names))
    return graph.live()


REMATERIALIZE = Pass("rematerialize", run, applies)
