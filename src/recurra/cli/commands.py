"""The commands that are not algorithms. Heavy imports stay inside."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from recurra.errors import RecurraError

if TYPE_CHECKING:
    from recurra.transforms.compile_context import Pass

RENAMED_PASSES = {  # their old names, for one release
    "simplify": "canonicalize",
    "rounds": "unroll_periodic",
    "lift": "incrementalize",
    "prefix": "split_live_ranges",
    "split": "peel_independent",
    "attention": "fuse_attention",
    "strip": "strip_mine",
    "wavefront": "skew",
    "groups": "batch_groups",
    "asking": "poll_interval",
    "block": "tile_batch",
    "promote": "promote_domains",
    "keep": "rematerialize",
    "fetch": "host_gather",
    "granularity": "vectorize",
    "accumulate": "reductions_to_accumulators",
}
BENCHES = {  # our program, its suite
    "core": ("recurra.bench.ours", "recurra.bench.core"),
    "backends": ("recurra.bench.ours", "recurra.bench.backends"),
    "window": ("recurra.bench.window", "recurra.bench.window"),
    "nest": ("recurra.bench.nest", "recurra.bench.nest"),
    "mapping": ("recurra.bench.mapping", "recurra.bench.mapping"),
    "ppo": ("recurra.bench.ppo.ours", "recurra.bench.ppo.suite"),
    "memory": ("recurra.bench.memory.ours", "recurra.bench.memory.suite"),
    "decode": ("recurra.bench.decode.ours", "recurra.bench.decode.suite"),
    "learning": ("recurra.bench.learning.suite", "recurra.bench.learning.suite"),
}
BENCH_OPTIONS = {  # what some suites have
    "peers": ("ppo",),
    "only": ("ppo", "memory", "decode", "nest", "mapping"),
    "sizes": ("nest",),
    "out": ("learning", "memory", "decode", "mapping"),
    **{option: ("mapping",) for option in ("learn", "instances", "solvers", "seconds", "seeds")},
}


@dataclass(frozen=True)
class Run:
    """Run a program; what it compiles and runs is up to it.

    Example: recurra run examples/reinforce.py --interpret --statements 50
    """

    script: Positional[Path]
    """A Python file."""
    interpret: bool = False
    """Evaluate its programs equation by equation, slowly, instead of compiling them."""
    statements: int = 100
    """With --interpret: how many evaluations are shown."""
    check: Literal["nan", "bounds"] | None = None
    """nan: stop at the first NaN or inf in a result, and name the op, point and line behind it;
    bounds: at the first read by data that leaves its axis."""

    def __call__(self) -> int:
        path = _file(self.script)
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))
        try:
            with self.mode():
                runpy.run_path(str(path), run_name="__main__")
        except RecurraError:
            raise
        except Exception as error:
            _tell(error, path)
            return 1
        return 0

    def mode(self) -> AbstractContextManager[None]:
        """How the script's programs are compiled."""
        if self.interpret and self.check:
            raise RecurraError(
                "--interpret and --check are two ways to run a program",
                facts="one evaluates its equations, the other compiles them and watches results",
                hint="leave one out",
            )
        if self.interpret:
            from recurra.tools.stepper import interpreted

            return interpreted(self.statements)
        from recurra.frontend.context import compiling

        return compiling(check=self.check) if self.check else nullcontext()


