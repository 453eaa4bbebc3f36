"""Executable: a compiled program, what it went through, and how it is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recurra import cache
from recurra.backend.choose import backend_of, mesh_of, one_of
from recurra.compiler.bounds import bounded, expect_room
from recurra.compiler.options import (
    CompileOptions,
    checked,
    expect_alone,
    expect_seed,
    placed,
)
from recurra.compiler.pipeline import SCHEDULERS, Compiled, compile_graph
from recurra.config import config
from recurra.cost import prices
from recurra.cost.target import Target
from recurra.errors import RecurraError, here
from recurra.finite import Check
from recurra.footprint.run import footprint
from recurra.fragments import code, folds_html, table
from recurra.ir.graph import Graph
from recurra.judged import Judged, Launches
from recurra.lang.tracer import Tracer
from recurra.memory.allocate import Arena, Solve, allocate
from recurra.memory.peak import Peak
from recurra.program.execute import Execution, Resume, Step
from recurra.program.given import inputs_read
from recurra.program.islands import Island, islands
from recurra.program.lower import ChunkLoop, HostLoop
from recurra.report.behind import Behind
from recurra.rewrite.granularity import restored
from recurra.rewrite.growing_axes import longest_window
from recurra.runtime.inputs import expect_inputs, program_inputs, with_blanks
from recurra.runtime.summary import chart, memory_summary, store_rows
from recurra.saving import Saver, launch_size

if TYPE_CHECKING:
    from recurra.windowed import Windows

OnStep = Callable[[int, dict[str, Any]], None]


class Executable:
    """`program.run(seed=0)` gives the tensors named by rc.log and rc.output, by name."""

    window: Judged | str = ""  # of the last run that was given one: in words, how its launches run

    def __init__(
        self,
        tracer: Tracer,
        sizes: Mapping[str, Any],
        options: CompileOptions,
    ):
        self.backend = backend_of(options.backend)
        one_of("scheduler", options.scheduler, SCHEDULERS)
        options = checked(options)
        self.check = options.check or ""
        program = bounded(tracer, sizes, check_indices=self.check == "bounds")
        graph, self.logs, self.sizes = program.graph, program.logs, program.sizes
        self.source_graph, self.index_checks = graph, program.checks
        if not graph.nodes:
            raise RecurraError(
                "the program computes nothing",
                facts="nothing is put out, and what nothing depends on is left out",
                hint="say what you want of it: rc.output(x=x), rc.log(loss=loss)",
                loc=here(),
            )
        self.effects = tuple(tracer.effects)
        if self.effects and options.tuning.chunk is None:
            size = launch_size(self.effects, self.sizes, *self.outermost(graph))
            options = options.but({"chunk": size})
        expect_alone(options)
        options = placed(options, self.backend)
        if options.workers > 1:
            self.backend = mesh_of(self.backend, options.workers)
        of_machine = prices.of_machine(self.backend.name)
        asked = replace(options, backend=self.backend.name)
        target = asked.tuning.aimed(replace(self.backend.target, prices=of_machine))
        self.target: Target = target
        self.kept = self.entry(graph, asked)
        self.compiled: Compiled = cache.program(
            self.kept, graph, lambda: compile_graph(graph, self.sizes, asked, target)
        )
        expect_room(self.compiled.plan, sizes)
        read = inputs_read(self.compiled.program.plan)
        self.inputs = program_inputs(tracer.nodes.values(), program.most, read)
        self.outputs = self.compiled.outputs

    def entry(self, graph: Graph, options: CompileOptions) -> cache.Entry | None:
        """Where the compiled program is kept, with its regions; None: it is not."""
        asked, caching = config(), getattr(self.backend, "cached", None)
        if asked.cache is None or asked.watches or caching is None or options.workers > 1:
            return None
        entry = cache.entry(asked.cache, graph, self.sizes, options, self.target)
        if entry is not None:
            self.backend = caching(entry)
        return entry

    @cached_property
    def execution(self) -> Execution:
        """The program's regions, ready for the backend to compile at their first launch."""
        return Execution(self.compiled.program, self.backend, self.compiled.shards)

    def run(
        self,
        seed: int = 0,
        *,
        on_step: OnStep | None = None,
        on_state: Callable[[Step], None] | None = None,
        resume: Resume | str | Path | None = None,
        folder: str | Path | None = None,
        inputs: Mapping[str, Any] | None = None,
        native: bool = False,
        window: Any = None,
    ) -> dict[str, Any]:
        """Every named tensor, [*dims of its domain, *shape].

        on_step(first, metrics) is called after every launch of the outermost loop, with the values
        [k] that it made of each metric, from point `first` on; more than once where some are made
        later than others. on_state(step) with the variables that travel along it.
        `resume` goes on after the newest checkpoint of a folder, with its seed, or from the (time,
        variables) of a step, beside host functions as they are; what is returned begins there.
        `inputs` are the values of every rc.input, by name, [*dims of its domain, *shape]: arrays of
        any library; `program.inputs` lists them, and those that nothing reads may be left out. One
        that lies in memory as the program wants it is read in place (DLPack), and never written
        to. With `native`, results are arrays of the backend, not copied.
        With `folder`, metrics.jsonl and report.html are written there and progress is shown.
        `window` is how many threads run launches that do not need each other, this one included,
        while the clock says that it pays (`program.window` tells), or a `recurra.window.Executor`;
        results are the same to the last bit.
        """
        expect_inputs(self.inputs, inputs or {})
        expect_seed(seed)
        options: dict[str, Any] = {"on_state": on_state, "resume": resume}
        options |= {"inputs": inputs, "native": native}
        with self.launches(window) as launches:
            if folder is None:
                return self.run_by(launches.execution, seed, on_step=on_step, **options)
            from recurra.recording import record

            return record(self, launches, folder, seed, on_step=on_step, **options)

    @contextmanager
    def launches(self, window: Any) -> Generator[Launches]:
        """How the launches of one run are made: as they are, or through a window."""
        if window is None:
            yield Launches(self.execution)
            return
        if self.check:
            raise RecurraError(
                f"check={self.check!r} looks at one launch after the other",
                facts="the program is run through a window",
                hint="leave window out to find out where a NaN comes from",
                loc=here(),
            )
        with self.windows.launches(window) as made:
            self.window = made.how
            yield made

    @cached_property
    def windows(self) -> Windows:
        """The windows of its runs, and what they have shown."""
        from recurra.windowed import Windows

        return Windows(self.execution)

    def run_by(
        self,
        execution: Execution,
        seed: int,
        *,
        on_step: OnStep | None = None,
        on_state: Callable[[Step], None] | None = None,
        resume: Resume | str | Path | None = None,
        inputs: Mapping[str, Any] | None = None,
        native: bool = False,
    ) -> dict[str, Any]:
        """`run`, by an execution of the program: its own, or one whose launches are wrapped."""
        saver = replace(self.saver, inputs=with_blanks(self.inputs, inputs or {}), told=set())
        if isinstance(resume, (str, Path)):
            resume, seed = saver.load(resume)
        watch = self.watch(seed, inputs, resume) if self.check == "nan" else None
        execution = execution if watch is None else watch.recorded(execution)
        steps = execution.steps(seed, inputs=inputs, resume=resume, native=native)
        with Behind() as behind:
            while isinstance(made := self.launch(steps), Step):
                if on_step is not None:
                    for first, metrics in self.metrics(made):
                        on_step(first, metrics)
                self.expect_indices(made.outputs, made)
                if watch is not None:
                    watch.step(made)
                if self.effects and (made.variables or not saver.border):
                    saver.state(made, seed, behind)
                if on_state is not None and made.variables:
                    on_state(made)
        self.expect_indices(made)
        if watch is not None:
            watch.end(made)
        named = self.logs or {o: o for o in self.outputs if o not in self.index_checks}
        return {name: self.arrange(o, made[self.outputs[o]]) for name, o in named.items()}

    def launch(self, steps: Iterator[Step]) -> Step | dict[str, Any]:
        """What the next launch of the outermost loop made; after the last one, all outputs."""
        since = time.perf_counter()
        try:
            s = next(steps)
        except StopIteration as end:
            return end.value
        ms = (time.perf_counter() - since) * 1e3
        self.compiled.stages.tell("launches", f"{s.dim} {s.lo}..{s.hi - 1}: {ms:.1f} ms")
        return s

    def islands(
        self, seed: int = 0, *, inputs: Mapping[str, Any] | None = None, steps: int = 8
    ) -> list[Island]:
        """What every loop of one step of the outermost loop costs, predicted and measured, in ms.

        Every loop is compiled and launched on its own, so that it can be timed: this takes as long
        as compiling the program once more, and `steps` steps of it.
        """
        expect_inputs(self.inputs, inputs or {})
        plan, main = self.compiled.plan, self.compiled.program.main
        if main is None:
            return []
        at = (plan, main.loop, self.backend, self.compiled.shards)
        return islands(*at, seed=seed, inputs=inputs, steps=steps, prices=self.target.prices)

    def expect_indices(self, made: Mapping[str, Any], step: Step | None = None) -> None:
        """Raises DomainError where a read by data left its axis, if check="bounds" looks for it.

        Of a run that has ended those are left to be seen that no step has told of.
        """
        for stray, c in self.index_checks.items():
            x = made.get(self.outputs[stray])
            last = made.get(self.outputs[c.last])
            if x is None or last is None:
                continue
            found, ends = (self.arrange(n, np.asarray(v)) for n, v in ((stray, x), (c.last, last)))
            starts = {} if step is None else {step.dim: step.points[self.outputs[stray]].start}
            c.expect_inside(found, ends, self.sizes, starts)

    def watch(self, seed: int, inputs: Mapping[str, Any] | None, resume: Resume | None) -> Check:
        """Looks at every launch for what is not finite."""
        names = {self.outputs[o]: name for name, o in self.logs.items()}
        return Check(self.compiled.program, names, seed, inputs or {}, resume)

    @cached_property
    def saver(self) -> Saver:
        """Writes and reads checkpoints of this program."""
        if self.effects and getattr(self.backend, "processes", 1) > 1:
            raise RecurraError(
                "a run of several processes is not saved",
                facts="each of them would write the same files",
                hint="leave checkpoint(..) out, or use workers of one process",
                loc=self.effects[0].loc,
            )
        return Saver(
            self.compiled.program,
            self.source_graph,
            self.effects,
            self.backend.name,
            tuple(self.compiled.stages.decisions),
            1 if self.compiled.shards is None else self.compiled.shards.workers,
        )

    def arrange(self, output: str, array: Any) -> Any:
        """From the program's order of axes to the user's."""
        axes = self.compiled.axes[output]
        xp = np if isinstance(array, np.ndarray) else self.backend.machine.xp
        before = self.source_graph[output].domain.dims
        return restored(array, self.compiled.plan.graph, before, axes, xp)

    def metrics(self, s: Step) -> list[tuple[int, dict[str, Any]]]:
        """The scalars of one launch, by the user's names, those of the same points together."""
        out: dict[range, dict[str, Any]] = {}
        for name, o in self.logs.items():
            x = s.outputs.get(self.outputs[o])
            if x is not None and x.ndim == 1 and len(x):
                out.setdefault(s.points[self.outputs[o]], {})[name] = x
        return [(r.start, out[r]) for r in sorted(out, key=lambda r: r.stop)] or [(s.lo, {})]

    def outermost(self, graph: Graph) -> tuple[str, int]:
        """The dim of the outermost loop of a program with parameters, and its points."""
        saved = [(e.loc, *p) for e in self.effects for p in e.params]
        for loc, name, parameter in saved:
            if parameter not in graph.nodes:
                raise RecurraError(
                    f"the parameter {name} is saved, but not computed",
                    facts=f"nothing that the program gives depends on {parameter}",
                    hint="give what is learnt with it: rc.log(loss=loss)",
                    loc=loc,
                )
        (dim, *_) = graph[saved[0][2]].domain.dims
        return dim, graph.declared[dim].range.size(self.sizes)

    @property
    def iterations(self) -> int:
        """Steps of the outermost loop."""
        loops = [x for x in self.compiled.program.items if isinstance(x, (ChunkLoop, HostLoop))]
        return max((x.hi for x in loops), default=1) - min((x.lo for x in loops), default=0)

    # ---- for people

    @property
    def equations(self) -> dict[str, str]:
        """The graph after every stage, as text."""
        return {name: str(g) for name, g in self.compiled.stages.graphs.items()}

    @property
    def schedule_text(self) -> str:
        return str(self.compiled.schedule)

    @property
    def source(self) -> str:
        """The host part, as Python, below the regions' signatures."""
        heads = "\n".join(f"# {r}" for r in self.compiled.program.regions)
        return f"{heads}\n{self.execution.text}"

    @property
    def pass_rows(self) -> list[dict[str, Any]]:
        return list(self.compiled.stages.rows)

    @property
    def own_sizes(self) -> Mapping[str, int]:
        """The bounds that one worker has."""
        return self.compiled.plan.sizes

    @property
    def store_rows(self) -> list[dict[str, Any]]:
        """A row per store and per variable that travels: kind, shape, slots, live, class, bytes."""
        return store_rows(self.compiled)

    longest_window = staticmethod(longest_window)

    @cached_property
    def memory(self) -> Peak:
        """The most bytes that a run holds at once: when, of what, and for other bounds.

        On JAX and Torch it is what the device holds, of one worker; where XLA runs regions, they
        are compiled now. Host functions and the libraries themselves come on top.
        """
        backend: Any = self.backend
        tells = backend if hasattr(backend, "besides") else None
        return footprint(self.compiled.program, tells)

    @property
    def preflight(self) -> Mapping[str, Any] | None:
        """What is told of memory before the first step, as plain data: `report.page` draws it.

        On PyTorch, whose code takes seconds to run without numbers, only if `memory` was asked for.
        """
        if self.backend.name == "torch" and "memory" not in vars(self):
            return None
        return memory_summary(self.compiled, self.memory)

    def arena(self, solve: Solve | None = None) -> Arena:
        """Where all stores lie if they share one block of memory, and what is lost between them.

        `solve` packs instead of the greedy rule, say a solver of `recurra.mapping`. Of a program
        with a `placement` it is the one that it runs in.
        """
        if solve is None and (own := self.compiled.program.plan.arena) is not None:
            return own
        return allocate(self.compiled.plan, solve)

    @property
    def chart(self) -> list[dict[str, Any]]:
        """When each inner loop's statements run: its steps, one loop after the other."""
        return chart(self.compiled)

    def __repr__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"program for {head}\n{self.schedule_text}"

    def _repr_html_(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        last = list(self.equations)[-1]
        folds = {
            "schedule": code(self.schedule_text),
            "memory": table(self.store_rows, bar="bytes"),
            "memory as one arena": code(str(self.arena())),
            "host program": code(self.source),
            "passes": table(self.pass_rows, bar="ms"),
            "contractions": table(getattr(self.backend, "contraction_rows", ())),
            f"equations after {last}": code(self.equations[last]),
        }
        return folds_html(f"program for {head}" if head else "program", folds)
