"""Run isl's scheduler: the times of statements, as a tree of bands and sequences."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import islpy as isl

from recurra.polyhedral.isl import CONTEXT


@dataclass(frozen=True)
class Time:
    """The time of a statement at one level: Σ factor · name + const, over its dims and bounds."""

    factors: tuple[tuple[str, int], ...]
    const: int


@dataclass(frozen=True)
class Band:
    """Levels of a schedule, outermost first, and the tree inside them."""

    levels: tuple[Mapping[int, Time], ...]  # statement → time
    inside: Band | ScheduleSequence | None


@dataclass(frozen=True)
class ScheduleSequence:
    """Trees that run one after the other, each with its statements."""

    parts: tuple[tuple[frozenset[int], Band | ScheduleSequence | None], ...]


def scheduled(
    domains: Sequence[tuple[Sequence[str], Sequence[str]]],
    reads: Sequence[tuple[int, int, Sequence[str]]],
    bounds: Mapping[str, str],
    seconds: int,
) -> Band | ScheduleSequence | None:
    """Return isl's schedule of numbered statements.

    Args:
        domains: the dims and constraints of each statement.
        reads: (source, sink, constraints); dims of the source are primed.
        bounds: a constraint for each bound.

    Raises TimeoutError if isl takes more than `seconds` of CPU time, and ValueError if its answer
    is no tree of bands and sequences.
    """
    head = f"[{', '.join(bounds)}] -> " if bounds else ""
    context = isl.Set(f"{head}{{ : {' and '.join(bounds.values())} }}", CONTEXT)

    def point(index: int, prime: str = "") -> str:
        return f"S{index}[{', '.join(d + prime for d in domains[index][0])}]"

    def body(parts: Sequence[str]) -> str:
        return f" : {' and '.join(parts)}" if parts else ""

    points = "; ".join(point(k) + body(parts) for k, (_, parts) in enumerate(domains))
    every = isl.UnionMap(f"{head}{{ }}", CONTEXT)
    near = every
    for source, sink, parts in reads:
        relation = f"{point(source, PRIME)} -> {point(sink)}{body(parts)}"
        m = isl.Map(f"{head}{{ {relation} }}", CONTEXT)
        every = every.union(m.to_union_map())
        near = near.union(_latest(m, tuple(bounds)))
    lines = (f"{head}{{ {points} }}", context, every, near)
    schedule = isl.Schedule(_in_child("\n".join(map(str, lines)), seconds), CONTEXT)
    return _tree(schedule.get_root(), [dims for dims, _ in domains])


def _in_child(constraints: str, seconds: int) -> str:
    """isl's schedule for lines of points, bounds, validity and proximity constraints.

    It is computed in another process: a call of isl cannot be interrupted, and its operation count
    is no measure of the time, as an operation takes from 1 µs to 1 ms.
    """
    command = [sys.executable, "-m", __name__, str(seconds)]
    done = subprocess.run(command, input=constraints, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        raise TimeoutError(f"isl takes more than {seconds} seconds")
    if done.returncode:
        *_, why = done.stderr.splitlines() or [f"its process ends with {done.returncode}"]
        raise ValueError(f"isl finds none: {why}")
    return done.stdout


def _main() -> None:
    """Print the schedule of the constraints on standard input."""
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    points, known, validity, near = sys.stdin.read().split("\n")
    every = isl.UnionMap(validity, CONTEXT)
    schedule = (
        isl.ScheduleConstraints.on_domain(isl.UnionSet(points, CONTEXT))
        .set_context(isl.Set(known, CONTEXT))
        .set_validity(every)
        .set_coincidence(every)
        .set_proximity(isl.UnionMap(near, CONTEXT))
        .compute_schedule()
    )
    print(schedule.to_str())


PRIME = "'"
_PARAM = isl.dim_type.param


def _latest(reads: isl.Map, bounds: Sequence[str]) -> isl.UnionMap:
    """The last source of each sink, if its distance does not depend on the bounds: isl keeps two
    statements in one loop if one such pair is fewer than three steps apart."""
    near = isl.UnionMap("{ }", CONTEXT)
    pieces: list[tuple[isl.Set, isl.MultiAff]] = []
    last = reads.reverse().lexmax_pw_multi_aff()
    last.foreach_piece(lambda where, value: pieces.append((where, value)))
    for where, value in pieces:
        affs = [value.get_at(k) for k in range(value.dim(isl.dim_type.out))]
        positions = [(a, a.find_dim_by_name(_PARAM, n)) for a in affs for n in bounds]
        if not any(k >= 0 and a.involves_dims(_PARAM, k, 1) for a, k in positions):
            m = isl.Map.from_multi_aff(value).intersect_domain(where)
            near = near.union(m.reverse().to_union_map())
    return near


def _tree(node: isl.ScheduleNode, dims: Sequence[Sequence[str]]) -> Band | ScheduleSequence | None:
    kind: Any = node.get_type()
    kinds = isl.schedule_node_type
    if kind == kinds.leaf:
        return None
    if kind in (kinds.domain, kinds.filter):
        return _tree(node.child(0), dims)
    if kind in (kinds.sequence, kinds.set):
        children = [node.child(k) for k in range(node.n_children())]
        return ScheduleSequence(tuple((_filtered(c), _tree(c, dims)) for c in children))
    if kind != kinds.band:
        raise ValueError(f"a schedule tree with a {kind} is none of loops and statements")
    times = node.band_get_partial_schedule()
    levels = [times.get_union_pw_aff(k) for k in range(times.dim(isl.dim_type.out))]
    return Band(tuple(_times(x, dims) for x in levels), _tree(node.child(0), dims))


def _filtered(node: isl.ScheduleNode) -> frozenset[int]:
    sets = node.filter_get_filter().get_set_list()
    return frozenset(int(sets.get_set(k).get_tuple_name()[1:]) for k in range(sets.n_set()))


def _times(level: isl.UnionPwAff, dims: Sequence[Sequence[str]]) -> dict[int, Time]:
    out: dict[int, Time] = {}
    times = level.get_pw_aff_list()
    for k in range(times.n_pw_aff()):
        pieces = times.get_pw_aff(k).get_pieces()
        if len(pieces) != 1:
            raise ValueError("a statement's time is a case distinction")
        ((_, aff),) = pieces
        if aff.dim(isl.dim_type.div):
            raise ValueError(f"a statement's time is no sum: {aff}")
        statement = int(aff.get_domain_space().get_tuple_name(isl.dim_type.set)[1:])
        bounds = [str(aff.get_dim_name(_PARAM, j)) for j in range(aff.dim(_PARAM))]
        factors = [
            (name, aff.get_coefficient_val(kind, j).to_python())
            for kind, names in ((isl.dim_type.in_, dims[statement]), (_PARAM, bounds))
            for j, name in enumerate(names)
        ]
        const = aff.get_constant_val().to_python()
        out[statement] = Time(tuple((n, c) for n, c in factors if c), const)
    return out


if __name__ == "__main__":
    _main()
