"""Executable: a compiled program, which is run and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from recurra.analysis.argument_checks import check_arguments
from recurra.analysis.graph_builder import GraphBuilder
from recurra.compiler.options import CompileOptions
from recurra.errors import NoSuchName, RecurraError, reraise_property_error
from recurra.runtime.checkpointing import Saver
from recurra.runtime.compilation import compile_program
from recurra.runtime.concurrency_policy import ConcurrencyTrial
from recurra.runtime.host_executor import Execution, Resume, Step
from recurra.runtime.loop_profile import ProfiledLaunch
from recurra.runtime.run_recorder import record_run
from recurra.runtime.run_request import OnStep, RunRequest
from recurra.runtime.runner import Runner
from recurra.runtime.summary import InspectableProgram
from recurra.transforms.growing_ranges import longest_window
from recurra.window import Executor


class Executable(InspectableProgram):
    """`program.run(seed=0)` gives the tensors named by rc.log and rc.output, by name."""

    def __init__(
        self, builder: GraphBuilder, sizes: Mapping[str, object], options: CompileOptions
    ) -> None:
        super().__init__(compile_program(builder, sizes, options))
        self.runner = Runner(self.compilation)

    @partial(
        check_arguments,
        name="program.run",
        hint='write program.run(seed=0, inputs={"x": x}): all but the seed goes by its name',
        by_keyword=lambda word: f'give inputs in a dict: program.run(inputs={{"{word}": {word}}})',
    )
    def run(
        self,
        seed: int = 0,
        *,
        on_step: OnStep | None = None,
        on_state: Callable[[Step], None] | None = None,
        resume: Resume | str | Path | None = None,
        folder: str | Path | None = None,
        overwrite: bool = False,
        inputs: Mapping[str, object] | None = None,
        native: bool = False,
        window: int | Executor | None = None,
    ) -> dict[str, Any]:
        """Run the program; return every named tensor, [*dims of its domain, *shape].

        on_step(first, metrics) is called after every launch of the outermost loop, with the values
        [k] that it made of each metric, from point `first` on; more than once if some are made
        later than others. on_state(step) is called with the variables that are carried along it.
        `resume` goes on after the newest checkpoint of a folder, with its seed, or from the (time,
        variables) of a step, with host functions as they are; results begin there.
        `inputs` are the values of every rc.input, by name, [*dims of its domain, *shape]: arrays of
        any library; `program.inputs` lists them, and those that nothing reads may be left out. One
        whose memory layout is the program's is read in place (DLPack), and never written to. With
        `native`, results are arrays of the backend, not copied.
        With `folder`, metrics.jsonl and report.html are written there and progress is shown. A new
        run never takes the place of another, in this folder or in those of `checkpoint(..)`, unless
        it is to `overwrite` it.
        `window` is the number of threads that run independent launches, this one included, while
        the clock says that it pays (see `program.window`), or a `recurra.window.Executor`; results
        are the same to the last bit.
        """
        request = RunRequest(
            seed, inputs or {}, resume, on_step, on_state, native, overwrite, window
        )
        if folder is None:
            return self.runner.run(request)
        return record_run(self.runner, self, folder, request)

    def __call__(self, *args: object, **given: object) -> NoReturn:
        names = [*given, *self.inputs][: len(args) + len(given)]
        inputs = ", ".join(f'"{k}": {k}' for k in names)
        raise RecurraError.at_user_line(
            "a compiled program is no function",
            facts="it is run with a seed and with inputs by their names, and gives a dict of all "
            "that is put out",
            hint=f"write program.run({f'inputs={{{inputs}}}' if inputs else ''})",
        )

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in ("compilation", "runner"):  # Python asks for these
                raise AttributeError(f"a compiled program has no attribute {name!r}")
            reraise_property_error(self, name)
            raise NoSuchName.at_user_line(
                f"a compiled program has no {name!r}",
                facts="it is run as a whole, and tells what it is made of",
                hint="write program.run(), print(program), program.memory or program.source",
            )

    def islands(
        self, seed: int = 0, *, inputs: Mapping[str, object] | None = None, steps: int = 8
    ) -> list[ProfiledLaunch]:
        """The cost of every loop in a step of the outermost loop, predicted and measured, in ms.

        Every loop is compiled and launched on its own, so that it can be timed: this takes as long
        as compiling the program once more, and `steps` steps of it.
        """
        return self.runner.islands(RunRequest(seed, inputs or {}), steps)

    @property
    def execution(self) -> Execution:
        """The program's regions, ready for the backend to compile at their first launch."""
        return self.runner.execution

    @property
    def saver(self) -> Saver:
        """The writer and reader of this program's checkpoints."""
        return self.runner.saver

    @property
    def window(self) -> ConcurrencyTrial | str:
        """A description of how launches ran in the last run with a window."""
        return self.runner.how

    longest_window = staticmethod(longest_window)
