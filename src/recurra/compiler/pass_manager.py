"""Run passes: verify and keep every graph; log, dump and check it as the environment says."""

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
from recurra.transforms.rewriter.optimization_fuel import limited_fuel


class PassRow(TypedDict):
    """A row for a pass that ran: equations before and after, milliseconds."""

    name: str
    before: int
    after: int
    ms: float


@dataclass
class PassManager:
    """The passes of one compilation, and every graph between them."""

    cx: CompileContext
    config: Config = field(default_factory=environment)
    graphs: dict[str, Graph] = field(default_factory=dict[str, Graph])  # after every pass that ran
    rows: list[PassRow] = field(default_factory=list[PassRow])
    results: dict[str, Graph] = field(default_factory=dict[str, Graph])  # the last of each pass
    answers: list[Any] | None = None  # the oracle's, of the first graph
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of these answers
    one_worker: Mapping[str, int] | None = None  # bounds of the answers once rows are sharded
    verified: Graph | None = None  # the last graph that was verified

    def __post_init__(self) -> None:
        self.cx.fuel.limit = self.config.fuel

    @property
    def decisions(self) -> list[str]:
        """The decisions and their reasons, a line each."""
        return self.cx.remarks

    def begin(self, graph: Graph) -> None:
        """Store the graph that all later ones are compared with."""
        self.graphs["trace"] = graph
        self.cx.axes = equivalence.as_written(graph)
        self.dump("trace", graph)
        if self.config.check:
            self.answer(graph)

    def run(self, passes: Iterable[Pass], graph: Graph) -> Graph:
        """Return the graph after the passes that apply, in order."""
        for step in passes:
            graph = self.run_one(step, graph)
        return graph

    def run_one(self, step: Pass, before: Graph) -> Graph:
        """Return the graph after one pass, if it applies; it is verified and compared.

        A pass does not run again on its own result, or on a graph to which it did not apply.
        """
        if self.results.get(step.name) == before:
            return before
        if not step.applies(before, self.cx):
            self.results[step.name] = before
            return before
        name = step.name
        while name in self.graphs:
            name += " again"
        start, remarks = time.perf_counter(), len(self.decisions)
        fuel = self.cx.fuel
        empty, laws = fuel.empty, fuel.laws.copy()
        with limited_fuel(fuel):
            try:
                after = step.run(before, self.cx)
                if after == before and [*after.nodes] == [*before.nodes]:
                    after = before  # facts about a graph are cached by its identity
                self.verified = after = verify(after, self.verified)
            except Exception as error:
                is_our_bug = isinstance(error, PassError) or not isinstance(error, RecurraError)
                if is_our_bug:
                    error.add_note(f"in the pass {name}")
                raise
        ms = (time.perf_counter() - start) * 1e3
        old, new = len(before.nodes), len(after.nodes)
        self.rows.append(PassRow(name=name, before=old, after=new, ms=round(ms, 2)))
        self.graphs[name] = self.results[step.name] = after
        self.tell("passes", f"{name:<26} {old:>5} → {new:<5} {ms:7.1f} ms")
        for law, n in (fuel.laws - laws).items():
            self.tell("rules", f"{name:<26} {n:>5} × {law}")
        for line in self.decisions[remarks:]:
            self.tell("decisions", f"{name:<26} {line}")
        if fuel.empty and not empty:
            self.say(f"out of fuel in {name}; rewrite {fuel.used} is {fuel.last}")
        self.dump(name, after)
        self.compare(name, after)
        return after

    def end(self) -> None:
        """Report fuel that is left after the last pass."""
        fuel = self.cx.fuel
        if fuel.limit is not None and not fuel.empty:
            self.say(f"RECURRA_FUEL={fuel.limit}: there are only {fuel.used} rewrites")

    @property
    def oracle_sizes(self) -> Mapping[str, int]:
        """The bounds for which the oracle runs: of one worker alone, once rows are sharded."""
        return self.cx.sizes if self.one_worker is None else self.one_worker

    def answer(self, graph: Graph) -> None:
        """Store the oracle's answers, or say why there are none."""
        points = equivalence.evaluations(graph, self.oracle_sizes)
        if points > equivalence.MAX_EVALUATIONS:
            bounds = ", ".join(f"{k}={v}" for k, v in self.oracle_sizes.items())
            self.say(
                f"RECURRA_CHECK: passes are not compared; {bounds} asks for {points:,} evaluations,"
                f" at most {equivalence.MAX_EVALUATIONS:,} are made: compile for smaller bounds"
            )
            return
        written = equivalence.as_written(graph)
        self.inputs = equivalence.random_inputs(graph, self.oracle_sizes)
        order = _output_dims(graph)
        self.answers = equivalence.evaluate_outputs(
            graph, self.oracle_sizes, order, written, self.inputs
        )

    def compare(self, name: str, after: Graph) -> None:
        """Raise PassError if the answers differ from those of the first graph."""
        if self.answers is None:
            return
        first = self.graphs["trace"]
        if self.cx.shard is not None and self.one_worker is None:
            self.one_worker = {**self.cx.sizes, SHARD: 0, SHARDS: 1}
            self.answer(first)
        sizes = self.oracle_sizes
        answers = equivalence.evaluate_outputs(
            after, sizes, _output_dims(first), self.cx.axes, self.inputs
        )
        wrong = equivalence.difference(first, sizes, self.answers, answers)
        if wrong is None:
            return
        bounds = ", ".join(f"{k}={v}" for k, v in sizes.items())
        stages = list(self.graphs)
        previous = stages[stages.index(name) - 1]
        raise PassError(
            f"the pass {name} changes the answer: {wrong.where}",
            facts=f"before it is {wrong.before}, after it {wrong.after}, for {bounds}",
            hint=f"this is a bug of ours; RECURRA_DUMP=dir keeps the graph after {previous}, which "
            "`recurra reduce` makes small, and RECURRA_FUEL=n finds the rewrite",
            loc=first[wrong.output].loc,
        )

    def tell(self, topic: str, text: str) -> None:
        if topic in self.config.log:
            self.say(text)

    def say(self, text: str) -> None:
        print(f"recurra: {text}", file=sys.stderr)

    def dump(self, name: str, stage: object) -> None:
        """Write the text of a stage to a numbered file of the dump folder, if there is one."""
        folder = self.config.dump
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            before = (x.name.partition("-")[0] for x in folder.iterdir())
            count = max((int(x) for x in before if x.isdecimal()), default=-1) + 1
            (folder / f"{count:02d}-{name.replace(' ', '-')}.txt").write_text(f"{stage}\n")


def _output_dims(graph: Graph) -> list[tuple[str, ...]]:
    return [graph[o].domain.dims for o in graph.outputs]
