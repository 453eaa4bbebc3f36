"""`recurra window run`, `simulate`, `profile` and `build`."""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from recurra.support import atomic_write
from recurra.support.optional_packages import needed_by
from recurra.window import paper_comparison
from recurra.window.gpu import GPUS, Gpu
from recurra.window.hlo import read_hlo
from recurra.window.kineto import read_profile
from recurra.window.policies import POLICIES
from recurra.window.profile import profile_trace
from recurra.window.simulate import simulate
from recurra.window.simulated_gpu import LaunchCosts, SimulatedGpu
from recurra.window.task import WindowError
from recurra.window.timeline import expect_timeline
from recurra.window.trace import Trace, parse

if TYPE_CHECKING:
    from recurra.window.torch.block import Block

PROGRAM = """A trace as text (a file, or - for standard input), a GPU's profile by torch.profiler
(.json, .json.gz), a scheduled HLO module (.pb), synthetic:NAME (a program with the numbers of the
paper's), or torch:NAME (a PyTorch program, recorded here)."""


@dataclass(frozen=True)
class WindowRunCommand:
    """Run a PyTorch script, without gradients, inside `window.concurrent()`.

    Example: recurra window run infer.py --threads 2 -- --images 100
    """

    SCRIPT_WORDS: ClassVar = (
        "hint: the script's own options come behind --, as in infer.py -- --n 3"
    )

    script: Positional[Path]
    """A Python file."""
    arguments: Positional[tuple[str, ...]] = ()
    """The script's own, behind --"""
    threads: int = 2
    """That run operators, the script's own among them."""
    slots: int = 32
    """Of the window."""
    always: bool = False
    """Defer whatever can be, also where that is not expected to pay."""
    explain: bool = False
    """At the end, say of every operator what became of its calls, why, and what that cost."""
    timeline: Path | None = None
    """File to write, .html or .json (Perfetto): when the last 4096 operators ran, by thread."""
    check: bool = False
    """Run every operator in eager mode, too, and compare to the last bit."""
    json: bool = False
    """At the end, print how many operators were deferred, .., on standard error, as JSON."""

    def __call__(self) -> int:
        if self.script.is_dir() or not os.access(self.script, os.R_OK):
            raise WindowError(
                f"there is no file {self.script}",
                facts="a script is a file of Python that can be read",
                hint="recurra window run infer.py",
            )
        if self.timeline is not None:
            expect_timeline(self.timeline)
        with needed_by("recurra window run", WindowError):
            from recurra.window.torch.concurrent import concurrent, load_native, no_grad
        load_native(self.threads, self.slots, None)  # if that fails, no script has run
        script = self.script.absolute()
        sys.argv = [str(self.script), *self.arguments]
        sys.path.insert(0, str(script.resolve().parent))
        concurrent_block = concurrent(
            self.threads, self.slots, policy="always" if self.always else "learn",
            explain=self.explain or self.timeline is not None, check=self.check,
        )  # fmt: skip
        try:
            with no_grad(), concurrent_block as block:
                left = _run_script(script)
        except WindowError:
            raise
        except Exception as error:
            print(_without_our_frames(error, script), end="", file=sys.stderr)
            print("(it ran without gradients, inside window.concurrent())", file=sys.stderr)
            return 1
        self._report(block)
        if left is not None:
            raise left
        return 0

    def _report(self, block: Block) -> None:
        print(json.dumps(block.counts) if self.json else block, file=sys.stderr)
        if self.timeline is not None and block.spans:
            block.save_timeline(self.timeline)
        elif self.timeline is not None:
            print(f"{self.timeline} is not written: no operator was seen", file=sys.stderr)


def _run_script(script: Path) -> SystemExit | None:
    """Run a script, which may be a pipe; return its SystemExit, if it raised one."""
    main, before = ModuleType("__main__"), sys.modules["__main__"]
    vars(main).update(__file__=str(script), __builtins__=builtins)
    sys.modules["__main__"] = main
    try:
        exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), vars(main))
    except SystemExit as left:
        return left
    finally:
        sys.modules["__main__"] = before
    return None


def _without_our_frames(error: Exception, script: Path) -> str:
    """Return the traceback that the script would have by itself."""
    report = traceback.TracebackException.from_exception(error)
    files = [frame.filename for frame in report.stack]
    first = files.index(str(script)) if str(script) in files else 0
    ours = str(Path(__file__).parent)
    frames = [f for f in report.stack[first:] if not f.filename.startswith(ours)]
    report.stack = traceback.StackSummary.from_list(frames)
    return "".join(report.format())


