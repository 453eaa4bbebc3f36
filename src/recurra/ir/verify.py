"""The verifier of graphs: the invariants of every graph, whatever pass made it."""

from __future__ import annotations

from collections.abc import Set

from recurra.errors import ShapeError
from recurra.ir.dims import Role
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, bound_names, index_symbols


def verify(graph: Graph, verified: Graph | None = None) -> Graph:
    """Return the graph; raise ShapeError naming the first equation that does not fit.

    An equation that is the same object as in a verified graph, and whose operands are, too, is not
    checked again.
    """
    every = graph.declared.keys()
    _verify_dims(graph)
    known = verified.nodes if verified is not None and verified.declared.keys() == every else {}
    same = {name for name, node in graph.nodes.items() if known.get(name) is node}
    for name, node in graph.nodes.items():
        if name in same and all(a.name in same for a in node.args):
            continue
        assert name == node.name, f"{node.name} is filed under {name}"
        branches = getattr(node.op, "when", ())
        assert not node.locs or len(node.locs) == len(branches), f"{name}: lines of no branch"
        _verify_domain(node, every)
        _verify_reads(graph, node, every)
        _verify_type(graph, node)
    for o in graph.outputs:
        assert o in graph.nodes, f"output {o} has no equation"
    return graph


def _verify_dims(graph: Graph) -> None:
    """Check that every dim is declared once, as the user's own or as derived from another one."""
    names = [d.name for d in graph.dims]
    assert len(set(names)) == len(names), f"a dim is declared twice: {', '.join(names)}"
    for d in graph.dims:
        own = d.role is Role.WRITTEN
        assert own == (d.parent is None), f"{d} is of no dim, or of one that it cannot be of"
        assert d.name != d.parent, f"{d} is of itself"


def _verify_domain(node: Node, every: Set[str]) -> None:
    for r in node.domain:
        if r.dim not in every:
            raise ShapeError(
                f"{node.name} is over {r.dim}, which is no dim of the graph",
                facts=f"the domain of {node.name} is {node.domain}, the graph's dims are "
                f"{', '.join(every) or 'none'}",
                hint=f"dims {', '.join([*every, str(r)])}",
                loc=node.loc,
            )
    before = set[str]()
    for r in node.domain:
        stray = (r.mentions() & every) - before
        assert not stray, f"{node.name}{node.domain} is as long in {r.dim} as {stray} says"
        before.add(r.dim)


def _verify_reads(graph: Graph, node: Node, every: Set[str]) -> None:
    dims = set(node.domain.dims)
    for a in node.args:
        assert a.name in graph.nodes, f"{node.name} reads {a.name}, which has no equation"
        source = graph[a.name]
        assert len(a.index) == len(source.domain), f"{node.name} reads {a} with the wrong arity"
        for e in a.index:
            stray = (index_symbols(e) & every) - dims
            assert not stray, f"{node.name}{node.domain} reads {a}, which mentions {stray}"
    bound = bound_names(node.op)
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
