"""The compiler's pipeline, from equations to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from recurra.analysis.bound_values import known_bounds
from recurra.analysis.guards import guards
from recurra.analysis.safety import check_safety
from recurra.analysis.unused_host_calls import without_untaken
from recurra.codegen.host_program import Program
from recurra.codegen.host_source import host_source
from recurra.codegen.lowering import lower
from recurra.codegen.predication import predicated_loops
from recurra.codegen.shards import Shards, make_shards
from recurra.codegen.software_pipelining import rotated
from recurra.codegen.split_buffers import by_cost
from recurra.compiler.options import CompileOptions
from recurra.compiler.pass_manager import PassManager
from recurra.compiler.schedule_cache import ScheduleCache
from recurra.cost.target import PLAIN, Target
from recurra.ir.bind import bind_bounds, without_negative
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node
from recurra.ir.output_axes import Axes
from recurra.ops.source import Input
from recurra.schedule.allen_kennedy import find_schedule
from recurra.schedule.isl_scheduler import schedule_by_isl
from recurra.schedule.legality import violations
from recurra.schedule.tree import Schedule, members
from recurra.storage.arena_solvers import PlacementSolver, in_arena
from recurra.storage.copy_coalescing import coalesced
from recurra.storage.duplicate_stores import without_duplicates
from recurra.storage.offload import (
    Offload,
    nothing_offloaded_remark,
    offload_of,
    offloaded_remarks,
    stores_to_offload,
)
from recurra.storage.storage_plan import StoragePlan, make_plan
from recurra.storage.verifier import validate
from recurra.transforms.canonicalize.canonicalize import CANONICALIZE
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.early_exit.poll_interval import POLL_INTERVAL
from recurra.transforms.fuse_attention import FUSE_ATTENTION
from recurra.transforms.fuse_casts import FUSE_CASTS
from recurra.transforms.guard_shared_operands import GUARD_SHARED_OPERANDS
from recurra.transforms.host_step_groups import BATCH_GROUPS
from recurra.transforms.iteration_domains.forward_substitution import FORWARD_SUBSTITUTION
from recurra.transforms.iteration_domains.peel_independent import PEEL_INDEPENDENT
from recurra.transforms.iteration_domains.promote_domains import PROMOTE_DOMAINS
from recurra.transforms.iteration_domains.snapshot_points import SNAPSHOT_POINTS
from recurra.transforms.iteration_domains.split_live_ranges import SPLIT_LIVE_RANGES
from recurra.transforms.iteration_domains.unroll_periodic import UNROLL_PERIODIC
from recurra.transforms.padding.pad_axes import PAD
from recurra.transforms.permutations.host_gather import HOST_GATHER
from recurra.transforms.recurrences.incrementalize import INCREMENTALIZE
from recurra.transforms.recurrences.predictive_commoning import PREDICTIVE_COMMONING
from recurra.transforms.reductions_to_accumulators import REDUCTIONS_TO_ACCUMULATORS
from recurra.transforms.rematerialize import REMATERIALIZE
from recurra.transforms.shard import SHARD_ROWS
from recurra.transforms.shared_borders import SHARED_BORDERS
from recurra.transforms.skew.skew import SKEW
from recurra.transforms.strip_mine.strip_mine import STRIP_MINE
from recurra.transforms.strip_mine.tiling import TILE, TILE_BATCH
from recurra.transforms.vectorize.distribute import DISTRIBUTE, PRODUCTS_AHEAD
from recurra.transforms.vectorize.plan import VECTORIZE
from recurra.transforms.vectorize.running_totals import RUNNING_TOTALS
from recurra.transforms.vectorize.transpose_inputs import TRANSPOSE_INPUTS

PASSES: tuple[Pass, ...] = (
    CANONICALIZE,
    GUARD_SHARED_OPERANDS,
    PREDICTIVE_COMMONING,
    UNROLL_PERIODIC,
    INCREMENTALIZE,
    SPLIT_LIVE_RANGES,
    PEEL_INDEPENDENT,
    SPLIT_LIVE_RANGES,
    FUSE_ATTENTION,
    STRIP_MINE,
    PAD,
    SKEW,
    FORWARD_SUBSTITUTION,
    SHARD_ROWS,
    BATCH_GROUPS,
    POLL_INTERVAL,
    TILE_BATCH,
    PROMOTE_DOMAINS,
    PRODUCTS_AHEAD,
    REMATERIALIZE,
    TILE,
    RUNNING_TOTALS,
    DISTRIBUTE,
    HOST_GATHER,
    VECTORIZE,
    TRANSPOSE_INPUTS,
    REDUCTIONS_TO_ACCUMULATORS,
    REMATERIALIZE,  # again, because folds let some statements move to another loop
    SHARED_BORDERS,
    SNAPSHOT_POINTS,
    FUSE_CASTS,
)
SCHEDULERS = {"own": find_schedule, "isl": schedule_by_isl}


@dataclass(frozen=True)
class Compiled:
    """A program with the stages of its compilation."""

    stages: PassManager
    schedule: Schedule
    plan: StoragePlan
    program: Program
    outputs: Mapping[str, str]  # of the source graph -> of the program
    axes: Mapping[str, Axes]  # of each output of the source graph
    shards: Shards | None = None  # if rows are sharded over workers


def compile_graph(
    graph: Graph,
    sizes: Mapping[str, int],
    options: CompileOptions | None = None,
    target: Target = PLAIN,
) -> Compiled:
    """Compile a graph to a program for known bounds.

    Raises ShapeError, DomainError or ScheduleError with a counterexample and the user's line.
    """
    options = options or CompileOptions()
    sizes = known_bounds(graph, sizes)
    graph = check_safety(without_untaken(without_negative(graph, sizes), sizes), sizes)
    graph, sizes = bound(graph, sizes)
    offload = offload_of(options.offload)
    likely = None if offload is None else offload.likely(graph, sizes)
    schedules = ScheduleCache()
    cx = compile_context(sizes, replace(options, offload=likely), target, schedules)
    stages = PassManager(cx)
    stages.begin(graph)
    g = stages.run(PASSES, graph)
    stages.end()
    changed = [n.name for n in g.nodes.values() if not _is_original_input(n, graph)]
    assert not changed, f"{changed[0]} is not what the caller gives"
    order = schedules.of if options.scheduler == "own" else SCHEDULERS[options.scheduler]
    s = order(g, cx.sizes, guarded=guards(g, cx.sizes))
    schedules.entries.clear()  # the schedules of passes are no part of the program
    s = rotated(s, cx.sizes, cx.turns)
    broken = violations(s, cx.sizes)
    assert not broken, f"the schedule runs {broken[0].sink} before {broken[0].ref} is there"
    p = predicated_loops(coalesced(without_duplicates(make_plan(s, cx.sizes))), target.prices)
    if stages.config.check:
        errors = validate(p)
        assert not errors, errors[0]
    program = _lowered(p, cx, offload, sees_inputs=options.check == "nan")
    program = _placed(program, options.placement, p if stages.config.check else None)
    tell(stages, p.schedule, program)
    names = dict(zip(graph.outputs, g.outputs, strict=True))
    axes = dict(zip(graph.outputs, cx.axes, strict=True))
    rows = make_shards(program.plan, stages.graphs.get(SHARD_ROWS.name), cx.shard, cx.axes)
    return Compiled(stages, p.schedule, p, program, names, axes, rows)


def _is_original_input(node: Node, source: Graph) -> bool:
    """Tell whether an input is one of the source graph, or part of one along the same dims."""
    if not isinstance(node.op, Input):
        return True
    original = source.nodes.get(node.op.of or node.name)
    if original is None or not isinstance(original.op, Input) or original.type != node.type:
        return False
    return len(node.op.at_) == len(node.domain) if node.op.of else original.domain == node.domain


def bound(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, dict[str, int]]:
    """The graph with numbers for the bounds that bound no dim, and the other bounds."""
    of_dims = {s for r in graph.dims for s in symbols(r.hi)}
    left = {n: v for n, v in sizes.items() if n in of_dims}
    return bind_bounds(graph, {n: v for n, v in sizes.items() if n not in of_dims}), left


def compile_context(
    sizes: Mapping[str, int],
    options: CompileOptions | None = None,
    target: Target = PLAIN,
    schedules: ScheduleCache | None = None,
) -> CompileContext:
    """The context of one compilation's passes."""
    options = options or CompileOptions()
    tuning, offload = options.tuning, offload_of(options.offload)
    return CompileContext(
        sizes,
        schedules or ScheduleCache(),
        tuning if options.scheduler == "own" else replace(tuning, tile_points=0),  # isl needs boxes
        target,
        options.workers,
        options.groups,
        None if offload is None else offload.selects,
    )


