"""Training in a window: forward and backward graphs of AOTAutograd, operator by operator.

    model = torch.compile(model, backend=recurra.window.backend(threads=2))
    loss = criterion(model(x), y)
    loss.backward()

A result that comes later has no history, so that `concurrent` refuses gradients. AOTAutograd traces
the operators of a function and those of its gradient ahead of time, as two graphs without history;
each is run inside a block of its own, as it is: nothing is fused, recomputed or decomposed. What
torch.compile cannot trace runs as ever, outside of the window.
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
    """Make a backend of `torch.compile(.., backend=..)` that runs both graphs on `threads` threads.

    Values and gradients are equal to eager ones to the last bit, but for the gradient of `prod`, of
    which PyTorch has another formula for what it traces. Takes what `concurrent` takes, and
    raises as it does: WindowError at once for numbers that cannot be, BuildError where the native
    part cannot be built; KernelError where an operator fails. What all graphs did is added up in
    `block`.
    """
    load_native(threads, slots, folder)
    counts: dict[str, float] = {} if block is None else block.counts

    def graph(module: torch.fx.GraphModule, _: Sequence[object]) -> object:
        def run(*given: object) -> object:
            open_block = concurrent(threads, slots, policy=policy, folder=folder, check=check)
            with torch.no_grad(), open_block as one:
                made = module(*given)
            for name, count in one.counts.items():
                gain = name == "predicted gain"
                counts[name] = count if gain else counts.get(name, 0) + count
            return made

        return boxed(run)

    traced = aot_autograd(
        fw_compiler=graph,
        bw_compiler=graph,
        inference_compiler=graph,
        partition_fn=default_partition,
    )

    def compiled(module: torch.fx.GraphModule, given: Sequence[object], **more: object) -> object:
        with _kept_whole():
            return traced(module, given, **more)

    return compiled


@contextmanager
def _kept_whole() -> Generator[None]:
    """Inside, interpolation is traced as the operator that it is.

    PyTorch would trace what its forms in Python consist of, which round otherwise than the kernels.
    """
    taken: list[tuple[Any, DispatchKey, object]] = []
    for op in _interpolations():
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            if key in op.py_kernels:
                taken.append((op, key, op.py_kernels.pop(key)))
                op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, form in taken:
            op.py_kernels[key] = form
            op._dispatch_cache.clear()


@cache
def _interpolations() -> tuple[Any, ...]:
    names = [name for name in dir(torch.ops.aten) if "upsample" in name]
    packets = [getattr(torch.ops.aten, name) for name in names]
    return tuple(getattr(packet, name) for packet in packets for name in packet.overloads())
