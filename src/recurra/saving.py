"""Serves `dnn[cond].checkpoint(path)`: what lives at a launch's border is saved where cond holds.

Launches are cut so that a border falls on every such iteration; the snapshot is taken before the
next launch destroys it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path

from recurra.errors import RecurraError
from recurra.ir.expr import evaluate, symbols
from recurra.lang.effects import Checkpoint
from recurra.memory.plan import Plan
from recurra.program.execute import Step
from recurra.program.lower import CHUNK


def launch_size(
    effects: Sequence[Checkpoint], sizes: Mapping[str, int], dim: str, points: int
) -> int:
    """The longest launch whose borders fall on every iteration that is saved."""
    size = CHUNK
    for e in effects:
        for i in iterations(e, sizes, dim, points):
            size = gcd(size, i) if i else size
    return max(1, size)


def iterations(e: Checkpoint, sizes: Mapping[str, int], dim: str, points: int) -> list[int]:
    """The iterations at which an effect saves."""
    stray = symbols(e.when) - {dim} - sizes.keys()
    if stray:
        raise RecurraError(
            f"a checkpoint's condition mentions {', '.join(sorted(stray))}",
            facts=f"parameters vary with {dim} only",
            hint=f"write a condition on {dim}",
            loc=e.loc,
        )
    return [i for i in range(points) if evaluate(e.when, {**sizes, dim: i})]


@dataclass
class Saver:
    """Writes the checkpoints of a run, as its launches go by."""

    plan: Plan
    effects: Sequence[Checkpoint]
    graph_hash: str
    seed: int
    due: list[set[int]] = field(default_factory=list)

    def state(self, step: Step) -> None:
        """Called after a launch: `step.hi` is the iteration about to begin."""
        if not self.due:
            points = next(r for r in self.plan.graph.dims if r.dim == step.dim).size(
                self.plan.sizes
            )
            self.due = [set(iterations(e, self.plan.sizes, step.dim, points)) for e in self.effects]
        for e, due in zip(self.effects, self.due, strict=True):
            if step.hi in due:
                self.save(e, step)

    def save(self, e: Checkpoint, step: Step) -> None:
        """Parameters under their module names, everything else that lives on under `state/`."""
        from recurra.report import checkpoint

        arrays = {name: step.variables[self.variable(p, e)] for name, p in e.params}
        arrays |= {f"state/{name}": x for name, x in step.variables.items()}
        meta = {"graph_hash": self.graph_hash, "counters": {step.dim: step.hi}, "seed": self.seed}
        checkpoint.save(Path(e.path) / "checkpoints", arrays, meta)

    def variable(self, parameter: str, e: Checkpoint) -> str:
        """The travelling variable that holds a parameter at the border of an iteration."""
        node = self.plan.graph.nodes.get(parameter)
        if node is None or parameter not in self.plan.seeded:
            raise RecurraError(
                f"{parameter} cannot be saved",
                facts="it does not travel from iteration to iteration: nothing trains it",
                hint="train it, or leave it out of the checkpoint",
                loc=e.loc,
            )
        return node.args[1].name
