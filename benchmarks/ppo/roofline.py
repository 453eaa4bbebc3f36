"""What the machine allows: the least time of the work's arithmetic, at rates measured here.

    limit = max(flops / products + tanhs / tanh, bytes / copy) / threads

for activations that are kept or computed again, the lesser of the two. `products` is the best rate
of XLA and NumPy at the shapes of the networks and at 1024 cubed, `tanh` that of XLA on data in
cache, `copy` counts bytes read and written of arrays that are not in cache. Products and tanh use
the same units of a core and so add up; memory may overlap with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.ppo.workload import Work

REPEATS = 200  # calls in one stretch of time


@dataclass(frozen=True)
class Rates:
    """Of one core, per second."""

    products: float
    tanh: float
    copy: float


def limit_ms(work: Work, rates: Rates, threads: int) -> float:
    """The bound for one iteration."""

    def seconds(keep: bool) -> float:
        busy = work.flops(keep) / rates.products + work.tanhs(keep) / rates.tanh
        return max(busy, work.bytes(keep) / rates.copy)

    return min(map(seconds, (True, False))) * 1e3 / threads


def measure(rows: int = 512, width: int = 64) -> dict[str, float]:
    """Rates of the core that this process is pinned to; the best of ten stretches."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, width), (width, width)))
    big = rng.standard_normal((1024, 1024)).astype(np.float32)

    def looped(function: Callable[[Any], Any]) -> Callable[[], Any]:
        def repeated(y: Any) -> Any:
            return lax.fori_loop(0, REPEATS, lambda _, y: function(y), y)

        compiled, y = jax.jit(repeated), jnp.asarray(x)
        return lambda: compiled(y).block_until_ready()

    in_xla = looped(lambda y: (y @ w) * 0.01)
    out, flops = np.empty_like(x), 2.0 * rows * width * width
    in_numpy = _best(lambda: [np.matmul(x, w, out=out) for _ in range(REPEATS)])
    products = [
        REPEATS * flops / _best(in_xla),
        REPEATS * flops / in_numpy,
        2 * 1024.0**3 / _best(lambda: big @ big),
    ]
    tanh = REPEATS * x.size / _best(looped(lambda y: jnp.tanh(y) * 1.01))
    source = np.zeros(32 * 2**20, np.float32)
    target = np.zeros_like(source)
    copy = 2 * source.nbytes / _best(lambda: np.copyto(target, source))
    return {"products": max(products), "tanh": tanh, "copy": copy}


def _best(function: Callable[[], Any], times: int = 10) -> float:
    """The least process CPU seconds of several calls; the first one is not counted."""
    function()
    taken: list[float] = []
    for _ in range(times):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return min(taken)
