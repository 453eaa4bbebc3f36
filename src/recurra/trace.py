"""What a compilation went through: logged, dumped and checked as the environment asks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recurra import agreement
from recurra.config import Config, config
from recurra.errors import PassError
from recurra.ir.graph import Graph
from recurra.ir.verify import verify
from recurra.ops.collective import SHARD, SHARDS
from recurra.rewrite.fuel import Fuel, burning
from recurra.rewrite.granularity import Axes

Pass = Callable[[Graph, Mapping[str, int]], Graph]


@dataclass
class Stages:
    """Every stage of one compilation, for people and for tests."""

    sizes: Mapping[str, int]
    graphs: dict[str, Graph] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    asked: Config = field(default_factory=config)
    axes: Sequence[Axes] | None = None  # of the outputs, once some dims of them are axes
    fuel: Fuel = field(default_factory=Fuel)
    answers: list[Any] | None = None  # the oracle's, of the first graph
    alone: Mapping[str, int] | None = None  # its bounds, where rows are split over workers
    verified: Graph | None = None  # the graph that the last pass made

    def __post_init__(self) -> None:
        self.fuel.limit = self.asked.fuel

    def begin(self, graph: Graph) -> None:
        """The graph that all others are compared with."""
        self.graphs["trace"] = graph
        self.dump("trace", graph)
        if self.asked.check:
            self.answer(graph)

    def split(self, sizes: Mapping[str, int], decision: str) -> None:
        """From here on bounds are those of one worker: the oracle is one worker alone."""
        self.sizes = sizes
        self.decisions.append(decision)
        if self.answers is not None:
            self.alone = {**sizes, SHARD: 0, SHARDS: 1}
            self.answer(self.graphs["trace"])

    def run(self, name: str, f: Pass, before: Graph) -> Graph:
        """One pass: the graph verifies before and after, and has one answer."""
        start, decided = time.perf_counter(), len(self.decisions)
        empty, laws = self.fuel.empty, self.fuel.laws.copy()
        with burning(self.fuel):
            try:
                self.verified = after = verify(f(before, self.sizes), self.verified)
            except Exception as error:
                error.add_note(f"in the pass {name}")
                raise
        ms = (time.perf_counter() - start) * 1e3
        counts = {"before": len(before.nodes), "after": len(after.nodes)}
        self.rows.append({"name": name, **counts, "ms": round(ms, 2)})
        self.graphs[name] = after
        self.tell("passes", f"{name:<12} {counts['before']:>5} → {counts['after']:<5} {ms:7.1f} ms")
        for law, n in (self.fuel.laws - laws).items():
            self.tell("rules", f"{name:<12} {n:>5} × {law}")
        for line in self.decisions[decided:]:
            self.tell("decisions", f"{name:<12} {line}")
        if self.fuel.empty and not empty:
            self.say(f"out of fuel in {name}; rewrite {self.fuel.used} is {self.fuel.last}")
        self.dump(name, after)
        if self.answers is not None:
            self.compare(name, after)
        return after

    def end(self) -> None:
        """After the last pass."""
        if self.fuel.limit is not None and not self.fuel.empty:
            self.say(f"RECURRA_FUEL={self.fuel.limit}: there are only {self.fuel.used} rewrites")

    @property
    def oracle(self) -> Mapping[str, int]:
        """The bounds that it runs for."""
        return self.sizes if self.alone is None else self.alone

    def answer(self, graph: Graph) -> None:
        """Keeps the oracle's answer, or says why there is none."""
        points = agreement.evaluations(graph, self.oracle)
        if points > agreement.MOST:
            bounds = ", ".join(f"{k}={v}" for k, v in self.oracle.items())
            self.say(
                f"RECURRA_CHECK: passes are not compared; {bounds} asks for {points:,} evaluations,"
                f" at most {agreement.MOST:,} are made: compile for smaller bounds"
            )
            return
        self.answers = agreement.answers(graph, self.oracle, _order(graph), _axes(graph, None))

    def compare(self, name: str, after: Graph) -> None:
        """Raises PassError where the answer is not that of the first graph."""
        assert self.answers is not None
        first = self.graphs["trace"]
        found = agreement.answers(after, self.oracle, _order(first), _axes(after, self.axes))
        wrong = agreement.difference(first, self.oracle, self.answers, found)
        if wrong is None:
            return
        bounds = ", ".join(f"{k}={v}" for k, v in self.oracle.items())
        stages = list(self.graphs)
        was = stages[stages.index(name) - 1]
        raise PassError(
            f"the pass {name} changes the answer: {wrong.where}",
            facts=f"before it is {wrong.before}, after it {wrong.after}, for {bounds}",
            hint=f"this is a bug of ours; RECURRA_DUMP=dir keeps the graph after {was}, which "
            "`recurra reduce` makes small, and RECURRA_FUEL=n finds the rewrite",
            loc=first[wrong.output].loc,
        )

    def tell(self, topic: str, text: str) -> None:
        if topic in self.asked.log:
            self.say(text)

    def say(self, text: str) -> None:
        print(f"recurra: {text}", file=sys.stderr)

    def dump(self, name: str, told: object, suffix: str = "txt") -> None:
        """One file per stage, in order; what is to be told becomes text only if it is."""
        if self.asked.dump is not None:
            self.asked.dump.mkdir(parents=True, exist_ok=True)
            before = (x.name.partition("-")[0] for x in self.asked.dump.iterdir())
            count = max((int(x) for x in before if x.isdecimal()), default=-1) + 1
            (self.asked.dump / f"{count:02d}-{name.replace(' ', '-')}.{suffix}").write_text(
                f"{told}\n"
            )


def _order(graph: Graph) -> list[tuple[str, ...]]:
    return [graph[o].domain.dims for o in graph.outputs]


def _axes(graph: Graph, decided: Sequence[Axes] | None) -> Sequence[Axes]:
    return agreement.as_written(graph) if decided is None else decided
