"""One program on the interpreter and on every backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recurra.frontend.context import Context
from recurra.reference import interpreter

BACKENDS = ("numpy", "jax", "torch")


def interpreted(
    ctx: Context, bounds: Mapping[Any, int], inputs: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Results by the names that `rc.output` gave them, without any pass."""
    sizes = {str(bound): n for bound, n in bounds.items()}
    found = interpreter.run(ctx.graph, sizes, inputs)
    return {name: found[equation] for name, equation in ctx.builder.logs.items()}


def everywhere(
    ctx: Context,
    bounds: Mapping[Any, int],
    inputs: Mapping[str, Any] | None = None,
    backends: Iterable[str] = BACKENDS,
) -> dict[str, dict[str, np.ndarray]]:
    """Results of the interpreter and of compiled programs, by backend."""
    out = {"interpreter": interpreted(ctx, bounds, inputs)}
    for backend in backends:
        out[backend] = ctx.compile(bounds, backend=backend).run(inputs=inputs)
    return out


def expect_interpreted(
    ctx: Context, bounds: Mapping[Any, int], backend: str, rtol: float = 1e-6
) -> None:
    """A backend gives what the interpreter gives, for every output."""
    want, have = interpreted(ctx, bounds), ctx.compile(bounds, backend=backend).run()
    assert have.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_allclose(have[name], x, rtol=rtol, err_msg=name)


def expect_near(
    ctx: Context,
    bounds: Mapping[Any, int],
    inputs: Mapping[str, Any],
    backends: Iterable[str],
    told: str,
) -> None:
    """Backends give nearly what the interpreter gives, of the inputs that the program reads."""
    want = interpreted(ctx, bounds, inputs)
    for backend in backends:
        made = ctx.compile(bounds, backend=backend)
        found = made.run(inputs={k: x for k, x in inputs.items() if k in made.inputs})
        for name, x in want.items():
            where = f"{name} of {told} on {backend}"
            np.testing.assert_allclose(found[name], x, rtol=2e-4, atol=2e-5, err_msg=where)
