"""Optimisers as recurrences: p[i+1] = p[i] - step(grad[i], moments[i])."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recurra.errors import RecurraError, here
from recurra.ir.graph import Ref
from recurra.lang.dims import Index
from recurra.lang.nn.modules import Parameter, advance, start, step_range
from recurra.lang.tensor import RecurrentTensor, as_tensor


def _state(p: Parameter, name: str) -> RecurrentTensor:
    """A tensor like the parameter that starts at zero, called {p}_{name}."""
    tracer = p.tracer
    node = tracer.declare(f"{p.name}_{name}", p.domain, p.type)
    x = RecurrentTensor(tracer, Ref(node.name, node.domain.identity))
    start(x, 0.0)
    return x


def _gradient(p: Parameter) -> RecurrentTensor:
    if p.grad is None:
        raise RecurraError(
            f"{p.name} has no gradient",
            facts="step() needs loss.backward() before it",
            hint="call backward() on the loss, or leave the parameter out",
            loc=here(),
        )
    return p.grad


class SGD:
    """p[i+1] = p[i] - lr · grad[i]; `lr` is a number or a recurrent tensor"""

    def __init__(self, params: Sequence[Parameter], lr: Any):
        self.params, self.lr = list(params), lr

    def step(self) -> None:
        for p in self.params:
            p.update(p - _gradient(p) * self.lr)


class Adam:
    """Kingma and Ba (2015), bias-corrected; `lr` is a number or a recurrent tensor"""

    def __init__(
        self,
        params: Sequence[Parameter],
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps

    def step(self) -> None:
        b1, b2 = self.betas
        for p in self.params:
            g = _gradient(p)
            r = step_range(p)
            m, v = _state(p, "m"), _state(p, "v")
            m1 = m * b1 + g * (1 - b1)
            v1 = v * b2 + g.square() * (1 - b2)
            advance(m, m1)
            advance(v, v1)
            n = as_tensor(Index(r.sym) - r.lo + 1, p.dtype)
            unbiased = m1 / (1.0 - b1**n)
            scale = (v1 / (1.0 - b2**n)).sqrt() + self.eps
            p.update(p - unbiased / scale * self.lr)
