"""Compilation: a program with its bounds, options and backend, and the result of compiling it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from recurra.analysis.graph_builder import GraphBuilder
from recurra.backends.protocol import Backend
from recurra.backends.registry import (
    backend_of,
    expect_one_of,
    has_disk_cache,
    mesh_of,
    with_disk_cache,
)
from recurra.codegen.host_program import ChunkLoop, HostLoop, Program
from recurra.codegen.input_layout import inputs_read
from recurra.codegen.single_launch import as_single_launch
from recurra.compiler import compilation_cache
from recurra.compiler.bounds import Bounded, bounded, expect_room, expect_sizes
from recurra.compiler.options import CompileOptions, checked, expect_alone, placed, target_of
from recurra.compiler.pipeline import SCHEDULERS, Compiled, compile_graph
from recurra.config import environment
from recurra.cost.target import Target
from recurra.errors import RecurraError, ScheduleError
from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.effects import Checkpoint, Export
from recurra.ir.expr import Sym
from recurra.ir.output_axes import RestoredAxes, restore_functions
from recurra.runtime.checkpointing import steps_between_saves
from recurra.runtime.inputs import ProgramInput, program_inputs
from recurra.support.cpu import cores

A = TypeVar("A", bound=LibraryArray)


@dataclass(frozen=True, eq=False)
class Compilation:
    """A program as it was written, and as it was compiled for a backend.

    `check` is what a run checks: "nan", "bounds" or nothing. `kept` is the entry of the compilation
    cache with the program and its regions, if any. `may_be_single`: a run may be a single launch.
    """

    written: Bounded
    inputs: Mapping[str, ProgramInput]
    effects: tuple[Checkpoint, ...]
    exports: tuple[Export, ...]
    check: str
    backend: Backend
    target: Target
    kept: compilation_cache.CachedProgram | None
    compiled: Compiled
    may_be_single: bool

    @property
    def outputs(self) -> Mapping[str, str]:
        """The equation that gives each output of the program as it was written."""
        return self.compiled.outputs

    @cached_property
    def named(self) -> Mapping[str, str]:
        """The output, as it was written, of each named tensor, in the user's order."""
        return self.written.logs or {o: o for o in self.outputs if o not in self.written.checks}

    @cached_property
    def single(self) -> Program | None:
        """The program as one launch, for runs that nobody watches; None if it needs several."""
        asks = self.check or self.effects or self.workers > 1
        if asks or not self.may_be_single or not self.backend.compiles_whole:
            return None
        return as_single_launch(self.compiled.plan, self.compiled.program, self.target.prices)

    @property
    def workers(self) -> int:
        """The number of workers that share the rows."""
        return 1 if self.compiled.shards is None else self.compiled.shards.workers

    @property
    def iterations(self) -> int:
        """The number of steps of the outermost loop.

        If there is none, or all metrics are along dims of one point, the most points of a metric.
        """
        logged = [self.written.graph[o].domain for o in self.written.logs.values()]
        sizes = [[r.size(self.written.sizes) for r in domain] for domain in logged]
        loops = [x for x in self.compiled.program.items if isinstance(x, (ChunkLoop, HostLoop))]
        if not loops or (sizes and all(n == [1] for n in sizes)):
            return max((n[0] for n in sizes if len(n) == 1), default=1)
        return max(x.hi for x in loops) - min(x.lo for x in loops)

    def arrange(self, output: str, array: A, xp: ArrayNamespace | None = None) -> A:
        """Reorder axes from the program's order to the user's; `xp` is the array's namespace."""
        if xp is None:
            xp = np if isinstance(array, np.ndarray) else self.backend.machine.xp
        return self.restored[output](array, xp)

    @cached_property
    def restored(self) -> Mapping[str, RestoredAxes]:
        """The functions that restore the user's order of axes of each output."""
        before, graph = self.written.graph, self.compiled.plan.graph
        return {
            o: restore_functions(graph, before[o].domain.dims, a)
            for o, a in self.compiled.axes.items()
        }


def compile_program(
    builder: GraphBuilder, sizes: Mapping[str, object], options: CompileOptions
) -> Compilation:
    """Compile a program for these bounds, or load it from the compilation cache."""
    backend = backend_of(options.backend)
    expect_one_of("scheduler", options.scheduler, SCHEDULERS)
    options = checked(options)
    check = options.check or ""
    written = bounded(builder, sizes, check_indices=check == "bounds")
    if not written.graph.nodes:
        raise RecurraError.at_user_line(
            "the program computes nothing",
            facts="nothing is put out, and what nothing depends on is left out",
            hint="say what you want of it: rc.output(x=x), rc.log(loss=loss)",
        )
    effects = tuple(builder.effects)
    if effects and options.tuning.launch_steps is None:
        options = options.with_options(
            {"launch_steps": steps_between_saves(effects, written.graph, written.sizes)}
        )
    expect_alone(options)
    options = placed(options, backend)
    if options.workers > 1:
        _expect_work(written, options.workers)
        backend = mesh_of(backend, options.workers)
    wanted = replace(options, backend=backend.name)
    target = wanted.tuning.override(target_of(backend))
    kept, backend = _entry(written, wanted, target, backend)
    compiled = compilation_cache.load_or_compile(
        kept, written.graph, lambda: compile_graph(written.graph, written.sizes, wanted, target)
    )
    expect_room(compiled.plan, sizes)
    expect_sizes(compiled.plan)
    read = inputs_read(compiled.program.plan)
    inputs = program_inputs(builder.nodes.values(), written.most, read)
    may_be_single = options.tuning.single_launch and options.tuning.launch_steps is None
    return Compilation(
        written,
        inputs,
        effects,
        tuple(builder.exports),
        check,
        backend,
        target,
        kept,
        compiled,
        may_be_single,
    )


def _expect_work(written: Bounded, workers: int) -> None:
    """Raise ScheduleError if no dim has a point for each worker, before any are started."""
    ranges = (d.range for d in written.graph.declared.values())
    points = {r.hi.name: r.size(written.sizes) for r in ranges if isinstance(r.hi, Sym)}
    longest = max(points, key=points.__getitem__, default=None)
    if longest is not None and points[longest] < workers:
        raise ScheduleError.at_user_line(
            f"the program cannot be split over {workers} workers",
            facts=f"each takes some points of one dim, and none has more than {longest} = "
            f"{points[longest]}",
            hint=f"workers={max(1, min(cores(), points[longest]))}",
        )


def _entry(
    written: Bounded, options: CompileOptions, target: Target, backend: Backend
) -> tuple[compilation_cache.CachedProgram | None, Backend]:
    """The program's entry in the compilation cache, if any, and the backend that uses it."""
    settings = environment()
    if settings.cache is None or settings.watches or options.workers > 1:
        return None, backend
    if not has_disk_cache(backend):
        return None, backend
    entry = compilation_cache.entry(settings.cache, written.graph, written.sizes, options, target)
    return entry, backend if entry is None else with_disk_cache(backend, entry)