def _tell(error: Exception, script: Path) -> None:
    """The traceback from the script's first frame on."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    start = files.index(str(script)) if str(script) in files else 0
    text = traceback.format_exception(error.with_traceback(None))
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join([*traceback.format_list(frames[start:]), *text]), end="", file=sys.stderr)


@dataclass(frozen=True)
class View:
    """Write the report of a run, from what is in its folder by now, and print its path.

    Example: recurra view runs/CartPole-v1__reinforce__1__1760000000 --open
    """

    run: Positional[Path]
    """The folder of a run."""
    open: bool = False
    """Open it in a browser."""
    json: bool = False
    """Print the path and the last metrics as one JSON object."""

    def __call__(self) -> int:
        from recurra.report.run_page import write_page
        from recurra.report.runs import RunFolder

        run = RunFolder(self.run)
        if not run.config.exists() and not run.metrics.exists():
            raise RecurraError(
                f"{self.run} is not the folder of a run",
                facts=f"it has neither {run.config.name} nor {run.metrics.name}",
                hint="`ls runs/` shows them",
            )
        report = write_page(run)
        last = (run.rows() or [{}])[-1]
        print(json.dumps({"report": str(report), "last": last}) if self.json else report)
        if self.open:
            import webbrowser

            webbrowser.open(report.resolve().as_uri())
        return 0


@dataclass(frozen=True)
class Opt:
    """Apply compiler passes to a graph, and print what comes out.

    Example: recurra opt graph.txt -p canonicalize,incrementalize --sizes B=64 T=200
    """

    file: Positional[Path]
    """A graph as text; - reads standard input."""
    passes: Annotated[str, arg(aliases=["-p"])] = ""
    """Names of passes in order, separated by commas; none only checks and prints the graph."""
    sizes: tuple[str, ...] = ()
    """What is known of the bounds: B=64 T=200"""
    options: tuple[str, ...] = ()
    """Options of `compile`, which some passes wait for: strip=4 workers=2 backend=torch"""
    json: bool = False
    """Print {"text": .., "passes": [{"name", "before", "after", "ms"}, ..]}"""

    def __call__(self) -> int:
        graph, sizes = _graph(self.file), dict(map(_size, self.sizes))
        names = [name for name in self.passes.replace(" ", "").split(",") if name]
        rows: list[dict[str, Any]] = []
        if names:
            from recurra.compiler.options import read_options
            from recurra.compiler.pass_manager import PassManager
            from recurra.compiler.pipeline import context

            passes = [_pass(name) for name in names]
            stages = PassManager(context(sizes, *read_options(self.options)))
            if stages.asked.check:
                _all_bounds(graph, sizes, "RECURRA_CHECK compares values")
            stages.begin(graph)
            for step in passes:
                stages.cx.free = None  # passes come in any order: each decides for its own graph
                graph = stages.run_one(step, graph)
            stages.end()
            rows = stages.rows
        print(json.dumps({"text": str(graph), "passes": rows}) if self.json else graph)
        return 0


@dataclass(frozen=True)
class Reduce:
    """Shrink a graph as long as it fails in the same way, and print what is left.

    Example: recurra reduce graph.txt --pass incrementalize --sizes B=2 T=8
    """

    file: Positional[Path]
    """A graph as text; - reads standard input."""
    pass_: Annotated[str, arg(name="pass")] = ""
    """It fails if this pass raises, or changes the oracle's answer."""
    check: str = ""
    """It fails if this command does: {} stands for the file, {sizes} for the bounds."""
    sizes: tuple[str, ...] = ()
    """The bounds with which it fails: B=2 T=8"""
    options: tuple[str, ...] = ()
    """Options of `compile` with which the pass fails: strip=4"""

    def __call__(self) -> int:
        from recurra.compiler.options import read_options
        from recurra.tools import test_case_reducer

        if bool(self.pass_) == bool(self.check):
            raise RecurraError(
                "how the graph fails is told by --pass or by --check",
                facts="both are given" if self.pass_ else "none is given",
                hint="write --pass incrementalize, "
                "or --check 'recurra opt {} -p incrementalize --sizes {sizes}'",
            )
        graph, sizes = _graph(self.file), dict(map(_size, self.sizes))
        if self.pass_:
            step = _pass(self.pass_)
            _all_bounds(graph, sizes, "the oracle compares values")
            failure = test_case_reducer.by_pass(step, *read_options(self.options))
        else:
            failure = test_case_reducer.by_command(self.check)
        print(test_case_reducer.reduce(test_case_reducer.Case(graph, sizes), failure, _progress))
        return 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr)


def _pass(name: str) -> Pass:
    """The pass of that name."""
    from recurra.compiler.pipeline import PASSES

    by_name = {step.name: step for step in PASSES}
    if name in RENAMED_PASSES:
        now = RENAMED_PASSES[name]
        told = f"the pass {name} is called {now} now; the old name goes with the next release"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        name = now
    if name not in by_name:
        raise RecurraError(f"there is no pass {name!r}", facts=f"passes: {', '.join(by_name)}")
    return by_name[name]


def _all_bounds(graph: Any, sizes: Mapping[str, int], why: str) -> None:
    from recurra.tools.test_case_reducer import bounds

    missing = sorted(bounds(graph) - set(sizes))
    if missing:
        raise RecurraError(
            f"no size is given for {', '.join(missing)}",
            facts=f"{why}, and the graph's bounds are {', '.join(sorted(bounds(graph)))}",
            hint=f"add --sizes {' '.join(f'{n}=4' for n in missing)}",
        )


