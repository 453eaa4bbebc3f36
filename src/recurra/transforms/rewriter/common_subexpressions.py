"""Common-subexpression elimination: equal equations are one equation."""

from __future__ import annotations

from recurra.ir.graph import Node
from recurra.ops.source import Input
from recurra.transforms.rewriter.optimization_fuel import fuel as tank
from recurra.transforms.rewriter.rewriting import Rewriting


def share_equal(state: Rewriting, node: Node) -> bool:
    """Have readers of an equation read an equal one that is known; tell whether there is one."""
    if not node.op.pure or isinstance(node.op, Input):  # each input is a value of its own
        return False
    key = (node.op, node.args, node.domain)
    twin = state.keys.get(key)
    if twin is None or twin == node.name or not state.says(twin, key):
        state.keys[key] = node.name
        return False
    if tank().empty or not state.forward(node, state.read(twin)):
        return False
    return tank().burn("equal equations → one equation", f"{node.name} and {twin}")
