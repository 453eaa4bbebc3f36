"""The region on several host devices of one thread each: rows are split, sums are joined."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
from benchmarks.ppo.programs import LAST_KEPT, LATE, State, contestant, in_launches
from benchmarks.ppo.regions import Carried, Form, Part, begin, launch, stores
from benchmarks.ppo.workload import SEED, Work
from recurra.errors import RecurraError

# One thread for each device; a pool with room for all of them, else a collective waits for ever.
BEFORE_JAX = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "16"}


def host_devices(count: int) -> None:
    """That many host devices of one thread each; call it before JAX starts."""
    os.environ.update(BEFORE_JAX)
    jax.config.update("jax_num_cpu_devices", count)


def sharded(
    work: Work,
    seed: int = SEED,
    dtype: DTypeLike = jnp.float32,
    form: Form = LAST_KEPT,
    workers: int = 2,
) -> Contestant:
    """The region of `programs`, rows split over `workers` devices (see `host_devices`).

    Every launch is waited for: collectives of queued launches can deadlock on host devices.
    """
    devices = jax.local_devices()
    if len(devices) < workers or work.B % workers:
        raise RecurraError(
            f"no {workers} equal shards of {work.B} environments",
            facts=f"JAX has {len(devices)} devices",
            hint="call `host_devices` before JAX is first used",
        )
    mesh = jax.make_mesh((workers,), ("worker",), devices=devices[:workers])
    local = replace(work, B=work.B // workers)
    room = stores(form, local, dtype)
    last = form.layout.axis == 0
    row = P("worker")
    state = environment.State(P(None, "worker") if last else row, row, row)
    named: Any = Carried
    carried = named(P(), P(), P(), state)
    of_stores = {k: P(*[None] * _rows_axis(x, last), "worker") for k, x in room.items()}
    specs: Any = (carried, of_stores, P(), P(), P())

    def one(carried: Carried, ws: Any, seed: Any, i0: Any, trip: Any) -> Any:
        first = jax.lax.axis_index("worker") * local.B
        part = Part(work.B * work.T, first, lambda x: jax.lax.psum(x, "worker"))
        return launch(form, local, part, carried, ws, seed, i0, trip)

    results: Any = (*specs[:2], P())
    mapped = jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=results, check_vma=False)
    call = jax.jit(mapped, donate_argnums=(0, 1))

    def waited(*arguments: Any) -> Any:
        return jax.block_until_ready(call(*arguments))

    def start() -> State:
        whole = {k: jnp.concatenate([x] * workers, _rows_axis(x, last)) for k, x in room.items()}
        places = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), specs[:2], is_leaf=lambda x: isinstance(x, P)
        )
        c, ws = jax.device_put((begin(form, work, seed, dtype), whole), places)
        return State(c, ws, 0)

    name = "region, sharded, late critic" if form.late else "region, sharded"
    return contestant(name, work, start, in_launches(waited, seed))


def sharded_on_host(work: Work) -> Contestant:
    """On two host devices of this process, which has not used JAX before."""
    host_devices(2)
    return sharded(work)


def sharded_late_on_host(work: Work) -> Contestant:
    """The same with the critic in the loop of advantages."""
    host_devices(2)
    return sharded(work, form=LATE)


def _rows_axis(store: jax.Array, last: bool) -> int:
    return 2 if last and store.ndim == 3 else 1
