"""Translation of a function of jax.numpy to equations: its jaxpr, primitive by primitive.

    b:f32[8] = dot_general[dimension_numbers=(([0], [0]), ([], []))] x w  →  einsum(x, w, 'a,ab->b')

Each primitive is an entry of PRIMITIVES. Calls are inlined; functions with a custom JVP rule, such
as jax.nn.relu, keep its slopes where possible, else the gradient is that of their body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import numpy as np
from jax.extend import core

from recurra.analysis.graph_builder import current
from recurra.backends.jax.foreign_function import number, refused, untraceable
from recurra.backends.jax.symbolic_sizes import Sizes
from recurra.cost.thresholds import MAX_UNROLLED_STEPS
from recurra.errors import ShapeError
from recurra.frontend.dims import wrap
from recurra.frontend.functions import concat, stack
from recurra.frontend.jax.convolution import convolution
from recurra.frontend.jax.indexed import dynamic_slice, gather, iota, sliced
from recurra.frontend.tensor import RecurrentTensor, as_tensor, elementwise
from recurra.frontend.tensor_conversion import with_slope_of
from recurra.ir.expr import symbols
from recurra.ir.op import LETTERS, Elementwise
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type, accumulator, is_float
from recurra.ops import bitwise, special
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Expand
from recurra.ops.scan import CumSum

Params = Mapping[str, Any]
Primitive = Callable[..., RecurrentTensor]


def imported(fn: Callable[..., object], name: str, xs: Sequence[RecurrentTensor]) -> Any:
    """Translate `fn(*xs)` to equations, and return its results in their tree.

    Raises RecurraError if it cannot be traced, or has an unsupported primitive.
    """
    types: list[Type] = [x.type for x in xs]
    sizes = Sizes(types, current().dim_names())
    try:
        with _wide_numbers(xs):
            closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*sizes.avals(types))
    except Exception as e:
        raise untraceable(name, e, types, "import_jax") from None
    return jax.tree.unflatten(jax.tree.structure(shapes), _run(closed, xs, _Source(name, sizes)))


def expect_one_size(
    name: str, fn: Callable[..., object], types: Sequence[Type], dims: Sequence[str]
) -> None:
    """Raise ShapeError if an operand of `fn`, used as one operation, has an axis that varies."""
    sizes = [n for x in types for n in x.shape if symbols(n) & set(dims)]
    if not sizes:
        return
    raise ShapeError.at_user_line(
        f"{name} is given an axis of {sizes[0]} elements, at each point another number",
        facts=f"its operands are {', '.join(map(str, types))}; JAX compiles it for one size",
        hint=f"take it apart, rc.import_jax({name}): equations may be of any size"
        if _has_equations(fn, types, dims)
        else "give it as many elements everywhere, x[0:T] or x[t:t+3], and choose among them by "
        "what it is told besides",
    )


def _has_equations(fn: Callable[..., object], types: Sequence[Type], dims: Sequence[str]) -> bool:
    try:
        closed = jax.make_jaxpr(fn)(*Sizes(types, dims).avals(types))
    except Exception:
        return False
    return _primitives(closed.jaxpr) <= {*PRIMITIVES, "unstack", "split"}


def _primitives(jaxpr: core.Jaxpr) -> set[str]:
    """The primitives of a jaxpr, including those of the functions it calls."""
    found: set[str] = set()
    for eqn in _live(jaxpr):
        kind = eqn.primitive.name
        inner = eqn.params[CALLS[kind]] if kind in CALLS else None
        found |= {kind} if inner is None else _primitives(inner.jaxpr)
    return found


def flattened(args: object) -> tuple[list[Any], Any]:
    """The leaves of a tree, and its structure."""
    return jax.tree.flatten(args)


def named_leaves(tree: object) -> list[tuple[str, Any]]:
    """The leaves of a tree, with names from their paths: layers_0_weight."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = ["_".join(filter(None, map(_word, path))) for path, _ in paths]
    return [(n if n.isidentifier() else f"p{n}", x) for n, (_, x) in zip(names, paths, strict=True)]


def _word(key: object) -> str:
    word = getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))
    return "".join(c for c in str(word) if c.isalnum() or c == "_")


def _wide_numbers(xs: Sequence[RecurrentTensor]) -> AbstractContextManager[object]:
    """Enable 64-bit numbers in JAX, within the block, if an operand has them."""
    return jax.enable_x64(any(x.dtype in ("f64", "i64") for x in xs))


