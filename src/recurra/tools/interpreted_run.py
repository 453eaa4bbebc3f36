"""Programs that the oracle interprets instead of compiling them: `recurra run --interpret`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from recurra.frontend.context import Context, compiled_by
from recurra.ir.graph import Graph
from recurra.reference import interpreter

Arrays = dict[str, np.ndarray]
Rows = list[dict[str, Any]]
OnStep = Callable[[int, Mapping[str, np.ndarray]], None]


class InterpretedProgram:
    """An interpreted program with the interface of a compiled one.

    It prints its first `statements` evaluations.
    """

    schedule_text, source, preflight = "", "", None

    def __init__(self, ctx: Context, bounds: Mapping[Any, int], statements: int = 0):
        self.store_rows: Rows = []
        self.pass_rows: Rows = []
        self.chart: Rows = []
        self.contraction_rows: Rows = []
        self.logs = dict(ctx.builder.logs)
        graph = ctx.graph
        self.graph = Graph(graph.nodes, tuple(dict.fromkeys(self.logs.values())), graph.dims)
        self.equations = {"trace": str(self.graph)}
        self.bounds = {str(name): n for name, n in bounds.items()}
        self.statements = statements
        if ctx.builder.effects:
            print("checkpoints are not written when a program is interpreted", file=sys.stderr)

    def run(
        self,
        seed: int = 0,
        *,
        on_step: OnStep | None = None,
        on_state: Callable[[Any], None] | None = None,
        resume: tuple[int, Mapping[str, Any]] | None = None,
        folder: Any = None,
        overwrite: bool = False,
    ) -> Arrays:
        """Return the logged values by name, [*domain, *shape]; `on_state` is never called."""
        if folder is not None:
            print(f"{folder} is not written when a program is interpreted", file=sys.stderr)
        assert resume is None, "the oracle always starts at the beginning"
        values = interpreter.run(self.graph, self.bounds, seed=seed, show=self._show)
        results = {name: values[equation] for name, equation in self.logs.items()}
        if on_step is not None:
            on_step(0, results)
        return results

    def _show(self, name: str, point: tuple[int, ...], value: Any) -> None:
        """Print one evaluation: the equation at a point, and its value."""
        if self.statements <= 0:
            return
        self.statements -= 1
        node = self.graph[name]
        at = ", ".join(f"{d}={p}" for d, p in zip(node.domain.dims, point, strict=True))
        print(f"{node.text(self.graph.is_identity)}\n    {at + ': ' if at else ''}{_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return np.array2string(np.asarray(value), precision=5, threshold=8, separator=", ").replace(
        "\n", ""
    )


def interpreted(statements: int) -> AbstractContextManager[None]:
    """Let `ctx.compile` in the block return an `InterpretedProgram`."""
    return compiled_by(lambda ctx, bounds: InterpretedProgram(ctx, bounds, statements))
