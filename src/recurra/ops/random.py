"""Random draws by counters (threefry): the same numbers in every schedule and on every backend."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Self

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import SEED, Env, Expr, evaluate
from recurra.ir.op import Array, Symbolic
from recurra.ir.types import NUMPY_NAME, Type
from recurra.ops.source import add_bound


class Uniform(Symbolic):
    """y ~ U[0, 1), the same in every schedule: a pure function of (seed, id, key, counter)

    Element k of a shaped draw is the second counter; what does not fit two counters is in the key.
    """

    drawn = True
    id: int
    key: tuple[Expr | int, ...] = ()
    counter: tuple[Expr | int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "f32"
    bind: tuple[tuple[str, Expr | int, int], ...] = ()

    def infer(self) -> Type:
        if len(self.counter) + bool(self.shape) > 2:
            raise TypeError(f"uniform: {self.counter} and the elements do not fit two counters")
        shape: list[Any] = list(self.shape)
        for _, size, axis in sorted(self.bind, key=lambda b: b[2]):
            shape.insert(axis, size)
        return Type(self.dtype, tuple(shape))

    def rank(self) -> int:
        return len(self.bind) + len(self.shape)

    def eval_at(self, xp: ArrayNamespace, env: Env) -> Array:
        full = self.infer().sizes(env)
        counts = [evaluate(c, env, xp) for c in self.counter]
        if self.shape:
            bound = {a for *_, a in self.bind}
            own = tuple(n if k not in bound else 1 for k, n in enumerate(full))
            counts.append(xp.reshape(xp.arange(prod(self.shape)), own))
        c0, c1 = (*counts, 0, 0)[:2]
        words = [xp.asarray(evaluate(k, env, xp)) for k in self.key]
        return uniform(xp, env.get(SEED, 0), self.id, words, c0, c1, full, self.dtype)

    def batch_symbol(self, dim: str, size: Expr | int, last: bool) -> Self:
        return replace(self, bind=add_bound(self.bind, dim, size, self.rank(), last))


def uniform(
    xp: ArrayNamespace,
    seed: Any,
    id: int,
    key: list[Any],
    c0: Any,
    c1: Any,
    shape: tuple[int, ...],
    dtype: str,
) -> Array:
    """Draw by Threefry-2x32 on (c0, c1) under a key folded from (seed, id, key...)."""
    k0, k1 = fold_key(xp, [seed, id, *(key or [0])])
    at_least_one = shape or (1,)
    c0, c1 = (xp.broadcast_to(_u32(xp, c), at_least_one) for c in (c0, c1))
    bits = threefry(xp, k0, k1, c0, c1)[0]
    whole = xp.asarray(xp.bitwise_right_shift(bits, 9), dtype="int32")  # 23 bits: exact as a float
    unit = xp.asarray(whole, dtype="float32") * xp.asarray(2.0**-23, dtype="float32")
    return xp.asarray(xp.reshape(unit, shape), dtype=NUMPY_NAME[dtype])


def fold_key(xp: ArrayNamespace, values: list[Any]) -> tuple[Array, Array]:
    """Fold two or more words into a key of two: later pairs are the counters of the next key."""
    words = [_u32(xp, w) for w in values]
    k0, k1 = words[0], words[1]
    rest = words[2:] + [_u32(xp, 0)] * (len(words) % 2)
    for a, b in zip(rest[::2], rest[1::2], strict=True):
        k0, k1 = threefry(xp, k0, k1, a, b)
    return k0, k1


def _u32(xp: ArrayNamespace, operand: Any) -> Array:
    """Convert to uint32 of rank >= 1: numpy warns when a scalar wraps around."""
    y = xp.asarray(operand & 0xFFFFFFFF if isinstance(operand, int) else operand, dtype="uint32")
    return xp.reshape(y, (1,)) if y.ndim == 0 else y


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(xp: ArrayNamespace, k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 of counters under a key of two words: one call if the namespace has it.

    It is a hundred operations, which are then not emitted or traced for every draw.
    """
    one_call = getattr(xp, "threefry", None)
    return threefry_rounds(xp, k0, k1, x0, x1) if one_call is None else one_call(k0, k1, x0, x1)


def threefry_rounds(
    xp: ArrayNamespace, k0: Array, k1: Array, x0: Array, x1: Array
) -> tuple[Array, Array]:
    """The twenty rounds of Threefry (Salmon et al., 2011), five times four."""
    ks = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = x0 + ks[0], x1 + ks[1]
    for r in range(5):
        for q in _ROTATIONS[r % 2]:
            x0 = x0 + x1
            x1 = ((x1 << q) | xp.bitwise_right_shift(x1, 32 - q)) ^ x0
        x0, x1 = x0 + ks[(r + 1) % 3], x1 + ks[(r + 2) % 3] + (r + 1)
    return x0, x1
