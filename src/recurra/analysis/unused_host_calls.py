"""Removal of host calls whose results no branch takes, for known bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.analysis.demanded_points import branch_conditions
from recurra.ir.expr import FALSE, TRUE
from recurra.ir.graph import Graph, Node
from recurra.ir.types import Type
from recurra.ops.control import Call, Item
from recurra.ops.source import Const
from recurra.polyhedral.boxes import fold_condition


def without_untaken(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Remove the host calls that no branch takes at any point; their results become 0.

    Otherwise later passes would drop their readers, and a call that nothing reads runs everywhere.
    """
    calls = [n for n in graph.nodes.values() if isinstance(n.op, Call)]
    taken = branch_conditions(graph) if calls else {}
    never = {
        n.name for n in calls if fold_condition(n.domain, taken.get(n.name, TRUE), sizes) == FALSE
    }
    if not never:
        return graph
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Item) and n.args[0].name in never:
            assert isinstance(n.type, Type)
            n = replace(n, op=Const(value=0, dtype=n.type.dtype, shape=n.type.shape), args=())
        if n.name not in never:
            nodes[n.name] = n
    return replace(graph, nodes=nodes).live()
