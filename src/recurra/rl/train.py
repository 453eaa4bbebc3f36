"""`recurra train`: settings → program → a run folder with metrics, checkpoints and a report.

    run = train(Reinforce(env="CartPole-v1", iterations=100))

A run resumes from its newest checkpoint, the state from one iteration to the next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from recurra.checkpoint import checkpoint
from recurra.errors import Interrupted, PlanError, RecurraError
from recurra.report.progress import Progress, track
from recurra.report.run_page import (
    ShownProgram,
    keep_compiled,
    keep_contractions,
    keep_islands,
    write_page,
)
from recurra.report.runs import RunFolder, expect_place
from recurra.rl.setting_errors import expect_sound, in_flags
from recurra.runtime.checkpoint_fit import iterations_done
from recurra.support.atomic_write import NotWrittenError
from recurra.support.byte_units import rounded_up
from recurra.support.command_line_text import flag
from recurra.support.free_memory import free_bytes

if TYPE_CHECKING:
    import numpy as np

    from recurra.frontend.context import Context
    from recurra.rl.recipe import Recipe

    Metrics = Mapping[str, np.ndarray]

# CleanRL's tags of logged metrics.
TAGS = {
    "mean_return": "charts/episodic_return",
    "length": "charts/episodic_length",
    "loss": "losses/policy_loss",
    "entropy": "losses/entropy",
    "value_loss": "losses/value_loss",
    "policy_loss": "losses/policy_loss",
    "approx_kl": "losses/approx_kl",
    "clipfrac": "losses/clipfrac",
    "explained_variance": "losses/explained_variance",
}


RUNS = Path("runs")  # the default folder of runs
OF_EPISODES = ("mean_return", "length")
SHOWN = ("charts/episodic_return",)  # in the progress line


class LaunchStep(Protocol):
    """The report of a launch: its iterations end at `hi`; `variables` are the state after it."""

    @property
    def hi(self) -> int: ...
    @property
    def variables(self) -> Metrics: ...


class ProgramSaver(Protocol):
    """Checkpoints of a program: the state to resume from."""

    def save(self, folder: Path, step: Any, seed: int) -> object: ...
    def load(self, path: Path) -> tuple[tuple[int, Metrics], int]: ...


class LoopCost(Protocol):
    """The cost of one loop of an iteration, as a row of a table."""

    @property
    def row(self) -> dict[str, object]: ...


class TrainingProgram(ShownProgram, Protocol):
    """The interface of compiled programs that training uses."""

    @property
    def saver(self) -> ProgramSaver: ...

    def islands(self, seed: int) -> Sequence[LoopCost]:
        """Measure the cost of every loop of an iteration."""
        ...

    def run(
        self,
        seed: int,
        *,
        on_step: Callable[[int, Metrics], None],
        on_state: Callable[[Any], None],
        resume: tuple[int, Metrics] | None,
    ) -> object:
        """Run from the start, or from an iteration and variables; call back after launches."""
        ...


Compile = Callable[["Context", Mapping[Any, int]], TrainingProgram]


# Fields of a recipe that change how it runs, not its results.
RUNNING = (
    *("iterations", "resume", "out", "check", "memory", "placement"),
    *("islands", "json", "config"),
)


def train(settings: Recipe, compile: Compile | None = None) -> dict[str, object]:
    """Train and write a run folder; return its path, its report and the last metrics."""
    from recurra.frontend.context import compiling

    folder = None if settings.resume is None else RunFolder(settings.resume)
    if folder is not None:
        settings = resumed(settings, settings.config or folder.read_config())
        expect_more(folder, settings)
    expect_sound(settings)
    where = Path(settings.out or RUNS) if folder is None else folder.checkpoints
    expect_place(where, hint="name another: --out runs" if folder is None else "")
    names = ("check", "memory", "placement")
    options = {name: x for name in names if (x := getattr(settings, name))}
    try:
        ctx, bounds = settings.program()
        # One iteration is no loop, and would leave no state to save.
        looped = {b: 2 for b, n in bounds.items() if n == 1 and _counts_iterations(settings, b)}
        bounds = {**bounds, **looped}
        with compiling(workers=settings.workers, **options):
            program = (compile or partial(_compile, settings.backend))(ctx, bounds)
        if not settings.memory:
            _expect_room(program)
        newest = None if folder is None else _newest(folder, program)
    except RecurraError as error:
        raise in_flags(settings, error) from None
    env_steps = 0 if folder is None or newest is None else _steps_until(folder, newest[0])
    if folder is None:
        run = RunFolder.create(
            settings.out or RUNS, settings.env, settings.name, settings.seed, recipe(settings)
        )
    else:
        run = RunFolder.resume(folder.path, 0 if newest is None else newest[0])
        run.write_config({**run.read_config(), "iterations": settings.iterations})
    keep_compiled(run, program)
    with run, track(settings.iterations, settings.env) as progress:
        record = TrainingRecorder(run, settings, progress, program, env_steps)
        try:
            with suppress(AllIterationsDone):
                program.run(
                    settings.seed, on_step=record.step, on_state=record.state, resume=newest
                )
            if settings.islands:
                keep_islands(run, [x.row for x in program.islands(settings.seed)])
        except BaseException as error:
            with suppress(OSError, NotWrittenError):  # the first error is reported
                keep_contractions(run, program)
                write_page(run)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(
                    "interrupted",
                    facts=f"what was done is in {run.path}",
                    hint=f"go on with: {settings.command('--resume', str(run.path))}",
                ) from None
            raise
        kernels = keep_contractions(run, program)
        report = write_page(run)
    last = run.rows()[-1:] or [{}]
    more = {"contractions": kernels} if kernels else {}
    return {"run": str(run.path), "report": str(report), **more, **last[0]}


class AllIterationsDone(Exception):
    """Raised when the last iteration of the settings is saved; the program may have more."""


class TrainingRecorder:
    """The callbacks after every launch: log its iterations, show progress, save checkpoints."""

    def __init__(
        self,
        run: RunFolder,
        settings: Recipe,
        progress: Progress,
        program: TrainingProgram,
        env_steps: int,
    ):
        self.run, self.settings, self.progress = run, settings, progress
        self.program = program
        self.next_save = 0
        self.env_steps = self.before = env_steps
        self.since = time.monotonic()

    def step(self, first: int, metrics: Metrics) -> None:
        """Log the metrics [k] of iterations first..first+k-1.

        An iteration without an end of an episode, by `episodes`, logs no metrics of episodes. SPS
        counts from the start of the process, as CleanRL's does.
        """
        rows: list[dict[str, float]] = []
        for values in zip(*metrics.values(), strict=True):
            row = dict(zip(metrics, values, strict=True))
            self.env_steps += self.environment_steps(row)
            if row.pop("episodes", 1) == 0:
                row = {k: v for k, v in row.items() if k not in OF_EPISODES}
            tagged = {TAGS.get(name, name): value for name, value in row.items()}
            rows.append({**tagged, "global_step": self.env_steps})
        speed = (self.env_steps - self.before) / max(time.monotonic() - self.since, 1e-9)
        for k, row in enumerate(rows):
            self.run.log(first + k + 1, **row, **{"charts/SPS": speed})
            shown = {tag: row[tag] for tag in SHOWN if tag in row}
            self.progress.update(first + k + 1, **shown)

    def environment_steps(self, row: Mapping[str, float]) -> int:
        """The steps of all rows in an iteration; those after an absorbing end do not count."""
        if "episodes" in row or "length" not in row:
            return self.settings.rows * self.settings.steps
        return round(float(row["length"]) * self.settings.rows)

    def state(self, step: LaunchStep) -> None:
        """Save the state every `checkpoint_every` iterations, and at the end."""
        every = self.settings.checkpoint_every
        self.next_save = self.next_save or -(-step.hi // every) * every
        if step.hi < min(self.next_save, self.settings.iterations):
            return
        self.next_save = (step.hi // every + 1) * every
        self.program.saver.save(self.run.checkpoints, step, self.settings.seed)
        if step.hi == self.settings.iterations:
            raise AllIterationsDone


def recipe(settings: Recipe) -> dict[str, object]:
    """The settings that config.json has: not how to run, except for the iterations."""
    return {k: v for k, v in asdict(settings).items() if k not in RUNNING[1:]}


R = TypeVar("R", bound="Recipe")


def resumed(settings: R, config: Mapping[str, object]) -> R:
    """The settings of the run in `config`, continued with `settings`.

    A setting was not given if it equals the run's, on the command line, where `settings.config` has
    been read, or else its default; it is then as in the run.
    """
    own = configured(settings, config)
    default = own if settings.config is not None else type(settings)()
    for name in (f.name for f in fields(settings) if f.name not in RUNNING):
        given, theirs = getattr(settings, name), getattr(own, name)
        if given not in (getattr(default, name), theirs):
            raise RecurraError(
                f"a resumed run keeps its settings, but {flag(name, given)} was given",
                facts=f"the run in {settings.resume} has {flag(name, theirs)}",
                hint="leave it out, or start a new run",
            )
    path = settings.resume
    if path is not None and settings.out not in (None, path, path.parent):
        raise RecurraError(
            f"a resumed run goes on in its folder, but {flag('out', settings.out)} was given",
            facts=f"its folder is {path}",
            hint=f"leave it out, or copy that folder to {settings.out} and resume the copy",
        )
    if settings.iterations != default.iterations:
        own = replace(own, iterations=settings.iterations)
    return own


def configured(settings: R, config: Mapping[str, object]) -> R:
    """The settings in a config.json, with the fields about running from `settings`.

    Raises RecurraError if it is of another algorithm, or damaged.
    """
    path, algo = settings.resume, config.get("algo", settings.name)
    if algo != settings.name:
        n = settings.iterations
        more = () if n == type(settings)().iterations else ("--iterations", str(n))
        raise RecurraError(
            f"the run in {path} is one of {algo}, not of {settings.name}",
            hint=f"go on with: {settings.command('--resume', str(path), *more, algo=str(algo))}",
        )
    values: dict[str, object] = {}
    for f in fields(settings):
        if f.name in config and f.name not in RUNNING[1:]:
            value = config[f.name]
            value = tuple(value) if isinstance(value, list) else value
            if not _is_like(value, f.default):
                raise RecurraError(
                    f"the settings of the run in {path} are damaged",
                    facts=f"config.json has {f.name}: {config[f.name]!r}",
                    hint="write it as it was, or start a new run",
                )
            values[f.name] = value
    return replace(settings, **values)


def _is_like(value: object, default: object) -> bool:
    """Tell whether a value has the type of a default."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_is_like(x, 1) for x in value)
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    return isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)


