"""Dead-code elimination: what no output, and no effect, depends on goes."""

from __future__ import annotations

from recurra.ir.graph import Node
from recurra.transforms.rewriter.rewriting import Rewriting


def drop_if_dead(state: Rewriting, node: Node) -> bool:
    """Drop an equation that nothing reads; tell whether it is gone."""
    if state.readers[node.name] or node.name in state.outputs or not node.op.pure:
        return False
    del state.nodes[node.name]
    for a in node.args:
        if a.name in state.readers:
            state.readers[a.name].pop(node.name, None)
            state.push(a.name)
    return True
