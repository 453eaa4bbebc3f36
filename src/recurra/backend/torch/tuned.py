"""Torch on the CPU with kernels for contractions, where they are faster.

Who makes kernels is given (`recurra.nest.door`). A contraction is asked for when it is first
called, for the layout that its operands have then: the kernel is measured beside torch.einsum, by
itself, and used where it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from recurra.backend.torch.names import Tensor
from recurra.backend.torch.region import TorchBackend

EINSUM, OURS = "torch.functional.einsum(", "contract("


class TunedTorch(TorchBackend):
    """Torch on the CPU. `choices` are the contractions so far, with the times of both."""

    name = "torch+nest"
    apart = (*TorchBackend.apart, EINSUM)

    def __init__(self, door: Any, **options: Any) -> None:
        super().__init__(**options)
        self.door, self.choices = door, list[Any]()
        self.known: dict[Any, Callable[..., Tensor]] = {}
        self.scope = {OURS[:-1]: self.contract}

    @property
    def contraction_rows(self) -> list[dict[str, Any]]:
        """As a table of a report has them."""
        return self.door.rows(self.choices)

    def adapted(self, source: str) -> str:
        return source.replace(EINSUM, OURS) if self.device == "cpu" else source

    def contract(self, labels: str, *xs: Tensor) -> Tensor:
        """torch.einsum, by a kernel for this layout where there is one that wins."""
        key = labels, *[(x.dtype, x.shape, x.stride()) for x in xs]
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.chosen(labels, xs)
        return found(*xs)

    def chosen(self, labels: str, xs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """What computes a contraction from now on."""
        theirs = partial(torch.einsum, labels)
        if any(x.dtype != torch.float32 for x in xs):
            return theirs
        shapes, strides = [tuple(x.shape) for x in xs], [tuple(x.stride()) for x in xs]
        kernel = self.door.contraction(labels, shapes, strides)
        if kernel is None:
            return theirs
        ours = _function(kernel.kernel.call, kernel.problem.output.shape)
        some = [torch.randint(-4, 5, s).float() for s in shapes]
        some = [_laid(x, like) for x, like in zip(some, xs, strict=True)]
        assert torch.equal(ours(*some), theirs(*some)), "the kernel's answer is not Torch's"
        times = self.door.compared([partial(f, *some) for f in (ours, theirs)])
        self.choices.append(self.door.choice(kernel, *times))
        return ours if self.choices[-1].taken else theirs


def _function(call: Callable[..., Any], shape: tuple[int, ...]) -> Callable[..., Tensor]:
    def contract(*xs: Tensor) -> Tensor:
        out = torch.empty(shape)
        call(*[x.data_ptr() for x in xs], out.data_ptr())
        return out

    return contract


def _laid(x: Tensor, like: Tensor) -> Tensor:
    """The numbers of x, laid in memory as another tensor is."""
    reach = sum(s * (n - 1) for n, s in zip(like.shape, like.stride(), strict=True))
    return torch.empty(reach + 1).as_strided(like.shape, like.stride()).copy_(x)