@dataclass(frozen=True)
class Simulate:
    """Run a program of kernels on a model of a GPU, under several policies.

    Example: recurra window simulate torch:ant --policies serial,acs-sw,acs-hw --timeline ant.html
    """

    program: Positional[Annotated[str, arg(help=PROGRAM)]] = ""
    policies: str = ",".join(POLICIES)
    """Which ones, separated by commas; the first is what the others are compared with."""
    gpu: str = "rtx3070"
    """Which GPU: rtx3060, rtx3070, rtx4090, h100"""
    slots: int = 32
    """N, of the window."""
    scheduled: int = 0
    """M, of the host's list (ACS-HW); 0 is twice the window."""
    streams: int = 8
    """Streams that the host launches into."""
    costs: tuple[str, ...] = ()
    """Other costs than the calibrated ones, in µs: sync=20 launch=2.5"""
    kernels: int = 900
    """Of a synthetic program."""
    batch: int = 0
    """Of a PyTorch program; 0 is the paper's."""
    timeline: Path | None = None
    """Write what ran when: .html to look at, .json for chrome://tracing and Perfetto."""
    save: Path | None = None
    """Write the trace as text."""
    paper: bool = False
    """Compare with the paper's figures instead (15 s)."""
    sensitivity: bool = False
    """Show how much the speed-ups depend on what is assumed instead (a minute)."""
    json: bool = False
    """Print one JSON object; progress is on standard error."""

    def __call__(self) -> int:
        machine = _machine(self.gpu, self.slots, self.scheduled, self.streams, self.costs)
        if self.paper or self.sensitivity:
            return self._tables(machine)
        names = _policies(self.policies)
        trace = read(self.program, machine.gpu, self.kernels, self.batch)
        if self.save is not None:
            atomic_write.save(self.save, str(trace))
        runs = [simulate(trace, name, machine) for name in names]
        rows = [
            {
                "policy": run.policy,
                "us": round(run.us, 2),
                "speedup": round(runs[0].us / run.us, 3),
                "occupancy": round(run.occupancy, 4),
                "mJ": round(run.millijoules, 3),
                "does": POLICIES[run.policy].words,
            }
            for run in runs
        ]
        if self.timeline is not None:
            _draw(self.timeline, runs)
        if self.json:
            head = {"trace": trace.name, "kernels": len(trace), **_report(machine)}
            print(json.dumps({**head, "rows": rows}))
            return 0
        print(f"{trace.name}: {len(trace)} kernels on {machine.gpu.name}, {machine.slots} slots")
        _print_table(rows)
        return 0

    def _tables(self, machine: SimulatedGpu) -> int:
        if self.program:
            raise WindowError(
                f"{self.program} and --paper or --sensitivity",
                facts="those two bring their own programs",
                hint="leave the program out",
            )
        found: dict[str, object] = {}
        if self.paper:
            rows = paper_comparison.comparison(machine, self.kernels, _counting())
            found["paper"] = [{**vars(r), "ours": round(r.ours, 4), "holds": r.holds} for r in rows]
            if not self.json:
                print(f"{'what':<46} {'paper':>6} {'ours':>6}")
                print("\n".join(map(str, rows)))
        if self.sensitivity:
            rows = paper_comparison.sensitivity(kernels=min(self.kernels, 400), tell=_counting())
            found["sensitivity"] = [
                {"family": r.family, "assumption": r.assumption}
                | {p: round(g, 3) for p, g in r.gains.items()}
                for r in rows
            ]
            if not self.json:
                _print_table(found["sensitivity"])
        if self.json:
            print(json.dumps(_report(machine) | found))
        return 0


@dataclass(frozen=True)
class WindowProfileCommand:
    """Show why a program of kernels leaves a GPU idle: sizes, occupancy, available parallelism.

    Example: recurra window profile torch:humanoid --gpu rtx3060
    """

    program: Positional[Annotated[str, arg(help=PROGRAM)]]
    gpu: str = "rtx3070"
    """Which GPU: rtx3060, rtx3070, rtx4090, h100"""
    kernels: int = 900
    """Of a synthetic program."""
    batch: int = 0
    """Of a PyTorch program; 0 is the paper's."""
    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> int:
        machine = _machine(self.gpu, 32, 0, 8, ())
        found = profile_trace(read(self.program, machine.gpu, self.kernels, self.batch), machine)
        print(json.dumps(found.rows()) if self.json else found)
        return 0


@dataclass(frozen=True)
class WindowBuildCommand:
    """Compile the native window into the cache, and print where it is.

    Example: recurra window build
    """

    json: bool = False
    """Print {"module": path, "lanes": the instructions it compares with}"""

    def __call__(self) -> int:
        from recurra.window.native.native_build import STREAMS, TORCH, build
        from recurra.window.native.native_window import load

        window, lanes = build(), load().lanes
        streams = build(extension=STREAMS)
        torch = build(extension=TORCH) if find_spec("torch") else None
        if self.json:
            paths = {"window": str(window), "lanes": lanes, "streams": str(streams)}
            print(json.dumps(paths | {"torch": torch and str(torch)}))
            return 0
        print(f"window: {window} ({lanes})")
        print(f"streams of a GPU: {streams}")
        print(f"torch: {torch or 'PyTorch is not installed'}")
        return 0


