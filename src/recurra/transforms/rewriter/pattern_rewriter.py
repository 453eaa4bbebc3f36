"""A rule maps an equation to what may stand in its place; `apply` runs rules to a fixpoint.

The docstring's first line is the law, e.g. `x · 1 → x`: traces print it and tests quote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.transforms.rewriter.common_subexpressions import share_equal
from recurra.transforms.rewriter.dead_code import drop_if_dead
from recurra.transforms.rewriter.optimization_fuel import fuel as tank
from recurra.transforms.rewriter.rewriting import Rewriting

Rewrite = Callable[[Node, "Rewriting"], "Node | Ref | None"]


@dataclass(frozen=True)
class Rule:
    """`rewrite` returns the equation's replacement, a read of something equal, or None."""

    roots: tuple[type[Op], ...]
    law: str
    rewrite: Rewrite


def rule(*roots: type[Op]) -> Callable[[Rewrite], Rule]:
    """Registers nothing: a pass lists its rules by hand, in order."""

    def wrap(rewrite: Rewrite) -> Rule:
        law = (rewrite.__doc__ or "").splitlines()[0] if rewrite.__doc__ else ""
        assert "→" in law, f"{rewrite.__name__} needs a law, e.g. 'x + 0 → x'"
        return Rule(roots, law, rewrite)

    return wrap


def apply(
    graph: Graph,
    rules: Sequence[Rule],
    sizes: Mapping[str, int],
    share: bool = True,
    fuel: int = 100_000,
) -> Graph:
    """Rewrites to a fixpoint and drops what is dead; with `share`, equal equations become one.

    Out of fuel is a bug: it raises.
    """
    return run(graph, rules, sizes, share, fuel)[0]


def run(
    graph: Graph,
    rules: Sequence[Rule],
    sizes: Mapping[str, int],
    share: bool = True,
    fuel: int = 100_000,
) -> tuple[Graph, dict[str, int]]:
    """`apply`, with how often each law fired."""
    by_op: dict[type[Op], list[Rule]] = {}
    state = Rewriting.of(graph.live(), sizes)
    while state.todo:
        name = state.todo.popleft()
        state.queued.discard(name)
        node = state.nodes.get(name)
        if node is None or drop_if_dead(state, node):
            continue
        fuel -= 1
        if fuel < 0:
            raise RecursionError(f"no fixpoint; the laws that fired: {state.fired}")
        op = type(node.op)
        if op not in by_op:
            by_op[op] = [r for r in rules if issubclass(op, r.roots)]
        if not (share and share_equal(state, node)):
            _first(state, node, by_op[op])
    out = Graph(state.nodes, state.outputs, graph.dims).live()
    return Graph(
        {n: out.nodes[n] for n in _order(out, graph)}, out.outputs, graph.dims
    ), state.fired


def _order(out: Graph, before: Graph) -> list[str]:
    """Equations in the order they were written, new ones where their first operand ends."""
    place = {n: float(k) for k, n in enumerate(before.nodes)}
    for k, n in enumerate(out.nodes):
        if n not in place:
            args = [place[a.name] for a in out[n].args if a.name in place]
            place[n] = max(args, default=-1.0) + 1e-6 * (k + 1) / (len(out.nodes) + 1)
    return sorted(out.nodes, key=lambda n: place[n])


def _first(state: Rewriting, node: Node, rules: Sequence[Rule]) -> None:
    if tank().empty:
        return
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
        state.fired[r.law] = state.fired.get(r.law, 0) + 1
        tank().burn(r.law, node.name)
        return
