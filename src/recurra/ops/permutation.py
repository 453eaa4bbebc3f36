"""permutation: where an element goes when n of them are shuffled, each by itself.

A Feistel network on pairs (l, r) of a box a × b (Black and Rogaway, 2002): l += F(r) mod a,
r += F'(l) mod b, which is undone by subtracting, so that no two elements meet. The box has n points
or a few more; who lands outside walks on until it is inside.
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
from recurra.ops.random import drawn_words, threefry
from recurra.ops.source import add_bound

ROUNDS = 3  # of two half-rounds: six in all
MOST_OUTSIDE = 8  # points of the box that are no elements


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
        return xp.reshape(permuted(xp, drawn_words(xp, words), n, at), shape)

    def batch_symbol(self, dim: str, size: Expr | int, last: bool) -> Self:
        return replace(self, bind=add_bound(self.bind, dim, size, self.rank(), last))


@lru_cache
def box(count: int) -> tuple[int, int]:
    """a, b with a · b >= n, and hardly more; rather square, for a box of few rows mixes ill."""

    def shape(m: int) -> tuple[int, int]:
        a = next(a for a in range(int(m**0.5), 0, -1) if m % a == 0)
        return a, m // a

    found = [shape(m) for m in range(count, count + MOST_OUTSIDE + 1)]
    square = [s for s in found if 16 * s[0] >= s[1]]
    return square[0] if square else max(found, key=lambda s: s[0] / s[1])


def permuted(xp: ArrayNamespace, words: tuple[Array, Array], count: int, at: Array) -> Array:
    """The places of elements `at` (i32, 0 <= at < n)."""
    a, b = box(count)

    def both(k: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = pair
        left = (left + _round(xp, words, right, 2 * k)) % a
        return left, (right + _round(xp, words, left, 2 * k + 1)) % b

    def walked(walk: Any, operand: Array) -> Array:
        left, right = repeated(xp, ROUNDS, both, (operand // b, operand % b))
        return xp.where((operand >= count) | (walk == 0), left * b + right, operand)

    return repeated(xp, a * b - count + 1, walked, at)


def _round(xp: ArrayNamespace, words: tuple[Array, Array], operand: Array, k: Any) -> Array:
    """31 bits of x."""
    counter = xp.full((1,), k, dtype="uint32")
    bits = threefry(xp, *words, xp.asarray(operand, dtype="uint32"), counter)[0]
    return xp.asarray(xp.bitwise_right_shift(bits, 1), dtype="int32")


def repeated(xp: ArrayNamespace, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """The state after body(0, state), body(1, ..) ..; a loop where the namespace has loops."""
    if times > 1 and (loop := getattr(xp, "repeated", None)):
        return loop(times, body, state)
    for k in range(times):
        state = body(k, state)
    return state