@dataclass(frozen=True)
class _Source:
    """The name of the function that is translated, and the sizes of its operands."""

    name: str
    sizes: Sizes


def _run(
    closed: core.ClosedJaxpr, xs: Sequence[RecurrentTensor], of: _Source
) -> list[RecurrentTensor]:
    """Translate a closed jaxpr and return its results."""
    jaxpr = closed.jaxpr
    env: dict[core.Var | core.Literal, RecurrentTensor] = dict(zip(jaxpr.invars, xs, strict=True))
    for v, c in zip(jaxpr.constvars, closed.consts, strict=True):
        env[v] = _constant(np.asarray(c), v.aval)

    def value(v: core.Var | core.Literal) -> RecurrentTensor:
        literal = isinstance(v, core.Literal)
        return _constant(np.asarray(v.val), v.aval) if literal else env[v]

    for eqn in _live(jaxpr):
        found = _equation(eqn, list(map(value, eqn.invars)), of)
        for v, y in zip(eqn.outvars, found, strict=True):
            aval: Any = v.aval
            env[v] = y.cast(SHORT_NAME[aval.dtype.name])
    return list(map(value, jaxpr.outvars))


def _constant(array: np.ndarray, aval: Any) -> RecurrentTensor:
    return as_tensor(array if array.ndim else array.item(), SHORT_NAME[aval.dtype.name])


def _equation(
    eqn: core.JaxprEqn, args: list[RecurrentTensor], of: _Source
) -> list[RecurrentTensor]:
    kind = eqn.primitive.name
    if kind in CALLS:
        found = _run(eqn.params[CALLS[kind]], args, of)
        return _with_custom_slopes(eqn, args, found, of) if kind == "custom_jvp_call" else found
    params = {k: of.sizes.from_jax(v) for k, v in eqn.params.items()}
    if kind == "unstack":
        (x,), axis = args, params["axis"]
        return [x.index(k, axis=axis) for k in range(len(eqn.outvars))]
    if kind == "split":
        (x,), sizes = args, params["sizes"]
        ends = zip(sizes, accumulate(sizes), strict=True)
        return [x.cut(end - n, end, params["axis"]) for n, end in ends]
    if kind == "scan":
        return _unrolled(params, args, of)
    if kind not in PRIMITIVES:
        refused(of.name, kind, NOT_KNOWN.get(kind, FACTS))
    return [PRIMITIVES[kind]({**params, "refuse": of.name}, *args)]


def _with_custom_slopes(
    eqn: Any, args: list[RecurrentTensor], found: list[RecurrentTensor], of: _Source
) -> list[RecurrentTensor]:
    """Give the results of a function its slopes by a custom JVP rule, such as that of relu at 0.

    The output tangent is linear in the input tangents, so evaluating it with x for the tangent of x
    gives an expression with the right slope, provided that the point itself is only compared. The
    results of other functions are returned as they are, and differentiated as written.
    """
    if not all(is_float(x.dtype) for x in (*args, *found)):
        return found
    params = eqn.primitive.get_bind_params(eqn.params)

    def tangents(at: Sequence[object], along: Sequence[object]) -> object:
        return jax.jvp(lambda *xs: eqn.primitive.bind(*xs, **params), at, along)[1]

    avals = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    with _wide_numbers(args):
        closed = jax.make_jaxpr(tangents)(avals, avals)
    at = set(closed.jaxpr.invars[: len(args)])
    readers = [e for e in _live(closed.jaxpr) if at & _variables(e.invars)]
    if at & _variables(closed.jaxpr.outvars) or any(
        e.primitive.name not in COMPARISONS for e in readers
    ):
        return found
    slopes = _run(closed, [*(x.detach() for x in args), *args], of)
    return [elementwise(el.WithGradient, y, s) for y, s in zip(found, slopes, strict=True)]


def _live(jaxpr: core.Jaxpr) -> list[core.JaxprEqn]:
    """The equations that the results depend on."""
    wanted, live = _variables(jaxpr.outvars), list[core.JaxprEqn]()
    for eqn in reversed(jaxpr.eqns):
        if wanted & set(eqn.outvars):
            live.append(eqn)
            wanted |= _variables(eqn.invars)
    return live[::-1]


def _variables(atoms: Sequence[core.Var | core.Literal]) -> set[core.Var | core.Literal]:
    return {v for v in atoms if not hasattr(v, "val")}


