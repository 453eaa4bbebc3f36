"""What a compilation went through: logged, dumped and checked as the environment asks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recurra.config import Config, config
from recurra.ir.graph import Graph
from recurra.ir.verify import verify

Pass = Callable[[Graph, Mapping[str, int]], Graph]


@dataclass
class Stages:
    """Every stage of one compilation, for people and for tests."""

    sizes: Mapping[str, int]
    graphs: dict[str, Graph] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    asked: Config = field(default_factory=config)

    def run(self, name: str, f: Pass, before: Graph) -> Graph:
        """One pass: the graph verifies before and after."""
        start = time.perf_counter()
        after = verify(f(before, self.sizes))
        ms = (time.perf_counter() - start) * 1e3
        counts = {"before": len(before.nodes), "after": len(after.nodes)}
        self.rows.append({"name": name, **counts, "ms": round(ms, 2)})
        self.graphs[name] = after
        if "passes" in self.asked.log:
            self.say(f"{name:<12} {counts['before']:>5} → {counts['after']:<5} {ms:7.1f} ms")
        self.dump(name, str(after))
        return after

    def say(self, text: str) -> None:
        print(f"recurra: {text}", file=sys.stderr)

    def dump(self, name: str, text: str, suffix: str = "txt") -> None:
        """One file per stage, in order."""
        if self.asked.dump is not None:
            self.asked.dump.mkdir(parents=True, exist_ok=True)
            count = len(list(self.asked.dump.glob("[0-9][0-9]-*")))
            (self.asked.dump / f"{count:02d}-{name.replace(' ', '-')}.{suffix}").write_text(
                text + "\n"
            )
