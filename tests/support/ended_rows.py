"""Programs whose rows the data end: run in launches, on every backend, compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from random_rows import expected, write
from recurra.runtime.executable import Executable
from recurra.runtime.host_executor import Step


def seen(program: Executable, **options: Any) -> tuple[list[Step], dict[str, Any]]:
    """What every launch gave, and all of it; a later launch may destroy what travels."""
    steps, found = program.execution.steps(5, **options), list[Step]()
    while True:
        try:
            s = next(steps)
            found.append(replace(s, variables={n: s.variables[n] for n in s.variables}))
        except StopIteration as end:
            return found, end.value


def equal(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


def same(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=2e-4, atol=2e-5, err_msg=name)


def by_backend(seed: int, backend: str, every: int | None = None) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    program = rows.compile(every, backend=backend)
    mine = {n: x for n, x in rows.inputs.items() if n in program.source_graph.nodes}
    same(program.run(inputs=mine), expected(rows, sums))
