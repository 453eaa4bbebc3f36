"""A region as one jitted function: its schedule, traced in one walk; large arrays are donated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from recurra.backends.jax.array_namespace import (
    WORDS,
    JaxNamespace,
    bit_view,
    bit_views,
    floats,
    number,
    on_bit_views,
    through_bit_views,
)
from recurra.backends.jax.attention import masked_attention
from recurra.backends.jax.devices import devices, ends_at_return, settle_at_exit, synchronize
from recurra.backends.numpy.numpy_backend import NumpyMachine
from recurra.backends.protocol import Reading
from recurra.backends.region_cache import RegionCache
from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.region import Region
from recurra.codegen.region_function import argument_types, region_function, times
from recurra.codegen.single_launch import Finish, WholeProgram, whole_program
from recurra.cost.attention import XLA_ATTENTION
from recurra.cost.target import Target
from recurra.cost.thresholds import (
    GPU_POLL_STEPS,
    MAX_TWICE_COPIED_BYTES,
    MIN_OVERLAPPED_NS,
    XLA_UNTILED_STEP_NS,
)
from recurra.ir.expr import evaluate
from recurra.ir.statement import Statement
from recurra.ir.types import Tuple, is_wide
from recurra.ops.attention import Attention
from recurra.ops.movement import Cut
from recurra.storage.storage_plan import StoragePlan
from recurra.support import cpu as processor
from recurra.support.aligned_array import aligned, misaligned


class JaxMachine:
    """Loops are fori_loops; stores are updated by dynamic slices, which XLA does in place."""

    xp: Any = JaxNamespace()

    def apply(self, node: Statement, env: Mapping[str, Any], *args: Any) -> Any:
        op = node.op
        if isinstance(op, Cut) and not isinstance(at := evaluate(op.start, env, jnp), int):
            return lax.dynamic_slice_in_dim(args[0], at, evaluate(op.size, env), op.axis)
        if isinstance(op, Attention):
            return masked_attention(op, env, *args)
        return op.run(self.xp, env, *args)

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        return floats(lax.fori_loop(lo, hi, through_bit_views(body), bit_views(carry)))

    def while_loop(
        self, dim: str, lo: Any, hi: Any, end: Any, late: int, every: int, body: Until, carry: Any
    ) -> tuple[Any, Any]:
        """Steps between two checks of the end are an inner loop of a length that XLA knows."""

        def one_step(time: Any, state: Any) -> Any:
            end, inside = state
            goes_on, after, values = body(time, floats(inside))
            return jnp.where(goes_on, end, jnp.minimum(end, after)), bit_views(values)

        def runs_on(state: Any) -> Any:
            time, (end, _) = state
            return (time < hi) & (time < end + late)

        def block(state: Any) -> Any:
            time, inside = state
            if every == 1:
                return time + 1, one_step(time, inside)
            return time + every, lax.fori_loop(0, every, lambda k, s: one_step(time + k, s), inside)

        start, state = lo + (hi - lo) % every, (jnp.asarray(end, jnp.int32), bit_views(carry))
        known = isinstance(lo, int) and isinstance(hi, int)
        if every > 1 and (not known or start > lo):
            state = lax.fori_loop(lo, start, one_step, state)
        if not known or start < hi:
            _, state = lax.while_loop(runs_on, block, (jnp.asarray(start, jnp.int32), state))
        return state[0], floats(state[1])

    def cond(self, condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
        """Use a conditional, not a loop of at most one step: XLA would hoist work out of a loop."""
        if isinstance(condition, bool):
            return body(carry) if condition else carry
        return floats(
            lax.cond(condition, through_bit_views(body), lambda same: same, bit_views(carry))
        )

    def minimum(self, left: Any, right: Any) -> Any:
        return jnp.minimum(left, right)

    def read(self, store: Any, starts: Starts, sizes: tuple[int, ...]) -> Any:
        if sizes == store.shape:  # all of it: a region that returns it copies nothing
            return store
        at = [jnp.asarray(s, jnp.int32) for s in starts]
        return on_bit_views(lambda bits: lax.dynamic_slice(bits, at, sizes), store)

    def read_all(self, store: Any) -> Any:
        return store

    def gather(self, store: Any, axis: int, at: Any) -> Any:
        return self.xp.take(store, at, axis=axis, mode="clip")

    def write(self, store: Any, starts: Starts, value: Any, also: Starts | None = None) -> Any:
        """Write a value, twice in a loop: XLA copies a store that is updated two times in a row."""
        if also is not None:
            pairs = [*zip(starts, also, strict=True)]

            def once(k: Any, store: Any) -> Any:
                at = (a if a is b else jnp.where(k == 0, a, b) for a, b in pairs)
                return self.write(store, tuple(at), value)

            return lax.fori_loop(0, 2, once, store)
        at = (*starts, *(None,) * (store.ndim - len(starts)))
        sizes = [n if s is None else 1 for s, n in zip(at, store.shape, strict=True)]
        box = jnp.reshape(value, sizes)
        return self.write_box(store, tuple(0 if s is None else s for s in at), box)

    def write_box(self, store: Any, starts: Starts, value: Any) -> Any:
        at = [jnp.asarray(s, jnp.int32) for s in starts]
        return on_bit_views(lambda x, box: lax.dynamic_update_slice(x, box, at), store, value)


def x64_context(plan: StoragePlan) -> AbstractContextManager[object]:
    """The context with JAX's 64-bit types on, if a program has any; else one that does nothing.

    It holds for a block of code in one thread: the rest of the process is not affected.
    """
    types = [n.type for n in plan.graph.nodes.values()]
    flat = [x for t in types for x in (t.items if isinstance(t, Tuple) else (t,))]
    return jax.enable_x64(True) if any(is_wide(x.dtype) for x in flat) else nullcontext()


def x64_context_of(value: object) -> AbstractContextManager[object]:
    """The context in which JAX keeps the 64-bit type of an array."""
    return jax.enable_x64(True) if is_wide(getattr(value, "dtype", None)) else nullcontext()


def with_x64(plan: StoragePlan, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Trace and run a launch with JAX's 64-bit types on, if its program has any."""
    if isinstance(x64_context(plan), nullcontext):
        return launch

    def run(*args: Any) -> Any:
        with jax.enable_x64(True):
            return launch(*args)

    return run


