"""Torch on the CPU with kernels for contractions, where they are faster.

The maker of kernels is an argument (`recurra.nest.compiler_hook`). A kernel is made when a
contraction is first called, for the layout that its operands have then, and timed by itself against
torch.einsum. What decides is the code around it: when that is first called, it is timed with
kernels, calls and all, against Torch's own, fused or not; the faster stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from recurra.backends.torch.array_namespace import Tensor
from recurra.backends.torch.recorded_code import StraightLineCode
from recurra.backends.torch.region import TorchBackend

EINSUM, OURS = "torch.functional.einsum(", "contract("
WITH = "with kernels"  # the key of a scope, no identifier, of the functions that call kernels


class TunedTorch(TorchBackend):
    """Torch on the CPU. `choices` are the contractions so far, with the times of both sides."""

    name = "torch+nest"

    def __init__(self, door: Any, **options: Any) -> None:
        super().__init__(**options)
        self.door = door
        self.choices: dict[Any, Any] = {}
        self.known: dict[Any, Callable[..., Tensor]] = {}
        self.called: set[Any] | None = None  # the contractions called while `faster` looks
        self.scope = {OURS[:-1]: self.contract}

    @property
    def contraction_rows(self) -> list[dict[str, Any]]:
        """The contractions as rows of a report's table."""
        return self.door.rows(list(self.choices.values()))

    def loaded(self, name: str, source: str, names: Mapping[str, Any]) -> dict[str, Any]:
        scope = super().loaded(name, source, names)
        if self.device == "cpu" and EINSUM in source:
            scope[WITH] = super().loaded(name, source.replace(EINSUM, OURS), names)
        return scope

    def kernel(
        self, code: StraightLineCode, scope: dict[str, Any], steps: int
    ) -> Callable[..., Any]:
        theirs = super().kernel(code, scope, steps)
        if WITH not in scope or not any(text.startswith(EINSUM) for _, text in code.lines):
            return theirs
        ours = scope[WITH][code.name]

        def first(*xs: Tensor) -> Any:
            fused = code.name in self.fused
            chosen = scope[code.name] = self.faster(ours, theirs, xs, f"{code.lines} fused={fused}")
            return chosen(*xs)

        return first

    def faster(
        self,
        ours: Callable[..., Any],
        theirs: Callable[..., Any],
        xs: tuple[Tensor, ...],
        what: str,
    ) -> Callable[..., Any]:
        """Time two equivalent functions and return the faster one; `ours` calls kernels.

        `what` names the code that they run.
        """
        self.called = set()
        ours(*xs)
        found, self.called = {k: self.choices[k] for k in self.called if k in self.choices}, None
        if not any(c.alone for c in found.values()):
            return theirs

        def measure() -> list[float]:
            theirs(*xs)  # compile it before it is timed
            return self.door.measure_in_turns([partial(f, *xs) for f in (ours, theirs)])

        layouts = [(tuple(x.shape), x.stride()) for x in xs]
        by = sorted(f"{c.statement} {c.sizes} {c.order} {c.alone}" for c in found.values())
        about = f"torch {torch.__version__} {torch.get_num_threads()} {what} {layouts} {by}"
        gain = self.door.gain(about, measure)
        for key, c in found.items():
            self.choices[key] = replace(c, inside=max(gain, c.inside or 0.0))
        return ours if gain >= self.door.WHOLE else theirs

    def contract(self, labels: str, *xs: Tensor) -> Tensor:
        """torch.einsum, by a kernel for this layout if that is faster."""
        key = labels, *[(x.dtype, x.shape, x.stride()) for x in xs]
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.chosen(key, labels, xs)
        if self.called is not None:
            self.called.add(key)
        return found(*xs)

    def chosen(self, key: Any, labels: str, xs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Choose the function that computes a contraction from now on."""
        theirs = partial(torch.einsum, labels)
        if any(x.dtype != torch.float32 for x in xs):
            return theirs
        shapes, strides = [tuple(x.shape) for x in xs], [tuple(x.stride()) for x in xs]
        kernel = self.door.contraction(labels, shapes, strides)
        if kernel is None:
            return theirs
        ours = _function(kernel.kernel.call, kernel.problem.output.shape)
        some = [torch.randint(-4, 5, s).float() for s in shapes]
        some = [_laid_out_like(x, like) for x, like in zip(some, xs, strict=True)]
        assert torch.equal(ours(*some), theirs(*some)), "the kernel's answer is not Torch's"
        times = self.door.measure_in_turns([partial(f, *some) for f in (ours, theirs)])
        choice = self.choices[key] = self.door.choice(kernel, *times)
        return ours if choice.alone else theirs


def _function(call: Callable[..., Any], shape: tuple[int, ...]) -> Callable[..., Tensor]:
    def contract(*xs: Tensor) -> Tensor:
        out = torch.empty(shape)
        call(*[x.data_ptr() for x in xs], out.data_ptr())
        return out

    return contract


def _laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Copy a tensor into the memory layout of another one."""
    reach = sum(s * (n - 1) for n, s in zip(like.shape, like.stride(), strict=True))
    return torch.empty(reach + 1).as_strided(like.shape, like.stride()).copy_(tensor)
