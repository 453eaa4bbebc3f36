"""Arrays → the segments of memory that they occupy, without importing their libraries.

Bytes of a file that is mapped into memory are numbered by the file: it may be mapped twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from recurra.window.mapped_files import FileMap, number_of
from recurra.window.task import Segment, WindowError

BARRIER = "leave reads and writes out, so that the kernel is a barrier"


def segments(arrays: Iterable[object]) -> tuple[Segment, ...]:
    """Return the segments of NumPy arrays, CPU tensors and segments, without empty ones."""
    return tuple(segment for array in arrays if (segment := segment_of(array)).size)


def filled(arrays: Iterable[object]) -> tuple[Segment, ...]:
    """Return the segments of those arrays that have no gaps between their elements."""
    return tuple(
        segment
        for array in arrays
        if (segment := segment_of(array)).size == getattr(array, "nbytes", 0)
        or isinstance(array, Segment)
    )


def segment_of(array: object) -> Segment:
    """Return the segment from an array's first to its last byte.

    Raises WindowError for objects without an address in this process.
    """
    if isinstance(array, Segment):
        return array
    interface = getattr(array, "__array_interface__", None)
    if interface is not None and isinstance(interface["data"], tuple):  # others copy
        return _numpy(array, interface)
    if hasattr(array, "untyped_storage"):
        return _torch(array)
    raise WindowError(
        f"{type(array).__name__} has no address",
        facts="a kernel touches NumPy arrays, PyTorch tensors on the CPU, or Segments",
        hint=BARRIER,
    )


def _scattered(what: str, parts: str) -> WindowError:
    return WindowError(
        f"{what} lies in several places",
        facts="reads= and writes= give arrays whose elements are numbers",
        hint=f"give {parts}, or {BARRIER}",
    )


def is_scalar(value: object) -> bool:
    """Return whether a value is a NumPy scalar, which has no memory of its own."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _numpy(array: Any, interface: dict[str, Any]) -> Segment:
    numpy = sys.modules.get("numpy")
    view = array if hasattr(array, "strides") or numpy is None else numpy.asarray(array)
    if view.size == 0 or is_scalar(array):
        return Segment(0, 0)
    if view.dtype.hasobject:
        raise _scattered("an array of objects", "the arrays in it")
    if hasattr(array, "filled"):
        raise _scattered("a masked array", "x.data and x.mask")
    low = high = interface["data"][0]
    for length, stride in zip(view.shape, view.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return Segment(_byte(view, low), high - low + view.itemsize)


def _byte(array: object, address: int) -> int:
    """Return the number of a byte: its address, or that in the file that is mapped there."""
    owner: Any = array
    while hasattr(base := getattr(owner, "base", None), "__array_interface__"):
        owner = base
    if base is None and getattr(getattr(owner, "flags", None), "owndata", False):
        return address  # NumPy has allocated it
    return _foreign_byte(owner, address)


def _foreign_byte(owner: Any, address: int) -> int:
    """Do the same for memory that NumPy or PyTorch did not allocate."""
    try:
        return number_of(address)
    except OSError:  # a system without a list of maps: files are known by their names
        name, mode = getattr(owner, "filename", None), getattr(owner, "mode", "c")
        if name is None or mode == "c":  # copy on write: not the file's bytes
            return address
        known = os.stat(name)
        start = owner.__array_interface__["data"][0]
        return FileMap(start, int(owner.offset), (known.st_dev, known.st_ino)).number(address)


def _torch(tensor: Any) -> Segment:
    if tensor.device.type != "cpu":
        raise WindowError(
            f"a tensor on {tensor.device}", facts="these threads run kernels on the CPU only"
        )
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise _scattered(f"a tensor of layout {tensor.layout}", "x.indices() and x.values()")
    if tensor.numel() == 0:
        return Segment(0, 0)
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    storage, low = tensor.untyped_storage(), tensor.data_ptr()
    if not storage.resizable() or storage.is_shared():  # PyTorch has not allocated it
        low = _foreign_byte(storage, low)
    return Segment(low, (reach + 1) * tensor.element_size())
