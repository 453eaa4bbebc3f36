"""Collective ops over the workers of a program, each of which has rows of its own."""

from __future__ import annotations

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env
from recurra.ir.op import Array, Op
from recurra.ir.types import Type
from recurra.ops.reduction import REDUCTION

SHARD, SHARDS = "shard", "shards"  # keys of the run-time env: the worker's index, and the count
JOIN = "the join"  # another key: f(monoid, x), which combines the x of all workers


class AllReduce(Op):
    """y = x₁ ∘ x₂ ∘ … over the workers, the same for each"""

    monoid_of: str = "add"

    def infer(self, operand: Type) -> Type:
        if self.monoid_of not in REDUCTION:
            raise TypeError(f"allreduce: no {self.monoid_of!r} over workers")
        return operand

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand

    def run(self, xp: ArrayNamespace, env: Env, *xs: Array, **_: object) -> Array:
        join = env.get(JOIN)
        return self.eval(xp, *xs) if join is None else join(self.monoid_of, *xs)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> AllReduce:
        return self

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient,)
