"""A catalogue of mistakes: the program, the kind of error, and all that the user is told."""

from __future__ import annotations

import linecache

import numpy as np

import recurra as rc
from recurra.errors import DomainError, RecurraError, ScheduleError, ShapeError
from recurra.ir.graph import Graph

_HEAD = {
    "": "with ctx:",
    "t": "with ctx as ((t, T),):",
    "st": "with ctx as ((s, S), (t, T)):",
}


def graph_of(body: str, dims: str = "t") -> Graph:
    """The graph of a program whose lines count from 1 in train.py."""
    lines = [_HEAD[dims] + " # 1", *("    " + line for line in body.strip().splitlines())]
    text = "\n".join(lines) + "\n"
    linecache.cache["train.py"] = (len(text), None, text.splitlines(keepends=True), "train.py")
    ctx = rc.Context(dims=" ".join(dims)) if dims else rc.Context(num_dims=0)
    exec(compile(text, "train.py", "exec"), {"rc": rc, "ctx": ctx, "np": np})
    return ctx.graph


X = "x = rc.input(rc.f32[()], (t,), 'x')\n"
Y = "y = rc.like(rc.f32[()], (t,))\n"
END = "\nrc.output(y=y)"
RANGE = "x is defined for 0 <= t < T, but this read"
PRODUCT = (
    "dims and bounds are added, compared, and multiplied or divided by constants; "
    "T*t is not a constant times a dim\n"
    "  hint: use a constant for one factor, or choose by data: x.take(...), rc.where(...)"
)

