"""A region as generated Torch code: kernels, loops around them, stores changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from recurra.analysis.dynamic_bounds import NEVER
from recurra.backends.bounded_int import ANY, Count
from recurra.backends.protocol import Reading
from recurra.backends.region_cache import RegionCache
from recurra.backends.torch.array_namespace import (
    Tensor,
    TorchNamespace,
    dtype_of,
    in_inference_mode,
    threefry,
    widened,
)
from recurra.backends.torch.attention import attend
from recurra.backends.torch.cuda_graphs import (
    CapturedLoop,
    Record,
    RecordedLoop,
    capturable_loops,
    on_cuda,
)
from recurra.backends.torch.emit import emit
from recurra.backends.torch.predicted_peak import temporary_bytes
from recurra.backends.torch.products import with_products
from recurra.backends.torch.recorded_code import StraightLineCode, finish, kernels
from recurra.backends.torch.recorder import Recorder, StoreRef
from recurra.backends.torch.recording_machine import EagerMachine, RecordingMachine
from recurra.codegen.arena_views import View
from recurra.codegen.input_layout import is_row_major
from recurra.codegen.loop_segments import sample_steps
from recurra.codegen.region import Region
from recurra.codegen.region_function import (
    argument_types,
    region_function,
    time_arguments,
    with_local_stores,
)
from recurra.codegen.single_launch import Finish, WholeProgram, whole_program
from recurra.cost.attention import TORCH_ATTENTION
from recurra.cost.target import Target
from recurra.cost.thresholds import (
    GPU_POLL_STEPS,
    MIN_OVERLAPPED_NS,
    TORCH_CALL_US,
    TORCH_COMPILE_SECONDS,
    TORCH_ROWS_PER_TILE,
)
from recurra.errors import RecurraError
from recurra.ir.types import Type
from recurra.ops.control import Foreign
from recurra.ops.elementwise import Cast
from recurra.storage.storage_plan import StoragePlan
from recurra.support.notices import notice_if_long


class TorchBackend:
    """Eager kernels of Torch; torch.compile fuses those that pay for it within a run.

    All tensors are made in inference mode: fused code would be compiled anew for others.

    `fuse`: all (True), none (False), or by cost (None). `graphs`: loops are recorded once and
    played back (None: on a GPU). `sources` is the code of each region.
    """

    name = "torch"
    threaded = False

    def __init__(
        self, fuse: bool | None = None, device: str | None = None, graphs: bool | None = None
    ):
        self.fuse = fuse
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.graphs = self.device.startswith("cuda") if graphs is None else graphs
        self.record: Record = on_cuda
        self.machine = EagerMachine(self.device)
        self.names = TorchNamespace(self.device)
        self.sources: dict[str, str] = {}
        self.fused: dict[str, str] = {}  # kernel -> why
        self.bare = RegionCache[Any]()  # code for tensors without numbers

    @property
    def target(self) -> Target:
        """Polling a GPU waits for all launches, about as long as a step; launches are queued."""
        on_cpu = Target(tile_rows=TORCH_ROWS_PER_TILE, attention_kernel=TORCH_ATTENTION)
        if self.device == "cpu":
            return on_cpu
        return replace(on_cpu, poll_steps=GPU_POLL_STEPS, min_overlapped_ns=MIN_OVERLAPPED_NS)

    def compile(
        self, plan: StoragePlan, region: Region, owned: bool = False
    ) -> Callable[..., tuple[Any, ...]]:
        """Compile a region; its results are `owned` if none shares the memory of another value."""
        code = partial(self.coded, plan, owned=owned)
        return with_local_stores(plan, region, code, self.machine) if region.local else code(region)

    def coded(
        self, plan: StoragePlan, region: Region, owned: bool
    ) -> Callable[..., tuple[Any, ...]]:
        """Compile a region whose stores are all arguments."""
        for s in map(plan.statements.__getitem__, region.active):
            read = () if isinstance(s.op, Cast) else (a.name for a in s.args)
            named = {**{a: plan.statements.arrays[a].type for a in read}, s.name: s.type}
            for name, type_ in named.items():
                if isinstance(type_, Type) and type_.dtype == "u32":
                    raise RecurraError(
                        f"{name} is a tensor of unsigned 32-bit numbers",
                        facts="torch cannot calculate with them",
                        hint="use the jax backend, or numbers of i32 or i64",
                        loc=s.loc,
                    )
        source, found, loops, constants = recorded(plan, region, self.device, self.graphs, owned)
        self.sources[region.name] = source
        names = {**constants, "foreign": foreign_calls(plan)}
        scope = self.loaded(region.name, source, names)
        steps = steps_of(plan, region)
        for k in found:
            scope[k.name] = self.kernel(k, scope, steps)
        for c in loops:
            scope[c.name] = RecordedLoop(scope[c.name], len(c.stores), c.written, self.record)
        return in_inference_mode(scope[region.name])

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        launch = self.compile(plan, region, owned=True)
        run = whole_program(plan, region, launch, self.machine, finish)
        words = self.names.asarray
        return in_inference_mode(lambda seed, inputs: run(words(int(seed), np.uint32), inputs))

    @property
    def compiles_whole(self) -> bool:
        """Are no loops recorded? A loop around them would be recorded, and anew in every run."""
        return not self.graphs

    def accepts(self, array: object) -> bool:
        if type(array) is not Tensor or array.requires_grad or array.is_neg():
            return False
        return array.is_contiguous() and array.device.type == self.device

    def argument(self, array: Any) -> Tensor:
        if isinstance(array, Tensor) and array.device.type == self.device:
            return array
        return self.from_dlpack(array) if is_row_major(array) else self.array(array)

    @in_inference_mode
    def loaded(self, name: str, source: str, names: Mapping[str, Any]) -> dict[str, Any]:
        """Execute the source of a region with matrix products called as such; return its scope."""
        scope = {"torch": torch, "number": self.number, "loop_end": loop_end, "attention": attend}
        scope |= {"widened": widened, "threefry": threefry, **names, **self.scope}
        exec(compile(with_products(source), f"<recurra {name}>", "exec"), scope)
        return scope

    def kernel(
        self, code: StraightLineCode, scope: dict[str, Any], steps: int
    ) -> Callable[..., Any]:
        """A kernel of a region, fused if that pays."""
        if not self.is_worth_fusing(code, steps):
            return scope[code.name]
        self.fused[code.name] = f"{code.calls} calls, {code.runs * steps} times a run"
        fused = torch.compile(scope[code.name], fullgraph=True, dynamic=False)

        def first(*args: Any) -> Any:
            scope[code.name] = fused  # the code of the region calls it from now on
            with notice_if_long(f"PyTorch compiles {code.name}"):
                return fused(*args)

        return first

    donates = False  # a step makes its variables anew

    def temporary_bytes(self, plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
        """Temporary bytes of a launch, beside its arguments and results, where nothing is fused."""
        return temporary_bytes(self.bare.get(plan, region, self.compile_bare), plan, region, at)

    def compile_bare(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        """Compile a region for tensors that have a shape and no numbers."""
        meta = TorchBackend(fuse=False, device="meta", graphs=False)
        meta.scope = {"range": sample_steps}
        return meta.compile(plan, region)

    unfused: tuple[str, ...] = ("attention(", "widened(")  # lines that are not fused
    scope: Mapping[str, Any] = MappingProxyType({})  # functions that code may call, beside torch

    def is_worth_fusing(self, kernel: StraightLineCode, steps: int) -> bool:
        """Is fusing a kernel worth its compilation, in one run of the program?

        Attention of a growing length would be compiled again at every step.
        """
        if any(text.startswith(self.unfused) for _, text in kernel.lines):
            return False
        runs = kernel.runs * steps
        saved = kernel.calls * runs * TORCH_CALL_US * 1e-6
        known = runs < NEVER // 2  # rows without a limit may end at once
        return self.fuse if self.fuse is not None else known and saved > TORCH_COMPILE_SECONDS

    def number(self, value: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full((), value, dtype=dtype, device=self.device)

    def reader(self, read: Reading) -> Callable[..., list[Any]]:
        return partial(read, self.machine)

    @in_inference_mode
    def array(self, array: Any) -> Any:
        if isinstance(array, Tensor):
            return array.clone()
        if isinstance(array, tuple):
            return tuple(map(self.array, array))  # the results of a host call
        return self.names.constant(np.asarray(array))

    adopt = borrow = from_host_call = array

    def staging(self, shape: tuple[int, ...], dtype: str) -> None:
        """None: the results of a launch may alias its arguments."""

    @in_inference_mode
    def arena(self, nbytes: int, views: Sequence[View]) -> list[Any]:
        block, out = torch.zeros(nbytes, dtype=torch.uint8, device=self.device), list[Any]()
        for at, shape, name in views:
            dtype = dtype_of(name)
            out.append(block[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape))
        return out

    def wait(self, array: Any) -> Any:
        self.synchronize()
        return array

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.current_stream(self.device).synchronize()

    @in_inference_mode
    def from_dlpack(self, array: Any) -> Tensor:
        # NumPy cannot export bfloat16 by itself
        if getattr(array, "dtype", None) == np.dtype("bfloat16"):
            return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16).to(self.device)
        return torch.from_dlpack(array).to(self.device)

    def host_view(self, array: Any) -> np.ndarray:
        if not isinstance(array, Tensor):
            return np.asarray(array)
        if array.dtype == torch.bfloat16:  # which NumPy knows by its name only
            return array.view(torch.int16).cpu().numpy().view("bfloat16")
        return array.cpu().numpy()

    host_operand = host_view

    def copy_to_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the host; from a GPU to pinned memory, on a stream of its own."""
        if self.device == "cpu":
            return tensor.clone()
        with torch.cuda.stream(self.copying):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                tensor, non_blocking=True
            )
        self.copying.synchronize()
        return copy

    @in_inference_mode
    def copy_to_device(self, tensor: Tensor) -> Tensor:
        if self.device == "cpu":
            return tensor.clone()
        with torch.cuda.stream(self.copying):
            copy = tensor.to(self.device, non_blocking=True)
        self.copying.synchronize()
        return copy

    @cached_property
    def copying(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def numpy(self, array: Any) -> np.ndarray:
        return np.array(self.host_view(array), copy=True)

    final_numpy = numpy


def steps_of(plan: StoragePlan, region: Region) -> int:
    """The steps of a region in one run: its launches, and the steps of its chunk in each."""
    loops = [*region.around, *([region.chunk] if region.chunk else [])]
    dims = {d.name: d.range for d in plan.graph.dims}
    return prod(dims[x.dim].size(plan.sizes) for x in loops if x.dim in dims)


def _variable_text(plan: StoragePlan, name: str) -> str:
    """The name of a variable in the source: a running sum has a name of its own."""
    (writer, *_) = plan.statements.writers[name]
    return f"{writer.equation}_so_far" if writer.accumulates else name


def recorded(
    plan: StoragePlan, region: Region, device: str, graphs: bool, owned: bool
) -> tuple[str, list[StraightLineCode], list[CapturedLoop], Mapping[str, Tensor]]:
    """The source of a region, its kernels, its loops that may be graphs, and its constants."""
    recorder = Recorder(device)
    machine = RecordingMachine(recorder)
    args: list[Any] = [
        Count(recorder.named(name), ANY if most is None else (0, most), machine.xp.asarray)
        for name, most in time_arguments(plan, region)
    ]
    clocks = [*map(str, args)]
    arrays = argument_types(plan, region)
    variables = (*region.held, *region.carried)
    names = [recorder.named(_variable_text(plan, v)) for v in variables]
    stores = [recorder.named(f"{s}_store") for s in (*region.stores, *region.reads)]
    seed = recorder.parameter("seed", (), torch.int32)
    for name, array in zip([*names, *stores], arrays, strict=True):
        if isinstance(array, list):
            args.append(recorder.results(name, [(s, dtype_of(d)) for s, d in array]))
        elif name in stores:
            args.append(StoreRef(name, array[0], dtype_of(array[1])))
        else:
            args.append(recorder.parameter(name, array[0], dtype_of(array[1])))
    with recorder:
        results = region_function(plan, region, machine)(seed, *args)
        recorder.close()
    gives = [_spelt(recorder, x) for x in results]
    takes = ["seed", *clocks, *names, *stores]
    finish(recorder.items, gives, region.name)
    values = {"seed", *names} | {x for x in gives if x not in stores}
    numbers = set(clocks)
    loops = (
        capturable_loops(recorder.items, region.name, numbers, values, set(stores))
        if graphs
        else []
    )
    if owned:
        gives = unaliased(recorder, results, gives)
    source = emit(region.name, takes, gives, recorder, loops)
    return source, [*kernels(recorder.items)], loops, recorder.scope


def _spelt(recorder: Recorder, array: Any) -> str:
    """The text of a result: a store, a counted number or a tensor."""
    match array:
        case StoreRef():
            return array.name
        case Count():
            return str(array)
        case _:
            return recorder.name_of(array)


def unaliased(recorder: Recorder, results: Sequence[Any], gives: Sequence[str]) -> list[str]:
    """The texts of results: one that shares its memory, or is returned twice, is cloned."""
    return [
        f"{name}.clone()"
        if isinstance(x, Tensor) and (name in gives[:k] or not recorder.is_own(x))
        else name
        for k, (x, name) in enumerate(zip(results, gives, strict=True))
    ]


def loop_end(flags: list[Tensor], more: Tensor, now: bool, end: int, after: int) -> int:
    """The first point after all rows; until `now` is true, flags are collected but not read.

    `flags` holds, for each unread step, if any row goes on. Once none does, none goes on again, so
    that it is enough to count.
    """
    flags.append(more)
    if not now:
        return end
    behind = len(flags) - int(torch.stack(flags).sum())
    flags.clear()
    return min(end, after - behind + 1) if behind else end


def foreign_calls(plan: StoragePlan) -> Callable[..., Any]:
    """Return f(key, vmaps): a function of another library on tensors, mapped over axes."""
    ops = [n.op for n in plan.graph.nodes.values() if isinstance(n.op, Foreign)]
    functions = {op.fn.key: op.fn for op in ops}

    @cache
    def foreign(key: str, vmaps: Any) -> Callable[..., tuple[Tensor, ...]]:
        traced = functions[key].get()
        call = traced.on_tensors(vmaps)

        def converted(*xs: Tensor) -> tuple[Tensor, ...]:
            if not any(x.is_meta for x in xs):
                return tuple(map(torch.from_dlpack, call(*xs)))
            specs = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in xs]
            return tuple(
                torch.empty(y.shape, dtype=getattr(torch, str(y.dtype)), device="meta")
                for y in traced.shapes(vmaps, specs)
            )

        return converted

    return foreign
