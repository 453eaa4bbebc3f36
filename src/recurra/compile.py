"""The whole pipeline on one screen: equations to program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from recurra.cost.model import HELD
from recurra.cost.prices import Prices
from recurra.cost.target import PLAIN, Target
from recurra.ir.bind import bind, without_negative
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph
from recurra.lang.safety import check, known_bounds
from recurra.memory.coalesce import coalesced
from recurra.memory.placement import Asked, in_arena
from recurra.memory.plan import Plan, plan
from recurra.memory.swap import Swap, moved, read_by_points, swap_of, worth
from recurra.memory.validate import validate
from recurra.ops.permutation import Permutation
from recurra.program.apart import by_cost
from recurra.program.lower import Program, lower
from recurra.program.rotate import rotated
from recurra.program.shards import Shards, shards
from recurra.program.source import source
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.as_they_lie import as_they_lie
from recurra.rewrite.asking import asked, open_questions
from recurra.rewrite.attention import attended
from recurra.rewrite.beside import side_by_side
from recurra.rewrite.fetch import fetch
from recurra.rewrite.fronts import fronts
from recurra.rewrite.granularity import (
    Axes,
    Decision,
    batch_dims,
    batch_last,
    batches,
    granularity,
    inside_tiles,
    loops,
    more_axes,
)
from recurra.rewrite.groups import find as find_groups
from recurra.rewrite.groups import grouped, split_axes
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad
from recurra.rewrite.place import place
from recurra.rewrite.prefix import prefixes
from recurra.rewrite.rounds import in_rounds
from recurra.rewrite.shard import choose, shard
from recurra.rewrite.simplify import contract, simplify
from recurra.rewrite.single import single
from recurra.rewrite.split import FEWEST, split_off
from recurra.rewrite.strip import stripped
from recurra.rewrite.tile import Tile, blocks, outer_of, tile, tiles
from recurra.rewrite.unshuffle import unshuffle
from recurra.rewrite.wavefront import GAIN, on_diagonals
from recurra.schedule.by_isl import schedule_by_isl
from recurra.schedule.legal import violations
from recurra.schedule.levels import schedule
from recurra.schedule.tree import Schedule, phases
from recurra.trace import Stages

SCHEDULERS = {"own": schedule, "isl": schedule_by_isl}


@dataclass(frozen=True)
class Compiled:
    """A program with the stages it went through."""

    stages: Stages
    schedule: Schedule
    plan: Plan
    program: Program
    outputs: Mapping[str, str]  # of the source graph -> of the program
    axes: Mapping[str, Axes]  # of each output of the source graph
    shards: Shards | None = None  # where rows are split over workers


def compile_graph(
    graph: Graph,
    sizes: Mapping[str, int],
    *,
    axes: bool = True,
    last: bool | None = None,
    chunk: int | None = None,
    held: float = HELD,
    strip: int | None = None,
    attention: bool | None = None,
    given: int = FEWEST,
    diagonals: float = GAIN,
    scheduler: str = "own",
    workers: int = 1,
    groups: int = 1,
    beside: bool = False,
    swap: Swap | str | None = None,
    placement: Asked | None = None,
    target: Target = PLAIN,
) -> Compiled:
    """Graph to program, for bounds that are known.

    `axes`: dims that order nothing become axes, else every dim is a loop. `last`: the batch axes go
    last (None: decide). `chunk`: steps of the outermost loop per launch (None: by cost). `strip`:
    points of a tile of a range that grows (None: by cost; 0: no tiles; isl's scheduler takes none).
    `attention` is one op (None: where that costs less). `given`: points of a loop that wait for
    nothing of it are computed at once, if they are so many (0: never). `held` weighs a kept byte
    (0: keep all). `diagonals`: cells that wait for neighbours go by diagonals where that is so many
    times cheaper (0: always). `scheduler`: "own", or "isl" for the order that isl's scheduler
    finds. `workers`: the rows of a dim that orders nothing are split over as many; each runs the
    program on its own. Rows of environments on the host take turns in `groups`: while one is
    stepped, the others act. `beside`: products of one operand are one product. `swap`: large
    stores lie on the "host" or a "disk", see `memory.swap.Swap`. `placement`: stores lie in one
    block of memory, where a solver puts them, see `memory.placement`. `target`: what it is for.

    Raises ShapeError, DomainError or ScheduleError: a counter-example point and the user's line.
    """
    check(graph, sizes)
    sizes = known_bounds(graph, sizes)
    of_dims = {s for r in graph.dims for s in symbols(r.hi)}
    graph = bind(graph, {n: v for n, v in sizes.items() if n not in of_dims})
    sizes = {n: v for n, v in sizes.items() if n in of_dims}
    tile_of_range = strip if scheduler == "own" else 0  # isl's trees are loops over boxes
    graph = without_negative(graph, sizes)
    stages = Stages(sizes)
    stages.begin(graph)
    written: list[Axes] = []

    def without_single(g: Graph, sizes: Mapping[str, int]) -> Graph:
        nonlocal written
        new, written = single(g, sizes)
        stages.axes = written
        return new

    g = stages.run("single", without_single, graph)
    g = stages.run("simplify", simplify, g)
    if any(isinstance(n.op, Permutation) for n in g.nodes.values()):
        g = stages.run("unshuffle", unshuffle, g)
        g = stages.run("simplify again", simplify, g)
    g = stages.run("rounds", lambda g, n: _noted(stages, in_rounds(g, n)), g)
    g = stages.run("lift", lift, g)
    g = stages.run("prefix", lambda g, n: _noted(stages, prefixes(g, n, chunk)), g)
    g = stages.run(
        "split", lambda g, n: _noted(stages, split_off(g, n, chunk, given, target.rows)), g
    )
    g = stages.run("prefix again", lambda g, n: _noted(stages, prefixes(g, n, None)), g)
    lift_attention = partial(attended, kernel=target.kernel, asked=attention)
    g = stages.run("attention", lambda g, n: _noted(stages, lift_attention(g, n)), g)
    g = stages.run("strip", lambda g, n: _noted(stages, stripped(g, n, tile_of_range)), g)
    g = stages.run("pad", pad, g)
    g = stages.run("place", place, g)
    g = _diagonals(g, diagonals, stages, target.prices) if axes else g
    over = choose(g, sizes, batch_dims(g), workers) if workers > 1 else None
    if over is not None:
        sizes = over.sizes(sizes)
        stages.split(sizes, str(over))
        g = stages.run("shard", partial(shard, s=over), g)
    turns = [find_groups(g, sizes, groups, workers)] if groups > 1 else []
    for found in turns:
        stages.decisions.append(str(found))
        written = split_axes(written, found)
        stages.axes = written
        g = stages.run("groups", lambda g, _, found=found: grouped(g, found), g)
    batch = batches(g) if axes else []
    split, gone = inside_tiles(g), swap_of(swap)
    decided: tuple[Decision, ...] = ()

    def stored(g: Graph, sizes: Mapping[str, int]) -> Graph:
        new, choices = keep(
            g, sizes, phases(schedule(g, sizes, frozenset([*split, *batch]))), held, target.prices
        )
        stages.decisions += map(str, choices)
        return new

    def tiled(g: Graph, sizes: Mapping[str, int]) -> Graph:
        at = phases(schedule(accumulate(g, sizes), sizes, frozenset([*split, *batch])))
        at = {n: phase for n, phase in at.items() if n in g.nodes}
        much = target.enough if at_end else inf
        found = tiles(g, sizes, at, loops(g), {*split, *batch}, target.rows, much, target.prices)
        for t in _untouched(g, found, batch, gone, stages):
            g = tile(g, t)
            split.append(t.inner)
            stages.decisions.append(str(t))
        return g

    def batched(g: Graph, sizes: Mapping[str, int]) -> Graph:
        nonlocal decided
        new, decided = granularity(g, sizes, [*split, *batch], at_end, why)
        stages.decisions += map(str, decided)
        stages.axes = more_axes(written, g, decided)
        return as_they_lie(new)

    g = _questions(g, target.asking, stages)
    g = _in_blocks(g, batch, split, target.rows, stages)
    at_end, why = batch_last(g, sizes, [*split, *batch], last)
    g = stages.run("keep", stored, g)
    g = stages.run("tile", tiled, g)
    g = _samples(g, [*split, *batch], gone, stages)
    before = g
    g = stages.run("granularity", batched, g)
    g = stages.run("absorb", contract, g)
    g = stages.run("accumulate", accumulate, g)
    g = stages.run("contract", contract, g)
    g = stages.run("place again", place, g)
    g = stages.run("keep again", stored, g)  # folds have let some statements move to another loop
    g = _beside(g, stages) if beside else g
    stages.end()
    s = rotated(SCHEDULERS[scheduler](g, sizes), sizes, [x.dim for x in turns])
    broken = violations(s, sizes)
    assert not broken, f"the schedule runs {broken[0].sink} before {broken[0].ref} is there"
    p = coalesced(plan(s, sizes))
    s = p.schedule
    if stages.asked.check:
        wrong = validate(p)
        assert not wrong, wrong[0]
    dims, told = _counted(p, target, [x.dim for x in turns])
    stages.decisions += told
    program, told = _lowered(p, chunk, dims, gone, target)
    program = _placed(program, placement, p if stages.asked.check else None)
    stages.decisions += told
    tell(stages, s, program)
    outputs = dict(zip(graph.outputs, g.outputs, strict=True))
    where = more_axes(written, before, decided)
    placed = dict(zip(graph.outputs, where, strict=True))
    split_over = shards(program.plan, stages.graphs.get("shard"), over, where)
    return Compiled(stages, s, p, program, outputs, placed, split_over)


def tell(stages: Stages, s: Schedule, program: Program) -> None:
    """What came out, logged and dumped as the environment asks."""
    if "memory" in stages.asked.log:
        for line in str(program.plan).splitlines():
            stages.tell("memory", f"{'plan':<12} {line}")
    if stages.asked.dump is not None:
        for name, told in {"schedule": s, "plan": program.plan, "host": source(program)}.items():
            stages.dump(name, told)


def _counted(p: Plan, target: Target, turns: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """The dims that the host counts, those of rows that take turns among them, and why."""
    if target.counted is None:
        dims, told = by_cost(p, target.prices)
        return dims.union(turns), told
    return frozenset((*target.counted, *turns)), []


def _lowered(
    p: Plan, chunk: int | None, counted: frozenset[str], swap: Swap | None, target: Target
) -> tuple[Program, list[str]]:
    """The program, and what of it is swapped: what can be, of what is worth it."""
    cut = partial(lower, p, chunk, prices=target.prices, counted=counted, behind=target.behind)
    asked = worth(p, swap) if swap is not None else {}
    if swap is None or not asked:
        return cut(), []
    program = cut(swapped=asked, room=swap.room)
    told = moved(program.plan, asked, swap)
    waiting = set(program.waiting(program.main)) if program.main is not None else set[str]()
    kept = {n: d for n, d in asked.items() if program.plan.stores[n].room and n not in waiting}
    if kept == asked:
        return replace(program, swap=swap), told
    made = replace(cut(swapped=kept, room=swap.room), swap=swap) if kept else cut()
    return made, [x for x in told if x.partition(":")[0] not in waiting]


def _untouched(
    g: Graph, found: Iterable[Tile], batch: list[str], swap: Swap | None, stages: Stages
) -> list[Tile]:
    """The tiles but those that would read what is to be swapped, a point at a time."""
    by = {t: swap and read_by_points(g, stages.sizes, t, batch, swap) for t in found}
    stages.decisions += [
        f"{t.dim}: no tiles, {name} is to be swapped" for t, name in by.items() if name
    ]
    return [t for t, name in by.items() if not name]


def _placed(program: Program, asked: Asked | None, checked: Plan | None) -> Program:
    """The program with its stores in an arena, if that is asked for; `checked` is then run in it
    point by point."""
    if asked is None:
        return program
    made = in_arena(program.plan, asked)
    wrong = validate(checked, made.arena) if checked is not None else ()
    assert not wrong, wrong[0]
    return replace(program, plan=made)


def _noted(stages: Stages, made: tuple[Graph, Iterable[object]]) -> Graph:
    """The graph that a pass made; what it decided is told."""
    graph, decided = made
    stages.decisions += map(str, decided)
    return graph


def _in_blocks(g: Graph, batch: list[str], split: list[str], rows: int, stages: Stages) -> Graph:
    """Long batches in blocks, if there are any; `batch` loses them, `split` has what is inside."""
    found = blocks(g, stages.sizes, batch, rows)
    for t in found:
        g = stages.run("block", lambda g, _, t=t: tile(g, t), g)
        batch.remove(t.dim)
        split.append(t.inner)
        stages.decisions.append(str(t))
    return g


def _samples(g: Graph, batch: list[str], swap: Swap | None, stages: Stages) -> Graph:
    """Shuffled samples of what is to be swapped, taken by the host; of blocks all at once."""
    if swap is None or not any(isinstance(n.op, Permutation) for n in g.nodes.values()):
        return g
    dims = {*batch, *map(outer_of, inside_tiles(g))}
    return stages.run("fetch", lambda g, n: _noted(stages, fetch(g, n, dims, swap.wants)), g)


def _diagonals(g: Graph, gain: float, stages: Stages, prices: Prices) -> Graph:
    """Tables on their diagonals, where there are any."""
    if not any(fronts(g, stages.sizes)):
        return g

    def skewed(g: Graph, sizes: Mapping[str, int]) -> Graph:
        new, found = on_diagonals(g, sizes, gain, prices)
        stages.decisions += map(str, found)
        return new

    return stages.run("wavefront", skewed, g)


def _beside(g: Graph, stages: Stages) -> Graph:
    """Products of one operand as one."""

    def joined(g: Graph, sizes: Mapping[str, int]) -> Graph:
        order = schedule(g, sizes)
        return _noted(stages, side_by_side(g, sizes, phases(order), order.places()))

    return stages.run("beside", joined, g)


def _questions(g: Graph, asking: float, stages: Stages) -> Graph:
    """How often loops ask where rows end, if to ask costs anything."""
    if not asking or not open_questions(g):
        return g

    def often(g: Graph, sizes: Mapping[str, int]) -> Graph:
        new, choices = asked(g, sizes, asking)
        stages.decisions += choices
        return new

    return stages.run("asking", often, g)
