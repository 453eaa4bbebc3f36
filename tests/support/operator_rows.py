"""Every operator, and how to write the same in NumPy and in torch: what test_operators compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special as sp
import torch
import torch.nn.functional as F

import recurra as rc

POINTS = 2  # of the dim that every operand varies with


@dataclass(frozen=True)
class Row:
    """`ours`, `numpy` and `torch` of the same operands, given as "f[2,3]": see `operand`."""

    key: str
    operands: tuple[str, ...]
    ours: Callable[..., Any]
    numpy: Callable[..., Any] | None
    torch: Callable[..., Any] | None


def r(key: str, operands: str, ours: Any, numpy: Any = None, torch: Any = None) -> Row:
    return Row(key, tuple(operands.split()), ours, numpy, torch)


def same(key: str, operands: str, f: Callable[..., Any]) -> Row:
    """Written in the same way in all three."""
    return r(key, operands, f, f, f)


def operand(spec: str, k: int) -> np.ndarray:
    """f: floats, p: positive ones, t: with zeros and ties, i: integers, k: below 3, b: truth."""
    kind, shape = spec[0], (POINTS, *(int(n) for n in re.findall(r"\d+", spec)))
    rng = np.random.default_rng((k, *shape))
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "ik":
        return rng.integers(*{"i": (-4, 5), "k": (0, 3)}[kind], shape).astype(np.int32)
    if kind == "t":
        return rng.integers(-1, 3, shape).astype(np.float64)
    x = rng.uniform(0.3, 1.7, shape)
    return x if kind == "p" else x * rng.choice([-1.0, 1.0], shape)


PLACES = np.array([[3, 0], [1, 2], [0, 3]], np.int32)  # no two of a column are equal


def put(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.put_along_axis(y, PLACES, v, 0)
    return y


def added(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.add.at(y, (i, np.arange(x.shape[1])[None]), v)
    return y


def t_topk(largest: bool) -> Any:
    return lambda x: torch.topk(x, 2, largest=largest).values


ROWS = [
    *(same(f"x {s} y", "f[2,3] p[3]", lambda x, y, f=f: f(x, y)) for s, f in {
        "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
        "/": lambda x, y: x / y, "%": lambda x, y: x % y,
        "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y,
        "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
    }.items()),
    r("x // y", "f[2,3] p[3]", lambda x, y: x // y, lambda x, y: x // y,
      lambda x, y: x.detach() // y.detach()),
    same("x ** y", "p[2,3] f[3]", lambda x, y: x**y),
    *(same(f"x {s} y", kinds, f) for kinds in ("i[2,3] i[3]", "b[2,3] b[3]") for s, f in {
        "&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y,
    }.items()),
    same("x << y", "i[2,3] k[3]", lambda x, y: x << y),
    same("x >> y", "i[2,3] k[3]", lambda x, y: x >> y),
    same("~x", "i[2,3]", lambda x: ~x),
    same("~x", "b[2,3]", lambda x: ~x),
    same("-x", "f[2,3]", lambda x: -x),
    same("x @ y", "f[2,3] f[3,2]", lambda x, y: x @ y),
    r("x.cast", "f[2,3]", lambda x: x.cast(rc.i32), lambda x: x.astype("i4"), lambda x: x.int()),
    r("x.detach", "f[2,3]", lambda x: x.detach() * x, lambda x: x * x, lambda x: x.detach() * x),
    # pointwise
    *(r(f"x.{n}", kind, lambda x, n=n: getattr(x, n)(), getattr(np, n, None), getattr(torch, n))
      for n, kind in {"exp": "f[2,3]", "log": "p[2,3]", "tanh": "f[2,3]", "sqrt": "p[2,3]",
                      "square": "f[2,3]", "abs": "t[2,3]", "sin": "f[2,3]", "cos": "f[2,3]",
                      "floor": "f[2,3]", "round": "f[2,3]", "relu": "t[2,3]"}.items()),
    r("x.sigmoid", "f[2,3]", lambda x: x.sigmoid(), sp.expit, torch.sigmoid),
    r("x.erf", "f[2,3]", lambda x: x.erf(), sp.erf, torch.erf),
    r("x.silu", "f[2,3]", lambda x: x.silu(), None, F.silu),
    r("x.gelu", "f[2,3]", lambda x: x.gelu(), None, F.gelu),
    r("x.gelu", "f[2,3]", lambda x: x.gelu("tanh"), None, lambda x: F.gelu(x, approximate="tanh")),
    r("x.round", "f[2,3]", lambda x: x.round(2), lambda x: np.round(x, 2),
      lambda x: torch.round(x, decimals=2)),
    r("x.round", "f[2,3]", lambda x: (x * 100).round(-1), lambda x: np.round(x * 100, -1),
      lambda x: torch.round(x * 100, decimals=-1)),
    r("x.round", "t[2,3]", lambda x: (x * 0.5).round(), lambda x: np.round(x * 0.5)),
    r("x.clip", "t[2,3]", lambda x: x.clip(-1, 1), lambda x: np.clip(x, -1, 1),
      lambda x: torch.clamp(x, -1, 1)),
    # reductions
    *(r(f"x.{n}", f"{kind}[2,3,2]", lambda x, n=n, a=a: getattr(x, n)(**a),
        lambda x, n=n, a=a: getattr(np, n)(x, **a),
        lambda x, n=n, a=a: getattr(torch, {"max": "amax", "min": "amin"}.get(n, n))(x, **a))
      for n, kind in {"sum": "f", "mean": "f", "max": "t", "min": "t"}.items()
      for a in ({"axis": 1}, {"axis": (0, -1), "keepdims": True})),
    *(r(f"x.{n}", "b[2,3]", lambda x, n=n: getattr(x, n)(axis=-1, keepdims=True),
        lambda x, n=n: getattr(np, n)(x, -1, keepdims=True),
        lambda x, n=n: getattr(torch, n)(x, -1, keepdim=True)) for n in ("any", "all")),
    *(same(f"x.{n}", "f[2,3]", lambda x, n=n: getattr(x, n)(1)) for n in ("argmax", "argmin")),
    same("x.prod", "t[2,3]", lambda x: x.prod(1)),
    r("x.prod", "f[2,3,2]", lambda x: x.prod((0, 2)), lambda x: x.prod((0, 2)),
      lambda x: x.prod(2).prod(0)),
    same("x.prod", "f[3]", lambda x: x.prod()),
    *(r(f"x.{n}", "f[2,3]", lambda x, n=n, c=c: getattr(x, n)(1, correction=c),
        lambda x, n=n, c=c: getattr(np, n)(x, 1, ddof=c),
        lambda x, n=n, c=c: getattr(torch, n)(x, 1, correction=c))
      for n in ("var", "std") for c in (0, 1)),
    r("x.std", "f[2,3]", lambda x: (x * 0.0).std() + x.sum(), lambda x: x.sum(),
      lambda x: torch.std(x * 0.0, correction=0) + x.sum()),
    *(r("x.norm", "t[2,4]", lambda x, p=p: x.norm(p, axis=1, keepdims=True),
        lambda x, p=p: np.linalg.norm(x, p, axis=1, keepdims=True),
        lambda x, p=p: torch.linalg.vector_norm(x, p, dim=1, keepdim=True))
      for p in (0, 1, 2, 3, np.inf)),
    r("x.norm", "f[2,4]", lambda x: x.norm(), np.linalg.norm, torch.linalg.vector_norm),
    r("x.norm", "f[2,4]", lambda x: (x * 0).norm() + x.sum(), lambda x: x.sum(),
      lambda x: torch.linalg.vector_norm(x * 0) + x.sum()),
    r("x.logsumexp", "f[2,3]", lambda x: (x * 1e3).logsumexp(1),
      lambda x: np.logaddexp.reduce(x * 1e3, 1), lambda x: torch.logsumexp(x * 1e3, 1)),
    r("x.logsumexp", "f[2,3]", lambda x: x.logsumexp(dim=(0, 1), keepdim=True),
      lambda x: sp.logsumexp(x, keepdims=True), lambda x: torch.logsumexp(x, (0, 1), True)),
    # along an axis
    *(r("x.sort", f"f[{shape}]", lambda x, a=a, d=d: x.sort(a, descending=d),
        (lambda x, a=a: np.sort(x, a)) if not d else None,
        lambda x, a=a, d=d: torch.sort(x, a, d).values)
      for shape, a in (("4", -1), ("3,2", 0)) for d in (False, True)),
    r("x.sort", "t[2,5]", lambda x: x.sort(), np.sort,
      lambda x: torch.sort(x, stable=True).values),
    r("x.sort", "t[5]", lambda x: x.sort(descending=True), None,
      lambda x: torch.sort(x, descending=True, stable=True).values),
    *(r("x.argsort", "t[2,5]", lambda x, d=d: x.argsort(descending=d), None,
        lambda x, d=d: torch.argsort(x, descending=d, stable=True)) for d in (False, True)),
    r("x.argsort", "f[3,2]", lambda x: x.argsort(0), lambda x: np.argsort(x, 0)),
    *(r("x.topk", "f[2,5]", lambda x, b=b: x.topk(2, largest=b)[0], None, t_topk(b))
      for b in (False, True)),
    r("x.topk", "f[5,2]", lambda x: x.topk(2, dim=0)[1], None, lambda x: torch.topk(x, 2, 0)[1]),
    same("x.cumsum", "f[2,3]", lambda x: x.cumsum(1)),
    same("x.cumprod", "f[2,3]", lambda x: x.cumprod(1)),
    same("x.cumprod", "t[5,2]", lambda x: x.cumprod(0)),
    r("x.cummax", "t[2,5]", lambda x: x.cummax(1), lambda x: np.maximum.accumulate(x, 1),
      lambda x: torch.cummax(x, 1).values),
    r("x.cummax", "f[4,2]", lambda x: x.cummax(), lambda x: np.maximum.accumulate(x, 0),
      lambda x: torch.cummax(x, 0).values),
    r("x.discounted_sum", "f[4]", lambda x: x.discounted_sum(0.5),
      lambda x: (x * 0.5 ** np.arange(4)).sum(), lambda x: (x * 0.5 ** torch.arange(4)).sum()),
    r("x.softmax", "f[2,3]", lambda x: x.softmax(0), lambda x: sp.softmax(x, 0),
      lambda x: torch.softmax(x, 0)),
    r("x.log_softmax", "f[2,3]", lambda x: x.log_softmax(), lambda x: sp.log_softmax(x, -1),
      lambda x: torch.log_softmax(x, -1)),
    r("x.take", "f[3,2] k[4]", lambda x, i: x.take(i), lambda x, i: np.take(x, i, 0),
      lambda x, i: torch.index_select(x, 0, i)),
    r("x.gather", "f[2,3] k[2,4]", lambda x, i: x.gather(1, i),
      lambda x, i: np.take_along_axis(x, i, 1), lambda x, i: torch.gather(x, 1, i.long())),
    r("x.gather", "f[3,2] k[1,2]", lambda x, i: x.gather(-2, i),
      lambda x, i: np.take_along_axis(x, i, 0), lambda x, i: torch.gather(x, 0, i.long())),
    r("x.scatter", "f[4,2] f[3,2]", lambda x, v: x.scatter(0, PLACES, v),
      lambda x, v: put(x, v), lambda x, v: torch.scatter(x, 0, torch.tensor(PLACES).long(), v)),
    r("x.scatter", "f[3,2] k[5,2] f[5,2]", lambda x, i, v: x.scatter(0, i, v, reduce="add"), added,
      lambda x, i, v: torch.scatter_add(x, 0, i.long(), v)),
    r("x.scatter", "f[3,2] k[2,2]", lambda x, i: x.scatter(0, i, 2.0), None,
      lambda x, i: torch.scatter(x, 0, i.long(), 2.0)),
    r("i.one_hot", "k[2]", lambda i: i.one_hot(3, rc.i32), lambda i: np.eye(3, dtype="i4")[i],
      lambda i: F.one_hot(i.long(), 3)),
    # layouts
    same("x.transpose", "f[2,3]", lambda x: x.transpose(1, 0)),
    r("x.transpose", "f[2,3,4]", lambda x: x.transpose(2, 0, -2),
      lambda x: np.transpose(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    r("x.permute", "f[2,3,4]", lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1),
      lambda x: x.permute(2, 0, 1)),
    same("x.reshape", "f[2,3]", lambda x: x.reshape(3, -1)),
    same("x.squeeze", "f[1,3,1]", lambda x: x.squeeze()),
    same("x.squeeze", "f[1,3,1]", lambda x: x.squeeze(-1)),
    same("x.squeeze", "f[1,3,1]", lambda x: x.squeeze((0, 2))),
    r("x.squeeze", "b[1,3]", lambda x: x.squeeze(0), lambda x: x.squeeze(0)),
    r("x.flip", "f[2,3]", lambda x: x.flip(), np.flip, lambda x: torch.flip(x, (0, 1))),
    r("x.flip", "f[2,3]", lambda x: x.flip(-1), lambda x: np.flip(x, -1),
      lambda x: torch.flip(x, (-1,))),
    *(r("x.roll", "f[3,4]", lambda x, s=s, a=a: x.roll(s, a), lambda x, s=s, a=a: np.roll(x, s, a),
        lambda x, s=s, a=a: torch.roll(x, s, a))
      for s, a in ((1, 0), (-6, 1), (0, 0), ((1, 2), (0, -1)), (5, None))),
    r("x.repeat", "f[2,3]", lambda x: x.repeat(2, axis=-1), lambda x: np.repeat(x, 2, axis=-1),
      lambda x: torch.repeat_interleave(x, 2, dim=-1)),
    r("x.tile", "f[2,3]", lambda x: x.tile(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)),
      lambda x: torch.tile(x, (2, 1, 3))),
    r("x.tile", "f[2,3]", lambda x: x.tile(2), lambda x: np.tile(x, 2),
      lambda x: torch.tile(x, (2,))),
    *(r(f"x.{n}", f"f[{shape}]", lambda x, n=n, k=k: getattr(x, n)(diagonal=k),
        lambda x, n=n, k=k: getattr(np, n)(x, k), lambda x, n=n, k=k: getattr(torch, n)(x, k))
      for n in ("tril", "triu") for shape, k in (("2,3,4", 0), ("4,3", 1), ("3,3", -1))),
    r("x.outer", "f[2] f[3]", lambda x, y: x.outer(y), np.outer, torch.outer),
    r("x.index", "f[2,3]", lambda x: x.index(-1, axis=1), lambda x: x[:, -1], lambda x: x[:, -1]),
    r("x.cut", "f[4,3]", lambda x: x.cut(1, 3), lambda x: x[1:3],
      lambda x: torch.narrow(x, 0, 1, 2)),
    r("x.expand", "f[3]", lambda x: x.expand(2, axis=1),
      lambda x: np.broadcast_to(x[:, None], (3, 2)), lambda x: x[:, None].expand(3, 2)),
    r("x.broadcast_to", "f[3]", lambda x: x.broadcast_to((2, 3)),
      lambda x: np.broadcast_to(x, (2, 3)), lambda x: torch.broadcast_to(x, (2, 3))),
    # functions
    r("rc.constant", "f[2]", lambda x: x + rc.constant([1.0, 2.0], rc.f64),
      lambda x: x + np.asarray([1.0, 2.0]), lambda x: x + torch.as_tensor([1.0, 2.0])),
    r("rc.full", "f[2,3]", lambda x: x + rc.full((2, 3), 1.5), lambda x: x + np.full((2, 3), 1.5),
      lambda x: x + torch.full((2, 3), 1.5)),
    r("rc.zeros", "f[2]", lambda x: x + rc.zeros(2), lambda x: x + np.zeros(2),
      lambda x: x + torch.zeros(2)),
    r("rc.ones", "f[2]", lambda x: x + rc.ones((2,), "i32"), lambda x: x + np.ones(2, "i4"),
      lambda x: x + torch.ones(2)),
    r("rc.arange", "f[3]", lambda x: x * rc.arange(1, 7, 2), lambda x: x * np.arange(1, 7, 2),
      lambda x: x * torch.arange(1, 7, 2)),
    r("rc.arange", "f[2]", lambda x: x * rc.arange(0.5, 1.5, 0.5, "f64"),
      lambda x: x * np.arange(0.5, 1.5, 0.5), lambda x: x * torch.arange(0.5, 1.5, 0.5)),
    r("rc.where", "b[3] f[2,3] f[]", rc.where, np.where, torch.where),
    r("rc.maximum", "t[2,3] t[3]", rc.maximum, np.maximum, torch.maximum),
    r("rc.minimum", "t[2,3] t[3]", rc.minimum, np.minimum, torch.minimum),
    r("rc.concat", "f[2,3] f[1,3]", lambda x, y: rc.concat([x, y]), lambda x, y: np.concat([x, y]),
      lambda x, y: torch.cat([x, y])),
    r("rc.concat", "f[2,1] i[2,2]", lambda x, y: rc.concat([x, y], axis=-1),
      lambda x, y: np.concat([x, y], -1), lambda x, y: torch.cat([x, y], -1)),
    r("rc.stack", "f[3] f[3]", lambda x, y: rc.stack([x, y], axis=1),
      lambda x, y: np.stack([x, y], 1), lambda x, y: torch.stack([x, y], 1)),
    r("rc.einsum", "f[2,3] f[3,4]", lambda x, y: rc.einsum("ab,bc->ca", x, y),
      lambda x, y: np.einsum("ab,bc->ca", x, y), lambda x, y: torch.einsum("ab,bc->ca", x, y)),
    # what is empty, of truth values and of whole numbers
    *(same(f"x.{n}", "f[0,3]", lambda x, n=n: getattr(x, n)(0)) for n in ("sum", "prod", "mean")),
    *(same(f"x.{n}", "b[0,3]", lambda x, n=n: getattr(x, n)(0)) for n in ("any", "all")),
    *(same(f"x.{n}", "f[0,3]", lambda x, n=n: getattr(x, n)(0)) for n in ("cumsum", "cumprod")),
    r("x.sort", "f[0,3]", lambda x: x.sort(0), lambda x: np.sort(x, 0)),
    *(r(f"x.{n}", "f[2,3]", lambda x, n=n: getattr(x, n)(axis=()),
        lambda x, n=n: getattr(np, n)(x, axis=())) for n in ("sum", "prod", "mean", "max")),
    *(r(f"x.{n}", f"{kind}[2,3]", lambda x, n=n: getattr(x, n)(axis=0),
        lambda x, n=n: getattr(np, n)(x, axis=0))
      for kind in "ib" for n in ("sum", "prod", "cumsum", "cumprod", "mean", "var", "std", "sort",
                                 "any", "all")),
    *(r(f"x.{n}", "i[3]", lambda x, n=n: getattr(x, n)(), getattr(np, n))
      for n in ("exp", "tanh", "floor", "round", "abs", "square")),
    r("x.cummax", "b[4]", lambda x: x.cummax(), np.maximum.accumulate),
]  # fmt: skip
