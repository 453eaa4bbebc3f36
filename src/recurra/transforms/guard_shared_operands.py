"""guard_shared_operands: compute a value that several conditionals read only where one takes it.

    y[t<T] = merge(e, c, when=(t == 0, t >= 1))    n[t<T] = or(t == 0, d);  g[t<T] = cond(n, e, 0)
    c[t<T] = cond(d, e, y[t-1])                 →  y[t<T] = merge(g, c, when=(t == 0, t >= 1))
                                                   c[t<T] = cond(d, g, y[t-1])

A conditional guards the operands that it alone reads (analysis/data_conditions.py). An operand that
several read gets a conditional of its own, under all of their conditions, if the work that this
leaves out costs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recurra.analysis.data_conditions import (
    UseCondition,
    conditions_by_equation,
    decision,
    is_decided,
    use_conditions,
    worthwhile_conditions,
)
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import LETTERS
from recurra.ir.types import Type
from recurra.ops.control import Merge
from recurra.ops.elementwise import Cond
from recurra.ops.source import Const
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether there are conditionals on data."""
    return any(isinstance(n.op, Cond) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Compute a value that several conditionals read only where one of them takes it."""
    for node, taken in [*_shared_operands(graph)]:
        new = _guarded(graph, node, taken)
        if node.name in worthwhile_conditions(new, cx.sizes) and fuel().burn(
            "choices → one", node.name
        ):
            cx.remark(f"{node.name}: where one of {len(taken)} choices takes it")
            graph = new
    return graph


def _shared_operands(graph: Graph) -> Iterator[tuple[Node, frozenset[UseCondition]]]:
    """Yield the equations that several conditionals and nothing else read, and their conditions."""
    found, known = conditions_by_equation(graph), dict[str, frozenset[UseCondition]]()
    for name, readers in graph.readers.items():
        node = graph[name]
        conditional = all(isinstance(r.op, (Merge, Cond)) for r, _ in readers)
        if not conditional or len(readers) < 2 or not node.op.pure:
            continue
        if isinstance(node.type, Type):
            taken = use_conditions(graph, name, found, known)
            if is_decided(graph, name, taken):
                yield node, taken


def _guarded(graph: Graph, node: Node, taken: frozenset[UseCondition]) -> Graph:
    """The graph in which all conditionals read one conditional between a value and zero."""
    nodes: dict[str, Node] = dict(graph.nodes)
    needed = decision(node, taken, nodes)
    name, zero = (graph.fresh(f"{node.name}_{suffix}", nodes) for suffix in ("taken", "none"))
    op = Const(value=0, dtype=node.tensor.dtype, shape=node.tensor.shape)
    nodes[zero] = Node(zero, op, (), node.domain.of(op.mentions()), node.type, node.loc)
    reads = (needed, Ref(node.name, node.domain.identity), Ref(zero, nodes[zero].domain.identity))
    axes = LETTERS[: node.tensor.rank]
    for reader, _ in graph.readers[node.name]:
        args = (replace(a, name=name) if a.name == node.name else a for a in reader.args)
        nodes[reader.name] = replace(nodes[reader.name], args=tuple(args))
    choice = Cond(labels=f",{axes},{axes}->{axes}" if axes else "")
    nodes[name] = Node(name, choice, reads, node.domain, node.type, node.loc)
    return replace(graph, nodes=nodes)


GUARD_SHARED_OPERANDS = Pass("guard_shared_operands", run, applies)