WRONG: dict[str, tuple[str, type[RecurraError], str]] = {
    "past the end": (
        X + "y = x[t // 2 + 3] * 0.5",
        DomainError,
        "x[t//2+3] reads past the end of t\n"
        "  --> train.py:3   y = x[t // 2 + 3] * 0.5\n"
        f"  {RANGE} needs 0 <= t//2+3 < T; at t=2, T=4 it asks for x[4]\n"
        "  hint: guard it: rc.where(t//2 < T-3, x[t//2+3], 0)",
    ),
    "before the start": (
        X + "y = x[t // 2 - 1] * 0.5",
        DomainError,
        "x[t//2-1] reads before the start of t\n"
        "  --> train.py:3   y = x[t // 2 - 1] * 0.5\n"
        f"  {RANGE} needs 0 <= t//2-1 < T; at t=0, T=4 it asks for x[-1]\n"
        "  hint: guard it: rc.where(t//2 >= 1, x[t//2-1], 0)",
    ),
    "a constant index": (
        X + "y = x[5] * 0.5",
        DomainError,
        "x[5] reads past the end of t\n"
        "  --> train.py:3   y = x[5] * 0.5\n"
        f"  {RANGE} needs 0 <= 5 < T; at T=4 it asks for x[5]\n"
        "  hint: index x within 0..T-1",
    ),
    "a stretched index": (
        X + "y = x[2 * t] * 0.5",
        DomainError,
        "x[2*t] reads past the end of t\n"
        "  --> train.py:3   y = x[2 * t] * 0.5\n"
        f"  {RANGE} needs 0 <= 2*t < T; at t=2, T=4 it asks for x[4]\n"
        "  hint: guard it: rc.where(2*t < T, x[2*t], 0)",
    ),
    "in a branch": (
        X + Y + "y[t >= 1] = x[t // 2 - 1]\ny[0] = x",
        DomainError,
        "x[t//2-1] reads before the start of t\n"
        "  --> train.py:4   y[t >= 1] = x[t // 2 - 1]\n"
        f"  {RANGE}, where t >= 1, needs 0 <= t//2-1 < T; at t=1, T=4 it asks for x[-1]\n"
        "  hint: keep this branch to where t//2 >= 1: y[t//2 >= 1] = ...",
    ),
    "a shift that a branch cannot follow": (
        X + Y + "y[t >= 1] = x[t-2]\ny[0] = x",
        DomainError,
        "y is not defined at every point of its domain\n"
        "  --> train.py:3   y = rc.like(rc.f32[()], (t,))\n"
        "  its domain is 0 <= t < T, its branches hold where ((t >= 1) & (t >= 2)) or (t == 0); "
        "at t=1, T=4 none does\n"
        "  hint: define the rest after the other branches: y[t] = ...",
    ),
    "a shift that a choice cannot follow": (
        X + "y = rc.where(t >= 1, x[t-2], 0.0)",
        DomainError,
        "what is chosen is not defined at every point where it is chosen\n"
        "  --> train.py:3   y = rc.where(t >= 1, x[t-2], 0.0)\n"
        "  it is where (t >= 1) & (t >= 2) or t < 1; at t=1, T=4 it is not\n"
        "  hint: choose by where it can be read: rc.where(t >= 1, x[t - 1], x[0])",
    ),
    "a window past the end": (
        X + "y = x[t//2:t//2+5].sum()",
        DomainError,
        "x[t//2:t//2+5] reads past the end of t\n"
        "  --> train.py:3   y = x[t//2:t//2+5].sum()\n"
        f"  {RANGE} needs 0 <= k < T for every k in t//2:t//2+5; at t=0, T=4 it asks for x[4]\n"
        "  hint: cut it: x[t//2:rc.min(t//2+5,T)]",
    ),
    "a window before the start": (
        X + "y = x[t//2-3:t+1].sum()",
        DomainError,
        "x[t//2-3:t+1] reads before the start of t\n"
        "  --> train.py:3   y = x[t//2-3:t+1].sum()\n"
        f"  {RANGE} needs 0 <= k < T for every k in t//2-3:t+1; at t=0, T=4 it asks for x[-3]\n"
        "  hint: cut it: x[rc.max(0,t//2-3):t+1]",
    ),
    "a strided window": (
        X + "y = x[t//2:t//2+4:3].sum()",
        DomainError,
        "x[t//2:t//2+4:3] reads past the end of t\n"
        "  --> train.py:3   y = x[t//2:t//2+4:3].sum()\n"
        f"  {RANGE} needs 0 <= k < T for every k in t//2:t//2+4:3; at t=2, T=4 it asks for x[4]\n"
        "  hint: cut it: x[t//2:rc.min(t//2+4,T):3]",
    ),
    "a range that ends before it begins": (
        X + "y = x[t+2:T].sum()",
        ShapeError,
        "x[t+2:T] reads a range of negative size\n"
        "  --> train.py:3   y = x[t+2:T].sum()\n"
        "  t+2:T holds T-t-2 points; at t=3, T=4 that is -1\n"
        "  hint: let it begin no later than it ends: x[rc.min(t+2,T):T]",
    ),
    "max of nothing": (
        X + "y = x[0:t].max()",
        DomainError,
        "the max of an empty range has no value\n"
        "  --> train.py:3   y = x[0:t].max()\n"
        "  x[0:t] holds t points; at t=0 it is empty\n"
        "  hint: let it hold one point: x[0:rc.max(t,1)]",
    ),
    "argmax of nothing": (
        X + "y = x[t+1:T].argmax(axis=0)",
        DomainError,
        "the argmax of an empty range has no value\n"
        "  --> train.py:3   y = x[t+1:T].argmax(axis=0)\n"
        "  x[t+1:T] holds T-t-1 points; at t=3, T=4 it is empty\n"
        "  hint: let it hold one point: x[rc.min(t+1,T-1):T]",
    ),
    "softmax of nothing": (
        X + "z = x[0:t] * 2.0\ny = z.softmax().sum()",
        DomainError,
        "the softmax of an empty range has no value\n"
        "  --> train.py:4   y = z.softmax().sum()\n"
        "  an axis of z has t elements; at t=0 it is empty\n"
        "  hint: reduce it only where it has elements",
    ),
    "a hole between branches": (
        X + Y + "y[0] = x\ny[t >= 2] = x",
        DomainError,
        "y is not defined at every point of its domain\n"
        "  --> train.py:3   y = rc.like(rc.f32[()], (t,))\n"
        "  its domain is 0 <= t < T, its branches hold where (t == 0) or (t >= 2); "
        "at t=1, T=4 none does\n"
        "  hint: define the rest after the other branches: y[t] = ...",
    ),
    "an overhang that leaves the last point": (
        X + Y + "y[t-1] = x",
        DomainError,
        "y is not defined at every point of its domain\n"
        "  --> train.py:3   y = rc.like(rc.f32[()], (t,))\n"
        "  its domain is 0 <= t < T, its branches hold where t < T-1; at t=3, T=4 none does\n"
        "  hint: define it there, too: y[T-1] = ...",
    ),
    "two equations that need each other": (
        X + Y + "z = y * 2.0\ny[t] = z + x",
        ScheduleError,
        "z[t] depends on itself at the same point\n"
        "  --> train.py:4   z = y * 2.0\n"
        "  z needs y at train.py:4   z = y * 2.0\n"
        "  y needs z at train.py:5   y[t] = z + x\n"
        "  at t=0, T=4 no order of them is right\n"
        "  hint: read an earlier point in one of them: z[t-1]",
    ),
    "a branch that is its own value": (
        X + Y + "y[t < 2] = x\ny[t >= 2] = y",
        ScheduleError,
        "y[t] depends on itself at the same point\n"
        "  --> train.py:5   y[t >= 2] = y\n"
        "  y needs y at train.py:5   y[t >= 2] = y\n"
        "  at t=2, T=4 it needs its own value\n"
        "  hint: read an earlier point in one of them: y[t-1]",
    ),
    "a product as an index": (
        X + "y = x[t * T]",
        DomainError,
        f"the index multiplies two unknowns: T*t\n  --> train.py:3   y = x[t * T]\n  {PRODUCT}",
    ),
    "a product as a condition": (
        X + Y + "y[t * T < 4] = x",
        DomainError,
        "the condition multiplies two unknowns: T*t\n"
        f"  --> train.py:4   y[t * T < 4] = x\n  {PRODUCT}",
    ),
    "a step backwards": (
        X + "y = x[::-2]",
        DomainError,
        "the range 0:T is read in steps of -2\n"
        "  --> train.py:3   y = x[::-2]\n"
        "  the step of a range is a constant of at least 1, or -1\n"
        "  hint: write x[0:T:2].flip() for one of 2, the last one first",
    ),
    "a cut past its axis": (
        "y = rc.constant(np.zeros(3)).cut(1, 5)",
        ShapeError,
        "cut: f32[3] has no 1:5 on axis 0\n"
        "  --> train.py:2   y = rc.constant(np.zeros(3)).cut(1, 5)\n"
        "  data is f32[3]\n"
        "  hint: cut is  y = x[start : start + size] along an axis; `start` may name dims, a "
        "static `size` does not",
    ),
    "a cut that moves past its axis": (
        "y = rc.constant(np.zeros(4)).cut(t, t + 2)",
        ShapeError,
        "the cut t:t+2 leaves its axis\n"
        "  --> train.py:2   y = rc.constant(np.zeros(4)).cut(t, t + 2)\n"
        "  the axis is 0:4; at t=3 3:5 is asked of 0:4\n"
        "  hint: cut within 0:4",
    ),
    "a reshape that loses elements": (
        X + "y = x[0:T].reshape(2, 3)",
        ShapeError,
        "f32[T] cannot be reshaped to f32[2,3]\n"
        "  --> train.py:3   y = x[0:T].reshape(2, 3)\n"
        "  a reshape keeps every element; at T=4 one has 4 elements, the other 6\n"
        "  hint: cut or expand it first",
    ),
    "copies in a negative number": (
        X + "y = x.expand(T - t - 2)",
        ShapeError,
        "y has an axis of negative size\n"
        "  --> train.py:3   y = x.expand(T - t - 2)\n"
        "  its type is f32[T-t-2]; at t=3, T=4 T-t-2 is -1\n"
        "  hint: end it at zero: rc.max(T-t-2,0)",
    ),
}
