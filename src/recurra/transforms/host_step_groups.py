"""Split rows into groups that take turns at the host: one acts while the others are stepped.

    step[t] = call(a[0:B,t], token)          step[t,bz<2] = call(a[bz,0:8,t], token, group=(bz, 2))
    o[b,t+1] = pick(step, at_=b)        →    o[bz,be,t+1] = pick(step[t,bz], at_=be)

The dim of the rows is split in two. The calls of each group depend on a chain of tokens of their
own. The dim that counts groups comes last: all groups take a step before any takes the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from recurra.errors import ScheduleError
from recurra.ir.dims import Role
from recurra.ir.expr import Expr, Sym, mul
from recurra.ir.graph import Graph, Node, Ref, full_length
from recurra.ir.output_axes import Axes
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Call, Item
from recurra.ops.elementwise import Going
from recurra.ops.indexing import Pick
from recurra.ops.movement import Cut
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.strip_mine.tiled_dims import Tile, split_dim, tile_dim
from recurra.transforms.strip_mine.tiling import equations_over, first_untileable

HINT = "leave groups out"


@dataclass(frozen=True)
class Groups:
    """The rows `of` a program in `count` groups; `chained` are calls, results and tokens."""

    of: Range
    count: int
    tile: Tile
    chained: frozenset[str]

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
    """Find how the rows of a program can take turns; raises ScheduleError if they cannot."""
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
    g = Groups(r, count, Tile(dim, rows, members, halves), _chained(graph, calls, dim))
    _expect_independent_rows(graph, g, sizes)
    return g


def _chained(graph: Graph, calls: Iterable[Node], dim: str) -> frozenset[str]:
    """The calls, their results, and equations without the rows between one call and another."""

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


def _expect_independent_rows(graph: Graph, groups: Groups, sizes: Mapping[str, int]) -> None:
    """Refuse programs in which anything but calls and sums reads more than its own row."""
    dim = groups.of.dim
    for name in groups.chained:
        n = graph[name]
        if name in graph.outputs:
            raise _refusal(n, f"{name} is put out")
        for reader, k in graph.readers[name]:
            op = reader.op
            own_row = isinstance(op, Pick) and op.axis == 0 and op.at_ == Sym(dim) and k == 0
            if reader.name not in groups.chained and not own_row:
                raise _refusal(reader, f"{reader.name} reads all rows of {name} at once")
        for a in n.args:
            if dim in graph[a.name].domain and not _reads_all_rows(graph, n, a, groups, sizes):
                raise _refusal(n, f"{name} reads {a}")
    bad = first_untileable(graph, groups.tile, sizes, but=groups.chained)
    if bad is not None:
        raise _refusal(bad, f"{bad.name}, of each row, is read by more than its own row")


def _reads_all_rows(
    graph: Graph, node: Node, ref: Ref, groups: Groups, sizes: Mapping[str, int]
) -> bool:
    """Tell whether a call has all rows as the first axis of an operand."""
    e = ref.index[graph[ref.name].domain.dims.index(groups.of.dim)]
    first = ref.slices[:1] == (e,)
    return isinstance(node.op, Call) and first and full_length(ref.slices[0], groups.of, sizes)


def split_into_groups(graph: Graph, groups: Groups) -> Graph:
    """Return the program whose rows take turns."""
    z, e = Sym(groups.tile.outer), Sym(groups.tile.inner)
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if n.name in groups.chained:
            n = _of_group(graph, groups, n)
            for k in _operands_of_all_rows(graph, groups, n):
                part = _rows_of_group(graph, groups, n, k)
                nodes[part.name] = part
                n = n.with_operand(k, Ref(part.name, part.domain.identity))
        elif any(a.name in groups.chained for a in n.args):
            assert isinstance(n.op, Pick)  # of the own row
            a = n.args[0]
            args = (Ref(a.name, (*a.index, z)),)
            n = replace(n, op=replace(n.op, at_=e), args=args)
        nodes[n.name] = n
    split = tile_dim(Graph(nodes, graph.outputs, graph.dims), groups.tile)
    turn = replace(groups.tile.dims[0], range=Range(groups.dim, groups.count))
    dims = (*(d for d in split.dims if d.name != groups.dim), turn)
    return replace(split, dims=dims)


def _operands_of_all_rows(graph: Graph, groups: Groups, node: Node) -> list[int]:
    """The operands of a call that have all rows as an axis, also those of other groups."""
    if not isinstance(node.op, Call) or not node.op.batch_dims:
        return []
    return [
        k
        for k, a in enumerate(node.args)
        if a.name not in groups.chained
        and groups.of.dim not in graph[a.name].domain
        and isinstance(found := graph[a.name].type, Type)
        and found.shape[:1] == (groups.of.hi,)
    ]


def _rows_of_group(graph: Graph, groups: Groups, node: Node, index: int) -> Node:
    """The rows of one group, cut from an operand that has all."""
    a = node.args[index]
    first = mul(Sym(groups.dim), groups.rows)
    type_ = _group_type(graph[a.name].type, groups)
    name = f"{node.name}_operand_{index}"
    return Node(name, Cut(axis=0, start=first, size=groups.rows), (a,), node.domain, type_)


def split_axes(axes: Iterable[Axes], groups: Groups) -> list[Axes]:
    """Return the axes of the outputs in the program whose rows take turns."""
    pair = (groups.tile.outer, groups.tile.inner)
    return [
        (tuple(x for d in dims for x in (pair if d == groups.of.dim else (d,))), names)
        for dims, names in axes
    ]


def _of_group(graph: Graph, groups: Groups, node: Node) -> Node:
    """The call of one group, or a result of it."""
    args: list[Ref] = []
    for a in node.args:
        dims = graph[a.name].domain.dims
        if a.name in groups.chained:
            a = Ref(a.name, (*a.index, Sym(groups.dim)))
        elif groups.of.dim in dims:
            a = a.with_index(dims.index(groups.of.dim), groups.tile.one)
        args.append(a)
    domain = Domain((*node.domain, Range(groups.dim, groups.count)))
    op = node.op
    if isinstance(op, Call) and op.batch_dims:
        assert op.fn.parts is not None, "find has refused it"
        results = tuple((d, _group_shape(s, groups)) for d, s in op.results)
        group, dims = (Sym(groups.dim), groups.count), (groups.tile.inner,)
        op = replace(op, fn=op.fn.parts, results=results, batch_dims=dims, group=group)
    type_ = _group_type(node.type, groups)
    return replace(node, op=op, args=tuple(args), domain=domain, type=type_)


def _group_shape(shape: tuple[Expr | int, ...], groups: Groups) -> tuple[Expr | int, ...]:
    """A shape, with the rows of one group instead of all rows as the first axis."""
    return (groups.rows, *shape[1:]) if shape[:1] == (groups.of.hi,) else shape


def _group_type(type_: Type | Tuple, groups: Groups) -> Type | Tuple:
    if isinstance(type_, Tuple):
        return Tuple(tuple(replace(x, shape=_group_shape(x.shape, groups)) for x in type_.items))
    return replace(type_, shape=_group_shape(type_.shape, groups))


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
    return split_into_groups(graph, found)


BATCH_GROUPS = Pass("batch_groups", run, applies)
