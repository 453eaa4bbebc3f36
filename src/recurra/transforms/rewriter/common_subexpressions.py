"""Common-subexpression elimination: merge equal equations."""

from __future__ import annotations

from recurra.ir.graph import Node
from recurra.ops.source import Input
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting


def redirect_to_equal(graph: Rewriting, node: Node) -> bool:
    """Redirect the readers of an equation to an equal, earlier one; tell whether there is one."""
    if not node.op.pure or isinstance(node.op, Input):  # each input is a value of its own
        return False
    key = (node.op, node.args, node.domain)
    twin = graph.keys.get(key)
    if twin is None or twin == node.name or not graph.has_key(twin, key):
        graph.keys[key] = node.name
        return False
    if fuel().empty or not graph.forward(node, graph.read(twin)):
        return False
    return fuel().burn("equal equations → one equation", f"{node.name} and {twin}")
