"""The paper's figures 17, 18, 19 and 24 redrawn: what whole decodes and compilations cost.

recurra bench decode --out docs
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.decode.contestants import makers
from benchmarks.decode.pictures import Panel, picture
from benchmarks.decode.recurra_program import contestant, inputs, written
from benchmarks.decode.whole import PROMPT, Decode, decoded
from benchmarks.decode.workload import LAUNCH, Work
from benchmarks.harness import progress
from benchmarks.pairs import interleaved
from benchmarks.worker import in_worker

FILE, NUMBERS = "decoding.svg", "decoding.json"
SMALL = dict(L=4, D=64, H=4, KV=2, HD=16, F=96, V=256)  # where only the number of layers matters
TILES = (32, 64, 128, 256, 512, 1024, 0)  # points; 0: ranges are read whole
ROUNDS = 6
SLOWEST = 4  # passes that are drawn


@dataclass(frozen=True)
class Sizes:
    """How much is measured: positions, rows, and layers of programs that are compiled."""

    positions: tuple[int, ...]
    windows: tuple[int, ...]
    rows: int
    tiles: int  # positions of the sweep over tiles
    layers: tuple[int, ...]


FULL = Sizes((512, 1024, 2048), (0, 256), 4, 8192, (4, 8, 16, 32, 64))
QUICK = Sizes((256, 512), (0,), 1, 1024, (2, 4))


def figures(out: Path, quick: bool) -> list[Path]:
    """Measures all of it, and writes one picture and its numbers into a folder."""
    sizes, threads = QUICK if quick else FULL, min(2, machine.cores())
    load = machine.load()
    decodes = {w: whole(sizes, w, threads) for w in sizes.windows}
    tiles = in_worker(sweep, dict(T=sizes.tiles, B=sizes.rows), threads)
    compiled = {n: in_worker(compiling, dict(L=n), threads) for n in sizes.layers}
    panels = [
        *(between(sizes, w, found) for w, found in decodes.items()),
        of_tiles(sizes, tiles),
        *(memory(sizes, w, found[max(sizes.positions)]) for w, found in decodes.items()),
        of_layers(compiled),
    ]
    out.mkdir(parents=True, exist_ok=True)
    told = f"Decoding: time, memory and compilation; load {load:.1f}"
    (out / FILE).write_text(picture(told, panels), encoding="utf-8")
    numbers = {"load": load, "idle": load < machine.IDLE_LOAD, "machine": machine.describe()}
    lines = {p.title: {n: list(x) for n, x in p.lines.items()} for p in panels}
    text = json.dumps(numbers | {"lines": lines}, indent=1)
    (out / NUMBERS).write_text(text + "\n", encoding="utf-8")
    progress(f"wrote {out / FILE} and {out / NUMBERS}")
    return [out / FILE, out / NUMBERS]


Decodes = dict[int, dict[str, Decode]]


def whole(sizes: Sizes, window: int, threads: int) -> Decodes:
    """Decodes to every length, by everyone who gets there."""
    out: Decodes = {}
    for T in sizes.positions:
        work = Work(sizes.rows, T, window, start=PROMPT)
        found = {who: decoded(work, who, threads) for who in makers()}
        out[T] = {who: d for who, d in found.items() if d is not None}
    return out


def between(sizes: Sizes, window: int, found: Decodes) -> Panel:
    """Figure 17: the mean time between tokens, of whole decodes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for T, decodes in found.items():
        for who, d in decodes.items():
            lines.setdefault(who, []).append((T, d.mean))
    title = f"Between tokens, {_seen(window)}, B={sizes.rows}"
    return Panel(title, "tokens decoded", "CPU ms", lines, True)


def memory(sizes: Sizes, window: int, found: Mapping[str, Decode]) -> Panel:
    """Figure 19: what a decode holds beside the libraries, as it goes on."""
    lines = {
        who: [(PROMPT + LAUNCH * (k + 1), x / 1e6) for k, x in enumerate(d.held)]
        for who, d in found.items()
    }
    return Panel(f"Memory, {_seen(window)}, B={sizes.rows}", "token", "MB", lines)


def _seen(window: int) -> str:
    return f"window {window}" if window else "causal"


def sweep(T: int, B: int) -> dict[str, float]:
    """Milliseconds per token in the middle of T, by points of a tile, taken in turns."""
    from recurra.frontend.context import compiling as options

    runs: list[Any] = []
    for tile in TILES:
        with options(tile_points=tile):
            decoder = contestant(Work(B, T))
            decoder.run(LAUNCH)  # compiles
        runs.append(decoder.run)
    ms = interleaved(runs, iterations=LAUNCH, rounds=ROUNDS)
    return {str(t): float(x) for t, x in zip(TILES, np.median(ms, axis=0), strict=True)}


def of_tiles(sizes: Sizes, found: Mapping[str, float]) -> Panel:
    """Figure 18: points of a tile; ranges that are read whole are the last point."""
    line = [(float(int(t) or sizes.tiles), x) for t, x in found.items()]
    title = f"Points of a tile, T={sizes.tiles}, B={sizes.rows}"
    return Panel(title, "points (the last: no tiles)", "CPU ms per token", {"ours": line}, True)


def compiling(L: int) -> dict[str, float]:
    """CPU seconds of L layers: pass by pass, the rest of ours, XLA; and with layers as a dim."""
    out: dict[str, float] = {}
    for unrolled in (True, False):
        work = replace(Work(1, 1024, start=PROMPT), **(SMALL | {"L": L}))
        since = time.process_time()
        program = written(work, False, unrolled)
        mine = time.process_time() - since
        since = time.process_time()
        next(program.launches(0, inputs(work, program)))
        xla = time.process_time() - since
        if not unrolled:
            out[AS_DIM] = mine + xla
            continue
        passes = dict[str, float]()
        for r in program.executable.pass_rows:
            passes[r["name"]] = passes.get(r["name"], 0.0) + r["ms"] / 1e3
        rest = max(0.0, mine - sum(passes.values()))
        out |= passes | {REST: rest, XLA: xla, ALL: mine + xla}
    return out


AS_DIM, ALL = "all, layers a dim", "all, unrolled"
XLA, REST = "XLA, and a launch", "trace, schedule, plan"
WHOLE = (ALL, AS_DIM, XLA, REST)


def of_layers(found: Mapping[int, Mapping[str, float]]) -> Panel:
    """Figure 24: compile time over layers, with the passes that take most of the deepest."""
    deepest = found[max(found)]
    passes = sorted((n for n in deepest if n not in WHOLE), key=lambda n: -deepest[n])
    lines = {
        n: [(float(L), times[n]) for L, times in found.items() if n in times]
        for n in (*WHOLE, *passes[:SLOWEST])
    }
    return Panel("Compilation", "layers", "CPU s", {n: x for n, x in lines.items() if x}, True)
