"""Runs passes: every graph is verified and kept, logged and checked as the environment asks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from recurra.config import Config, environment
from recurra.errors import PassError, RecurraError
from recurra.ir.graph import Graph
from recurra.ir.verify import verify
from recurra.ops.collective import SHARD, SHARDS
from recurra.reference import equivalence
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import burning


class PassRow(TypedDict):
    """A pass that ran: equations before and after, milliseconds."""

    name: str
    before: int
    after: int
    ms: float


@dataclass
class PassManager:
    """Every stage of one compilation, for people and for tests."""

    cx: CompileContext
    asked: Config = field(default_factory=environment)
    graphs: dict[str, Graph] = field(default_factory=dict[str, Graph])  # after every pass that ran
    rows: list[PassRow] = field(default_factory=list[PassRow])
    made: dict[str, Graph] = field(default_factory=dict[str, Graph])  # the last graph of each pass
    answers: list[Any] | None = None  # the oracle's, of the first graph
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])  # that it was given
    alone: Mapping[str, int] | None = None  # its bounds, where rows are split over workers
    verified: Graph | None = None  # the graph that the last pass made

    def __post_init__(self) -> None:
        self.cx.fuel.limit = self.asked.fuel

    @property
    def decisions(self) -> list[str]:
        """The decisions and their reasons, a line each."""
        return self.cx.remarks

    def begin(self, graph: Graph) -> None:
        """Takes the graph that all others are compared with."""
        self.graphs["trace"] = graph
        self.cx.axes = equivalence.as_written(graph)
        self.dump("trace", graph)
        if self.asked.check:
            self.answer(graph)

    def run(self, passes: Iterable[Pass], graph: Graph) -> Graph:
        """The graph after those passes that apply; all of them, one after the other."""
        for step in passes:
            graph = self.run_one(step, graph)
        return graph

    def run_one(self, step: Pass, before: Graph) -> Graph:
        """The graph after one pass, if it applies: it verifies, and has the answer of the first.

        No pass runs on what it made itself, or did not apply to, also if others have run since and
        changed nothing.
        """
        if self.made.get(step.name) == before:
            return before
        if not step.applies(before, self.cx):
            self.made[step.name] = before
            return before
        name = unused(step.name, self.graphs)
        start, decided = time.perf_counter(), len(self.decisions)
        fuel = self.cx.fuel
        empty, laws = fuel.empty, fuel.laws.copy()
        with burning(fuel):
            try:
                self.verified = after = verify(
                    _or_same(step.run(before, self.cx), before), self.verified
                )
            except Exception as error:
                about_us = isinstance(error, PassError) or not isinstance(error, RecurraError)
                if about_us:  # not about the user's program
                    error.add_note(f"in the pass {name}")
                raise
        ms = (time.perf_counter() - start) * 1e3
        old, new = len(before.nodes), len(after.nodes)
        self.rows.append(PassRow(name=name, before=old, after=new, ms=round(ms, 2)))
        self.graphs[name] = self.made[step.name] = after
        self.tell("passes", f"{name:<26} {old:>5} → {new:<5} {ms:7.1f} ms")
        for law, n in (fuel.laws - laws).items():
            self.tell("rules", f"{name:<26} {n:>5} × {law}")
        for line in self.decisions[decided:]:
            self.tell("decisions", f"{name:<26} {line}")
        if fuel.empty and not empty:
            self.say(f"out of fuel in {name}; rewrite {fuel.used} is {fuel.last}")
        self.dump(name, after)
        self.compare(name, after)
        return after

    def end(self) -> None:
        """After the last pass."""
        fuel = self.cx.fuel
        if fuel.limit is not None and not fuel.empty:
            self.say(f"RECURRA_FUEL={fuel.limit}: there are only {fuel.used} rewrites")

    @property
    def oracle(self) -> Mapping[str, int]:
        """The bounds that it runs for: once rows are split, those of one worker alone."""
        return self.cx.sizes if self.alone is None else self.alone

    def answer(self, graph: Graph) -> None:
        """Keeps the oracle's answer, or says why there is none."""
        points = equivalence.evaluations(graph, self.oracle)
        if points > equivalence.MAX_EVALUATIONS:
            bounds = ", ".join(f"{k}={v}" for k, v in self.oracle.items())
            self.say(
                f"RECURRA_CHECK: passes are not compared; {bounds} asks for {points:,} evaluations,"
                f" at most {equivalence.MAX_EVALUATIONS:,} are made: compile for smaller bounds"
            )
            return
        written = equivalence.as_written(graph)
        self.inputs = equivalence.made_up(graph, self.oracle)
        order = _order(graph)
        self.answers = equivalence.answers(graph, self.oracle, order, written, self.inputs)

    def compare(self, name: str, after: Graph) -> None:
        """Raises PassError where the answer is not that of the first graph."""
        if self.answers is None:
            return
        first = self.graphs["trace"]
        if self.cx.shard is not None and self.alone is None:
            self.alone = {**self.cx.sizes, SHARD: 0, SHARDS: 1}
            self.answer(first)
        found = equivalence.answers(after, self.oracle, _order(first), self.cx.axes, self.inputs)
        wrong = equivalence.difference(first, self.oracle, self.answers, found)
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

    def tells(self, topic: str) -> bool:
        return topic in self.asked.log

    def tell(self, topic: str, text: str) -> None:
        if self.tells(topic):
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


def _or_same(after: Graph, before: Graph) -> Graph:
    """The graph, or the one before if a pass has changed nothing: what is known of that holds."""
    return before if after == before and [*after.nodes] == [*before.nodes] else after


def _order(graph: Graph) -> list[tuple[str, ...]]:
    return [graph[o].domain.dims for o in graph.outputs]


def unused(name: str, taken: Iterable[str]) -> str:
    """The name, or with `again` where it is taken, as often as needed."""
    while name in taken:
        name += " again"
    return name
