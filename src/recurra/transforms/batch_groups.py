"""Rows take turns at the host, so that some of them act while the others are stepped.

    step[t] = call(a[0:B,t], token)          step[t,bz<2] = call(a[bz,0:8,t], token, group=(bz, 2))
    o[b,t+1] = pick(step, at_=b)        →    o[bz,be,t+1] = pick(step[t,bz], at_=be)

Everything over the rows is split in two dims; the calls of each group hang on a string of their
own. The dim that counts groups comes last: a step of all groups before the next step of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from recurra.errors import ScheduleError
from recurra.ir.dims import Role
from recurra.ir.expr import Expr, Sym, mul
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, full_length
from recurra.ir.output_axes import Axes
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Call, Item
from recurra.ops.elementwise import Going
from recurra.ops.indexing import Pick
from recurra.ops.movement import Cut
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.strip_mine.tile import equations_over, untiled
from recurra.transforms.strip_mine.tiled_dims import Tile, split_dim, tile

HINT = "leave groups out"


@dataclass(frozen=True)
class Groups:
    """The rows `of` a program in `count` groups: `calls` and what hangs on `strings` of them."""

    of: Range
    count: int
    tile: Tile
    strings: frozenset[str]

    @property
    def dim(self) -> str:
        return self.tile.outer

    @property
    def rows(self) -> int:
        """The number of rows of one group."""
        return self.tile.size

    def __str__(self) -> str:
        return f"{self.of.dim}: {self.count} groups of {self.rows} take turns at the host"


def find(graph: Graph, sizes: Mapping[str, int], count: int, workers: int = 1) -> Groups:
    """Find how the rows of a program can take turns; raises ScheduleError where they cannot."""
    if workers > 1:
        raise ScheduleError(
            "rows that workers share cannot take turns",
            facts=f"workers={workers} and groups={count} are both asked for",
            hint="leave one of them out",
        )
    calls = [n for n in graph.nodes.values() if isinstance(n.op, Call) and n.op.batch_dims]
    if not calls:
        raise ScheduleError(
            "there are no rows that could take turns",
            facts="no environment is stepped on the host",
            hint=HINT,
        )
    for n in graph.nodes.values():
        if isinstance(n.op, Going):
            raise _refusal(n, "the data end its rows, all of which are asked after every step")
    dims = {d for n in calls if isinstance(n.op, Call) for d in n.op.batch_dims}
    if len(dims) > 1:
        raise _refusal(calls[0], f"calls take the rows of {' and '.join(sorted(dims))} whole")
    (dim,) = dims
    for n in calls:
        assert isinstance(n.op, Call)
        if n.op.fn.parts is None:
            raise _refusal(
                n, f"{n.op.fn.key} is called for all rows: only an environment has parts"
            )
    r = graph.declared[dim].range
    total = r.size(sizes)
    if r.lo != 0 or total % count:
        raise _refusal(calls[0], f"{count} does not divide {r.hi} = {total}")
    members = frozenset(equations_over(graph, dim))
    rows = total // count
    halves = split_dim(graph, dim, rows, sizes, Role.GROUPS)
    g = Groups(r, count, Tile(dim, rows, members, halves), _strings(graph, calls, dim))
    _expect(graph, g, sizes)
    return g


def _strings(graph: Graph, calls: Iterable[Node], dim: str) -> frozenset[str]:
    """The calls, their results, and what one call hands on to another without the rows."""

    def reached(step: Mapping[str, list[str]]) -> set[str]:
        todo, out = [n.name for n in calls], {n.name for n in calls}
        while todo:
            new = [x for x in step[todo.pop()] if dim not in graph[x].domain and x not in out]
            out.update(new)
            todo += new
        return out

    after = {n: [x.name for x, _ in graph.readers[n]] for n in graph.nodes}
    before = {n.name: [a.name for a in n.args] for n in graph.nodes.values()}
    items = {x for n in calls for x in after[n.name] if isinstance(graph[x].op, Item)}
    return frozenset(items | (reached(after) & reached(before)))


def _expect(graph: Graph, groups: Groups, sizes: Mapping[str, int]) -> None:
    """Rows must be apart: nothing but calls and sums takes more of them than one."""
    for name in groups.strings:
        n = graph[name]
        if name in graph.outputs:
            raise _refusal(n, f"{name} is put out")
        for reader, k in graph.readers[name]:
            if reader.name not in groups.strings and not _own_row(reader, k, groups.of.dim):
                raise _refusal(reader, f"{reader.name} reads all rows of {name} at once")
        for a in n.args:
            if groups.of.dim in graph[a.name].domain and not _whole(graph, n, a, groups, sizes):
                raise _refusal(n, f"{name} reads {a}")
    bad = untiled(graph, groups.tile, sizes, but=groups.strings)
    if bad is not None:
        raise _refusal(bad, f"{bad.name}, of each row, is read by more than its own row")


def _own_row(node: Node, index: int, dim: str) -> bool:
    """Does it take the own row out of what all rows have?"""
    op = node.op
    return isinstance(op, Pick) and op.axis == 0 and op.at_ == Sym(dim) and index == 0


def _whole(graph: Graph, node: Node, ref: Ref, groups: Groups, sizes: Mapping[str, int]) -> bool:
    """Does a call take all rows as its first axis?"""
    found = [e for e in ref.index if isinstance(e, Slice)]
    r = graph[ref.name].domain
    (e,) = [e for e, x in zip(ref.index, r, strict=True) if x.dim == groups.of.dim]
    return (
        isinstance(node.op, Call) and found[:1] == [e] and full_length(found[0], groups.of, sizes)
    )


def grouped(graph: Graph, groups: Groups) -> Graph:
    """The program whose rows take turns."""
    z, e = Sym(groups.tile.outer), Sym(groups.tile.inner)
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if n.name in groups.strings:
            n = _turn(graph, groups, n)
            parts = {k: _part(graph, groups, n, k) for k in _of_all_rows(graph, groups, n)}
            nodes.update({x.name: x for x in parts.values()})
            own = {k: Ref(x.name, x.domain.identity) for k, x in parts.items()}
            n = replace(n, args=tuple(own.get(k, a) for k, a in enumerate(n.args)))
        elif any(a.name in groups.strings for a in n.args):
            n = _picked(n, z, e)
        nodes[n.name] = n
    split = tile(Graph(nodes, graph.outputs, graph.dims), groups.tile)
    turn = replace(groups.tile.dims[0], range=Range(groups.dim, groups.count))
    dims = (*(d for d in split.dims if d.name != groups.dim), turn)
    return replace(split, dims=dims)


def _of_all_rows(graph: Graph, groups: Groups, node: Node) -> list[int]:
    """The operands of a call that have all rows as an axis, also those of other groups."""
    if not isinstance(node.op, Call) or not node.op.batch_dims:
        return []
    return [
        k
        for k, a in enumerate(node.args)
        if a.name not in groups.strings
        and groups.of.dim not in graph[a.name].domain
        and isinstance(found := graph[a.name].type, Type)
        and found.shape[:1] == (groups.of.hi,)
    ]


def _part(graph: Graph, groups: Groups, node: Node, index: int) -> Node:
    """The rows of one group, of an operand that has all."""
    a = node.args[index]
    first = mul(Sym(groups.dim), groups.rows)
    type_ = _of_rows(graph[a.name].type, groups)
    name = f"{node.name}_operand_{index}"
    return Node(name, Cut(axis=0, start=first, size=groups.rows), (a,), node.domain, type_)


def _picked(node: Node, group: Expr, row: Expr) -> Node:
    """A row, taken of its group."""
    assert isinstance(node.op, Pick)
    a = Ref(node.args[0].name, (*node.args[0].index, group))
    return replace(node, op=replace(node.op, at_=row), args=(a,))


def split_axes(axes: Iterable[Axes], groups: Groups) -> list[Axes]:
    """Map the axes of the outputs to those of the program whose rows take turns."""
    pair = (groups.tile.outer, groups.tile.inner)
    return [
        (tuple(x for d in dims for x in (pair if d == groups.of.dim else (d,))), names)
        for dims, names in axes
    ]


def _turn(graph: Graph, groups: Groups, node: Node) -> Node:
    """One group's call, or a result of it."""
    args: list[Ref] = []
    for a in node.args:
        index: list[Index] = list(a.index)
        if a.name in groups.strings:
            index.append(Sym(groups.dim))
        elif groups.of.dim in graph[a.name].domain:
            (k,) = [k for k, r in enumerate(graph[a.name].domain) if r.dim == groups.of.dim]
            index[k] = groups.tile.one
        args.append(Ref(a.name, tuple(index)))
    domain = Domain((*node.domain, Range(groups.dim, groups.count)))
    op = node.op
    if isinstance(op, Call) and op.batch_dims:
        assert op.fn.parts is not None, "find has refused it"
        results = tuple((d, _rows(s, groups)) for d, s in op.results)
        group = (Sym(groups.dim), groups.count)
        op = replace(
            op, fn=op.fn.parts, results=results, batch_dims=(groups.tile.inner,), group=group
        )
    return replace(node, op=op, args=tuple(args), domain=domain, type=_of_rows(node.type, groups))


def _rows(shape: tuple[Expr | int, ...], groups: Groups) -> tuple[Expr | int, ...]:
    return (groups.rows, *shape[1:]) if shape[:1] == (groups.of.hi,) else shape


def _of_rows(type_: Type | Tuple, groups: Groups) -> Type | Tuple:
    if isinstance(type_, Tuple):
        return Tuple(tuple(replace(x, shape=_rows(x.shape, groups)) for x in type_.items))
    return replace(type_, shape=_rows(type_.shape, groups))


def _refusal(node: Node, why: str) -> ScheduleError:
    return ScheduleError("rows cannot take turns here", facts=why, hint=HINT, loc=node.loc)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether rows take turns."""
    return cx.groups > 1


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Split rows into groups that take turns at the host."""
    found = find(graph, cx.sizes, cx.groups, cx.workers)
    cx.turns, cx.axes = (found.dim,), split_axes(cx.axes, found)
    cx.remark(found)
    return grouped(graph, found)


BATCH_GROUPS = Pass("batch_groups", run, applies)
