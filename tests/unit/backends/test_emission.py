"""What the JAX backend emits: stores updated in place, one executable for all launches."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo
import recurra as rc
from recurra.backends.jax.region import JaxBackend
from recurra.codegen.region import Region
from recurra.codegen.region_function import argument_types
from recurra.runtime.executable import Executable
from recurra.storage.storage_plan import StoragePlan
from reinforce import GRADIENTS, SEED, reinforce

CASES = [(64, 50, None), (512, 250, None), (64, 50, 5), (512, 300, 64)]
every_case = pytest.mark.parametrize(("B", "T", "n"), CASES)


class Emitted(NamedTuple):
    """The region that trains, as XLA compiles it."""

    plan: StoragePlan
    region: Region
    text: str
    memory: Any

    @property
    def stores(self) -> set[hlo.Shape]:
        """The shapes of those that no equation reads whole: a window of n rewards is."""
        nodes = self.plan.graph.nodes.values()
        whole = {
            a.name for n in nodes for a in n.args if a.slices and "circular" in self.kinds(a.name)
        }
        kept = [self.plan.stores[s] for s in self.region.stores if s not in whole]
        return {s.shape(self.plan.sizes) for s in kept if s.nbytes(self.plan.sizes) > 1000}

    def kinds(self, store: str) -> set[str]:
        return (
            {a.kind for a in self.plan.stores[store].kept} if store in self.plan.stores else set()
        )

    @property
    def bytes(self) -> int:
        """Of everything that is given away: traveling variables and stores."""
        given = argument_types(self.plan, self.region)[len(self.region.held) :]
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for shape, dtype in given)


@cache
def emitted(B: int, T: int, n: int | None = None) -> Emitted:
    program = reinforce(B, T, 100, n).compiled.program
    (region,) = (r for r in program.regions if r.chunk is not None)
    compiled = JaxBackend().lowered(program.plan, region).compile()
    return Emitted(program.plan, region, compiled.as_text(), compiled.memory_analysis())


@pytest.mark.slow
@every_case
def test_everything_donated_is_aliased(B: int, T: int, n: int | None):
    e = emitted(B, T, n)
    assert hlo.aliased(e.text) == len(e.region.carried) + len(e.region.stores)
    assert e.memory.alias_size_in_bytes == e.bytes


@pytest.mark.slow
def test_what_is_donated_is_the_state_and_the_plan():
    """Parameters and moments, 18 arrays, 3 x 1282 numbers; the stores of the plan; nothing else."""
    e = emitted(512, 250)
    plan = sum(s.nbytes(e.plan.sizes) for s in e.plan.stores.values())
    assert len(e.region.carried) == 18
    assert e.bytes == 3 * 1282 * 4 + plan
    assert e.memory.argument_size_in_bytes - e.bytes < 100


@pytest.mark.slow
@every_case
def test_no_loop_writes_a_whole_store(B: int, T: int, n: int | None):
    e = emitted(B, T, n)
    assert len(e.stores) >= 2
    assert hlo.written_whole(e.text, e.stores) == []


def second_order(D: int) -> str:
    """x[t+3] = f(x[t], x[t+1]), with one more reader of x[t]."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.f32[D], domain=(t,))
        for k in range(3):
            x[k] = rc.constant(np.full(D, k, np.float32))
        x[t + 3] = (x[t] * 0.9 + x[t + 1] * 0.1).tanh()
        rc.log(y=x[0:T].sum())
    program = ctx.compile({T: 50}).compiled.program
    (region,) = program.regions
    return JaxBackend().lowered(program.plan, region).compile().as_text()


def test_a_store_read_before_it_is_written_is_copied():
    """FIXME: x reads an old slot, the sum reads it again, one is overwritten: two copies a step."""
    assert len(hlo.written_whole(second_order(2000), [(3, 2000)])) == 2


def window(read: str) -> str:
    """A control: 5 slots, one of them written and then one read, of the new version or the old."""

    def step(t: Any, c: Any) -> Any:
        old, x, total = c
        new = lax.dynamic_update_slice(old, x[None], (t % 5, 0, 0))
        if read == "select":
            new = jnp.where(jnp.arange(5)[:, None, None] == t % 5, x, old)
        seen = lax.dynamic_slice(old if read == "old" else new, ((t + 1) % 5, 0, 0), (1, 64, 32))
        return new, jnp.tanh(x + 0.1), total + seen.sum()

    def run(store: Any, x: Any) -> Any:
        return lax.fori_loop(0, 50, step, (store, x, 0.0))

    shapes = (jax.ShapeDtypeStruct(s, "float32") for s in ((5, 64, 32), (64, 32)))
    return jax.jit(run, donate_argnums=0).lower(*shapes).compile().as_text()


@pytest.mark.parametrize(("read", "made"), [("new", 0), ("old", 2), ("select", 2)])
def test_the_detector_sees_whole_stores(read: str, made: int):
    found = hlo.written_whole(window(read), [(5, 64, 32)])
    assert len(found) == made, found


@pytest.mark.slow
def test_temporaries_do_not_grow_with_time():
    """Tiles are a fixed number of rows; what a longer run needs more of is in its stores."""
    short, long = emitted(64, 200), emitted(64, 400)
    assert short.bytes < long.bytes < 2 * short.bytes
    assert long.memory.temp_size_in_bytes == pytest.approx(short.memory.temp_size_in_bytes, rel=0.1)
    assert long.memory.temp_size_in_bytes < 512 * 1024


@pytest.mark.slow
def test_one_executable_runs_any_number_of_steps():
    """11 iterations in launches of 4 and a rest of 3; then again from the middle."""
    p = reinforce(8, 20, 11, launch_steps=4)
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
def test_launches_do_not_change_a_bit(backend: str):
    runs = [
        run(reinforce(4, 12, 5, shown=("d_W1",), launch_steps=k, backend=backend))
        for k in (1, 2, 8)
    ]
    assert len(runs[0].variables) == 18
    assert np.ptp(runs[0].results["length"]) > 0
    for other in runs[1:]:
        assert differing(runs[0].results, other.results) == []
        assert differing(runs[0].variables, other.variables) == []


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
def test_a_resumed_run_is_the_run_itself(backend: str):
    p = reinforce(4, 12, 5, shown=tuple(GRADIENTS), launch_steps=2, backend=backend)
    whole = run(p)
    saved: list[Any] = []

    def keep(step: Any) -> None:
        saved.append((step.hi, {k: np.array(x) for k, x in step.variables.items()}))

    p.run(seed=SEED, on_state=keep)
    assert [time for time, _ in saved] == [2, 4, 5]
    for time, variables in saved[:-1]:
        rest = run(p, resume=(time, variables))
        assert differing(rest.variables, whole.variables) == []
        assert differing(rest.results, {k: x[time:] for k, x in whole.results.items()}) == []
