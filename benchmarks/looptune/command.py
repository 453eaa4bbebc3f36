"""`recurra tune figures`: LoopTune's figures 7 to 11, measured here and drawn in one picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.decode.pictures import WIDE, Panel, drawn
from benchmarks.harness import progress
from benchmarks.looptune import learners, libraries, searches
from benchmarks.looptune.pictures import dots, page, violins
from benchmarks.looptune.sizes import FULL, QUICK, Sizes, problems
from benchmarks.nest.peers_tvm import VARIABLE, available
from benchmarks.parts import named
from benchmarks.worker import in_worker
from recurra.errors import RecurraError
from recurra.nest.agents.command import TuneTrainCommand
from recurra.nest.target import runnable

PARTS = ("learners", "searches", "depths", "libraries")
FILE, NUMBERS = "nest.svg", "nest.json"
RECORD = {"sizes", "machine", "load", "found"}


@dataclass(frozen=True)
class Figures:
    """Redraw the figures of LoopTune from what this machine measures: five learners' curves (7),
    searches at equal limits (8, 9, 11), NumPy and TVM (10).

    What has been measured is kept in the folder, learner by learner and size by size: a command
    that was stopped goes on. What another processor measured is measured again.

    Example: recurra tune figures --quick --out runs/figures
    """

    out: Path = Path("docs")
    """A folder for nest.svg and its numbers, nest.json."""
    folder: Path = Path("runs/figures")
    """Where tables and what was measured are kept."""
    quick: bool = False
    """Few and short measurements: ten minutes instead of forty."""
    only: str | None = None
    """Measure these parts alone, and draw nothing: learners, searches, depths, libraries."""

    def __call__(self) -> int:
        sizes = QUICK if self.quick else FULL
        for folder in (self.out, self.folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RecurraError(f"{folder} cannot be made", facts=str(error)) from None
        makers: Mapping[str, Callable[[Sizes], Any]] = {
            "learners": self.learners,
            "searches": self.searches,
            "depths": self.depths,
            "libraries": self.libraries,
        }
        parts = named("figures", PARTS, self.only)
        numbers = {
            name: self.kept(name, partial(makers[name], sizes), asdict(sizes)) for name in parts
        }
        if self.only is not None:
            print(f"measured {', '.join(parts)}: {self.folder}")
            return 0
        (self.out / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        (self.out / FILE).write_text(picture(numbers), encoding="utf-8")
        print(f"wrote {self.out / FILE} and {self.out / NUMBERS}")
        return 0

    def kept(self, name: str, make: Callable[[], Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
        """From the folder, or measured; with what was measured and how busy the machine was."""
        path, about = self.folder / f"{name}.json", machine.describe()
        if path.exists():
            kept = read(path)
            same = kept["sizes"] == json.loads(json.dumps(sizes))
            if same and kept["machine"]["cpu"] == about["cpu"]:
                progress(f"{name}: as measured before, {path}")
                return kept
        load = machine.load()
        progress(f"{name}: measuring")
        found = {"sizes": sizes, "machine": about, "load": load, "found": make()}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found))
        return json.loads(json.dumps(found))

    def learners(self, sizes: Sizes) -> dict[str, Any]:
        on = runnable()[0]
        train = TuneTrainCommand(self.folder, tables=sizes.tables, depth=sizes.depth)
        rules = train.rules()
        worlds = learners.parted([train.table(p, rules, on) for p in train.problems()])

        about = {x: getattr(sizes, x) for x in ("tables", "depth", "trials", "sweep", "run")}

        def one(name: str) -> Any:
            make = partial(learners.swept, name, worlds, sizes)
            return self.kept(f"learners/{name}", make, about)["found"]

        return {"learners": {name: one(name) for name in learners.LEARNERS}, **worlds.bounds()}

    def searches(self, sizes: Sizes) -> list[Any]:
        return self.each("searches", sizes.problems, searches.searched, limit=sizes.limit)

    def depths(self, sizes: Sizes) -> list[Any]:
        more = dict(limit=sizes.deep_limit, actions=sizes.actions)
        return self.each("depths", sizes.deep, searches.deepened, **more)

    def libraries(self, sizes: Sizes) -> list[Any]:
        if not available():
            progress(f"TVM is not measured: {VARIABLE} names no Python that has it")
        more = dict(seconds=min(5.0, sizes.limit), pairs=sizes.pairs)
        return self.each("libraries", sizes.problems, libraries.beside, **more)

    def each(self, part: str, count: int, measure: Callable[..., Any], **more: Any) -> list[Any]:
        """Of so many matrix products, each measured in a process of its own."""

        def one(size: tuple[int, int, int]) -> Any:
            make = partial(in_worker, measure, dict(size=size, **more), threads=1)
            return self.kept(f"{part}/{searches.called(size)}", make, more)["found"]

        return [one(size) for size in problems(count, searches.learned_from())]


def read(path: Path) -> dict[str, Any]:
    """A part that was measured."""
    try:
        kept = json.loads(path.read_text())
        missing = RECORD - set(kept)
    except (OSError, ValueError, TypeError) as error:
        raise RecurraError(f"{path} is no part of the figures", facts=str(error)) from None
    if missing:
        raise RecurraError(
            f"{path} is no part of the figures", facts=f"it has no {', '.join(sorted(missing))}"
        )
    return kept


def picture(numbers: Mapping[str, Any]) -> str:
    """All figures as one SVG."""
    curves, found = numbers["learners"]["found"], numbers["searches"]["found"]
    rows = [
        [(drawn(panel), WIDE) for panel in of_learners(curves)],
        *([one] for one in of_searches(found)),
        [speedups(found)],
        [(drawn(panel), WIDE) for panel in of_depths(numbers["depths"]["found"])],
        [of_libraries(numbers["libraries"]["found"])],
    ]
    about, sizes = numbers["searches"]["machine"], numbers["learners"]["sizes"]
    loads = ", ".join(f"{name} {part['load']:.1f}" for name, part in numbers.items())
    note = (
        f"{about['cpu']}, one thread; learners: {sizes['tables']} tables, {sizes['trials']} "
        f"settings each; searches: {sizes['limit']:g} s each; load when measured: {loads}"
    )
    return page("Figures 7 to 11 of LoopTune, measured here", rows, note)


def of_learners(found: Mapping[str, Any]) -> list[Panel]:
    """Figure 7, and the same as shares of the best nests, on tables that were not learned from."""
    curves = {name: one["points"] for name, one in found["learners"].items()}
    rewards = {
        name: [(p["steps"], 100 * p["reward"]) for p in points if p["reward"] is not None]
        for name, points in curves.items()
    }
    shares = {
        name: [(p["steps"], 100 * p["of_best"]) for p in points] for name, points in curves.items()
    }
    last = max(p["steps"] for points in curves.values() for p in points)
    shares["untiled"] = [
        (0, 100 * found["of_best_untiled"]),
        (last, 100 * found["of_best_untiled"]),
    ]
    return [
        Panel("7: reward of an episode, learning", "actions taken", "% of peak", rewards),
        Panel("7: the policy on other sizes", "actions taken", "% of the best nest", shares),
    ]


def of_searches(found: list[Any]) -> list[tuple[str, int]]:
    """Figure 8."""
    places = [one["size"] for one in found]
    who = sorted(found[0]["rows"], key=lambda name: name == "untiled")  # colors as elsewhere

    def column(key: str) -> dict[str, list[float | None]]:
        return {name: [one["rows"][name][key] for one in found] for name in who}

    spent = {name: row for name, row in column("seconds").items() if name != "untiled"}
    return [
        dots("8: achieved performance", "GFLOPS", places, column("gflops")),
        dots("8: search time", "seconds", places, spent, powers=True),
    ]


def speedups(found: list[Any]) -> tuple[str, int]:
    """Figure 9."""
    values = {
        name: [one["rows"][name]["gflops"] / one["rows"]["untiled"]["gflops"] for one in found]
        for name in found[0]["rows"]
        if name != "untiled"
    }
    return violins("9: speed-up over the untiled nest, and its median", "times", values)


def of_depths(found: list[Any]) -> list[Panel]:
    """Figure 11, of the first size."""
    rows, size = found[0]["rows"], found[0]["size"]
    reached = {name: [(k, g) for k, g, _ in row] for name, row in rows.items()}
    spent = {name: [(k, s) for k, _, s in row] for name, row in rows.items()}
    return [
        Panel(f"11: reached with so many actions, {size}", "actions at most", "GFLOPS", reached),
        Panel(f"11: time to choose them, {size}", "actions at most", "seconds", spent),
    ]


def of_libraries(found: list[Any]) -> tuple[str, int]:
    """Figure 10."""
    who = list(dict.fromkeys(name for one in found for name in one["ms"]))
    values = {name: [one["ms"].get(name) for one in found] for name in who}
    places = [one["size"] for one in found]
    return dots("10: execution time of a call", "ms", places, values, powers=True)
