"""The commands run, view, opt and reduce. Slow imports are inside functions."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from recurra.errors import RecurraError
from recurra.support.renamed_names import warn_renamed

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
    "narrow_choices": "guard_shared_operands",
    "turn_inputs": "transpose_inputs",
    "keep_points": "snapshot_points",
}


@dataclass(frozen=True)
class RunCommand:
    """Run a program; what it compiles and runs is up to it.

    Example: recurra run examples/reinforce.py --interpret --statements 50
    """

    script: Positional[Path]
    """A Python file."""
    interpret: bool = False
    """Evaluate its programs equation by equation, slowly, instead of compiling them."""
    statements: int = 100
    """With --interpret: the number of evaluations to show."""
    check: Literal["nan", "bounds"] | None = None
    """nan: stop at the first NaN or inf in a result, and name the op, point and line behind it;
    bounds: at the first read by data that leaves its axis."""

    def __call__(self) -> int:
        path = _file(self.script).absolute()
        sys.argv = [str(self.script)]
        sys.path.insert(0, str(path.resolve().parent))
        try:
            with self.mode():
                runpy.run_path(str(path), run_name="__main__")
        except RecurraError:
            raise
        except Exception as error:
            _print_traceback(error, path)
            return 1
        return 0

    def mode(self) -> AbstractContextManager[None]:
        """The mode in which the script's programs are compiled."""
        if self.interpret and self.check:
            raise RecurraError(
                "--interpret and --check are two ways to run a program",
                facts="one evaluates its equations, the other compiles them and watches results",
                hint="leave one out",
            )
        if self.interpret:
            from recurra.tools.interpreted_run import interpreted

            return interpreted(self.statements)
        from recurra.frontend.context import compiling

        return compiling(check=self.check) if self.check else nullcontext()


def _print_traceback(error: Exception, script: Path) -> None:
    """Print the traceback from the script's first frame on."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    start = files.index(str(script)) if str(script) in files else 0
    text = traceback.format_exception(error.with_traceback(None))
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join([*traceback.format_list(frames[start:]), *text]), end="", file=sys.stderr)


@dataclass(frozen=True)
class ViewCommand:
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
    """Options of `compile`, which some passes wait for: tile_points=4 workers=2 backend=torch"""
    json: bool = False
    """Print {"text": .., "passes": [{"name", "before", "after", "ms"}, ..]}"""

    def __call__(self) -> int:
        graph, sizes = _graph(self.file), dict(map(_size, self.sizes))
        names = [name for name in self.passes.replace(" ", "").split(",") if name]
        rows: Sequence[object] = ()
        if names:
            from recurra.compiler.options import read_options
            from recurra.compiler.pass_manager import PassManager
            from recurra.compiler.pipeline import compile_context

            passes = [_pass(name) for name in names]
            stages = PassManager(compile_context(sizes, *read_options(self.options)))
            if stages.config.check:
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
    """Options of `compile` with which the pass fails: tile_points=4"""

    def __call__(self) -> int:
        from recurra.compiler.options import read_options
        from recurra.tools import graph_reducer

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
            failure = graph_reducer.by_pass(step, *read_options(self.options))
        else:
            failure = graph_reducer.by_command(self.check)
        progress = partial(print, file=sys.stderr)
        print(graph_reducer.reduce(graph_reducer.Case(graph, sizes), failure, progress))
        return 0


def _pass(name: str) -> Pass:
    from recurra.compiler.pipeline import PASSES

    by_name = {step.name: step for step in PASSES}
    if (now := RENAMED_PASSES.get(name)) is not None:
        warn_renamed(f"the pass {name}", now)
        name = now
    if name not in by_name:
        raise RecurraError(f"there is no pass {name!r}", facts=f"passes: {', '.join(by_name)}")
    return by_name[name]


def _all_bounds(graph: Any, sizes: Mapping[str, int], why: str) -> None:
    from recurra.tools.graph_reducer import bound_names

    missing = sorted(bound_names(graph) - set(sizes))
    if missing:
        raise RecurraError(
            f"no size is given for {', '.join(missing)}",
            facts=f"{why}, and the graph's bounds are {', '.join(sorted(bound_names(graph)))}",
            hint=f"add --sizes {' '.join(f'{n}=4' for n in missing)}",
        )


def _graph(file: Path) -> Any:
    from recurra.ir.graph_parser import parse
    from recurra.ir.verify import verify

    importlib.import_module("recurra.ops")  # registers the ops
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


def run_benchmarks(module: str, words: Sequence[str]) -> int:
    """Run a program of the benchmarks, which are only in a checkout, and return its exit code."""
    places = (Path(__file__).resolve().parents[3], Path.cwd())
    root = next((place for place in places if _is_checkout(place)), None)
    if root is None:
        raise RecurraError(
            "the benchmarks are not here: they are not in the package, but in its repository",
            facts=f"neither {places[0]} nor {places[1]} is a checkout of it",
            hint=f"in a checkout, run `python -m {module}`, or this command again",
        )
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}  # not the current folder's
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, env={**os.environ, **own}, check=False).returncode


def _is_checkout(folder: Path) -> bool:
    benchmarks, package = folder / "benchmarks", folder / "src" / "recurra"
    return (benchmarks / "__main__.py").is_file() and package.is_dir()


def _file(path: Path) -> Path:
    if not path.is_file():
        raise RecurraError(f"there is no file {path}")
    return path
