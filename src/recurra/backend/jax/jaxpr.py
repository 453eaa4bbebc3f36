"""A function of jax.numpy as equations of ours: its jaxpr, primitive by primitive.

    b:f32[8] = dot_general[dimension_numbers=(([0], [0]), ([], []))] x w  →  einsum(x, w, 'a,ab->b')

A primitive is one entry of PRIMITIVES. Calls are inlined, also those with a rule of their own for
forward derivatives (jax.nn.relu): the gradient is that of their body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import jax
import numpy as np

from recurra.backend.jax.convolution import convolution
from recurra.backend.jax.function import refused, untraceable
from recurra.backend.jax.indexed import dynamic_slice, gather, sliced
from recurra.errors import ShapeError, here
from recurra.ir.op import LETTERS, Elementwise
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, accumulator, is_float, is_wide
from recurra.lang.build import elementwise
from recurra.lang.functions import concat, stack
from recurra.lang.tensor import RecurrentTensor, as_tensor
from recurra.ops import elementwise as el
from recurra.ops import special
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Expand
from recurra.ops.scan import CumSum

Params = Mapping[str, Any]
Primitive = Callable[..., RecurrentTensor]


def imported(fn: Callable[..., Any], name: str, xs: Sequence[RecurrentTensor]) -> Any:
    """`fn(*xs)`: its results, in their tree.

    Raises RecurraError where it cannot be traced or a primitive is not known.
    """
    avals = [jax.ShapeDtypeStruct(_sizes(x), NUMPY_NAME[x.dtype]) for x in xs]
    try:
        with jax.enable_x64(any(is_wide(x.dtype) for x in xs)):
            closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*avals)
    except Exception as e:
        raise untraceable(name, e, [x.type for x in xs], "import_jax") from None
    return jax.tree.unflatten(jax.tree.structure(shapes), _run(closed, xs, name))


def flattened(args: Any) -> tuple[list[Any], Any]:
    """Leaves of a tree, and the tree."""
    return jax.tree.flatten(args)


def unflattened(tree: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree.unflatten(tree, leaves)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Leaves of a tree with names made of where they are: layers_0_weight."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = ["_".join(filter(None, map(_word, path))) for path, _ in paths]
    return [(n if n.isidentifier() else f"p{n}", x) for n, (_, x) in zip(names, paths, strict=True)]


def _word(key: Any) -> str:
    word = getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))
    return "".join(c for c in str(word) if c.isalnum() or c == "_")


def _sizes(x: RecurrentTensor) -> tuple[int, ...]:
    sizes = tuple(n for n in x.shape if isinstance(n, int))
    if len(sizes) != len(x.shape):
        raise ShapeError(
            "an axis of symbolic size goes into a function of jax",
            facts=f"this is {x!r}",
            hint="let it work on one point, and read the range of its results",
            loc=here(),
        )
    return sizes


def _run(closed: Any, xs: Sequence[RecurrentTensor], name: str) -> list[RecurrentTensor]:
    """The results of a closed jaxpr."""
    jaxpr = closed.jaxpr
    env: dict[Any, RecurrentTensor] = dict(zip(jaxpr.invars, xs, strict=True))
    for v, c in zip(jaxpr.constvars, closed.consts, strict=True):
        env[v] = _constant(np.asarray(c), v.aval)

    def value(v: Any) -> RecurrentTensor:
        literal = hasattr(v, "val")
        return _constant(np.asarray(v.val), v.aval) if literal else env[v]

    for eqn in jaxpr.eqns:
        found = _equation(eqn, list(map(value, eqn.invars)), name)
        for v, y in zip(eqn.outvars, found, strict=True):
            env[v] = y.cast(SHORT_NAME[v.aval.dtype.name])
    return list(map(value, jaxpr.outvars))


def _constant(x: np.ndarray, aval: Any) -> RecurrentTensor:
    return as_tensor(x if x.ndim else x.item(), SHORT_NAME[aval.dtype.name])


def _equation(eqn: Any, args: list[RecurrentTensor], name: str) -> list[RecurrentTensor]:
    kind = eqn.primitive.name
    if kind in CALLS:
        return _run(eqn.params[CALLS[kind]], args, name)
    if kind == "unstack":
        (x,), axis = args, eqn.params["axis"]
        return [x.index(k, axis=axis) for k in range(len(eqn.outvars))]
    if kind == "split":
        (x,), sizes = args, [int(n) for n in eqn.params["sizes"]]
        ends = zip(sizes, accumulate(sizes), strict=True)
        return [x.cut(end - n, end, eqn.params["axis"]) for n, end in ends]
    if kind == "scan":
        return _unrolled(eqn.params, args, name)
    if kind not in PRIMITIVES:
        refused(name, kind, NOT_KNOWN.get(kind, FACTS))
    if any(kind in k and not ok(args[0].dtype) for k, ok in TYPED):
        refused(name, f"{kind} of {args[0].dtype}", "division is of floats, logic of truth values")
    return [PRIMITIVES[kind]({**eqn.params, "refuse": name}, *args)]


def _unrolled(p: Params, args: list[RecurrentTensor], name: str) -> list[RecurrentTensor]:
    """A scan of few steps, one after the other."""
    n = p["length"]
    if n > MOST_STEPS:
        refused(name, f"scan of {n} steps", f"at most {MOST_STEPS} are written out one by one")
    first = p["num_consts"]
    fixed, carry = args[:first], args[first : first + p["num_carry"]]
    rows = args[first + p["num_carry"] :]
    made: dict[int, list[RecurrentTensor]] = {}
    for k in reversed(range(n)) if p["reverse"] else range(n):
        out = _run(p["jaxpr"], [*fixed, *carry, *(x.index(k) for x in rows)], name)
        carry, made[k] = out[: len(carry)], out[len(carry) :]
    ys = [stack(y) for y in zip(*(made[k] for k in range(n)), strict=True)]
    return [*carry, *ys]


def _pointwise(op: type[Elementwise]) -> Primitive:
    return lambda p, *xs: elementwise(op, *xs)


def _turned(op: type[Elementwise]) -> Primitive:
    return lambda p, a, b: elementwise(op, b, a)


def _integer_pow(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    y = abs(p["y"])
    out = x if y else as_tensor(1.0, x.dtype).broadcast_to(x.shape)
    for bit in bin(y)[3:]:  # from the second binary digit on: square, and multiply where it is 1
        out = out.square() * x if bit == "1" else out.square()
    return out if p["y"] >= 0 else 1.0 / out


def _dot_general(p: Params, a: RecurrentTensor, b: RecurrentTensor) -> RecurrentTensor:
    ((left, right), (lead, rlead)) = p["dimension_numbers"]
    la = LETTERS[: len(a.shape)]
    lb = list(LETTERS[len(la) : len(la) + len(b.shape)])
    for j, k in (*zip(left, right, strict=True), *zip(lead, rlead, strict=True)):
        lb[k] = la[j]
    taken = {la[j] for j in (*left, *lead)}
    out = "".join([*(la[j] for j in lead), *(c for c in (*la, *lb) if c not in taken)])
    found = SHORT_NAME[np.dtype(p["preferred_element_type"] or NUMPY_NAME[a.dtype]).name]
    kind = accumulator(found)  # every result is cast to the type that the jaxpr tells
    return a.apply(Einsum(labels=f"{la},{''.join(lb)}->{out}"), a.cast(kind), b.cast(kind))


def _broadcast(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    shape = p["shape"]
    full = LETTERS[: len(shape)]
    axes = zip(p["broadcast_dimensions"], x.shape, strict=True)
    kept = [k for k, n in axes if n == shape[k]]
    x = x.reshape(*(shape[k] for k in kept))
    src = "".join(full[k] for k in kept)
    sizes = tuple(n for k, n in enumerate(shape) if k not in kept)
    return x.apply(Expand(labels=f"{src}->{full}", sizes=sizes), x) if sizes else x


def _squeeze(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    return x.reshape(*(n for k, n in enumerate(x.shape) if k not in p["dimensions"]))


def _rev(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    for k in p["dimensions"]:
        x = x.flip(k)
    return x


def _iota(p: Params) -> RecurrentTensor:
    shape, k = p["shape"], p["dimension"]
    column = np.arange(shape[k]).reshape([-1 if j == k else 1 for j in range(len(shape))])
    return as_tensor(np.broadcast_to(column, shape), SHORT_NAME[np.dtype(p["dtype"]).name])


def _cumsum(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    x = x.cast(accumulator(x.dtype))
    return x.apply(CumSum(axis=p["axis"], reverse=p["reverse"]), x)


def _same(p: Params, x: RecurrentTensor) -> RecurrentTensor:
    return x


MOST_STEPS = 64  # of a scan; each is as many equations as its body
FACTS = "what can: pointwise functions, choices, reductions, contractions, shapes, reads"
NOT_KNOWN = {
    "while": "how often it runs is known when it runs: write it as a recurrence, rc.until(done)",
    "cond": "only one branch is to run: compute both, and choose by jnp.where",
}
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}
TYPED: tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...] = (
    (("div",), is_float),
    (("and", "or", "not"), lambda dtype: dtype == "bool"),
)
PRIMITIVES: dict[str, Primitive] = {
    "stack": lambda p, *xs: stack(xs, p["axis"]),
    "abs": _pointwise(el.Abs),
    "add": _pointwise(el.Add),
    "add_any": _pointwise(el.Add),
    "and": _pointwise(el.And),
    "argmax": lambda p, x: x.argmax(p["axes"][0]),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda p, lo, x, hi: x.clip(lo, hi),
    "concatenate": lambda p, *xs: concat(xs, axis=p["dimension"]),
    "convert_element_type": _same,  # every result is cast to the type that the jaxpr tells
    "copy": _same,
    "copy_p": _same,
    "conv_general_dilated": convolution,
    "cos": _pointwise(el.Cos),
    "cumsum": _cumsum,
    "div": _pointwise(el.Div),
    "dynamic_slice": dynamic_slice,
    "erf": _pointwise(special.Erf),
    "erfc": _pointwise(special.Erfc),
    "dot_general": _dot_general,
    "eq": _pointwise(el.Equal),
    "exp": _pointwise(el.Exp),
    "floor": _pointwise(el.Floor),
    "gather": gather,
    "ge": _turned(el.LessEqual),
    "gt": _turned(el.Less),
    "integer_pow": _integer_pow,
    "iota": _iota,
    "le": _pointwise(el.LessEqual),
    "log": _pointwise(el.Log),
    "logistic": _pointwise(el.Sigmoid),
    "lt": _pointwise(el.Less),
    "max": _pointwise(el.Maximum),
    "min": _pointwise(el.Minimum),
    "mul": _pointwise(el.Mul),
    "ne": _pointwise(el.NotEqual),
    "neg": _pointwise(el.Neg),
    "not": _pointwise(el.Not),
    "or": _pointwise(el.Or),
    "pow": lambda p, x, y: x ** y.cast(x.dtype),
    "reduce_and": lambda p, x: x.all(p["axes"]),
    "reduce_max": lambda p, x: x.max(p["axes"]),
    "reduce_min": lambda p, x: x.min(p["axes"]),
    "reduce_or": lambda p, x: x.any(p["axes"]),
    "reduce_sum": lambda p, x: x.sum(p["axes"]),
    "reshape": lambda p, x: x.reshape(*p["new_sizes"]),
    "rev": _rev,
    "rsqrt": lambda p, x: 1.0 / x.sqrt(),
    "select_n": lambda p, c, a, b: elementwise(el.Where, c, b, a),
    "sign": _pointwise(el.Sign),
    "sin": _pointwise(el.Sin),
    "slice": sliced,
    "sqrt": _pointwise(el.Sqrt),
    "square": _pointwise(el.Square),
    "squeeze": _squeeze,
    "stop_gradient": _pointwise(el.Detach),
    "sub": _pointwise(el.Sub),
    "tanh": _pointwise(el.Tanh),
    "transpose": lambda p, x: x.transpose(*p["permutation"]),
}

__all__ = ["CALLS", "PRIMITIVES", "flattened", "imported", "named_leaves", "unflattened"]
