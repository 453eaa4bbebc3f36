"""A GPU's memory as the fast one, pinned RAM as the slow one, by PyTorch.

Every move is synchronous. The copy engine moves in its own thread and on its own stream, so copies
run beside the instruction of a step, and nothing else needs an event. `cpu` is a device without
streams: then both memories are RAM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recurra.errors import RecurraError
from recurra.mapping.execute.memories import ByteBuffer, Bytes, SlowMemory, whole_pages
from recurra.mapping.execute.workload import TensorSpec

if TYPE_CHECKING:
    import jax


class Device:
    """The memory of a device as fast memory; `name` is PyTorch's, such as cuda or cuda:1.

    Raises `RecurraError` if PyTorch or JAX, which computes, has no such device.
    """

    def __init__(self, name: str) -> None:
        self.device = _find_device(name)
        self.library: Any = torch.get_device_module(self.device)

    def allocate(self, nbytes: int) -> torch.Tensor:
        size = max(1, whole_pages(nbytes))
        try:
            return torch.zeros(size, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise _refused(f"{self.device} has no {size:,} B", error) from None

    def view_as(self, block: ByteBuffer, tensor: TensorSpec) -> torch.Tensor:
        kind = getattr(torch, np.dtype(tensor.dtype).name)
        return block[: tensor.nbytes].view(kind).reshape(tensor.shape)

    def put(self, values: Bytes, block: ByteBuffer) -> None:
        block[: len(values)].copy_(torch.from_numpy(np.require(values, requirements="W")))

    def get(self, block: ByteBuffer) -> Bytes:
        return np.array(block.cpu().numpy())

    def slow(self, nbytes: int) -> PinnedMemory:
        return PinnedMemory(self, nbytes)


class PinnedMemory(SlowMemory):
    """RAM that the device's copy engine accesses directly."""

    piece = 4 << 20

    def __init__(self, memory: Device, nbytes: int) -> None:
        self.memory, self.nbytes = memory, whole_pages(nbytes)
        pinned = memory.device.type != "cpu"
        try:
            self.block = torch.zeros(self.nbytes, dtype=torch.uint8, pin_memory=pinned)
        except RuntimeError as error:
            raise _refused(f"{self.nbytes:,} B of RAM cannot be pinned", error) from None
        self.stream = memory.library.Stream()

    def __str__(self) -> str:
        kind = "RAM, and so is the fast one" if self.memory.device.type == "cpu" else "pinned RAM"
        return f"slow memory: {self.nbytes / 2**20:.0f} MiB of {kind}"

    def _read(self, into: ByteBuffer, at: int) -> None:
        self._move(self.block[at : at + len(into)], into)

    def _write(self, of: ByteBuffer, at: int) -> None:
        self._move(of, self.block[at : at + len(of)])

    def _move(self, of: torch.Tensor, to: torch.Tensor) -> None:
        library = self.memory.library
        done = library.Event()
        with library.stream(self.stream):
            to.copy_(of, non_blocking=True)
            done.record(self.stream)
        done.synchronize()

    def close(self) -> None:
        self.block = torch.zeros(0, dtype=torch.uint8)


def compute(
    call: Callable[..., Sequence[jax.Array]],
    operands: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    """Call a function of JAX on tensors without copying them, and wait for the outputs."""
    import jax

    results = jax.block_until_ready(call(*(jax.dlpack.from_dlpack(x) for x in operands)))
    for output, x in zip(outputs, results, strict=True):
        output.copy_(torch.from_dlpack(x))
    for device in {x.device for x in outputs}:
        library: Any = torch.get_device_module(device)
        done = library.Event()
        done.record()
        done.synchronize()


def _find_device(name: str) -> torch.device:
    import jax

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise _refused(f"there is no device {name!r} for PyTorch here", error) from None
    try:
        jax.devices({"cuda": "gpu"}.get(device.type, device.type))
    except RuntimeError:
        raise RecurraError(
            f"PyTorch has {name!r} here, and JAX, which computes, has not",
            facts=f"JAX has: {', '.join(map(str, jax.devices()))}",
            hint='"jax[cuda12]" is JAX for NVIDIA\'s GPUs',
        ) from None
    return device


def _refused(what: str, error: BaseException) -> RecurraError:
    return RecurraError(what, facts=str(error).splitlines()[0])
