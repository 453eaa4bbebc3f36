"""The commands `recurra map ..`: solve, import, pack, show the library, build the engine."""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from tyro.conf import Positional, arg

from recurra.errors import RecurraError
from recurra.mapping.engine_choice import Engine, Which
from recurra.storage.mapping_problem import Problem, ProblemError, Solution
from recurra.support import atomic_write, byte_units

if TYPE_CHECKING:
    from recurra.mapping.bounds import Bound
    from recurra.mapping.machine_model import Machine
    from recurra.mapping.models.training import Model

PROVING = 30.0  # at least this number of seconds for the bound


def fast_size_of(text: str | None) -> int | None:
    """Return the bytes of an option --fast-size, if it is given."""
    return None if text is None else byte_units.parse(text)


Result = TypeVar("Result")


@dataclass(frozen=True)
class Solve:
    """Map a program's buffers to fast memory; the answer is validated.

    Example: recurra map solve resnet50_infer --seconds 8 --html mapping.html
    """

    file: Positional[str]
    """A problem (JSON), what to pack (minimalloc's CSV), or an instance of the library."""
    solver: Annotated[str, arg(metavar="NAME")] = "default"
    """default, prod, random, greedy, xla-like, evolution, priority, learned, annealing, lns,
    mcts, exact, pack, muzero, alphazero, policy"""
    seconds: float = 10.0
    """CPU time of the search; interrupted, it gives its best answer so far."""
    seed: int = 0
    """Of all random numbers."""
    fast_size: str | None = None
    """Fast memory, say 128MiB; a CSV file needs it."""
    engine: Which = "auto"
    """auto: the native one where it can be built."""
    bound: bool = True
    """Compute an upper bound of the reward, in as many seconds again; in 30 if they are less."""
    out: Path | None = None
    """Write the solution, as JSON."""
    html: Path | None = None
    """Write a page with the layout."""
    png: Path | None = None
    """Write the layout as an image."""
    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> int:
        from recurra.mapping.engine_choice import engine
        from recurra.mapping.solvers import solver_of

        solve = solver_of(self.solver)
        problem = problem_of(self.file, fast_size_of(self.fast_size))
        chosen = engine(self.engine)
        print(f"{problem}\n{chosen.description}", file=sys.stderr)
        curve: list[tuple[float, int]] = []
        with _progress_bar(self.seconds, problem, shown=not self.json) as update:

            def progress(spent: float, reward: int, solution: Solution) -> None:
                curve.append((spent, reward))
                update(spent, reward)

            solution = solve(problem, self.seconds, self.seed, progress, chosen)
        return self.report(problem, solution, curve, chosen.description)

    def report(
        self, problem: Problem, solution: Solution, curve: list[tuple[float, int]], engine: str
    ) -> int:
        """Print and write the solution and its figures."""
        from recurra.mapping.pictures import page, png
        from recurra.mapping.simulate import simulate, speedup
        from recurra.storage.mapping_problem_text import solution_to_json

        _write(self.out, lambda: solution_to_json(problem, solution).encode())
        _write(self.png, lambda: png(problem, solution))
        most = self.limit(problem)
        limit = most and most.reward
        _write(self.html, lambda: page(problem, solution, curve, limit).encode())
        total = max(1, problem.total)
        figures = {
            "problem": problem.name,
            "solver": self.solver,
            "seed": self.seed,
            "engine": engine,
            "reward_ps": solution.reward(problem),
            "share": solution.reward(problem) / total,
            "bound": most and most.reward / total,
            "bound_by": most and most.how,
            "placed": sum(p is not None for p in solution.placements),
            "buffers": len(problem.buffers),
            "seconds_to_best": curve[-1][0] if curve else 0.0,
            "simulated_us": simulate(problem, solution, contention=True).latency / 1e6,
            "simulated_speedup": speedup(problem, solution),
        }
        if self.json:
            print(json.dumps(figures))
            return 0
        print(solution)
        print(f"gains {figures['share']:.4f} of all there is to gain", end="")
        print(f"; no mapping gains more than {figures['bound']:.4f}" if most else "")
        print(
            f"simulated {figures['simulated_us']:,.1f} µs, {figures['simulated_speedup']:.3f} "
            "times faster than with everything in slow memory"
        )
        return 0

    def limit(self, problem: Problem) -> Bound | None:
        """The upper bound, unless it is turned off or interrupted."""
        from recurra.mapping.bounds import bound

        seconds = max(PROVING, self.seconds)
        if not self.bound:
            return None
        print(f"an upper bound, in {seconds:g} s at most ..", file=sys.stderr)
        try:
            return bound(problem, seconds=seconds)
        except KeyboardInterrupt:
            print("interrupted: without it", file=sys.stderr)
            return None


