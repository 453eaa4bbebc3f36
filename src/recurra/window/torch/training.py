"""Training in a window: forward and backward graphs of AOTAutograd, operator by operator.

    model = torch.compile(model, backend=recurra.window.backend(threads=2))
    loss = criterion(model(x), y)
    loss.backward()

A deferred result has no history, so `concurrent` refuses gradients. AOTAutograd traces the
operators of a function and of its gradient ahead of time, as two graphs without history; each runs
inside a block of its own, without fusion, recomputation or decomposition. Code that torch.compile
cannot trace runs outside of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch._C import DispatchKey
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func as boxed
from torch._functorch.partitioners import default_partition

from recurra.window.torch.block import Block
from recurra.window.torch.concurrent import concurrent, load_native


def backend(
    threads: int = 2,
    slots: int = 32,
    *,
    policy: Literal["learn", "always"] = "learn",
    folder: Path | None = None,
    check: bool = False,
    block: Block | None = None,
) -> Callable[..., object]:
    """Return a backend of `torch.compile(.., backend=..)` that runs both graphs in windows.

    Values and gradients are equal to eager ones to the last bit, except the gradient of `prod`, for
    which PyTorch traces another formula. Options and errors are those of `concurrent`: WindowError
    at once for impossible numbers, BuildError where the native part cannot be built; KernelError
    where an operator fails. `block` has the sums of the counts of all graphs.
    """
    load_native(threads, slots, folder)
    counts: dict[str, float] = {} if block is None else block.counts

    def graph(module: torch.fx.GraphModule, _: Sequence[object]) -> object:
        def run(*args: object) -> object:
            open_block = concurrent(threads, slots, policy=policy, folder=folder, check=check)
            with torch.no_grad(), open_block as one:
                results = module(*args)
            for name, count in one.counts.items():
                gain = name == "predicted gain"
                counts[name] = count if gain else counts.get(name, 0) + count
            return results

        return boxed(run)

    traced = aot_autograd(
        fw_compiler=graph,
        bw_compiler=graph,
        inference_compiler=graph,
        partition_fn=default_partition,
    )

    def compiled(module: torch.fx.GraphModule, args: Sequence[object], **options: object) -> object:
        with _undecomposed():
            return traced(module, args, **options)

    return compiled


@contextmanager
def _undecomposed() -> Generator[None]:
    """Trace interpolation as one operator inside.

    PyTorch's decompositions in Python round differently from its kernels.
    """
    removed: list[tuple[Any, DispatchKey, object]] = []
    for op in _interpolations():
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            if key in op.py_kernels:
                removed.append((op, key, op.py_kernels.pop(key)))
                op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, form in removed:
            op.py_kernels[key] = form
            op._dispatch_cache.clear()


@cache
def _interpolations() -> tuple[Any, ...]:
    names = [name for name in dir(torch.ops.aten) if "upsample" in name]
    packets = [getattr(torch.ops.aten, name) for name in names]
    return tuple(getattr(packet, name) for packet in packets for name in packet.overloads())
