"""Attention as one op, for backends that have a kernel; only a pass creates it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, Sym, compare, evaluate
from recurra.ir.op import LETTERS, Array, Op, align, join_labels
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import Where
from recurra.ops.softmax import Softmax
from recurra.ops.source import Const, Value

FAR = -1e30  # a finite score whose weight is 0 beside others
INSIDE = Sym("inside")  # the position along the range


@dataclass(frozen=True)
class Roles:
    """The axes of q, k, v and y, as labels of one alphabet; `n` is the axis of past steps.

    `batch` axes are those of all four, `rows` of q and y, `d` of q and k, `e` of v and y.
    """

    q: str
    k: str
    v: str
    y: str
    seen: str

    @property
    def batch(self) -> str:
        return "".join(c for c in self.y if c in self.k)

    @property
    def rows(self) -> str:
        return "".join(c for c in self.y if c in self.q and c not in self.k)

    @property
    def n(self) -> str:
        return "".join(c for c in self.k if c in self.v and c not in self.q)

    @property
    def d(self) -> str:
        return "".join(c for c in self.q if c in self.k and c not in self.y)

    @property
    def e(self) -> str:
        return "".join(c for c in self.v if c in self.y and c not in self.k)

    @property
    def attend(self) -> bool:
        """Tell whether every axis has one of these roles, as kernels of attention require."""
        known = len(self.n) == len(self.d) == len(self.e) == 1
        return known and all(
            sorted(axes) == sorted(set(roles))
            for axes, roles in (
                (self.q, self.batch + self.rows + self.d),
                (self.k, self.batch + self.n + self.d),
                (self.v, self.batch + self.n + self.e),
                (self.y, self.batch + self.rows + self.e),
            )
        )


class Attention(Op):
    """y = Σₙ softmaxₙ(s) · v, s = q·k over labels `scores`, weights and v over `values`

    `axis` is that of n in s; `cap` makes s cap · tanh(s / cap) (0: none). A fourth operand, bool,
    has the axes `mask` of s: where it is false, the weight is 0. From `length` on, n is padding.
    """

    scores: str
    values: str
    axis: int
    cap: float = 0.0
    mask: str = ""
    length: Expr | int | None = None

    def parts(self) -> tuple[tuple[str, str], str, tuple[str, str], str]:
        """The labels of (q, k), s, (weights, v) and y."""
        (q, k), s = Einsum(labels=self.scores).parts()
        (p, v), y = Einsum(labels=self.values).parts()
        return (q, k), s, (p, v), y

    def roles(self) -> Roles:
        """Rename the labels of `values` to those of `scores`; the other axes get new labels."""
        (q, k), s, (p, v), y = self.parts()
        renamed = dict(zip(p, s, strict=True))
        spare = iter(c for c in LETTERS if c not in q + k + s)
        for c in v + y:
            if c not in renamed:
                renamed[c] = next(spare)
        v, y = ("".join(renamed[c] for c in x) for x in (v, y))
        return Roles(q, k, v, y, self.mask)

    def infer(self, query: Type, key: Type, value: Type, *seen: Type) -> Type:
        s = Einsum(labels=self.scores).infer(query, key)
        y = Einsum(labels=self.values).infer(s, value)
        if bool(seen) != bool(self.mask):
            raise TypeError(
                "attention: `mask` names the axes of a fourth operand, and there is none"
            )
        for x in seen:
            sizes = dict(zip(self.parts()[1], s.shape, strict=True))
            if x.dtype != "bool" or x.shape != tuple(sizes[c] for c in self.mask):
                raise TypeError(
                    f"attention: what is seen is {x}, and is to be bool over {self.mask}"
                )
        return y

    def run(self, xp: ArrayNamespace, env: Env, *xs: Array, **_: object) -> Array:
        length = None if self.length is None else evaluate(self.length, env, xp)
        return self.attend(xp, length, *xs)

    def eval(self, xp: ArrayNamespace, *xs: Array, **_: object) -> Array:
        return self.attend(xp, None, *xs)

    def attend(
        self,
        xp: ArrayNamespace,
        length: object,
        queries: Array,
        keys: Array,
        values: Array,
        *seen: Array,
    ) -> Array:
        s = Einsum(labels=self.scores).eval(xp, queries, keys)
        if self.cap:
            s = xp.tanh(s / self.cap) * self.cap
        out = self.parts()[1]
        for x in seen:
            s = xp.where(align(xp, x, self.mask, out), s, xp.asarray(FAR, dtype=s.dtype))
        if length is not None:
            valid = align(xp, xp.arange(s.shape[self.axis]) < length, out[self.axis], out)
            s = xp.where(valid, s, xp.asarray(-float("inf"), dtype=s.dtype))
        p = Softmax(axis=self.axis).eval(xp, s)
        return Einsum(labels=self.values).eval(xp, p, values)

    def vjp(
        self,
        gradient: Tensor,
        result: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *seen: Tensor,
    ) -> Cotangents:
        """Differentiate the ops that it replaces."""
        scores, softmax = Einsum(labels=self.scores), Softmax(axis=self.axis)
        s = queries.apply(scores, queries, keys)
        x, out = (s / self.cap).tanh() * self.cap if self.cap else s, self.parts()[1]
        hide = Where(labels=join_labels((self.mask, out, ""), out))
        for m in seen:
            x = x.apply(hide, m, x, x.apply(Const(value=FAR, dtype=queries.dtype)))
        if self.length is not None:
            bind = ((INSIDE.name, s.shape[self.axis], 0),)
            m = x.apply(Value(expr=compare("<", INSIDE, self.length), dtype="bool", bind=bind))
            hide = Where(labels=join_labels((out[self.axis], out, ""), out))
            x = x.apply(hide, m, x, x.apply(Const(value=-float("inf"), dtype=queries.dtype)))
        p = x.apply(softmax, x)
        dp, dv = Einsum(labels=self.values).vjp(gradient, result, p, values)
        assert dp is not None
        (ds,) = softmax.vjp(dp, p, x)
        assert ds is not None
        if self.cap:
            ds = ds * (1.0 - (s / self.cap).tanh().square())
        dq, dk = scores.vjp(ds, s, queries, keys)
        return (dq, dk, dv, *(None for _ in seen))

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self | None:
        if not all(flags[:3]):
            return None
        scores = Einsum(labels=self.scores).batch((True, True), ranks[:2], last)
        values = Einsum(labels=self.values).batch((True, True), ranks[1:3], last)
        axes = scores.parts()[1]
        new = axes[-1] if last else axes[0]
        mask = self.mask if not any(flags[3:]) else self.mask + new if last else new + self.mask
        return replace(
            self,
            scores=scores.labels,
            values=values.labels,
            axis=self.axis if last else self.axis + 1,
            mask=mask,
        )
