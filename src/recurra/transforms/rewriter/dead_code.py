"""Dead-code elimination: remove what no output and no effect depends on."""

from __future__ import annotations

from recurra.ir.graph import Node
from recurra.transforms.rewriter.rewriting import Rewriting


def drop_if_dead(graph: Rewriting, node: Node) -> bool:
    """Remove an equation that has no readers; tell whether it was removed."""
    if graph.readers[node.name] or node.name in graph.outputs or not node.op.pure:
        return False
    del graph.nodes[node.name]
    for a in node.args:
        if a.name in graph.readers:
            graph.readers[a.name].pop(node.name, None)
            graph.push(a.name)
    return True