@contextmanager
def _progress_bar(
    seconds: float, problem: Problem, *, shown: bool
) -> Generator[Callable[[float, int], None]]:
    """Show a progress bar on standard error, if that is a terminal; yield its update function."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[best]}"))
    disable = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("searching", total=seconds, best="")

        def update(spent: float, reward: int) -> None:
            best = f"{reward / max(1, problem.total):.4f} after {spent:.1f} s"
            bar.update(task, completed=min(spent, seconds), best=best)

        yield update


@dataclass(frozen=True)
class Import:
    """Make a memory-mapping problem of a JAX function, an HLO module, or a model of the library.

    Example: recurra map import model.py:make --out model.json
    """

    source: Positional[str]
    """FILE.py:NAME, called for (function, arguments); FILE.pb, a scheduled HloModuleProto; FILE.csv
    of minimalloc; or a model of the library, compiled anew."""
    out: Path = Path("problem.json")
    """Where the problem goes."""
    machine: str = "tpu-v4i"
    """A machine by name, or a JSON file that describes one."""
    fast_size: str | None = None
    """Fast memory, say 64MiB, if not the machine's."""
    loop: int = 0
    """n: one iteration of the heaviest loop, n levels inside."""
    supply: Literal["paper", "idle"] = "paper"
    """Time for copies: an instruction's latency, or what it leaves idle of the slow memory."""

    def __call__(self) -> int:
        from recurra.storage.mapping_problem_text import problem_to_json

        problem = self.problem()
        _write(self.out, lambda: problem_to_json(problem).encode())
        print(f"{problem}\nwritten to {self.out}")
        return 0

    def problem(self) -> Problem:
        """The imported problem."""
        from recurra.mapping.machine_model import machine_of
        from recurra.mapping.model_library import LIBRARY
        from recurra.mapping.problem_from_hlo import extract

        machine = machine_of(self.machine)
        self.check()
        size = fast_size_of(self.fast_size)
        machine = machine if size is None else replace(machine, fast_size=size)
        path = Path(self.source)
        if path.suffix == ".csv":
            return problem_of(self.source, size)
        if self.source in LIBRARY:
            problem = LIBRARY[self.source].problem(self.source)
            return problem if size is None else replace(problem, fast_size=size)
        if path.suffix == ".pb":
            module = _read(path)
            found = extract(module, machine, loop=self.loop, supply=self.supply, name=path.stem)
            return found.problem
        return self.function(machine)

    def check(self) -> None:
        """Raise RecurraError for an option that has no effect on this source."""
        from recurra.mapping.model_library import LIBRARY

        if self.loop < 0:
            raise RecurraError(f"--loop {self.loop} is negative", hint="0: the whole program")
        options = ("machine", "loop", "supply")
        changed = [x for x in options if getattr(self, x) != getattr(Import, x)]
        if changed and (self.source in LIBRARY or self.source.endswith(".csv")):
            raise RecurraError(
                f"--{changed[0]} is of no matter for {self.source}",
                facts="models of the library have their own, and packings have none",
                hint="leave it out, or import FILE.py:NAME or FILE.pb",
            )

    def function(self, machine: Machine) -> Problem:
        """The problem of a function, given as FILE.py:NAME."""
        from recurra.mapping.imports import from_jax

        function, arguments, donated = function_of(self.source)
        return from_jax(
            function,
            *arguments,
            donated=donated,
            machine=machine,
            name=self.source.rpartition(":")[2],
            loop=self.loop,
            supply=self.supply,
        )


