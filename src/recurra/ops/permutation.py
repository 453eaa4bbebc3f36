"""Random permutations, computed element by element: the place of one of n shuffled elements.

A Feistel network on pairs (l, r) of a box a × b (Black and Rogaway, 2002): l += F(r) mod a,
r += F'(l) mod b. It is a bijection, as subtracting undoes it. The box has n points or a few more;
an element that lands outside is mapped again until it is inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import SEED, Env, Expr, evaluate
from recurra.ir.op import Array, Symbolic
from recurra.ir.types import Type
from recurra.ops.random import fold_key, threefry
from recurra.ops.source import add_bound

ROUNDS = 3  # of two half-rounds: six in all
MAX_OUTSIDE = 8  # points of the box that are no elements


class Permutation(Symbolic):
    """y = the place of element `at` among `size`, shuffled by (seed, id, key)"""

    drawn = True
    id: int
    size: Expr | int
    at_: Expr | int
    key: tuple[Expr | int, ...] = ()
    bind: tuple[tuple[str, Expr | int, int], ...] = ()

    def infer(self) -> Type:
        return Type("i32", tuple(s for _, s, _ in sorted(self.bind, key=lambda b: b[2])))

    def rank(self) -> int:
        return len(self.bind)

    def eval_at(self, xp: ArrayNamespace, env: Env) -> Array:
        n = evaluate(self.size, env)
        shape = self.infer().sizes(env)
        at = xp.asarray(evaluate(self.at_, env, xp), dtype="int32")
        words = [env.get(SEED, 0), self.id, *(evaluate(k, env, xp) for k in self.key)]
        at = xp.broadcast_to(at, shape or (1,))
        return xp.reshape(permute(xp, fold_key(xp, words), n, at), shape)

    def batch_symbol(self, dim: str, size: Expr | int, last: bool) -> Self:
        return replace(self, bind=add_bound(self.bind, dim, size, self.rank(), last))


@lru_cache
def box(count: int) -> tuple[int, int]:
    """The sides a, b, with a · b a little above n; nearly square, because thin boxes mix badly."""

    def shape(m: int) -> tuple[int, int]:
        a = next(a for a in range(int(m**0.5), 0, -1) if m % a == 0)
        return a, m // a

    shapes = [shape(m) for m in range(count, count + MAX_OUTSIDE + 1)]
    square = [s for s in shapes if 16 * s[0] >= s[1]]
    return square[0] if square else max(shapes, key=lambda s: s[0] / s[1])


def permute(xp: ArrayNamespace, words: tuple[Array, Array], count: int, at: Array) -> Array:
    """The places of elements `at` (i32, 0 <= at < n)."""
    a, b = box(count)

    def both(k: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = pair
        left = (left + _round(xp, words, right, 2 * k)) % a
        return left, (right + _round(xp, words, left, 2 * k + 1)) % b

    def walk(step: Any, operand: Array) -> Array:
        left, right = repeat(xp, ROUNDS, both, (operand // b, operand % b))
        return xp.where((operand >= count) | (step == 0), left * b + right, operand)

    return repeat(xp, a * b - count + 1, walk, at)


def _round(xp: ArrayNamespace, words: tuple[Array, Array], operand: Array, k: Any) -> Array:
    """31 random bits for each element."""
    counter = xp.full((1,), k, dtype="uint32")
    bits = threefry(xp, *words, xp.asarray(operand, dtype="uint32"), counter)[0]
    return xp.asarray(xp.bitwise_right_shift(bits, 1), dtype="int32")


def repeat(xp: ArrayNamespace, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """The state after body(0, state), body(1, ..), ..; a loop if the namespace has loops."""
    if times > 1 and (loop := getattr(xp, "repeated", None)):
        return loop(times, body, state)
    for k in range(times):
        state = body(k, state)
    return state
