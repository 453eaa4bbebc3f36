"""Optimiser: for every parameter p[i+1] = p[i] - lr · direction(grad[i], state[i])."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recurra.errors import RecurraError, here
from recurra.ir.graph import Ref
from recurra.lang.dims import Index, wrap
from recurra.lang.nn.modules import Parameter, start, steps_of
from recurra.lang.tensor import RecurrentTensor, as_tensor


class Optimiser:
    """`lr` is a number or a recurrent tensor: a schedule is an expression of the parameters' dim"""

    def __init__(self, params: Sequence[Parameter], lr: Any):
        self.params, self.lr = list(params), lr

    def direction(self, p: Parameter, g: RecurrentTensor) -> RecurrentTensor:
        """Where `p` goes, against: the gradient, scaled and averaged."""
        raise NotImplementedError

    def step(self) -> None:
        """Writes the next value of every parameter, from its `.grad`.

        Raises RecurraError for a parameter without gradient, or without a dim to go along.
        """
        for p in self.params:
            p.update(p - self.direction(p, gradient(p)) * self.lr)


def state(p: Parameter, name: str) -> RecurrentTensor:
    """A tensor like the parameter that starts at zero, called {p}_{name}."""
    tracer = p.tracer
    node = tracer.declare(f"{p.name}_{name}", p.domain, p.type)
    tracer.share_clock(node.name, p.name)
    x = RecurrentTensor(tracer, Ref(node.name, node.domain.identity))
    start(x, 0.0)
    return x


def count(p: Parameter) -> RecurrentTensor:
    """How many steps there will have been: 1 at the first."""
    passed: Any = 0
    for r in steps_of(p):
        passed = passed * wrap(r.hi - r.lo) + (Index(r.sym) - r.lo)
    return as_tensor(passed + 1, p.dtype)


def gradient(p: Parameter) -> RecurrentTensor:
    """What backward() found for a parameter."""
    if p.grad is None:
        raise RecurraError(
            f"{p.name} has no gradient",
            facts="step() needs loss.backward() before it",
            hint="call backward() on the loss, or leave the parameter out",
            loc=here(),
        )
    steps_of(p)
    return p.grad