@dataclass(frozen=True)
class MapPackCommand:
    """Pack buffers that all stay for their lives into fast memory: files of minimalloc's.

    Example: recurra map pack challenging/*.csv --fast-size 1MiB
    """

    files: Positional[tuple[str, ...]]
    """CSV files, with columns id, lower, upper, size."""
    fast_size: str
    """Fast memory, say 1MiB."""
    seconds: float = 60.0
    """CPU time for each file."""
    seed: int = 0
    """Of all random numbers."""
    engine: Which = "auto"
    """auto: the native one where it can be built."""
    out: Path | None = None
    """A folder for the same files with a column of offsets."""
    json: bool = False
    """Print one JSON object per file."""

    def __call__(self) -> int:
        from recurra.mapping.engine_choice import engine

        if not self.files:
            raise RecurraError("there is nothing to pack", hint="recurra map pack FILE.csv ..")
        self.check()
        size = fast_size_of(self.fast_size)
        problems = [problem_of(file, size) for file in self.files]
        chosen = engine(self.engine)
        print(chosen.description, file=sys.stderr)
        packed = [self.pack(*x, chosen) for x in zip(self.files, problems, strict=True)]
        return 0 if all(packed) else 1

    def check(self) -> None:
        """Raise RecurraError if a file would be written over another one, or over its source."""
        if self.out is None:
            return
        names = [Path(file).name for file in self.files]
        for file, name in zip(self.files, names, strict=True):
            if names.count(name) > 1 or (self.out / name).resolve() == Path(file).resolve():
                raise RecurraError(
                    f"--out {self.out}: {file} would be written over",
                    facts="files keep their names there",
                    hint="give another folder, and files of one name one at a time",
                )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecurraError(f"{self.out} cannot be written", facts=str(error)) from None

    def pack(self, file: str, problem: Problem, chosen: Engine) -> bool:
        """Pack one file and print a line about it; return whether everything is placed."""
        from recurra.mapping.solvers import solver_of
        from recurra.storage.mapping_problem_text import packing_to_csv

        start = time.process_time()
        answer = solver_of("pack")(problem, self.seconds, self.seed, None, chosen)
        spent = time.process_time() - start
        placed = sum(p is not None for p in answer.placements)
        complete = placed == len(problem.buffers)
        if self.json:
            counts = {"file": file, "buffers": len(problem.buffers), "placed": placed}
            print(json.dumps({**counts, "packed": complete, "cpu_s": spent}), flush=True)
        else:
            result = "packed" if complete else f"not packed, {placed} placed"
            print(f"{file}: {len(problem.buffers)} buffers, {result}, {spent:.2f} s", flush=True)
        if self.out is not None and complete:
            text = packing_to_csv(Path(file).read_text("utf-8-sig"), problem, answer)
            atomic_write.save(self.out / Path(file).name, text)
        return complete


@dataclass(frozen=True)
class Library:
    """Show the library's instances; --write makes them anew, into the package.

    Example: recurra map library
    """

    names: Positional[tuple[str, ...]] = ()
    """Instances; all of them if none is named."""
    write: bool = False
    """Compile the models and write what XLA makes of them: minutes."""

    def __call__(self) -> int:
        from recurra.mapping.model_library import LIBRARY, instance, write

        for name in self.names or LIBRARY:
            print(write(name) if self.write else instance(name), flush=True)
        return 0


@dataclass(frozen=True)
class MapBuildCommand:
    """Build the native engine of memory mapping; needs a C++ compiler, takes seconds.

    Example: recurra map build
    """

    def __call__(self) -> int:
        from recurra.mapping.native import build

        print(f"built {build()}")
        return 0


def function_of(source: str) -> Model:
    """Load FILE.py:NAME: a function, its arguments, and which of them are donated."""
    file, _, name = source.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ProblemError(
            f"{source} is nothing to import",
            hint="FILE.py:NAME, FILE.pb, FILE.csv, or a model of the library",
        )
    _read(Path(file))
    sys.path.insert(0, str(Path(file).parent))
    make = _result_of(file, lambda: runpy.run_path(file)).get(name)
    if not callable(make):
        raise ProblemError(f"{file} has no function {name}")
    result: Any = _result_of(file, make)
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not callable(result[0]):
        raise ProblemError(
            f"{name} in {file} gives {type(result).__name__}",
            facts="it must give a function, a tuple of arguments, and perhaps the donated ones",
        )
    function, arguments, *donated = cast("tuple[Any, ...]", result)
    if not isinstance(arguments, tuple | list):
        raise ProblemError(
            f"{name} in {file} gives {type(arguments).__name__} for arguments",
            facts="they must be a tuple",
        )
    return function, tuple(cast("tuple[Any, ...]", arguments)), donated[0] if donated else ()


def _result_of(file: str, run: Callable[[], Result]) -> Result:
    """Run a user's code; report an error in it by its kind, text and line."""
    try:
        return run()
    except Exception as error:
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
        raise ProblemError(
            f"{file}:{line}: {type(error).__name__}: {error}", facts="it fails by itself"
        ) from None


def problem_of(source: str, fast_size: int | None) -> Problem:
    """Return a problem from a file, or of the library."""
    from recurra.mapping.model_library import LIBRARY, instance
    from recurra.storage.mapping_problem_text import read_problem

    if source in LIBRARY:
        problem = instance(source)
        return problem if fast_size is None else replace(problem, fast_size=fast_size)
    path = Path(source)
    if not path.exists():
        raise ProblemError(
            f"there is no file {source}",
            facts=f"nor is it an instance of the library: {', '.join(LIBRARY)}",
        )
    return read_problem(path, fast_size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProblemError(f"{path} cannot be read", facts=str(error)) from None


def _write(path: Path | None, content: Callable[[], bytes]) -> None:
    if path is not None:
        atomic_write.save(path, content())
