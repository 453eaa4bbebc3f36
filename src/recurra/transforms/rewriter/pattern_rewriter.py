"""Rewrite rules, each of which maps an equation to its replacement, and their fixpoint.

The first line of a rule's docstring is its law, e.g. `x · 1 → x`: traces print it and tests quote
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.transforms.rewriter.common_subexpressions import redirect_to_equal
from recurra.transforms.rewriter.dead_code import drop_if_dead
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting

Rewrite = Callable[[Node, "Rewriting"], "Node | Ref | None"]


@dataclass(frozen=True)
class Rule:
    """A law for equations whose op is one of `roots`.

    `rewrite` returns the equation's replacement, a read of an equal one, or None.
    """

    roots: tuple[type[Op], ...]
    law: str
    rewrite: Rewrite


def rule(*roots: type[Op]) -> Callable[[Rewrite], Rule]:
    """Make a rule of a function. It is not registered: a pass lists its rules, in order."""

    def wrap(rewrite: Rewrite) -> Rule:
        law = (rewrite.__doc__ or "").partition("\n")[0]
        assert "→" in law, f"{rewrite.__name__} needs a law, e.g. 'x + 0 → x'"
        return Rule(roots, law, rewrite)

    return wrap


def apply(
    graph: Graph, rules: Sequence[Rule], sizes: Mapping[str, int], share: bool = True
) -> Graph:
    """Rewrite to a fixpoint and remove dead code; with `share`, also merge equal equations."""
    by_op: dict[type[Op], list[Rule]] = {}
    state, fired = Rewriting.of(graph.live(), sizes), Counter[str]()
    left = 100_000  # rules that need more undo each other
    while state.todo:
        name = state.todo.popleft()
        state.queued.discard(name)
        node = state.nodes.get(name)
        if node is None or drop_if_dead(state, node):
            continue
        left -= 1
        if left < 0:
            raise RecursionError(f"no fixpoint; the laws that fired: {fired}")
        op = type(node.op)
        if op not in by_op:
            by_op[op] = [r for r in rules if issubclass(op, r.roots)]
        if not (share and redirect_to_equal(state, node)):
            fired.update(_apply_first(state, node, by_op[op]))
    out = state.graph.live()
    return Graph({n: out.nodes[n] for n in _order(out, graph)}, out.outputs, graph.dims)


def _order(out: Graph, before: Graph) -> list[str]:
    """The equations in the order of `before`; new ones come right after their last operand."""
    place = {n: float(k) for k, n in enumerate(before.nodes)}
    for k, n in enumerate(out.nodes):
        if n not in place:
            args = [place[a.name] for a in out[n].args if a.name in place]
            place[n] = max(args, default=-1.0) + 1e-6 * (k + 1) / (len(out.nodes) + 1)
    return sorted(out.nodes, key=lambda n: place[n])


def _apply_first(state: Rewriting, node: Node, rules: Sequence[Rule]) -> list[str]:
    """Apply the first rule that matches an equation, and return its law."""
    if fuel().empty:
        return []
    state.loc = node.loc
    for r in rules:
        new = r.rewrite(node, state)
        if new is None or new == node:
            continue
        if isinstance(new, Ref):
            if not state.forward(node, new):
                continue
        else:
            state.put(new)
        fuel().burn(r.law, node.name)
        return [r.law]
    return []
