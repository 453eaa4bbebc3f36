"""What the JAX backend emits: stores donated and updated in place, one executable for all launches."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reinforce import GRADIENTS, SEED, reinforce

from recurra.backend.jax.region import JaxBackend
from recurra.executable import Executable
from recurra.memory.plan import Plan
from recurra.program.function import arguments
from recurra.program.region import Region

CASES = [pytest.param(*c, id=f"B={c[0]} T={c[1]}") for c in ((64, 50), (512, 250))]


class Emitted(NamedTuple):
    """The region that trains, as XLA compiles it."""

    plan: Plan
    region: Region
    text: str
    memory: Any

    @property
    def stores(self) -> set[hlo.Shape]:
        """The shapes of stores longer than a page."""
        stores = [self.plan.stores[s] for s in self.region.stores]
        return {s.shape(self.plan.sizes) for s in stores if s.nbytes(self.plan.sizes) > 4096}

    @property
    def bytes(self) -> int:
        """Of everything that is given away: travelling variables and stores."""
        given = arguments(self.plan, self.region)[len(self.region.held) :]
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for shape, dtype in given)


@cache
def emitted(B: int, T: int, **options: Any) -> Emitted:
    program = reinforce(B, T, 100, **options).compiled.program
    (region,) = (r for r in program.regions if r.chunk is not None)
    compiled = JaxBackend().lowered(program.plan, region).compile()
    return Emitted(program.plan, region, compiled.as_text(), compiled.memory_analysis())


@pytest.mark.parametrize(("B", "T"), CASES)
def test_everything_donated_is_aliased(B: int, T: int):
    e = emitted(B, T)
    assert hlo.aliased(e.text) == len(e.region.carried) + len(e.region.stores)
    assert e.memory.alias_size_in_bytes == e.bytes


def test_what_is_donated_is_the_state_and_the_plan():
    """18 arrays of parameters and moments, 1282 numbers each; the stores of the plan; nothing else."""
    e = emitted(512, 250)
    plan = sum(s.nbytes(e.plan.sizes) for s in e.plan.stores.values())
    assert len(e.region.carried) == 18
    assert e.bytes == 3 * 1282 * 4 + plan
    assert e.memory.argument_size_in_bytes - e.bytes < 100


@pytest.mark.parametrize(("B", "T"), CASES)
def test_no_loop_writes_a_whole_store(B: int, T: int):
    e = emitted(B, T)
    assert len(e.stores) > 3
    assert hlo.written_whole(e.text, e.stores) == []


def window(read: str) -> str:
    """A control: a window of 5 slots that is written, read, and read by its `old` version or not."""

    def step(t: Any, c: Any) -> Any:
        old, x, total = c
        new = lax.dynamic_update_slice(old, x[None], (t % 5, 0, 0))
        if read == "select":
            new = jnp.where(jnp.arange(5)[:, None, None] == t % 5, x, old)
        seen = lax.dynamic_slice(old if read == "old" else new, ((t + 1) % 5, 0, 0), (1, 64, 32))
        return new, jnp.tanh(x + 0.1), total + seen.sum()

    def run(store: Any, x: Any) -> Any:
        return lax.fori_loop(0, 50, step, (store, x, 0.0))

    shapes = jax.ShapeDtypeStruct((5, 64, 32), "float32"), jax.ShapeDtypeStruct((64, 32), "float32")
    return jax.jit(run, donate_argnums=0).lower(*shapes).compile().as_text()


@pytest.mark.parametrize(("read", "made"), [("new", 0), ("old", 2), ("select", 2)])
def test_the_detector_sees_whole_stores(read: str, made: int):
    found = hlo.written_whole(window(read), [(5, 64, 32)])
    assert len(found) == made, found


def test_temporaries_do_not_grow_with_time():
    """Tiles are a fixed number of rows; what a longer run needs more of is in its stores."""
    short, long = emitted(64, 200), emitted(64, 400)
    assert short.bytes < long.bytes < 2 * short.bytes
    assert long.memory.temp_size_in_bytes == pytest.approx(short.memory.temp_size_in_bytes, rel=0.1)
    assert long.memory.temp_size_in_bytes < 512 * 1024


def test_one_executable_runs_any_number_of_steps():
    """11 iterations in launches of 4 and a rest of 3; then again from the middle."""
    p = reinforce(8, 20, 11, chunk=4)
    p.run(seed=SEED)
    p.run(seed=SEED + 1)
    assert [f._cache_size() for f in p.execution.regions.values()] == [1] * len(p.execution.regions)


class Run(NamedTuple):
    """Lengths and gradients of all iterations, and the variables that travel after the last."""

    results: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]


def run(p: Executable, resume: Any = None) -> Run:
    last: dict[str, np.ndarray] = {}

    def keep(step: Any) -> None:
        last.update({k: np.array(x) for k, x in step.variables.items()})

    return Run(p.run(seed=SEED, on_state=keep, resume=resume), last)


def differing(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    """The names of arrays that are not equal, bit for bit."""
    assert a.keys() == b.keys()
    return [k for k in a if a[k].tobytes() != b[k].tobytes()]


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_launches_do_not_change_a_bit(backend: str):
    runs = [run(reinforce(4, 12, 10, shown=("d_W1",), chunk=k, backend=backend)) for k in (1, 2, 8)]
    assert len(runs[0].variables) == 18
    assert np.ptp(runs[0].results["length"]) > 0
    for other in runs[1:]:
        assert differing(runs[0].results, other.results) == []
        assert differing(runs[0].variables, other.variables) == []


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_resumed_run_is_the_run_itself(backend: str):
    p = reinforce(4, 12, 10, shown=tuple(GRADIENTS), chunk=4, backend=backend)
    whole = run(p)
    saved: list[Any] = []

    def keep(step: Any) -> None:
        saved.append((step.hi, {k: np.array(x) for k, x in step.variables.items()}))

    p.run(seed=SEED, on_state=keep)
    assert [time for time, _ in saved] == [4, 8, 10]
    for time, variables in saved[:-1]:
        rest = run(p, resume=(time, variables))
        assert differing(rest.variables, whole.variables) == []
        assert differing(rest.results, {k: x[time:] for k, x in whole.results.items()}) == []