def tell(stages: PassManager, schedule: Schedule, program: Program) -> None:
    """Log and dump the program as the environment says."""
    if "memory" in stages.config.log:
        for line in str(program.plan).splitlines():
            stages.tell("memory", f"{'plan':<26} {line}")
    if stages.config.dump is not None:
        stages.dump("schedule", schedule)
        stages.dump("plan", program.plan)
        stages.dump("host", host_source(program))


def _lowered(
    plan: StoragePlan, cx: CompileContext, offload: Offload | None, sees_inputs: bool
) -> Program:
    """The program, with large stores offloaded if they can be, or else smaller ones."""
    target = cx.target
    make = partial(
        lower,
        plan,
        cx.tuning.launch_steps,
        prices=target.prices,
        host_loops=_host_loops(plan, cx),
        min_overlapped_ns=target.min_overlapped_ns,
        every=frozenset(members(plan.schedule.items)) if sees_inputs else None,
    )
    remarks = list[str]()
    for choice in offload.choices() if offload is not None else ():
        candidates = stores_to_offload(plan, choice)
        if not candidates:
            remarks = [nothing_offloaded_remark(plan, choice)]
            continue
        program = make(offloaded=candidates, room=choice.room)
        waiting = set(program.waiting(program.main)) if program.main is not None else set[str]()
        free = {n: d for n, d in candidates.items() if n not in waiting}
        remarks = offloaded_remarks(program.plan, free, choice)
        offloaded = {n: d for n, d in free.items() if program.plan.stores[n].room}
        if offloaded:
            cx.remark(*remarks)
            if offloaded != candidates:
                program = make(offloaded=offloaded, room=choice.room)
            return replace(program, offload=choice)
    cx.remark(*remarks)
    return make()


def _host_loops(plan: StoragePlan, cx: CompileContext) -> frozenset[str]:
    """The dims whose loops run on the host, including those of groups that take turns."""
    if cx.target.host_loops is not None:
        return frozenset((*cx.target.host_loops, *cx.turns))
    dims, why = by_cost(plan, cx.target.prices)
    cx.remark(*why)
    return dims.union(cx.turns)


def _placed(
    program: Program, solver: PlacementSolver | None, checked: StoragePlan | None
) -> Program:
    """The program with its stores in an arena, if a solver is given; `checked` is tested in it."""
    if solver is None:
        return program
    placed = in_arena(program.plan, solver)
    errors = validate(checked, placed.arena) if checked is not None else ()
    assert not errors, errors[0]
    return replace(program, plan=placed)
