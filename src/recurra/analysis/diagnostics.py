"""The errors of failed proofs: what is wrong, where, the two facts, one way out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from recurra.analysis.proofs import CounterExample
from recurra.errors import DomainError, Loc, ScheduleError, ShapeError
from recurra.ir.dims import Role
from recurra.ir.expr import TRUE, Expr, any_of, compare, evaluate, maximum, minimum, negate, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_at, merge_condition
from recurra.ir.order import postorder
from recurra.ir.types import NUMPY_NAME, Domain, Range, Type, is_shift
from recurra.ops.control import Call, Item, Merge
from recurra.polyhedral import isl


def line_of(node: Node, index: int = -1) -> Loc | None:
    """The source location of operand `index`: that of its branch, else that of the equation."""
    return node.lines[index] if 0 <= index < len(node.args) else node.loc


def as_written(expr: Index | Ref) -> str:
    """The expression as the user writes it: `rc.min(t+5,T)`."""
    return re.sub(r"\b(min|max)\(", r"rc.\1(", str(expr))


def reading(ref: Ref, index: int, expr: Index) -> str:
    """The read with index `index` replaced."""
    return as_written(Ref(ref.name, (*ref.index[:index], expr, *ref.index[index + 1 :])))


def _range(extent: Range, middle: str) -> str:
    return f"{extent.lo} <= {middle} < {extent.hi}"


def read_outside(
    node: Node, index: int, source: Domain, point_read: tuple[int, ...], example: CounterExample
) -> DomainError:
    """The error for a read outside its source: operand `index` of `node` reads `point_read`."""
    ref, when, bounds = node.args[index], merge_condition(node, index), example.bounds
    j = next(
        j
        for j, (q, r) in enumerate(zip(point_read, source, strict=True))
        if not evaluate(r.lo, bounds) <= q < evaluate(r.hi, bounds)
    )
    e, r = ref.index[j], source.ranges[j]
    early = point_read[j] < evaluate(r.lo, bounds)
    branch = f", where {when}," if when is not None and when != TRUE else ""
    every = f"{_range(r, 'k')} for every k in {e}"
    need = every if isinstance(e, Slice) else _range(r, str(e))
    spot = example.at(*ref.index, r.lo, r.hi, when or TRUE)
    return DomainError(
        f"{ref} reads {'before the start' if early else 'past the end'} of {r.dim}",
        facts=f"{ref.name} is defined for {_range(r, r.dim)}, but this read{branch} needs {need}; "
        f"{spot}it asks for {Ref(ref.name, point_read)}",
        hint=_keep_inside(node, ref, j, r, early, when is not None),
        loc=line_of(node, index),
    )


def _keep_inside(node: Node, ref: Ref, index: int, extent: Range, early: bool, branch: bool) -> str:
    e = ref.index[index]
    if isinstance(e, Slice):
        lo, hi = (maximum(extent.lo, e.lo), e.hi) if early else (e.lo, minimum(e.hi, extent.hi))
        return f"cut it: {reading(ref, index, replace(e, lo=lo, hi=hi))}"
    if not symbols(e) & set(node.domain.dims):
        return f"index {ref.name} within {extent.lo}..{extent.hi - 1}"
    guard = compare(">=", e, extent.lo) if early else compare("<", e, extent.hi)
    for d in node.domain.dims:
        c = is_shift(e, d)
        if c is not None:
            edge = node.domain[d].sym
            guard = (
                compare(">=", edge, extent.lo - c) if early else compare("<", edge, extent.hi - c)
            )
    if branch and not _is_one_choice(node):
        return f"keep this branch to where {guard}: {node.name}[{as_written(guard)}] = ..."
    return f"guard it: rc.where({as_written(guard)}, {as_written(ref)}, 0)"


def _is_one_choice(node: Node) -> bool:
    """Is it a choice that the user did not declare: of `rc.where`, a ring read or a gradient?"""
    return node.loc is not None and not node.locs


def uncovered(node: Node, when: tuple[Expr, ...], example: CounterExample) -> DomainError:
    """The error for a point of `node` at which none of the conditions of its branches holds."""
    spot = example.at(*when, *(e for r in node.domain for e in r.edges))
    every = ", ".join(_range(r, r.dim) for r in node.domain)
    if _is_one_choice(node):
        return DomainError(
            "what is chosen is not defined at every point where it is chosen",
            facts=f"it is where {' or '.join(map(str, when))}; {spot}it is not",
            hint="choose by where it can be read: rc.where(t >= 1, x[t - 1], x[0])",
            loc=node.loc,
        )
    last = [r.dim for r in node.domain if compare("==", r.sym, r.hi - 1) in when][:1]
    last = "".join(f"\n  the place -1 is the last point of {dim}" for dim in last)
    return DomainError(
        f"{node.name} is not defined at every point of its domain",
        facts=f"its domain is {every or 'one point'}, its branches hold where "
        f"{' or '.join(f'({c})' if len(when) > 1 else str(c) for c in when)}; "
        f"{spot}none does{last}",
        hint=_definition_of_the_rest(node, when),
        loc=node.loc,
    )


def _definition_of_the_rest(node: Node, when: tuple[Expr, ...]) -> str:
    """The hint to define the points that no branch covers: an end of a dim, or all the rest."""
    covered = any_of(*when)
    for r in node.domain:
        for end in (r.lo, r.hi - 1):
            there = compare("==", r.sym, end)
            if isl.always(covered, node.domain, (negate(there),)):
                place = ", ".join(map(str, node.domain.point(r.dim, end)))
                return f"define it there, too: {node.name}[{place}] = ..."
    place = ", ".join(node.domain.dims) or "..."
    return f"define the rest after the other branches: {node.name}[{place}] = ..."


def negative_slice(
    node: Node, index: int, axis: int, slice_: Slice, example: CounterExample
) -> ShapeError:
    """The error for a range that ends before it begins."""
    ref, size = node.args[index], slice_.count
    return ShapeError(
        f"{ref} reads a range of negative size",
        facts=f"{slice_} holds {size} points; {example.at(size)}that is {example.value(size)}",
        hint="let it begin no later than it ends: "
        + reading(ref, axis, replace(slice_, lo=minimum(slice_.lo, slice_.hi))),
        loc=line_of(node, index),
    )


def overfull(node: Node, index: int, slice_: Slice, example: CounterExample) -> ShapeError:
    """The error for a padded range with more points than its length."""
    pad, count = slice_.size, slice_.count
    return ShapeError(
        f"{node.args[index]} reads more points than its padded length",
        facts=f"it is padded to {pad} and holds {count} points; "
        f"{example.at(count, pad)}these are {example.value(pad)} and {example.value(count)}",
        hint="pad it to the largest number of points",
        loc=line_of(node, index),
    )


def negative_size(node: Node, type_: Type, size: Expr | int, example: CounterExample) -> ShapeError:
    """The error for a result with an axis of negative size."""
    return ShapeError(
        f"{node.name} has an axis of negative size",
        facts=f"its type is {type_}; {example.at(size)}{size} is {example.value(size)}",
        hint=f"end it at zero: {as_written(maximum(size, 0))}",
        loc=node.loc,
    )


def cut(
    node: Node, start: Expr | int, end: Expr | int, length: Expr | int, example: CounterExample
) -> ShapeError:
    """The error for a cut that leaves its axis."""
    lo, hi, n = map(example.value, (start, end, length))
    spot = example.at(start, end, length)
    return ShapeError(
        f"the cut {start}:{end} leaves its axis",
        facts=f"the axis is 0:{length}; {spot}{lo}:{hi} is asked of 0:{n}",
        hint=f"cut within 0:{length}",
        loc=node.loc,
    )


def too_few(node: Node, count: Expr | int, size: Expr | int, example: CounterExample) -> ShapeError:
    """The error for a top-k of an axis with fewer than k elements."""
    return ShapeError(
        f"topk({count}) asks for more elements than there are",
        facts=f"its axis has {size}; {example.at(count, size)}that is {example.value(size)}",
        hint=f"fill it up: rc.concat([x, rc.full({count}, -math.inf)]).topk({count})",
        loc=node.loc,
    )


def pick(node: Node, expr: Expr | int, length: Expr | int, example: CounterExample) -> ShapeError:
    """The error for an element that is not on its axis."""
    at, n = example.value(expr), example.value(length)
    return ShapeError(
        f"element {expr} is not on its axis",
        facts=f"the axis is 0:{length}; {example.at(expr, length)}element {at} is asked of 0:{n}",
        hint=f"index within 0:{length}, or guard it with rc.where",
        loc=node.loc,
    )


def too_narrow(
    node: Node, index: int, expr: Expr | int, dtype: str, number: int, example: CounterExample
) -> ShapeError:
    """The error for an index expression whose value overflows its type, or i32."""
    ends = np.iinfo("int32")
    if ends.min <= number <= ends.max:
        ends = np.iinfo(NUMPY_NAME[dtype])
        hint = f'rc.value({expr}, "i32") holds it; what is to be cut off: .cast("{dtype}")'
    else:
        dtype, dim = "i32", min(symbols(expr))
        hint = f'compute with a number of {dim}: rc.value({dim}, "i64"), rc.value({dim}, "f64")'
    return ShapeError(
        f"{expr} has a value that {dtype} cannot hold",
        facts=f"{example.at(expr)}it is {number}; "
        f"{dtype} holds whole numbers from {ends.min} to {ends.max}",
        hint=hint,
        loc=line_of(node, index),
    )


def shuffled(
    node: Node, expr: Expr | int, length: Expr | int, example: CounterExample
) -> ShapeError:
    """The error for an element that is not among those that are shuffled."""
    at, n = example.value(expr), example.value(length)
    return ShapeError(
        f"element {expr} is not among the {length} that are shuffled",
        facts=f"{example.at(expr, length)}element {at} is asked of {n}",
        hint="let the minibatches together have as many samples as there are",
        loc=node.loc,
    )


def reshape(node: Node, before: Type, after: Type, example: CounterExample) -> ShapeError:
    """The error for a reshape that changes the number of elements."""
    a, b = (prod(map(example.value, t.shape)) for t in (before, after))
    spot = example.at(*before.shape, *after.shape)
    return ShapeError(
        f"{before} cannot be reshaped to {after}",
        facts=f"a reshape keeps every element; {spot}one has {a} elements, the other {b}",
        hint="cut or expand it first",
        loc=node.loc,
    )


def empty(
    node: Node, ref: Ref, source: Domain, size: Expr | int, example: CounterExample
) -> DomainError:
    """The error for an extremum of an empty axis."""
    what = f"an axis of {ref.name} has {size} elements"
    hint = "reduce it only where it has elements"
    for j, (s, r) in enumerate(zip(ref.index, source, strict=True)):
        if isinstance(s, Slice) and s.size == size:
            last = s.hi - 1
            lo, hi = (
                (minimum(s.lo, last), s.hi) if s.hi == r.hi else (s.lo, maximum(s.hi, s.lo + 1))
            )
            what = f"{ref} holds {size} points"
            hint = f"let it hold one point: {reading(ref, j, replace(s, lo=lo, hi=hi))}"
    return DomainError(
        f"the {node.op.name} of an empty range has no value",
        facts=f"{what}; {example.at(size)}it is empty",
        hint=hint,
        loc=node.loc,
    )


def cycle(steps: Sequence[tuple[Node, int]], example: CounterExample) -> ScheduleError:
    """The error for a cycle in which each node reads the next, as operand k, at the same point."""
    first = steps[0][0]
    dims = first.domain.dims
    reads = [(n.name, n.args[k].name, line_of(n, k)) for n, k in steps]
    lines = [f"{n} needs {a}" + (f" at {loc}" if loc else "") for n, a, loc in reads]
    spot = example.at(*(e for r in first.domain for e in r.edges))
    last = "no order of them is right" if len(steps) > 1 else "it needs its own value"
    declared = next((n for n, _ in steps if isinstance(n.op, Merge)), first).name
    earlier = ",".join([*dims[:-1], f"{dims[-1]}-1"]) if dims else ""
    return ScheduleError(
        f"{first.ref} depends on itself at the same point",
        facts="\n  ".join([*lines, spot + last]),
        hint=f"read an earlier point in one of them: {declared}[{earlier}]"
        if dims
        else "take one of these reads away",
        loc=line_of(*steps[0]),
    )


def display_name(graph: Graph, name: str) -> str:
    """The words for an equation in an error: its name, or its operation if the user named none."""
    node = graph[name]
    if isinstance(node.op, Item):
        return display_name(graph, node.args[0].name)
    own = re.sub(r"(_\d+)+$", "", name)
    if isinstance(node.op, Call):
        return f"the call of {own}"
    if name in tokens(graph):
        return "the order of host calls"
    return f"the {own}" if own == node.op.name else name


def tokens(graph: Graph) -> set[str]:
    """The equations that order host calls, each of which waits for the one before."""

    def passed_on(refs: Iterable[Ref]) -> list[str]:
        return [a.name for a in refs if isinstance(graph[a.name].op, (Merge, Item))]

    def sources(name: str) -> list[str]:
        return passed_on(graph[name].args) if isinstance(graph[name].op, Merge) else []

    calls = (n for n in graph.nodes.values() if isinstance(n.op, Call) and n.op.has_state)
    return set(postorder(passed_on(a for n in calls for a in n.args[-1:]), sources))


def no_order(
    graph: Graph, equations: Sequence[str], ties: Sequence[tuple[str, Ref]], tried: str
) -> ScheduleError:
    """The error for equations that wait for each other; `ties` are their reads, as (reader, read).

    Equations that the user has not declared are skipped: reads pass through them.
    """
    inner = tokens(graph)
    merges = [n for n in equations if isinstance(graph[n].op, Merge) and n not in inner]
    declared = [n for n in merges if graph[n].locs]
    nodes = [graph[n] for n in declared or merges or equations][:8]
    by_reader: dict[str, list[Ref]] = {}
    for reader, ref in ties:
        by_reader.setdefault(reader, []).append(ref)

    def reads(name: str, at: Mapping[str, Index], visited: set[str]) -> Iterator[Ref]:
        for ref in by_reader.get(name, ()):
            index = tuple(_of_points(e, at) for e in ref.index)
            if ref.name in declared or not declared:
                yield Ref(ref.name, index)
            elif ref.name not in visited:
                visited.add(ref.name)
                points = dict(zip(graph[ref.name].domain.dims, index, strict=True))
                yield from reads(ref.name, points, visited)

    names = [display_name(graph, n.name) for n in nodes]
    all_reads = [
        f"{x} reads {r}"
        for x, n in zip(names, nodes, strict=True)
        for r in reads(n.name, {}, set())
    ]
    lines = [
        f"{x}{n.domain}" + (f"   --> {n.loc}" if n.loc else "")
        for x, n in zip(names, nodes, strict=True)
    ]
    what = f"the equations {', '.join(names)} have no order: each waits for the other"
    if len(names) == 1:
        what = f"the points of {names[0]} have no order: they wait for each other"
    facts = ["; ".join([*dict.fromkeys(all_reads)][:6]), *lines]
    if not declared and {n.loc for n in nodes} == {nodes[0].loc} and nodes[0].loc:
        have = {d for n in nodes for d in n.domain.dims}
        over = ", ".join(d.name for d in graph.dims if d.role is Role.WRITTEN and d.name in have)
        what = "what this line asks for has no order: its points wait for each other"
        facts = [f"it is computed at each point of ({over}), and of none of them first"]
    calls, hint = _calls_one_by_one(graph, equations, nodes)
    return ScheduleError(
        f"{what}, {tried}",
        facts="\n  ".join([*calls, *facts]),
        hint=hint,
        loc=nodes[0].loc,
    )


def _calls_one_by_one(
    graph: Graph, equations: Sequence[str], shown: Sequence[Node]
) -> tuple[list[str], str]:
    """The facts about host calls on a cycle, of which the error lists `shown`, and a hint."""
    for call in (graph[n] for n in equations):
        if not isinstance(call.op, Call) or not call.op.has_state or not call.domain:
            continue
        dims, outer = ", ".join(call.domain.dims), call.domain.dims[0]
        name, place = display_name(graph, call.name), f"   --> {call.loc}" if call.loc else ""
        whole = next((n for n in shown if outer not in n.domain), None)
        if whole is not None and len(call.domain) > 1:
            fact = (
                f"{name} is made at one point of ({dims}) after the other, "
                f"all of one {outer} before the next, but {whole.name} is of all {outer}"
            )
            return [fact + place], (
                f"let one call take every {outer}: batch=({outer},) in rc.call(..), rows={outer} "
                "in env.reset(..); or pure=True in rc.call(..), whose calls are made in any order"
            )
        others = [graph[n] for n in equations if n != call.args[-1].name]  # which is its state
        every = [e for n in others for a in n.args for e in a.index]
        steps = {is_shift(e, outer) or 0 for e in every}
        if min(steps, default=0) == 0 < max(steps, default=0):  # all wait for later points
            fact = (
                f"{name} may keep a state: it is made at the points of ({dims}) from the first on"
            )
            return [fact + place], "if it keeps none, write pure=True in rc.call(..)"
    return [], "let one of them read an earlier point (t-1), or start the recurrence with a branch"


def _of_points(index: Index, at: Mapping[str, Index]) -> Index:
    """Substitute the indices at which a reader reads the dims of an index."""
    for dim, e in at.items():
        shift = None if isinstance(index, Slice) else is_shift(index, dim)
        if shift is not None and isinstance(e, Slice):
            return Slice(e.lo + shift, e.hi + shift, e.step)
    return index_at(index, {d: e for d, e in at.items() if not isinstance(e, Slice)})


def bounds_error(
    names: Sequence[str],
    numbers: Mapping[str, int],
    missing: Sequence[str],
    unknown: Sequence[str],
    loc: Loc | None,
) -> DomainError:
    """The error for bounds without a value, or values without a bound."""
    which = missing or unknown
    some = f"{'the bound' if len(which) == 1 else 'the bounds'} {', '.join(which)}"
    values = ", ".join(f"{n}={v}" for n, v in numbers.items()) or "none"
    return DomainError(
        f"no value is given for {some}" if missing else f"the program does not have {some}",
        facts=f"its bounds are {', '.join(names) or 'none'}; given: {values}",
        hint=f"add {', '.join(f'{n}: 10' for n in missing)}"
        if missing
        else f"leave out {', '.join(unknown)}",
        loc=loc,
    )


def bad_bound(name: str, value: object, loc: Loc | None) -> DomainError:
    """The error for a bound that is no positive integer."""
    return DomainError(
        f"the bound {name} cannot be {value!r}",
        facts="a bound is the number of points of a dim: an integer, at least 1",
        hint=f"give it one: {name}: 10",
        loc=loc,
    )
