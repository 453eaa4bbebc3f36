"""A PyTorch program → its operators, with shapes, memory read and written, and time on this CPU.

Views are no operators. Every allocation has its own addresses and is kept alive until the recording
ends, so that reuse of memory orders nothing. `x.item()` is an operator whose result the host waits
for; `x.tolist()` and `x.numpy()` of CPU tensors bypass the dispatcher and are not recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recurra.window.task import Segment

Shape = tuple[int, ...]
ALIGN = 256  # of the addresses of allocations

# Schemas with undeclared writes (pytorch issue 73050): operator → (argument that must be true,
# arguments that are then written).
_SILENT_WRITES = {
    "aten::native_batch_norm": (5, (3, 4)),
    "aten::_native_batch_norm_legit": (5, (3, 4)),
}
_ALLOCATES = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")
_READS_BY_HOST = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")


@dataclass(frozen=True)
class RecordedOperator:
    """One call: `inputs` and `outputs` are shapes, `itemsize` bytes of an element of the result."""

    name: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    itemsize: int
    reads: tuple[Segment, ...]
    writes: tuple[Segment, ...]
    us: float
    host: bool


def record_operators(program: Callable[[], object]) -> tuple[RecordedOperator, ...]:
    """Run a program once, and return its operators in order."""
    recorder = _Recorder()
    with recorder:
        program()
    return tuple(recorder.operators)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[RecordedOperator] = []
        self._bases: dict[int, int] = {}  # storage → its first address
        self._kept: list[torch.Tensor] = []
        self._next = 0

    def __torch_dispatch__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        keywords = dict(kwargs or {})
        begin = time.perf_counter()
        result = func(*args, **keywords)
        us = (time.perf_counter() - begin) * 1e6
        schema = func._schema
        read, written = _arguments(schema, args, keywords)
        outputs = list(_tensors(result))
        fresh = [t for t in outputs if not any(_same_memory(t, a) for a in (*read, *written))]
        host = schema.name in _READS_BY_HOST
        if (fresh or written or host) and schema.name not in _ALLOCATES:
            self.operators.append(
                RecordedOperator(
                    name=schema.name.removeprefix("aten::"),
                    inputs=tuple(tuple(t.shape) for t in (*read, *written)),
                    outputs=tuple(tuple(t.shape) for t in (fresh or written)),
                    itemsize=max((t.element_size() for t in (*fresh, *written)), default=4),
                    reads=self._segments(read),
                    writes=self._segments([*fresh, *written]),
                    us=us,
                    host=host,
                )
            )
        return result

    def _segments(self, tensors: Iterable[torch.Tensor]) -> tuple[Segment, ...]:
        return tuple(dict.fromkeys(self._segment(t) for t in tensors if t.numel()))

    def _segment(self, tensor: torch.Tensor) -> Segment:
        """Return the segment from a tensor's first to its last byte."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # pyright: ignore[reportPrivateUsage]
        if key not in self._bases:
            self._bases[key] = self._next
            self._kept.append(tensor)
            self._next += -(-max(storage.nbytes(), 1) // ALIGN) * ALIGN
        size = tensor.element_size()
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        start = self._bases[key] + int(tensor.storage_offset()) * size
        return Segment(start, int(reach + 1) * size)


def _arguments(
    schema: torch.FunctionSchema, args: Sequence[object], keywords: Mapping[str, object]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors that a call reads, and those that it writes in place."""
    switch, silent = _SILENT_WRITES.get(schema.name, (0, ()))
    also = silent if silent and len(args) > switch and args[switch] else ()
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for k, argument in enumerate(schema.arguments):
        value = args[k] if k < len(args) else keywords.get(argument.name)
        writes = (argument.alias_info is not None and argument.alias_info.is_write) or k in also
        for tensor in _tensors(value):
            if writes:
                written.append(tensor)
            if not (writes and argument.is_out):
                read.append(tensor)
    return read, written


def _tensors(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _same_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    ours, theirs = left.untyped_storage(), right.untyped_storage()
    return ours._cdata == theirs._cdata  # pyright: ignore[reportPrivateUsage]
