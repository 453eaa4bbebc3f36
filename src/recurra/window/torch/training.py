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

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func as boxed
from torch._functorch.partitioners import default_partition

from recurra.window.torch.concurrent import Block, concurrent, load_native


def backend(
    threads: int = 2,
    slots: int = 32,
    *,
    policy: Literal["learn", "always"] = "learn",
    folder: Path | None = None,
    check: bool = False,
    block: Block | None = None,
) -> Callable[..., Any]:
    """For `torch.compile(.., backend=..)`: operators of both graphs run on `threads` threads.

    Values and gradients are equal to eager ones to the last bit. Takes what `concurrent` takes, and
    raises as it does: WindowError at once for numbers that cannot be, BuildError where the native
    part cannot be built; KernelError where an operator fails. What all graphs did is added up in
    `block`.
    """
    load_native(threads, slots, folder)
    counts: dict[str, float] = {} if block is None else block.counts

    def graph(module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        def run(*given: Any) -> Any:
            open_block = concurrent(threads, slots, policy=policy, folder=folder, check=check)
            with torch.no_grad(), open_block as one:
                made = module(*given)
            for name, count in one.counts.items():
                gain = name == "predicted gain"
                counts[name] = count if gain else counts.get(name, 0) + count
            return made

        return boxed(run)

    return aot_autograd(
        fw_compiler=graph,
        bw_compiler=graph,
        inference_compiler=graph,
        partition_fn=default_partition,
    )