def expect_more(run: RunFolder, settings: Recipe) -> None:
    """Raise RecurraError if a run has all its iterations already."""
    done = iterations_done(checkpoint.newest_meta(run.checkpoints))
    if done >= settings.iterations:
        more = ("--resume", str(run.path), "--iterations", str(2 * done))
        raise RecurraError(
            f"the run in {run.path} has all its {done} iterations",
            facts=f"--iterations {settings.iterations} counts those that it has, too",
            hint=f"go on with: {settings.command(*more)}",
        )


def _steps_until(run: RunFolder, iteration: int) -> int:
    """The steps of a run's environment until an iteration, from its metrics."""
    rows = [row for row in run.rows() if row["step"] <= iteration]
    steps = rows[-1].get("global_step", 0) if rows else 0
    if not rows or rows[-1]["step"] < iteration or "global_step" not in rows[-1]:
        print(
            f"{run.metrics} does not tell the steps of the environment until iteration "
            f"{iteration}: global_step goes on from {steps}",
            file=sys.stderr,
        )
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise RecurraError(
            f"{run.metrics} is damaged",
            facts=f"its row of step {rows[-1]['step']} has global_step {steps!r:.60}",
            hint="write there how many steps the environment had made, or remove the row",
        )
    return steps


def _newest(run: RunFolder, program: TrainingProgram) -> tuple[int, Metrics] | None:
    """Load the newest checkpoint: its number of iterations, and the variables after them.

    None if the run was stopped before it saved one; it then begins again.
    """
    if not checkpoint.saved(run.checkpoints):
        print(f"{run.path} has no checkpoint yet: it begins again", file=sys.stderr)
        return None
    return program.saver.load(run.checkpoints)[0]


def _expect_room(program: TrainingProgram) -> None:
    """Raise PlanError if the stores take more memory than is free."""
    rows, free = program.store_rows, free_bytes()
    if free is None or (need := sum(int(r["bytes"]) for r in rows)) <= free:
        return
    most = max(rows, key=lambda r: int(r["bytes"]))
    raise PlanError(
        f"what is kept from step to step takes {need:,} bytes, and {free:,} are free",
        facts=f"the largest, {most['store']}, has the shape {most['shape']}",
        hint="make --rows, --steps or --hidden smaller, or find out whether it can do with less: "
        f"--memory {rounded_up(free // 2)}",
    )


def _counts_iterations(settings: Recipe, bound: object) -> bool:
    """Tell whether a bound of the program is its number of iterations."""
    return settings.bounds.get(str(bound)) == flag("iterations")


def _compile(backend: str, ctx: Context, bounds: Mapping[Any, int]) -> TrainingProgram:
    return ctx.compile(bounds, backend=backend)
