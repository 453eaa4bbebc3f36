"""Laws that every op keeps. A new op is tested by adding a row to samples.SAMPLES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import recurra as rc
from programs import check_gradients, draws, given, run, tracing
from recurra.backends.jax.array_namespace import JaxNamespace as JaxNames
from recurra.backends.torch.array_namespace import TorchNamespace
from recurra.frontend.functions import output
from recurra.frontend.tensor import as_tensor, elementwise
from recurra.ir.expr import SEED, Sym
from recurra.ir.op import LETTERS, Op, Reduction
from recurra.ir.types import SHORT_NAME, Type, is_float
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Expand
from recurra.ops.reduction import REDUCTION, identity
from samples import ENV, OUTSIDE, SAMPLES, Sample, T, operand, t

JAX = JaxNames()
DRAWN = {"uniform", "permutation"}  # have tests of their own
PLAIN = [x for x in SAMPLES if x.name not in OUTSIDE]


def ids(samples: list[Sample]) -> Any:
    return pytest.mark.parametrize("sample", samples, ids=str)


def type_of(x: np.ndarray) -> Type:
    return Type(SHORT_NAME[x.dtype.name], x.shape)


# ---- completeness


def test_every_op_has_a_sample() -> None:
    assert {x.name for x in SAMPLES} == set(Op.registry)


@pytest.mark.parametrize("name", sorted(Op.registry))
def test_every_op_says_what_y_is(name: str) -> None:
    doc = Op.registry[name].__doc__ or ""
    assert doc.startswith("y"), f"{name}: {doc!r}"


@pytest.mark.parametrize(
    "name", sorted(set(Op.registry) - set(OUTSIDE) - {"uniform", "permutation"})
)
def test_every_op_has_a_known_value(name: str) -> None:
    known = [x for x in SAMPLES if x.name == name and x.known and x.known[0] is not None]
    assert known, f"{name} has no value worked out by hand"
    for sample in known:
        assert sample.known is not None
        args, want = sample.known
        arrays = [np.asarray(a) for a in args]
        got = sample.op.run(np, sample.env, *arrays)
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-6, err_msg=str(sample))


# ---- eval and infer


@ids(PLAIN)
def test_infer_is_what_eval_gives(sample: Sample) -> None:
    xs = sample.arrays()
    y = np.asarray(sample.op.run(np, sample.env, *xs))
    inferred = sample.op.infer(*map(type_of, xs))
    assert isinstance(inferred, Type)
    assert (y.dtype.name, y.shape) == (_numpy(inferred.dtype), inferred.sizes(sample.env))
    want = (
        sample.type
        if not sample.op.attributes() or "to" not in sample.attributes
        else inferred.dtype
    )
    assert inferred.dtype == want or sample.name == "onehot"


def _numpy(dtype: str) -> str:
    return {v: k for k, v in SHORT_NAME.items()}[dtype]


@ids(PLAIN)
def test_numpy_and_jax_agree(sample: Sample) -> None:
    op = _in_f32(sample.op)
    xs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in sample.arrays()]
    want = np.asarray(op.run(np, sample.env, *xs))
    got = op.run(JAX, sample.env, *map(jnp.asarray, xs))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@ids(PLAIN)
def test_numpy_and_torch_agree(sample: Sample) -> None:
    """Words of 32 bits are held in int32: the same bits."""
    op, xp = _in_f32(sample.op), TorchNamespace("cpu")
    xs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in sample.arrays()]
    want = np.asarray(op.run(np, sample.env, *xs))
    got = op.run(xp, sample.env, *map(xp.asarray, xs)).numpy()
    if want.dtype == np.uint32:
        got = got.view(np.uint32)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def _in_f32(op: Op) -> Op:
    for key in ("to", "dtype"):
        if getattr(op, key, None) == "f64":
            op = replace(op, **{key: "f32"})  # pyright: ignore
    return op


@ids(PLAIN)
def test_symbols_may_be_traced(sample: Sample) -> None:
    """The value at a point is the same when the point is an array, as it is inside of a loop."""
    op, xs = (
        _in_f32(sample.op),
        [x.astype("float32") if x.dtype == "f8" else x for x in sample.arrays()],
    )
    if sample.name in ("pad",):  # its result would have no static shape
        return
    traced = {**sample.env, "t": jnp.asarray(2), "b": jnp.asarray(1), SEED: jnp.asarray(7)}
    got = op.run(JAX, traced, *map(jnp.asarray, xs))
    np.testing.assert_allclose(got, op.run(np, sample.env, *xs), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types(dtype: str) -> None:
    x = Op.registry["cast"](to=dtype).run(np, ENV, np.array([1.0, 2.5], np.float32))
    assert SHORT_NAME[x.dtype.name] == dtype
    assert np.asarray(Op.registry["sum"](axes=(0,)).run(np, ENV, x)).astype(float) == 3.5
    assert Op.registry["max"](axes=(0,)).run(np, ENV, x[:0]) == -np.inf


# ---- batch

BATCHED = [x for x in PLAIN if x.operands and type(x.op).batch is not Op.batch]


@ids(BATCHED)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("n", [2, 3])
def test_batch_is_a_loop(sample: Sample, last: bool, n: int) -> None:
    ranks = tuple(x.ndim for x in sample.arrays())
    for flags in product([False, True], repeat=len(ranks)):
        if any(flags):
            check_batch(sample, sample.op, flags, last, n)


def check_batch(sample: Sample, op: Op, flags: tuple[bool, ...], last: bool, n: int) -> None:
    axis = -1 if last else 0
    rows = [sample.arrays(row) for row in range(n)]
    first = rows[0]
    new = op.batch(flags, tuple(x.ndim for x in first), last)
    if new is None:
        assert not all(flags) or (sample.name == "fold" and not last), f"{op!r} {flags} {last}"
        if not all(flags):
            rows = [
                [x if f else first[k] for k, (x, f) in enumerate(zip(r, flags, strict=True))]
                for r in rows
            ]
            flags = (True,) * len(flags)
            new = op.batch(flags, tuple(x.ndim for x in first), last)
        if new is None:
            return
    xs = [np.stack([r[k] for r in rows], axis) if f else first[k] for k, f in enumerate(flags)]
    want = [op.run(np, ENV, *(r[k] if f else first[k] for k, f in enumerate(flags))) for r in rows]
    got = np.asarray(new.run(np, ENV, *xs))
    np.testing.assert_allclose(got, np.stack(want, axis), rtol=1e-12, err_msg=f"{flags}: {new!r}")
    inferred = new.infer(*map(type_of, xs))
    assert isinstance(inferred, Type)
    assert inferred.sizes(ENV) == got.shape


@ids(BATCHED)
@pytest.mark.parametrize("lasts", list(product([False, True], repeat=2)), ids=str)
def test_batch_twice_is_two_loops(sample: Sample, lasts: tuple[bool, bool]) -> None:
    ranks = tuple(x.ndim for x in sample.arrays())
    every = (True,) * len(ranks)
    once = sample.op.batch(every, ranks, lasts[0])
    twice = once and once.batch(every, tuple(r + 1 for r in ranks), lasts[1])
    if once is None or twice is None:
        assert sample.name == "fold"
        return
    axis, outer = (-1 if last else 0 for last in lasts)
    grid = [[sample.arrays(3 * i + j) for j in range(2)] for i in range(3)]
    xs = [
        np.stack([np.stack([cell[k] for cell in row], axis) for row in grid], outer)
        for k in range(len(ranks))
    ]
    want = np.stack(
        [np.stack([sample.op.run(np, ENV, *cell) for cell in row], axis) for row in grid], outer
    )
    np.testing.assert_allclose(twice.run(np, ENV, *xs), want, rtol=1e-12)


SIZED = [x for x in PLAIN if hasattr(x.op, "batch_size")]


@ids(SIZED)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_batch_size_is_a_loop(sample: Sample, last: bool) -> None:
    op, axis = sample.op, -1 if last else 0
    new = op.batch_size(Sym("B"), last)  # pyright: ignore
    if not sample.operands:
        want = np.stack([op.run(np, ENV)] * 3, axis)
        np.testing.assert_array_equal(new.run(np, ENV), want)
        return
    rows = [sample.arrays(row) for row in range(3)]
    xs = [np.stack([r[k] for r in rows], 0 if not last else -1) for k in range(len(rows[0]))]
    want = np.stack([op.run(np, ENV, *r) for r in rows], axis)
    np.testing.assert_array_equal(new.run(np, ENV, *xs), want)


SYMBOLIC = [x for x in PLAIN if x.name in {"value", *DRAWN}]


@ids(SYMBOLIC)
@pytest.mark.parametrize("order", ["t", "b", "tb", "bt"])
@pytest.mark.parametrize("lasts", list(product([False, True], repeat=2)), ids=str)
def test_batch_symbol_is_a_loop(sample: Sample, order: str, lasts: tuple[bool, bool]) -> None:
    new: Any = sample.op
    sizes = {"t": 5, "b": 3}
    for dim, last in zip(order, lasts, strict=False):
        new = new.batch_symbol(dim, Sym(dim.upper()), last)
    got = np.asarray(new.run(np, ENV))
    if lasts == (False, True) and sample.type != "f64":
        np.testing.assert_array_equal(new.run(jnp, ENV), got)
    fronts = [a for a, last in zip(order, lasts, strict=False) if not last][::-1]
    backs = [a for a, last in zip(order, lasts, strict=False) if last]
    ends = range(got.ndim - len(backs), got.ndim)
    moved = np.moveaxis(got, ends, range(len(fronts), len(fronts) + len(backs)))
    for point in product(*(range(sizes[d]) for d in (*fronts, *backs))):
        env = {**ENV, **dict(zip((*fronts, *backs), point, strict=True))}
        np.testing.assert_array_equal(moved[point], sample.op.run(np, env))


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("out", [0, 1])
def test_foreign_batch_is_a_loop(flags: tuple[bool, bool], last: bool, out: int) -> None:
    sample = next(x for x in SAMPLES if x.name == "foreign" and x.attributes["out"] == out)
    op: Any = sample.op
    new = op.batch_sized(flags, 3, last).batch_sized((True, False), 2, not last)
    inner, outer = (-1, 0) if last else (0, -1)
    cells = [[(draws(2, seed=i + 3 * j), draws(3, seed=i)) for i in range(3)] for j in range(2)]
    if not flags[0]:
        cells = [[(row[0][0], y) for _, y in row] for row in cells]
    if not flags[1]:
        cells = [[(x, cells[0][0][1]) for x, _ in row] for row in cells]
    x = [np.stack([x for x, _ in row], inner) if flags[0] else row[0][0] for row in cells]
    y = np.stack([y for _, y in cells[0]], inner) if flags[1] else cells[0][0][1]
    got = new.run(np, ENV, np.stack(x, outer), y)
    want = [np.stack([op.run(np, ENV, *cell) for cell in row], inner) for row in cells]
    np.testing.assert_allclose(got, np.stack(want, outer))
    assert got.shape == new.infer().shape


# ---- vjp

SMOOTH = [
    x for x in PLAIN
    if any(o[0] in "fp" for o in x.operands) and is_float(x.type)
    and x.name not in ("detach", "foreign", "with_gradient", "floor_divide", "round")
]  # fmt: skip


@ids(SMOOTH)
def test_vjp_is_the_derivative(sample: Sample) -> None:
    inputs = {f"x{k}": x for k, x in enumerate(sample.arrays())}
    op = sample.op.at({"T": 5})

    def build(idx: Any, xs: Any) -> Any:
        y = next(iter(xs.values())).apply(op, *xs.values()).cast("f64")
        weights = np.random.default_rng(5).uniform(0.5, 1.5, y.shape)
        return (y * as_tensor(weights, "f64")).sum()

    coarse = sample.type == "f32"
    step, rtol = (1e-2, 1e-4) if coarse else (1e-5, 1e-6)
    check_gradients(build, "t", {"T": 5}, inputs, step=step, rtol=rtol)


AT_TIES = {
    "maximum": (rc.maximum, torch.maximum),
    "minimum": (rc.minimum, torch.minimum),
    "relu": (lambda x, y: x.relu(), lambda x, y: torch.relu(x)),
    "abs": (lambda x, y: x.abs(), lambda x, y: torch.abs(x)),
    "clip": (lambda x, y: x.clip(-1.0, 2.0), lambda x, y: torch.clamp(x, -1.0, 2.0)),
    "clip of one end": (lambda x, y: x.clip(y, 2.0), lambda x, y: torch.clamp(x, y, 2.0 + 0 * y)),
    "max": (lambda x, y: x.max(), lambda x, y: torch.amax(x, 0)),
    "min": (lambda x, y: x.min(), lambda x, y: torch.amin(x, 0)),
    "floor": (lambda x, y: x // 2.0 + x, lambda x, y: torch.floor(x / 2.0) + x),
}


@pytest.mark.parametrize("name", AT_TIES)
def test_slopes_at_ties_are_those_of_torch(name: str) -> None:
    ours, theirs = AT_TIES[name]
    x = np.array([-1.0, 0.0, 2.0, 2.0, -3.0, -1.0, 5.0])
    y = np.array([-1.0, 0.0, 1.0, 3.0, 3.0, -3.0, 4.0])
    weights = np.arange(1.0, 8.0)

    def total(xs: Any) -> Any:
        z = ours(xs["x"], xs["y"])
        return (z * as_tensor(weights, "f64")).sum() + xs["y"].sum() * 0.0

    a, b = (torch.tensor(v, requires_grad=True) for v in (x, y))
    ((theirs(a, b) * torch.tensor(weights)).sum() + b.sum() * 0.0).backward()
    got = _gradients(total, {"x": x, "y": y})
    np.testing.assert_allclose(got["x"], a.grad)
    np.testing.assert_allclose(got["y"], b.grad)


def test_power_at_its_edges() -> None:
    x = {"x": np.array([0.0, 0.0, -2.0, 2.0]), "y": np.array([0.0, 2.0, 2.0, 0.0])}
    grads = _gradients(lambda xs: (xs["x"] ** xs["y"]).sum(), x)
    np.testing.assert_array_equal(grads["x"], [0.0, 0.0, -4.0, 0.0])
    np.testing.assert_allclose(grads["y"], [0.0, 0.0, 0.0, np.log(2.0)])


def test_a_branch_not_taken_passes_no_infinity() -> None:
    """where(c, 1/x, 0) at x = 0: the cotangent of the other branch is 0, not 0 · inf."""
    x = {"x": np.array([1.0, 3.0]), "y": np.array([0.5, 0.0])}
    grads = _gradients(
        lambda xs: (xs["x"].apply(_op("where")(), xs["y"] > 0.0, xs["x"], xs["y"])
                    / elementwise(_op("maximum"), xs["y"].detach(), 1e-300)).sum(),
        {"x": x["x"], "y": x["y"]},
    )  # fmt: skip
    assert np.all(np.isfinite(grads["x"]))
    assert grads["x"][1] == 0.0


def _op(name: str) -> Any:
    return Op.registry[name]


def _gradients(f: Callable[[Any], Any], inputs: dict[str, np.ndarray]) -> Any:

    with tracing("") as (builder, _):
        xs = {n: given(type_of(v), (), n) for n, v in inputs.items()}
        f(xs).backward(wrt=list(xs.values()))
        output(**{f"g_{n}": x.grad for n, x in xs.items() if x.grad is not None})
        out = run(builder, {}, inputs)
        return {n: out[f"g_{n}"] for n in xs if f"g_{n}" in out}


# ---- monoids


def monoidal() -> list[Sample]:
    return [
        x for x in PLAIN if isinstance(x.op, Reduction) and x.op.monoid and x.attributes["axes"]
    ]


@ids(monoidal())
def test_parts_combine_to_the_whole(sample: Sample) -> None:
    op: Any = sample.op
    join = Op.registry[op.monoid]()
    (x,) = sample.arrays()
    axis = op.axes[0]
    neutral = identity(op.monoid, SHORT_NAME[x.dtype.name])
    for cut in range(x.shape[axis] + 1):
        a, b = np.split(x, [cut], axis)
        parts = [
            op.eval(np, p) if p.shape[axis] else np.full_like(op.eval(np, x), neutral)
            for p in (a, b)
        ]
        np.testing.assert_allclose(join.eval(np, *parts), op.eval(np, x), rtol=1e-12)


@pytest.mark.parametrize("monoid", sorted(REDUCTION))
def test_folding_nothing_is_the_identity(monoid: str) -> None:
    dtype = "bool" if monoid.startswith("logical") else "float64"
    empty, neutral = np.zeros((0, 2), dtype), identity(monoid, SHORT_NAME[dtype])
    assert np.all(REDUCTION[monoid](axes=(0,)).eval(np, empty) == neutral)
    fold = Op.registry["fold"](monoid_of=monoid, rank=1)
    np.testing.assert_array_equal(fold.eval(np, empty), np.full(2, neutral).astype(dtype))


def test_a_contraction_splits_along_a_summed_axis() -> None:
    a, b = operand("f[2,5]", 0, 0), operand("f[5,3]", 1, 0)
    op = Einsum(labels="ab,bc->ac")
    parts = [op.eval(np, a[:, k], b[k]) for k in (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose(parts[0] + parts[1], op.eval(np, a, b))


# ---- what does not fit

MISFITS = [
    ("add", {}, ("f[2]", "i[2]"), "operands have types f64, i32"),
    ("add", {}, ("f[2]", "f[3]"), "axis a has size 2 in one operand and 3"),
    ("add", {"labels": "a,b->ac"}, ("f[2]", "f[3]"), "no operand has the axis c"),
    ("add", {"labels": "aa,a->a"}, ("f[2,2]", "f[2]"), "name an axis of one operand twice"),
    ("exp", {}, ("i[2]",), "exp: the operand has type i32, not a float"),
    ("div", {}, ("i[2]", "i[2]"), "div: the operand has type i32, not a float"),
    ("where", {}, ("f[2]", "f[2]", "f[2]"), "the condition has type f64, not bool"),
    ("logical_and", {}, ("f[2]", "b[2]"), "operands have types f64, bool, not bool"),
    ("sum", {"axes": (2,)}, ("f[2,3]",), r"has no axes \(2,\)"),
    ("sum", {"axes": (0, 0)}, ("f[2,3]",), "has no axes"),
    ("sum", {"axes": (0,)}, ("b[2]",), "sums of bool are i32"),
    ("argmax", {"axes": (0, 1)}, ("f[2,3]",), "along one axis"),
    ("fold", {"monoid_of": "sub"}, ("f[2]",), "no 'sub' over 1 axes"),
    ("einsum", {"labels": "ab,bc->ac"}, ("f[2,3]",), "has 2 operands, got 1"),
    ("einsum", {"labels": "aa->a"}, ("f[2,2]",), "name an axis of one operand twice"),
    ("einsum", {"labels": "a->b"}, ("f[2]",), "is not made of its operands' axes"),
    ("expand", {"labels": "a->ab", "sizes": ()}, ("f[2]",), "does not add 0 axes"),
    ("transpose", {"order": (0, 0)}, ("f[2,3]",), "no permutation"),
    ("reshape", {"shape": (5,)}, ("f[2,3]",), "has not the size of"),
    ("cut", {"axis": 0, "start": 1, "size": 3}, ("f[3]",), "has no 1:4 on axis 0"),
    ("concat", {"axis": 0}, ("f[2,3]", "f[2,4]"), "differ off axis 0"),
    ("flip", {"axis": 2}, ("f[2,3]",), "has no axis 2"),
    ("softmax", {"axis": 0}, ("i[2]",), "not a float"),
    ("discounted_sum", {"gamma": 0.9}, ("i[2]",), "not a float"),
    ("take", {"labels": "a,b->b", "axis": "a"}, ("f[2]", "f[2]"), "the index has type f64"),
    ("take", {"labels": "a,b->ab", "axis": "a"}, ("f[2]", "i[3]"), "does not index 'a' away"),
    ("scatter", {"axis": 0}, ("f[2]", "f[2]", "f[2]"), "the places have type f64"),
    ("scatter", {"axis": 0}, ("f[2]", "i[3]", "f[2]"), "differ off axis 0"),
    ("scatter", {"axis": 0}, ("f[2]", "i[3]", "i[3]"), "operands have types f64, i32"),
    ("windows", {"axis": 0, "sizes": (4,), "strides": (1,)}, ("f[3]",), "none of"),
    ("windows", {"axis": 0, "sizes": (1, 1), "strides": (1, 1)}, ("f[3]",), "has no axes 0:2"),
    ("overlap", {"axis": 0, "sizes": (2,), "strides": (1,), "lengths": (5,)}, ("f[2,3]",),
     "has no windows of"),
    ("merge", {"when": (Sym("c"),)}, ("f[2]", "f[2]"), "2 branches have 1 conditions"),
    ("merge", {"when": (Sym("c"), Sym("d"))}, ("f[2]", "i[2]"), "branches have types"),
    ("uniform", {"id": 1, "counter": (t, T), "shape": (2,)}, (), "do not fit two counters"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attributes", "operands", "message"), MISFITS)
def test_misfits(name: str, attributes: Any, operands: tuple[str, ...], message: str) -> None:
    types = [type_of(operand(o, k, 0)) for k, o in enumerate(operands)]
    with pytest.raises(TypeError, match=message):
        Op.registry[name](**attributes).infer(*types)


def test_letters_are_enough_and_expand_has_no_hidden_order() -> None:
    assert len(set(LETTERS)) == 52
    y = Expand(labels="a->bac", sizes=(2, 3)).run(np, ENV, np.arange(4.0))
    assert y.shape == (2, 4, 3)