def _absolute(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    """Translate abs: |x|, whose slope at 0 is 1 in JAX."""
    return with_slope_of(tensor.abs(), lambda: elementwise(el.Where, tensor >= 0, tensor, -tensor))


def _clamped(
    params: Params, lo: RecurrentTensor, tensor: RecurrentTensor, hi: RecurrentTensor
) -> RecurrentTensor:
    """Translate clamp: min(max(x, lo), hi), whose slope at both ends is 0 in JAX."""
    raised = elementwise(el.Maximum, tensor, lo)
    y = elementwise(el.Minimum, raised, hi)
    return with_slope_of(
        y, lambda: elementwise(el.Where, (tensor > lo) & (tensor < hi), tensor, y.detach())
    )


def _quotient(params: Params, left: RecurrentTensor, right: RecurrentTensor) -> RecurrentTensor:
    """Translate div: the quotient, truncated toward zero for integers."""
    if is_float(left.dtype):
        return left / right
    rounded_down = ((left % right) != 0) & ((left < 0) != (right < 0))
    return left // right + rounded_down.cast(left.dtype)


def _remainder(params: Params, left: RecurrentTensor, right: RecurrentTensor) -> RecurrentTensor:
    """Translate rem: the remainder, with the sign of the dividend."""
    rest = left % right
    return elementwise(el.Where, (rest != 0) & ((left < 0) != (right < 0)), rest - right, rest)


def _unrolled(params: Params, args: list[RecurrentTensor], of: _Source) -> list[RecurrentTensor]:
    """Unroll a scan of few steps; raise RecurraError for one of many."""
    n = number(params["length"], of.name, "scan")
    if n > MAX_UNROLLED_STEPS:
        refused(
            of.name,
            f"scan of {n} steps",
            f"at most {MAX_UNROLLED_STEPS} are written out one by one",
        )
    first, count = _scan_operands(params)
    constants, carry, rows = args[:first], args[first : first + count], args[first + count :]
    outputs: dict[int, list[RecurrentTensor]] = {}
    for k in reversed(range(n)) if params["reverse"] else range(n):
        out = _run(params["jaxpr"], [*constants, *carry, *(x.index(k) for x in rows)], of)
        carry, outputs[k] = out[: len(carry)], out[len(carry) :]
    ys = [stack(y) for y in zip(*(outputs[k] for k in range(n)), strict=True)]
    return [*carry, *ys]


def _scan_operands(params: Params) -> tuple[int, int]:
    """The numbers of constant and of carried operands of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # JAX from 0.11 on: trees
    return len(constants), len(carry)


def _pointwise(op: type[Elementwise]) -> Primitive:
    return lambda p, *xs: elementwise(op, *xs)


def _swapped(op: type[Elementwise]) -> Primitive:
    return lambda p, a, b: elementwise(op, b, a)


def _integer_pow(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    y = abs(params["y"])
    out = tensor if y else as_tensor(1.0, tensor.dtype).broadcast_to(tensor.shape)
    for bit in bin(y)[3:]:  # from the second binary digit on: square, and multiply where it is 1
        out = out.square() * tensor if bit == "1" else out.square()
    return out if params["y"] >= 0 else 1.0 / out


def _dot_general(params: Params, left: RecurrentTensor, right: RecurrentTensor) -> RecurrentTensor:
    (contracted, batch) = params["dimension_numbers"]  # pairs of axes, left and right
    la = LETTERS[: len(left.shape)]
    lb = list(LETTERS[len(la) : len(la) + len(right.shape)])
    for j, k in (*zip(*contracted, strict=True), *zip(*batch, strict=True)):
        lb[k] = la[j]
    shared = {la[j] for j in (*contracted[0], *batch[0])}
    out = "".join([*(la[j] for j in batch[0]), *(c for c in (*la, *lb) if c not in shared)])
    dtype = SHORT_NAME[np.dtype(params["preferred_element_type"] or NUMPY_NAME[left.dtype]).name]
    wide = accumulator(dtype)  # every result is cast to the type in the jaxpr
    return left.apply(
        Einsum(labels=f"{la},{''.join(lb)}->{out}"), left.cast(wide), right.cast(wide)
    )


def _broadcast(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    shape = params["shape"]
    full = LETTERS[: len(shape)]
    axes = zip(params["broadcast_dimensions"], tensor.shape, strict=True)
    kept = [k for k, n in axes if n != 1 or shape[k] == 1]
    tensor = tensor.reshape(*(shape[k] for k in kept))
    src = "".join(full[k] for k in kept)
    sizes = tuple(n for k, n in enumerate(shape) if k not in kept)
    return tensor.apply(Expand(labels=f"{src}->{full}", sizes=sizes), tensor) if sizes else tensor


def _squeeze(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    return tensor.reshape(*(n for k, n in enumerate(tensor.shape) if k not in params["dimensions"]))


def _iota(params: Params) -> RecurrentTensor:
    return iota(params["shape"], params["dimension"], SHORT_NAME[np.dtype(params["dtype"]).name])


def _cumsum(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    tensor = tensor.cast(accumulator(tensor.dtype))
    return tensor.apply(CumSum(axis=params["axis"], reverse=params["reverse"]), tensor)


def _same(params: Params, tensor: RecurrentTensor) -> RecurrentTensor:
    return tensor


COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
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
PRIMITIVES: dict[str, Primitive] = {
    "stack": lambda p, *xs: stack(xs, p["axis"]),
    "abs": _absolute,
    "add": _pointwise(el.Add),
    "add_any": _pointwise(el.Add),
    "and": lambda p, a, b: a & b,
    "argmax": lambda p, x: x.argmax(p["axes"][0]),
    "argmin": lambda p, x: x.argmin(p["axes"][0]),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamped,
    "concatenate": lambda p, *xs: concat(xs, axis=p["dimension"]),
    "convert_element_type": _same,  # every result is cast to the type in the jaxpr
    "copy": _same,
    "copy_p": _same,
    "conv_general_dilated": convolution,
    "cos": _pointwise(el.Cos),
    "cumsum": _cumsum,
    "div": _quotient,
    "dim_as_value": lambda p: as_tensor(wrap(p["dim"]), "i32"),
    "dynamic_slice": dynamic_slice,
    "erf": _pointwise(special.Erf),
    "erfc": _pointwise(special.Erfc),
    "dot_general": _dot_general,
    "eq": _pointwise(el.Equal),
    "exp": _pointwise(el.Exp),
    "floor": _pointwise(el.Floor),
    "gather": gather,
    "ge": _swapped(el.LessEqual),
    "gt": _swapped(el.Less),
    "integer_pow": _integer_pow,
    "iota": _iota,
    "le": _pointwise(el.LessEqual),
    "log": _pointwise(el.Log),
    "logistic": _pointwise(el.Logistic),
    "lt": _pointwise(el.Less),
    "max": _pointwise(el.Maximum),
    "min": _pointwise(el.Minimum),
    "mul": _pointwise(el.Mul),
    "ne": _pointwise(el.NotEqual),
    "neg": _pointwise(el.Neg),
    "not": lambda p, x: ~x,
    "or": lambda p, a, b: a | b,
    "pow": lambda p, x, y: x ** y.cast(x.dtype),
    "rem": _remainder,
    "reduce_and": lambda p, x: x.all(p["axes"]),
    "reduce_max": lambda p, x: x.max(p["axes"]),
    "reduce_min": lambda p, x: x.min(p["axes"]),
    "reduce_prod": lambda p, x: x.prod(p["axes"]),
    "reduce_or": lambda p, x: x.any(p["axes"]),
    "reduce_sum": lambda p, x: x.sum(p["axes"]),
    "reshape": lambda p, x: x.reshape(*p["new_sizes"]),
    "rev": lambda p, x: x.flip(tuple(p["dimensions"])),
    "rsqrt": lambda p, x: 1.0 / x.sqrt(),
    "select_n": lambda p, c, a, b: elementwise(el.Where, c, b, a),
    "shift_left": _pointwise(bitwise.ShiftLeft),
    "shift_right_arithmetic": _pointwise(bitwise.ShiftRight),
    "sign": _pointwise(el.Sign),
    "sin": _pointwise(el.Sin),
    "slice": sliced,
    "sqrt": _pointwise(el.Sqrt),
    "square": _pointwise(el.Square),
    "squeeze": _squeeze,
    "stop_gradient": _pointwise(el.Detach),
    "sub": _pointwise(el.Sub),
    "tanh": _pointwise(el.HyperbolicTangent),
    "transpose": lambda p, x: x.transpose(*p["permutation"]),
    "xor": _pointwise(bitwise.BitXor),
}

__all__ = ["CALLS", "PRIMITIVES", "flattened", "imported", "named_leaves"]
