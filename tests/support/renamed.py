"""Programs under other names: dims, bounds and equations are called as if passes had made them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.dims import Dim
from recurra.ir.expr import Expr, Sym
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Call
from recurra.ops.elementwise import Going
from recurra.ops.source import Input

AWKWARD = (
    "e", "z", "tz", "te", "tp", "tj", "tr", "t_", "t", "b_again", "x__", "zz", "t_back", "seed",
    "join",
)  # fmt: skip
BOUNDS = ("tze", "t_end", "tzz", "e_", "te_", "z_from", "b_first", "tpz", "tpe", "t__", "ze", "ee")
ENDS = (
    "_again",
    "_first",
    "_2",
    "_masked",
    "_part",
    "_so_far",
    "_store",
    "_ended",
    " b",
    "'s",
    "²",
    "\n",
    "[t]",
    "#",
)


def shuffled(names: str, seed: int) -> str:
    """Other names for some dims, every other time: as many of the awkward ones."""
    pick = random.Random(seed)
    return names if pick.random() < 0.5 else " ".join(pick.sample(AWKWARD, len(names.split())))


def awkward(graph: Graph, seed: int) -> dict[str, str]:
    """Other names for the dims, the bounds and the equations of a graph, each of its kind."""
    pick = random.Random(seed)
    ends = set().union(*(d.range.mentions() for d in graph.dims)) - graph.declared.keys()
    dims = pick.sample(AWKWARD, len(graph.dims))
    bounds = pick.sample(BOUNDS, len(ends))
    names = dict(zip([*graph.declared, *sorted(ends)], [*dims, *bounds], strict=True))
    for k, (name, n) in enumerate(graph.nodes.items()):
        if not isinstance(n.op, Input):  # it is given by its name
            names[f"equation {name}"] = f"{pick.choice(AWKWARD)}_{k}{pick.choice(ENDS)}"
    return names


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The same program; an equation x is renamed as `equation x`."""
    by: dict[str, Expr | int] = {old: Sym(new) for old, new in names.items()}
    own = {n: names.get(f"equation {n}", n) for n in graph.nodes}
    nodes = {own[n.name]: _node(n, own, names, by) for n in graph.nodes.values()}
    outputs = tuple(own[o] for o in graph.outputs)
    return Graph(nodes, outputs, tuple(_dim(d, names, by) for d in graph.dims))


def _node(
    n: Node, own: Mapping[str, str], names: Mapping[str, str], by: dict[str, Expr | int]
) -> Node:
    return replace(
        n,
        name=own[n.name],
        op=_op(n.op, names, by),
        args=tuple(Ref(own[a.name], a.at(by).index) for a in n.args),
        domain=Domain(tuple(_range(r, names, by) for r in n.domain)),
        type=_type(n.type, by),
    )


def _type(t: Type | Tuple, by: dict[str, Expr | int]) -> Type | Tuple:
    return t.at(by) if isinstance(t, Type) else Tuple(tuple(x.at(by) for x in t.items))


def _op(op: Op, names: Mapping[str, str], by: dict[str, Expr | int]) -> Op:
    """Most say dims in expressions; the names of some stand alone."""
    bind = getattr(op, "bind", ())
    if bind:
        op = replace(op, bind=tuple((names.get(x, x), *more) for x, *more in bind))  # pyright: ignore
    match op.at(by):
        case Going(times=times) as op:
            return replace(op, times=tuple(names.get(t, t) for t in times))
        case Call(batch_dims=dims) as op:
            return replace(op, batch_dims=tuple(names.get(d, d) for d in dims))
        case op:
            return op


def _range(r: Range, names: Mapping[str, str], by: dict[str, Expr | int]) -> Range:
    hi, lo = Type("i32", (r.hi, r.lo)).at(by).shape
    return Range(names.get(r.dim, r.dim), hi, lo)


def _dim(d: Dim, names: Mapping[str, str], by: dict[str, Expr | int]) -> Dim:
    parent = d.parent if d.parent is None else names.get(d.parent, d.parent)
    return replace(d, range=_range(d.range, names, by), parent=parent)