def at_full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Trace a function with full-precision products of f32, unless JAX is configured otherwise.

    On a GPU, XLA's default keeps ten bits of their fractions (TF32), on a TPU seven.
    """

    def traced(*args: Any) -> Any:
        config: Any = jax.config
        with jax.default_matmul_precision(config.jax_default_matmul_precision or "float32"):
            return function(*args)

    return traced


class JaxBackend:
    """XLA, on whatever device JAX finds."""

    name = "jax"

    donates = True
    compiles_whole = True

    @property
    def threaded(self) -> bool:
        """Are launches synchronous, so that only a thread can overlap them with host calls?"""
        return ends_at_return() and devices()[0].platform == "cpu"

    def __init__(self, pinned: bool | None = None) -> None:
        """`pinned`: copies in the host's memory are pinned (None: on a GPU)."""
        self.machine = JaxMachine()
        self._pinned = pinned
        self.jitted_regions = RegionCache[Any]()
        self.temporaries = RegionCache[int]()
        settle_at_exit()

    def temporary_bytes(self, plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
        """Temporary bytes of a launch, beside its arguments and results."""

        def measure(plan: StoragePlan, region: Region) -> int:
            with x64_context(plan):
                analysis = self.code_of(plan, region).memory_analysis()
            return analysis.temp_size_in_bytes if analysis else 0

        return self.temporaries.get(plan, region, measure)

    def code_of(self, plan: StoragePlan, region: Region) -> Any:
        """Return the compiled region."""
        return self.lowered(plan, region).compile()

    @property
    def target(self) -> Target:
        """A GPU's loop waits until the host has its condition, about as long as a step takes.

        XLA has threads of its own: work that overlaps with a host call needs a core that the host
        is not on. Steps of `enough` time are not tiled, as XLA would transpose [te,f,b] → [f,te,b].
        """
        cpu = devices()[0].platform == "cpu"
        return Target(
            untiled_step_ns=XLA_UNTILED_STEP_NS,
            poll_steps=0.0 if cpu else GPU_POLL_STEPS,
            min_overlapped_ns=inf if cpu and processor.cores() < 2 else MIN_OVERLAPPED_NS,
            host_loops=None,
            attention_kernel=XLA_ATTENTION,
        )

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        return with_x64(plan, self.jitted(plan, region))

    def jitted(self, plan: StoragePlan, region: Region) -> Any:
        """Return the jitted region: compiled at its first launch, once for any number of steps.

        It is also compiled to learn how much memory it takes: it is the same function then.
        """
        return self.jitted_regions.get(plan, region, self.jit)

    def jit(self, plan: StoragePlan, region: Region) -> Any:
        first = 1 + times(region) + len(region.held)
        donated = tuple(range(first, first + len(region.carried) + len(region.stores)))
        return jax.jit(through_bit_views(self.function(plan, region)), donate_argnums=donated)

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        return with_x64(plan, self.traced(plan, region, finish))

    def traced(self, plan: StoragePlan, region: Region, finish: Finish) -> Any:
        """Return the function of a program that is one region, compiled at its first launch."""
        launch = self.function(plan, region)
        return jax.jit(through_bit_views(whole_program(plan, region, launch, self.machine, finish)))

    def accepts(self, array: object) -> bool:
        if type(array) is np.ndarray:
            return array.dtype.type not in WORDS
        return isinstance(array, jax.Array) and not isinstance(array, Tracer)

    def argument(self, array: Any) -> Any:
        """Convert an array for a launch; one of NumPy is passed to the call as it is.

        That takes a tenth of the time of `device_put`: memory aligned to 64 bytes is read in place,
        all else is copied.
        """
        if isinstance(array, np.ndarray):
            return bit_view(array)
        return array if isinstance(array, jax.Array) else self.from_dlpack(array)

    def function(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        """Return the function that is traced."""
        return at_full_precision(region_function(plan, region, self.machine))

    def lowered(self, plan: StoragePlan, region: Region) -> jax.stages.Lowered:
        """Lower a region to StableHLO, to be inspected; nothing runs, no array is made."""
        with x64_context(plan):
            arrays = [self.described(a) for a in argument_types(plan, region)]
            seed = self.described(((), np.uint32))
            return self.jitted(plan, region).lower(seed, *[0] * times(region), *arrays)

    def described(self, array: Any) -> Any:
        """The shape and dtype of an argument; a tuple of them for the results of a host call."""
        if isinstance(array, list):
            return tuple(map(self.described, array))
        return jax.eval_shape(bit_views, jax.ShapeDtypeStruct(*array))

    def reader(self, read: Reading) -> Callable[..., list[Any]]:
        if jax.default_backend() != "cpu":
            return jax.jit(partial(read, self.machine))
        host = NumpyMachine()

        def here(times: tuple[int, ...], *stores: Any) -> list[Any]:
            return read(host, times, *map(_host_view, stores))

        return here

    def array(self, array: Any) -> Any:
        with x64_context_of(array):
            # device_put would share the memory of an aligned array
            result = jnp.array(bit_views(array), copy=True)
        # the caller may write to an array of NumPy when we return; one of JAX is immutable
        return result if isinstance(array, jax.Array) else jax.block_until_ready(result)

    def adopt(self, array: np.ndarray) -> Any:
        if array.nbytes > MAX_TWICE_COPIED_BYTES:
            return self.array(array)
        return self.borrow(misaligned(array))  # jnp.array compiles a copy for each shape

    def borrow(self, array: np.ndarray) -> Any:
        with x64_context_of(array):
            return jax.device_put(bit_views(array))

    def from_host_call(self, array: np.ndarray) -> np.ndarray:
        return np.array(
            bit_view(array), copy=True
        )  # the launch converts it in a quarter of the time

    def staging(self, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, Any] | None:
        """A shared buffer, if launches are synchronous: results have memory of their own."""
        kind = np.dtype(dtype)
        if not self.threaded or kind.type in WORDS:
            return None
        place = aligned(shape, kind)
        with x64_context_of(place):
            array = jax.device_put(place)
        shared = place.size and array.unsafe_buffer_pointer() == place.ctypes.data
        return (place, array) if shared else None

    def wait(self, array: Any) -> Any:
        return jax.block_until_ready(array)

    def synchronize(self) -> None:
        synchronize(devices()[:1])

    def mark(self, results: Any) -> Any:
        """A number that is ready when all results of a launch are."""
        return _first_number(min(jax.tree.leaves(results), key=lambda x: x.nbytes))

    def from_dlpack(self, array: Any) -> Any:
        # A thread of XLA may be the last to release shared memory, while Python ends. JAX defers
        # the release of an array of NumPy; one shared by DLPack would need the GIL there.
        with x64_context_of(array):
            array = bit_views(array if isinstance(array, jax.Array) else viewed(array))
            return jnp.from_dlpack(array) if isinstance(array, jax.Array) else jax.device_put(array)

    def host_view(self, array: Any) -> np.ndarray:
        return np.asarray(array) if jax.default_backend() != "cpu" else _host_view(array)

    def host_operand(self, array: Any) -> np.ndarray:
        return number(np.asarray(array))

    @property
    def pinned(self) -> bool:
        """Are copies in the host's memory pinned?"""
        return jax.default_backend() != "cpu" if self._pinned is None else self._pinned

    def copy_to_host(self, array: Any) -> Any:
        if not self.pinned:
            return np.array(self.host_view(array), copy=True)
        with x64_context_of(array):
            return jax.block_until_ready(jax.device_put(array, _memory("pinned_host")))

    def copy_to_device(self, array: Any) -> Any:
        with x64_context_of(array):
            return jax.device_put(array, _memory("device")) if self.pinned else self.array(array)

    def numpy(self, array: Any) -> Any:
        return floats(np.asarray(array).copy())

    def final_numpy(self, array: Any) -> Any:
        return self.numpy(array)


def viewed(array: Any) -> Any:
    """View an array of another library as NumPy's if NumPy has its type, else as JAX's."""
    try:
        return array if isinstance(array, np.ndarray) else np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):  # on another device, or of another type
        return jnp.from_dlpack(array)


def _memory(kind: str) -> jax.sharding.Sharding:
    """The sharding of a kind of memory of the device that launches run on."""
    return jax.sharding.SingleDeviceSharding(devices()[0], memory_kind=kind)


@jax.jit
def _first_number(array: Any) -> Any:
    return array.reshape(-1)[:1]


def _host_view(array: Any) -> np.ndarray:
    """A short-lived view of an array in the host's memory: later launches may destroy it."""
    return floats(np.from_dlpack(array) if array.dtype.kind in "biuf" else np.asarray(array))
