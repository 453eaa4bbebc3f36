"""`recurra map ..`: solve a problem, import one, build the native engine."""

from __future__ import annotations

import json
import re
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from tyro.conf import Positional, arg

from recurra.errors import RecurraError
from recurra.mapping.engine_choice import Engine, Which
from recurra.storage.mapping_problem import Problem, ProblemError, Solution
from recurra.support import atomic_write

if TYPE_CHECKING:
    from recurra.mapping.bounds import Bound
    from recurra.mapping.machine import Machine
    from recurra.mapping.models.training import Model

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PROVING = 30.0  # seconds for the bound, at the least


def nbytes(text: str) -> int:
    """`1MiB` → 1048576."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise RecurraError(
            f"{text!r} is no amount of memory", facts="it is a whole number, with KiB, MiB or GiB"
        )
    return int(match[1]) * _UNITS[match[2]]


def _size(text: str | None) -> int | None:
    return None if text is None else nbytes(text)


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
        problem = problem_of(self.file, _size(self.fast_size))
        chosen = engine(self.engine)
        self.tell(str(problem))
        self.tell(chosen.told)
        curve: list[tuple[float, int]] = []
        with _SolverBar(self.seconds, problem, shown=not self.json) as bar:

            def told(spent: float, reward: int, solution: Solution) -> None:
                curve.append((spent, reward))
                bar.update(spent, reward)

            solution = solve(problem, self.seconds, self.seed, told, chosen)
        return self.report(problem, solution, curve, chosen.told)

    def report(
        self, problem: Problem, solution: Solution, curve: list[tuple[float, int]], engine: str
    ) -> int:
        """Prints and writes what was found."""
        from recurra.mapping.pictures import page, png
        from recurra.mapping.simulate import simulate, speedup
        from recurra.storage.mapping_problem_text import solution_to_json

        _write(self.out, lambda: solution_to_json(problem, solution).encode())
        _write(self.png, lambda: png(problem, solution))
        most = self.limit(problem)
        limit = most and most.reward
        _write(self.html, lambda: page(problem, solution, curve, limit).encode())
        total = max(1, problem.total)
        found = {
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
            print(json.dumps(found))
            return 0
        print(solution)
        print(f"gains {found['share']:.4f} of all there is to gain", end="")
        print(f"; no mapping gains more than {found['bound']:.4f}" if most else "")
        print(
            f"simulated {found['simulated_us']:,.1f} µs, {found['simulated_speedup']:.3f}", end=""
        )
        print(" times faster than with everything in slow memory")
        return 0

    def limit(self, problem: Problem) -> Bound | None:
        """The upper bound, if it is wanted and nobody interrupts it."""
        from recurra.mapping.bounds import bound

        seconds = max(PROVING, self.seconds)
        if not self.bound:
            return None
        self.tell(f"an upper bound, in {seconds:g} s at most ..")
        try:
            return bound(problem, seconds=seconds)
        except KeyboardInterrupt:
            self.tell("interrupted: without it")
            return None

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr)


class _SolverBar:
    """A bar on standard error, where a person looks at it."""

    def __init__(self, seconds: float, problem: Problem, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.seconds, self.total = seconds, max(1, problem.total)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[best]}"))
        self.progress = Progress(*columns, console=console, transient=True)
        self.progress.disable = not (shown and console.is_terminal)
        self.task = self.progress.add_task("searching", total=seconds, best="")

    def __enter__(self) -> _SolverBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, spent: float, reward: int) -> None:
        best = f"{reward / self.total:.4f} after {spent:.1f} s"
        self.progress.update(self.task, completed=min(spent, self.seconds), best=best)


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
        from recurra.mapping.hlo.extract import extract
        from recurra.mapping.library import LIBRARY
        from recurra.mapping.machine import machine_of

        machine = machine_of(self.machine)
        self.check()
        size = _size(self.fast_size)
        machine = machine if size is None else replace(machine, fast_size=size)
        path = Path(self.source)
        if path.suffix == ".csv":
            return problem_of(self.source, size)
        if self.source in LIBRARY:
            problem = LIBRARY[self.source].problem(self.source)
            return problem if size is None else _resized(problem, size)
        if path.suffix == ".pb":
            module = _read(path)
            found = extract(module, machine, loop=self.loop, supply=self.supply, name=path.stem)
            return found.problem
        return self.function(machine)

    def check(self) -> None:
        """Is everything that is said of any matter here?"""
        from recurra.mapping.library import LIBRARY

        if self.loop < 0:
            raise RecurraError(f"--loop {self.loop} is negative", hint="0: the whole program")
        given = [x for x in ("machine", "loop", "supply") if getattr(self, x) != getattr(Import, x)]
        if given and (self.source in LIBRARY or self.source.endswith(".csv")):
            raise RecurraError(
                f"--{given[0]} is of no matter for {self.source}",
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
        problems = [problem_of(file, nbytes(self.fast_size)) for file in self.files]
        chosen = engine(self.engine)
        print(chosen.told, file=sys.stderr)
        done = [self.packed(*x, chosen) for x in zip(self.files, problems, strict=True)]
        return 0 if all(done) else 1

    def check(self) -> None:
        """No file is written over another, or over what was read."""
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

    def packed(self, file: str, problem: Problem, chosen: Engine) -> bool:
        """One line of what was found; is everything placed?"""
        from recurra.mapping.solvers import solver_of
        from recurra.storage.mapping_problem_text import packing_to_csv

        start = time.process_time()
        answer = solver_of("pack")(problem, self.seconds, self.seed, None, chosen)
        spent = time.process_time() - start
        placed = sum(p is not None for p in answer.placements)
        whole = placed == len(problem.buffers)
        if self.json:
            found = {"file": file, "buffers": len(problem.buffers), "placed": placed}
            print(json.dumps({**found, "packed": whole, "cpu_s": spent}), flush=True)
        else:
            told = "packed" if whole else f"not packed, {placed} placed"
            print(f"{file}: {len(problem.buffers)} buffers, {told}, {spent:.2f} s", flush=True)
        if self.out is not None and whole:
            path = self.out / Path(file).name
            _write(
                path,
                lambda: packing_to_csv(Path(file).read_text("utf-8-sig"), problem, answer).encode(),
            )
        return whole


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
        from recurra.mapping.library import LIBRARY, instance, write

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
    made = _result_of(file, make)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):  # pyright: ignore[reportUnknownArgumentType]
        raise ProblemError(
            f"{name} in {file} gives {type(made).__name__}",
            facts="it must give a function, a tuple of arguments, and perhaps the donated ones",
        )
    if not isinstance(made[1], tuple | list):  # pyright: ignore[reportUnknownArgumentType]
        raise ProblemError(
            f"{name} in {file} gives {type(made[1]).__name__} for arguments",  # pyright: ignore[reportUnknownArgumentType]
            facts="they must be a tuple",
        )
    function, arguments, *donated = made  # pyright: ignore[reportUnknownVariableType]
    return function, arguments, donated[0] if donated else ()


def _result_of(file: str, run: Callable[[], Result]) -> Result:
    """Run a user's code; an error of it is told by its kind, text and line."""
    try:
        return run()
    except Exception as error:
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
        raise ProblemError(
            f"{file}:{line}: {type(error).__name__}: {error}", facts="it fails by itself"
        ) from None


def problem_of(source: str, fast_size: int | None) -> Problem:
    """A problem from a file, or of the library."""
    from recurra.mapping.library import LIBRARY, instance
    from recurra.storage.mapping_problem_text import read_problem

    if source in LIBRARY:
        problem = instance(source)
        return problem if fast_size is None else _resized(problem, fast_size)
    path = Path(source)
    if not path.exists():
        raise ProblemError(
            f"there is no file {source}",
            facts=f"nor is it an instance of the library: {', '.join(LIBRARY)}",
        )
    return read_problem(path, fast_size)


def _resized(problem: Problem, fast_size: int) -> Problem:
    return replace(problem, fast_size=fast_size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProblemError(f"{path} cannot be read", facts=str(error)) from None


def _write(path: Path | None, content: Callable[[], bytes]) -> None:
    if path is not None:
        atomic_write.save(path, content())
