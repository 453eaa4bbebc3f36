"""Collective ops of the workers of a program: each runs on rows of its own."""

from __future__ import annotations

from typing import Any

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env
from recurra.ir.op import Array, Op
from recurra.ir.types import Type
from recurra.ops.reduction import REDUCTION

SHARD, SHARDS = "shard", "shards"  # which worker it is, and of how many; in the env at run time
JOIN = "the join"  # there, too: f(monoid, x) of all workers' x, the same for each


class AllReduce(Op):
    """y = x₁ ∘ x₂ ∘ … over the workers, each of whom gets it"""

    monoid_of: str = "add"

    def infer(self, operand: Type) -> Type:
        if self.monoid_of not in REDUCTION:
            raise TypeError(f"allreduce: no {self.monoid_of!r} over workers")
        return operand

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand

    def run(self, xp: ArrayNamespace, env: Env, *xs: Array, **_: Any) -> Array:
        join = env.get(JOIN)
        return self.eval(xp, *xs) if join is None else join(self.monoid_of, *xs)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> AllReduce:
        return self

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient,)