def read(program: str, gpu: Gpu, kernels: int = 900, batch: int = 0) -> Trace:
    """Read the program named on the command line. Raises WindowError for an unknown one."""
    kind, colon, name = program.partition(":")
    if kind == "synthetic" and colon:
        if name not in paper_comparison.WORKLOADS:
            raise WindowError(
                f"there is no synthetic program {name!r}",
                facts=f"there are {', '.join(paper_comparison.WORKLOADS)}",
            )
        return replace(paper_comparison.WORKLOADS[name], kernels=kernels).trace()
    if kind == "torch" and colon:
        return _recorded(name, gpu, batch)
    if program == "-":
        return parse(sys.stdin.read())
    if not program or not Path(program).is_file():
        raise WindowError(
            f"there is no file {program}" if program else "no program is given",
            hint="give a trace, synthetic:ant or torch:ant",
        )
    return _file(Path(program), gpu)


def _file(path: Path, gpu: Gpu) -> Trace:
    """Read a file, by its extension."""
    try:
        data = path.read_bytes()
        if path.name.endswith((".json", ".json.gz")):
            return read_profile(data, gpu, path.name.partition(".json")[0])
        if path.suffix == ".pb":
            return read_hlo(data, gpu, path.name.partition(".hlo")[0].removesuffix(".pb"))
        return parse(data.decode(), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise WindowError(f"{path} cannot be read as text", facts=str(error)) from None


def _recorded(name: str, gpu: Gpu, batch: int) -> Trace:
    from recurra.window.workloads import make

    with needed_by(f"torch:{name}", WindowError):
        from recurra.window.torch.lower import lower
        from recurra.window.torch.record import record_operators
    return lower(name, record_operators(make(name, batch=batch).run), gpu)


def _machine(
    gpu: str, slots: int, scheduled: int, streams: int, costs: Sequence[str]
) -> SimulatedGpu:
    if gpu not in GPUS:
        raise WindowError(f"there is no GPU {gpu!r}", facts=f"there are {', '.join(GPUS)}")
    known = [f.name for f in fields(LaunchCosts)]
    changed: dict[str, float] = {}
    for text in costs:
        name, _, value = text.partition("=")
        try:
            changed[name] = float(value)
        except ValueError:
            changed[name] = -1.0
        if name not in known or not 0 <= changed[name] < math.inf:
            raise WindowError(
                f"{text!r} is no cost",
                facts=f"costs are {', '.join(known)}",
                hint="--costs sync=20",
            )
    return SimulatedGpu(GPUS[gpu], LaunchCosts(**changed), slots, scheduled or 2 * slots, streams)


def _policies(text: str) -> list[str]:
    names = [name for name in text.replace(" ", "").split(",") if name]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise WindowError(
            f"there is no policy {', '.join(map(repr, unknown or [text]))}",
            facts=f"there are {', '.join(POLICIES)}",
        )
    return names


def _draw(path: Path, runs: Sequence[Any]) -> None:
    expect_timeline(path)
    if path.suffix == ".json":
        if len(runs) > 1:
            raise WindowError(
                f"{path} can hold one policy", facts=f"{len(runs)} are asked for", hint="--policies"
            )
        atomic_write.save(path, runs[0].chrome())
        return
    body = "".join(f"<section>{run._repr_html_()}</section>" for run in runs)
    atomic_write.save(
        path,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>kernels over time'
        "</title><style>body{font:14px system-ui;margin:2em}section{margin-bottom:2em}</style>"
        f"</head><body>{body}</body></html>\n",
    )


def _report(machine: SimulatedGpu) -> dict[str, object]:
    return {
        "gpu": machine.gpu.name,
        "slots": machine.slots,
        "scheduled": machine.scheduled,
        "streams": machine.streams,
        "sram": machine.sram,
    }


def _counting() -> Callable[[str], object]:
    """Return a counter of steps on standard error: one line on a terminal, nothing elsewhere."""
    steps = count(1)

    def show(step: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{next(steps):3d}  {step:<60}", end="", file=sys.stderr, flush=True)

    return show


def _print_table(rows: Sequence[Mapping[str, object]]) -> None:
    columns = list(rows[0])
    cells = [[str(row[c]) for c in columns] for row in rows]
    wide = [max(len(c), *(len(row[k]) for row in cells)) for k, c in enumerate(columns)]
    for line in [columns, *cells]:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(line, wide, strict=True)).rstrip())