def _graph(file: Path) -> Any:
    from recurra.ir.text import parse
    from recurra.ir.verify import verify

    importlib.import_module("recurra.ops")  # fills the registry of ops
    text = sys.stdin.read() if str(file) == "-" else _file(file).read_text()
    try:
        return verify(parse(text))
    except (SyntaxError, AssertionError, ValueError, TypeError, KeyError) as error:
        raise RecurraError(
            f"{file} is not a graph",
            facts=f"{type(error).__name__}: {error}".rstrip(": "),
            hint="a line is like  y[t<T]: f32[] = sum(x, axes=(0,))  and the last one  return y",
        ) from None


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.isidentifier() or not number.isdecimal():
        raise RecurraError(f"{text!r} is no size", hint="write --sizes B=64 T=200")
    return name, int(number)


@dataclass(frozen=True)
class Bench:
    """Measure our program beside those written by hand; answers are compared before times.

    Example: recurra bench core --json --quick
    """

    name: Positional[str] = "core"
    """Which suite: core, backends, ppo, memory, learning, decode, nest, mapping or window"""
    json: bool = False
    """Print one JSON object; progress is on standard error."""
    quick: bool = False
    """Fewer repetitions: minutes instead of an hour."""
    peers: Path | None = None
    """With ppo: a folder for real peers, each installed in a virtual environment of its own."""
    only: str | None = None
    """Parts of the table, separated by commas. With ppo: 1T, 2T, grid, memory, start. With decode:
    tokens, memory, figures. With nest: compile, peaks, kernels, matmul, generators, programs,
    ceilings, policy, searches, minutes. With mapping: solve, steps, execute. With memory:
    fit, shuffled, speed, returns."""
    sizes: str | None = None
    """With nest: so many sizes of its part matmul, 200 if left out; or from one to another of them,
    as in 100..200."""
    out: Path | None = None
    """With learning: a folder for every episode and the curves; runs/learning if left out. With
    decode: a folder for decoding.svg and its numbers, which are measured where it is named. With
    mapping: a folder for mapping.html, the paper's figures, and every search: a bench that was
    stopped goes on. With memory: one for memory.svg."""
    learn: bool = False
    """With mapping: agents that learn the game, beside evolution and chance; takes hours."""
    instances: str | None = None
    """With mapping: instances of its library, separated by commas; all if left out."""
    solvers: str | None = None
    """With mapping: whom to compare with, separated by commas; all if left out."""
    seconds: float | None = None
    """With mapping: CPU seconds of each search."""
    seeds: int | None = None
    """With mapping: searches of each solver, with random numbers 0, 1, .."""

    def __call__(self) -> int:
        if self.name not in BENCHES:
            raise RecurraError(
                f"there is no bench {self.name!r}", facts=f"there are: {', '.join(BENCHES)}"
            )
        given = {k: getattr(self, k) for k in BENCH_OPTIONS}
        options = {k: v for k, v in given.items() if v is not None and v is not False}
        for option in options:
            if self.name not in BENCH_OPTIONS[option]:
                *some, last = BENCH_OPTIONS[option]
                theirs = f"{', '.join(some)} and {last}" if some else last
                raise RecurraError(
                    f"--{option} is for the bench {theirs}, not {self.name}",
                    hint="leave it out; `recurra bench --help` says what it does",
                )
        program, suite = (importlib.import_module(m) for m in BENCHES[self.name])
        from recurra.bench import harness, machine

        os.environ["RECURRA_CACHE"] = "0"  # what is measured is made, here and by workers
        load = machine.load()
        rows = suite.suite(program.ours, self.quick, **options)
        report = harness.report(self.name, rows, load)
        failed = 1 if harness.failures(rows) else 0
        if self.json:
            print(json.dumps(report))
            return failed
        for row in report["rows"]:
            low, high = row["ci95"]
            print(
                f"{row['case']:<24} {row['metric']}  ours {row['ours']:.3g}  "
                f"{row['peer']} {row['theirs']:.3g}  ratio {row['ratio']:.2f} "
                f"[{low:.2f}, {high:.2f}]  checked {row['checked']}"
            )
        return failed


def _file(path: Path) -> Path:
    if not path.is_file():
        raise RecurraError(f"there is no file {path}")
    return path
