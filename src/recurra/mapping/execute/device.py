"""A GPU's memory as the fast one, pinned RAM as the slow one, by PyTorch.

Whoever moves waits until it is there, the copy engine in its own thread: so a step's copies, which
have a stream of their own, run beside its instruction, and nothing else needs an event. `cpu` is a
device as well, whose streams are none: both memories are RAM then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recurra.errors import RecurraError
from recurra.mapping.execute.memories import Bytes, Room, SlowMemory, whole_pages
from recurra.mapping.execute.workload import Datum

if TYPE_CHECKING:
    import jax


class Device:
    """Fast memory is the device's; `name` is one of PyTorch's, say cuda or cuda:1.

    Raises `RecurraError` if it is not there, or JAX, which computes, has no such device.
    """

    def __init__(self, name: str) -> None:
        self.device = _there(name)
        self.library: Any = torch.get_device_module(self.device)

    def room(self, nbytes: int) -> torch.Tensor:
        """Allocate on a page's boundary, as far as offsets in it are."""
        size = max(1, whole_pages(nbytes))
        try:
            return torch.zeros(size, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise _refused(f"{self.device} has no {size:,} B", error) from None

    def over(self, room: Room, tensor: Datum) -> torch.Tensor:
        """A view."""
        kind = getattr(torch, np.dtype(tensor.dtype).name)
        return room[: tensor.nbytes].view(kind).reshape(tensor.shape)

    def put(self, values: Bytes, room: Room) -> None:
        """Done when it returns."""
        room[: len(values)].copy_(torch.from_numpy(np.require(values, requirements="W")))

    def get(self, room: Room) -> Bytes:
        """Done when it returns."""
        return np.array(room.cpu().numpy())

    def slow(self, nbytes: int) -> PinnedMemory:
        """Raises `RecurraError` if there is less RAM that can be pinned."""
        return PinnedMemory(self, nbytes)


class PinnedMemory(SlowMemory):
    """RAM that the device's copy engine reaches by itself."""

    piece = 4 << 20

    def __init__(self, memory: Device, nbytes: int) -> None:
        self.memory, self.nbytes = memory, whole_pages(nbytes)
        pinned = memory.device.type != "cpu"
        try:
            self.room = torch.zeros(self.nbytes, dtype=torch.uint8, pin_memory=pinned)
        except RuntimeError as error:
            raise _refused(f"{self.nbytes:,} B of RAM cannot be pinned", error) from None
        self.stream = memory.library.Stream()

    def __str__(self) -> str:
        kind = "RAM, and so is the fast one" if self.memory.device.type == "cpu" else "pinned RAM"
        return f"slow memory: {self.nbytes / 2**20:.0f} MiB of {kind}"

    def _read(self, into: Room, at: int) -> None:
        self._move(self.room[at : at + len(into)], into)

    def _write(self, of: Room, at: int) -> None:
        self._move(of, self.room[at : at + len(of)])

    def _move(self, of: torch.Tensor, to: torch.Tensor) -> None:
        library = self.memory.library
        done = library.Event()
        with library.stream(self.stream):
            to.copy_(of, non_blocking=True)
            done.record(self.stream)
        done.synchronize()

    def close(self) -> None:
        """Gives the RAM back."""
        self.room = torch.zeros(0, dtype=torch.uint8)


def compute(
    call: Callable[..., Sequence[jax.Array]],
    operands: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    """A function of JAX's on tensors where they are; done when it returns."""
    import jax

    found = jax.block_until_ready(call(*(jax.dlpack.from_dlpack(x) for x in operands)))
    for place, x in zip(outputs, found, strict=True):
        place.copy_(torch.from_dlpack(x))
    for device in {x.device for x in outputs}:
        here: Any = torch.get_device_module(device)
        done = here.Event()
        done.record()
        done.synchronize()


def _there(name: str) -> torch.device:
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
