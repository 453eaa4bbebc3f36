"""Runner: runs a compiled program, any number of times."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recurra.checkpoint.background_writer import BackgroundWriter
from recurra.compiler.options import expect_seed
from recurra.errors import RecurraError
from recurra.ir.array_protocols import LibraryArray
from recurra.runtime.background_launches import overlapping
from recurra.runtime.checkpointing import Saver
from recurra.runtime.compilation import Compilation
from recurra.runtime.concurrency_policy import ConcurrencyTrial, RunLaunches
from recurra.runtime.host_executor import Execution, Resume, Step
from recurra.runtime.inputs import expect_inputs, with_blanks
from recurra.runtime.loop_profile import ProfiledLaunch, islands
from recurra.runtime.nan_locator import Check
from recurra.runtime.out_of_memory import is_out_of_memory, not_enough
from recurra.runtime.run_request import RunRequest
from recurra.runtime.single_launch_run import SingleRun

if TYPE_CHECKING:
    from recurra.runtime.concurrent_launches import LaunchWindows


class Runner:
    """Runs a compiled program; values that its runs share are made once."""

    def __init__(self, compilation: Compilation, execution: Execution | None = None) -> None:
        self.compilation = compilation
        self.how: ConcurrencyTrial | str = ""  # how launches ran in the last run with a window
        if execution is not None:
            self.execution, self.single = execution, None

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles hold the compilation; each compiles its own regions."""
        return type(self), (self.compilation,)

    @cached_property
    def execution(self) -> Execution:
        """The program's regions, ready for the backend to compile at their first launch."""
        c = self.compilation
        return Execution(c.compiled.program, c.backend, c.compiled.shards)

    @cached_property
    def single(self) -> SingleRun | None:
        """The runner of the program as one launch, for unwatched runs; None if it is several."""
        program = self.compilation.single
        return None if program is None else SingleRun(self.compilation, program)

    @cached_property
    def windows(self) -> LaunchWindows:
        """The windows of its runs, and their measurements."""
        from recurra.runtime.concurrent_launches import LaunchWindows

        return LaunchWindows(self.execution)

    @cached_property
    def saver(self) -> Saver:
        """The writer and reader of this program's checkpoints."""
        c = self.compilation
        if c.effects and getattr(c.backend, "processes", 1) > 1:
            raise RecurraError(
                "a run of several processes is not saved",
                facts="each of them would write the same files",
                hint="leave checkpoint(..) out, or use workers of one process",
                loc=c.effects[0].loc,
            )
        decisions = tuple(c.compiled.stages.decisions)
        program, source = c.compiled.program, c.written.graph
        return Saver(program, source, c.effects, c.backend.name, decisions, c.workers, c.exports)

    def run(self, request: RunRequest) -> dict[str, LibraryArray]:
        """Run the program; return every named tensor, [*dims of its domain, *shape]."""
        try:
            if not request.is_watched and self.single is not None:
                return self.single.run(request)
            with self.launches(request) as launches:
                return self.run_by(launches.execution, request)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise not_enough(self.compilation.compiled.plan, error) from error

    @contextmanager
    def launches(self, request: RunRequest) -> Generator[RunLaunches]:
        """The launches of one run: in order, beside host calls, or through a window."""
        expect_inputs(self.compilation.inputs, request.inputs)
        expect_seed(request.seed)
        if request.window is None and self.compilation.check:  # one launch after the other
            yield RunLaunches(self.execution)
            return
        if request.window is None:
            with overlapping(self.execution) as execution:
                yield RunLaunches(execution)
            return
        if self.compilation.check:
            raise RecurraError.at_user_line(
                f"check={self.compilation.check!r} looks at one launch after the other",
                facts="the program is run through a window",
                hint="leave window out to find out where a NaN comes from",
            )
        with self.windows.launches(request.window) as chosen:
            self.how = chosen.how
            yield chosen

    def start(self, request: RunRequest) -> tuple[Resume | None, int]:
        """The state that a run resumes, if any, and its seed.

        Raises RecurraError if it would save over another run.
        """
        resume, seed = request.resume, request.seed
        if isinstance(resume, (str, Path)):
            resume, seed = self.saver.load(resume)
        if self.compilation.effects:
            self.saver.expect_own(resume, seed, request.overwrite)
        return resume, seed

    def run_by(self, execution: Execution, request: RunRequest) -> dict[str, LibraryArray]:
        """Run an execution of the program: its own, or one whose launches are wrapped."""
        c, inputs = self.compilation, request.inputs
        saver = replace(self.saver, inputs=with_blanks(c.inputs, inputs), warned=set())
        resume, seed = self.start(request)
        watch = None
        if c.check == "nan":
            names = {c.outputs[o]: name for name, o in c.written.logs.items()}
            watch = Check(c.compiled.program, names, seed, inputs, resume)
            execution = watch.recorded(execution)
        reported = set[str]()
        observed = request.on_step is not None or watch is not None or bool(c.written.checks)
        steps = execution.steps(
            seed, inputs=inputs, resume=resume, native=request.native, watched=observed
        )
        # Close now: a caught error may keep frames alive.
        with BackgroundWriter() as behind, closing(steps):
            while isinstance(result := self.launch(steps), Step):
                is_reported = self.is_reported(result)
                seen = self.metrics(result) if is_reported and request.on_step else ()
                for first, metrics in seen:
                    reported |= metrics.keys()
                    request.tell(first, metrics)
                self.expect_indices(result.outputs, result)
                if watch is not None:
                    watch.step(result)
                if result.variables or not saver.border:
                    saver.state(result, seed, behind, request.folder)
                if request.on_state is not None and result.variables and is_reported:
                    request.on_state(result)
        for late in self.unreported_metrics(result, reported, resume is not None):
            request.tell(0, late)
        self.expect_indices(result)
        if watch is not None:
            watch.end(result)
        return {name: c.arrange(o, result[c.outputs[o]]) for name, o in c.named.items()}

    def launch(self, steps: Iterator[Step]) -> Step | dict[str, LibraryArray]:
        """Run the next launch of the outermost loop; after the last one, return all outputs."""
        since = time.perf_counter()
        try:
            s = next(steps)
        except StopIteration as end:
            return end.value
        ms = (time.perf_counter() - since) * 1e3
        line = f"{s.dim} {s.lo}..{s.hi - 1}: {ms:.1f} ms"
        self.compilation.compiled.stages.tell("launches", line)
        return s

    @cached_property
    def log_dims(self) -> frozenset[str]:
        """The dims along which metrics are reported: logs that are one number at each point."""
        written = self.compilation.written
        logged = [written.graph[o] for o in written.logs.values()]
        return frozenset(n.domain.dims[0] for n in logged if len(n.domain.dims) == 1)

    def is_reported(self, step: Step) -> bool:
        """Is a launch along a dim of metrics, if there are any?

        A dim of one point is no loop: launches are then of a loop inside of that point.
        """
        return not self.log_dims or step.dim in self.log_dims

    def unreported_metrics(
        self, outputs: Mapping[str, LibraryArray], reported: Collection[str], resumed: bool
    ) -> list[dict[str, np.ndarray]]:
        """The scalars, by their dim, that no launch has reported: no loop runs along it.

        A resumed run has reported those of several points already.
        """
        c, out = self.compilation, dict[str, dict[str, np.ndarray]]()
        for name, o in c.written.logs.items():
            node = c.written.graph[o]
            if len(node.domain) != 1 or name in reported:
                continue
            x = np.atleast_1d(c.arrange(o, outputs[c.outputs[o]]))
            if x.ndim == 1 and (len(x) == 1 or not resumed):
                out.setdefault(node.domain.dims[0], {})[name] = x
        return list(out.values())

    def metrics(self, step: Step) -> list[tuple[int, dict[str, np.ndarray]]]:
        """The scalars of one launch, by the user's names; those of the same points are together."""
        outputs, out = self.compilation.outputs, dict[range, dict[str, np.ndarray]]()
        for name, o in self.compilation.written.logs.items():
            x = step.outputs.get(outputs[o])
            if x is not None and x.ndim == 1 and len(x):
                out.setdefault(step.points[outputs[o]], {})[name] = x
        return [(r.start, out[r]) for r in sorted(out, key=lambda r: r.stop)] or [(step.lo, {})]

    def expect_indices(self, outputs: Mapping[str, LibraryArray], step: Step | None = None) -> None:
        """Raise DomainError if a read by data left its axis, if check="bounds" is on.

        At the end of a run, the points that no step has shown are checked.
        """
        c = self.compilation
        for stray, check in c.written.checks.items():
            x, last = outputs.get(c.outputs[stray]), outputs.get(c.outputs[check.last])
            if x is None or last is None:
                continue
            pairs = ((stray, x), (check.last, last))
            found, ends = (c.arrange(name, np.asarray(v)) for name, v in pairs)
            starts = {} if step is None else {step.dim: step.points[c.outputs[stray]].start}
            check.expect_inside(found, ends, c.written.sizes, starts)

    def islands(self, request: RunRequest, steps: int) -> list[ProfiledLaunch]:
        """The cost of every loop in a step of the outermost loop, predicted and measured, in ms.

        Every loop is compiled and launched on its own, so that it can be timed: this takes as long
        as compiling the program once more, and `steps` steps of it.
        """
        c = self.compilation
        expect_inputs(c.inputs, request.inputs)
        plan, main = c.compiled.plan, c.compiled.program.main
        if main is None:
            return []
        arguments = (plan, main.loop, c.backend, c.compiled.shards, c.target.prices)
        return islands(*arguments, seed=request.seed, inputs=request.inputs, steps=steps)
