"""Several devices of JAX run one program, each on rows of its own (shard_map).

On the host's processor the devices are threads of this process, one thread each. After
jax.distributed.initialize(..) they are those of all processes, which must all run the same program;
each process gets all results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from recurra.backends.jax.array_namespace import bit_views, floats
from recurra.backends.jax.devices import devices, synchronize
from recurra.backends.jax.region import JaxBackend, with_x64, x64_context_of
from recurra.codegen.region import Region
from recurra.codegen.region_function import region_function, times
from recurra.cost.target import Target
from recurra.errors import RecurraError
from recurra.ops.collective import JOIN, SHARD
from recurra.ops.control import Call
from recurra.storage.storage_plan import StoragePlan

AXIS = "worker"
# One thread per device, and a pool with room for all: else a collective waits forever.
BEFORE_JAX = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "16"}
_JOINS: Mapping[str, Callable[[Any, str], Any]] = {
    "add": lax.psum,
    "mul": lambda x, axis: jnp.prod(lax.all_gather(x, axis), axis=0, dtype=x.dtype),
    "maximum": lax.pmax,
    "minimum": lax.pmin,
    "logical_or": lambda x, axis: lax.psum(x.astype(jnp.int32), axis) > 0,
    "logical_and": lambda x, axis: lax.psum((~x).astype(jnp.int32), axis) == 0,
}


class JaxMesh(JaxBackend):
    """XLA on `workers` devices."""

    def __init__(self, workers: int):
        super().__init__()
        self.workers = workers
        auto, used = jax.sharding.AxisType.Auto, devices_for(workers)
        self.mesh = jax.make_mesh((workers,), (AXIS,), devices=used, axis_types=(auto,))
        self.processes = jax.process_count()
        self.rows_apart = NamedSharding(self.mesh, P(AXIS))

    def synchronize(self) -> None:
        synchronize(self.mesh.local_devices)

    @property
    def target(self) -> Target:
        """A launch waits for all devices, so that the host counts no loop."""
        return replace(super().target, host_loops=())

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        if self.processes > 1:
            _expect_no_calls(plan)
        call = with_x64(plan, self.jitted(plan, region))

        def waited(*args: Any) -> tuple[Any, ...]:  # collectives of queued launches can deadlock
            return jax.block_until_ready(call(*args))

        return waited

    def function(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        """Return the function that all devices run; its arrays have a leading axis of size 1."""
        ints = times(region)
        own = region_function(plan, region, self.machine, here=_here)

        def one(seed: Any, *args: Any) -> tuple[Any, ...]:
            arrays = jax.tree.map(lambda x: x[0], args[ints:])
            return tuple(x[None] for x in own(seed[0], *args[:ints], *arrays))

        rows = P(AXIS)
        specs = (rows, *[P()] * ints)
        count = len(region.held) + len(region.carried) + len(region.stores) + len(region.reads)
        return jax.shard_map(
            one, mesh=self.mesh, in_specs=(*specs, *[rows] * count), out_specs=rows, check_vma=False
        )

    def described(self, array: Any) -> Any:
        if isinstance(array, list):
            return tuple(map(self.described, array))
        own = super().described(array)
        whole = (self.workers, *own.shape)
        return jax.ShapeDtypeStruct(whole, own.dtype, sharding=self.rows_apart)

    def array(self, array: Any) -> Any:
        return self.spread([array] * self.workers)

    adopt = array

    def spread(self, parts: Sequence[Any]) -> Any:
        """Join one array for each device: [workers, ..]."""
        whole = bit_views(np.stack([np.asarray(x) for x in parts]))
        with x64_context_of(whole):
            return jax.make_array_from_callback(whole.shape, self.rows_apart, whole.__getitem__)

    def parts(self, array: Any) -> Iterable[Any]:
        return array if array.is_fully_addressable else self.numpy(array)

    def numpy(self, array: Any) -> Any:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return floats(np.asarray(multihost_utils.process_allgather(array, tiled=True)))
        return super().numpy(array)

    def copy(self, array: Any) -> Any:
        return jnp.array(array, copy=True)


def _here() -> dict[str, Any]:
    """The index of this device, and the function that joins values of all devices."""
    return {SHARD: lax.axis_index(AXIS), JOIN: lambda monoid, x: _JOINS[monoid](x, AXIS)}


def devices_for(workers: int) -> list[Any]:
    """Return that many devices; if JAX has not started, have it split the host's processor.

    With several processes they are the devices of all processes.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ.setdefault("NPROC", BEFORE_JAX["NPROC"])
    if BEFORE_JAX["XLA_FLAGS"] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {BEFORE_JAX['XLA_FLAGS']}".strip()
    apart = jax.distributed.is_initialized()
    with suppress(RuntimeError):  # JAX has started: take the devices it has
        if not apart:
            jax.config.update("jax_num_cpu_devices", workers)
    found = devices()
    if apart and len(found) != workers:
        raise RecurraError.at_user_line(
            f"the processes have {len(found)} devices for {workers} workers",
            facts="each worker is one device, and each device a worker",
            hint=f"workers={len(found)}",
        )
    if len(found) < workers:
        raise RecurraError.at_user_line(
            f"there are no {workers} devices for {workers} workers",
            facts=f"JAX has begun with {len(found)}",
            hint="compile for workers before anything else of this process uses JAX",
        )
    return found[:workers]


def _expect_no_calls(plan: StoragePlan) -> None:
    """Raise RecurraError if several processes would each call a host function with state."""
    for n in plan.graph.nodes.values():
        if isinstance(n.op, Call) and n.op.has_state:
            raise RecurraError(
                f"{n.name} is called on the host, and there are {jax.process_count()} processes",
                facts="each of them would call it for the rows of all",
                hint="take an environment written in jax.numpy, or workers of one process",
                loc=n.loc,
            )
