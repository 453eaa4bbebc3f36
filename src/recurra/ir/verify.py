"""What every legal graph satisfies, whatever pass made it."""

from __future__ import annotations

from recurra.errors import ShapeError
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, index_symbols


def verify(graph: Graph, verified: Graph | None = None) -> Graph:
    """The graph itself; raises ShapeError naming the first equation that does not fit.

    An equation that is the same object as in a verified graph, and reads the same, is not looked at
    once more.
    """
    every = _dims(graph)
    known = verified.nodes if verified is not None and _dims(verified) == every else {}
    same = {name for name, node in graph.nodes.items() if known.get(name) is node}
    for name, node in graph.nodes.items():
        if name in same and all(a.name in same for a in node.args):
            continue
        assert name == node.name, f"{node.name} is filed under {name}"
        _verify_reads(graph, node, every)
        _verify_type(graph, node)
    for o in graph.outputs:
        assert o in graph.nodes, f"output {o} has no equation"
    return graph


def _dims(graph: Graph) -> set[str]:
    return {r.dim for r in graph.dims} | {d for n in graph.nodes.values() for d in n.domain.dims}


def _verify_reads(graph: Graph, node: Node, every: set[str]) -> None:
    dims = set(node.domain.dims)
    for a in node.args:
        assert a.name in graph.nodes, f"{node.name} reads {a.name}, which has no equation"
        source = graph[a.name]
        assert len(a.index) == len(source.domain), f"{node.name} reads {a} with the wrong arity"
        for e in a.index:
            stray = (index_symbols(e) & every) - dims
            assert not stray, f"{node.name}{node.domain} reads {a}, which mentions {stray}"
    bound = {b[0] for b in getattr(node.op, "bind", ())}
    stray = (node.op.mentions() & every) - dims - bound
    assert not stray, f"{node.name}{node.domain}: its attributes mention {stray}"
    for s in node.type.shape:
        assert not (symbols(s) & every) - dims, f"{node.name}: shape {node.type} leaves its domain"


def _verify_type(graph: Graph, node: Node) -> None:
    try:
        want = node.op.infer(*(graph.read_type(a) for a in node.args))
    except TypeError as e:
        raise ShapeError(str(e), facts=f"in {node.text(graph.is_identity)}", loc=node.loc) from None
    if want != node.type:
        raise ShapeError(
            f"{node.name} is declared {node.type}, its equation gives {want}",
            facts=f"in {node.text(graph.is_identity)}",
            loc=node.loc,
        )
