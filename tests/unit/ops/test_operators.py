"""Every operator beside NumPy's and torch's: values, gradients, types, on all backends.

`operator_rows.ROWS` has three ways to write each. `docs/operators.md` is the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch

import recurra as rc
from documents import ROOT, fill, table
from everywhere import BACKENDS, everywhere
from operator_rows import POINTS, ROWS, Row, operand
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.operator_table import OPERATORS

assert all(getattr(rc, name) for name in rc.__all__)  # modules are imported when they are named
DRAWS = {"rc.uniform", "rc.normal", "rc.randint", "rc.bernoulli", "rc.permutation"}
SIZE = 30  # rows of a program: they are compiled together
PARTS = [ROWS[k : k + SIZE] for k in range(0, len(ROWS), SIZE)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is empty, NumPy gives its own
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_values_and_gradients(part: int, backend: str) -> None:
    rows = PARTS[part]
    given = {f"x{j}_{k}": operand(o, k) for j, row in enumerate(rows)
             for k, o in enumerate(row.operands)}  # fmt: skip
    found = ours(rows, given, backend)
    for j, row in enumerate(rows):
        xs = [given[f"x{j}_{k}"] for k in range(len(row.operands))]
        y, slopes = found[f"y{j}"], [found.get(f"g{j}_{k}") for k in range(len(xs))]
        told = f"row {part * SIZE + j}, {row.key} of {' '.join(row.operands)}, on {backend}"
        floats = all(x.dtype.kind == "f" for x in xs)
        close: Any = {"rtol": 1e-9, "atol": 1e-12} if floats else {"rtol": 2e-6, "atol": 2e-6}
        for point in range(POINTS):
            mine = [x[point] for x in xs]
            if row.numpy is not None:
                want = np.asarray(row.numpy(*mine))
                assert (y.dtype.kind, y[point].shape) == (want.dtype.kind, want.shape), told
                np.testing.assert_allclose(y[point], want, err_msg=f"NumPy's {told}", **close)
            if row.torch is not None:
                tensors = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in mine]
                theirs = row.torch(*tensors)
                np.testing.assert_allclose(
                    y[point], theirs.detach().numpy(), err_msg=f"torch's {told}", **close
                )
                for g, want in zip(slopes, gradients(theirs, tensors), strict=True):
                    mine_g = np.zeros_like(want) if g is None else g[point]
                    np.testing.assert_allclose(
                        mine_g, want, err_msg=f"torch's gradient of {told}", **close
                    )


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(9).uniform(0.5, 1.5, shape)


def ours(rows: list[Row], given: dict[str, np.ndarray], backend: str) -> dict[str, np.ndarray]:
    """The results y0, y1, .. of the rows, and the gradients g0_0, .. of their operands."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        loss: Any = rc.constant(0.0, rc.f64)
        operands: dict[str, Any] = {}
        for j, row in enumerate(rows):
            xs = {f"{j}_{k}": rc.input(type_of(given[f"x{j}_{k}"]), (t,), f"x{j}_{k}")
                  for k in range(len(row.operands))}  # fmt: skip
            y = row.ours(*xs.values())
            rc.output(**{f"y{j}": y})
            operands |= {name: x for name, x in xs.items() if x.dtype == "f64"}
            if y.dtype == "f64":
                loss = loss + (y * rc.constant(weights(y.shape), rc.f64)).sum()
        if operands:
            loss[0:T].sum().backward(wrt=list(operands.values()))
        slopes = {f"g{n}": x.grad for n, x in operands.items() if x.grad is not None}
        rc.output(**slopes)
    return ctx.run({T: POINTS}, inputs=given, backend=backend)


def type_of(x: np.ndarray) -> rc.Type:
    kind = {"float64": rc.f64, "int32": rc.i32, "bool": rc.boolean}[x.dtype.name]
    return kind[x.shape[1:]]


def gradients(y: torch.Tensor, xs: list[torch.Tensor]) -> Iterator[np.ndarray]:
    if y.requires_grad:
        (y * torch.tensor(weights(tuple(y.shape)))).sum().backward()
    for x in xs:
        yield np.zeros(x.shape) if x.grad is None else x.grad.numpy()


def test_every_operator_has_a_row() -> None:
    assert {row.key for row in ROWS} | DRAWS == set(OPERATORS)


def test_the_names_elsewhere_are_there() -> None:
    modules = {"np": np, "torch": torch, "scipy": scipy}
    for o in OPERATORS.values():
        for name in (o.numpy, o.torch):
            first, *rest = name.split(".")
            if first in modules:
                assert reduce(getattr, rest, modules[first]), name


SECTIONS = {
    "tensor": "Point by point",
    "reductions": "Folding axes",
    "ordering": "Along one axis",
    "reshaping": "Moving elements",
    "functions": "Functions",
    "creation": "Made of a shape",
}


def test_the_table() -> None:
    def named(name: str) -> str:
        return escaped(f"`{name}`") if name else ""

    text: list[str] = []
    for module, title in SECTIONS.items():
        mine = [o for o in OPERATORS.values() if o.module == f"recurra.frontend.{module}"]
        rows = [(named(o.ours), named(o.numpy), named(o.torch), escaped(o.says)) for o in mine]
        text.append(f"## {title}\n\n{table(('here', 'NumPy', 'torch', 'is'), rows)}")
    assert {o.module.rpartition(".")[2] for o in OPERATORS.values()} == set(SECTIONS)
    fill(ROOT / "docs" / "operators.md", {"operators": "\n\n".join(text)})


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


# ---- over ranges, in every type, and what draws

GROWING = {
    "prod": lambda x: x.prod(),
    "cumprod": lambda x: x.cumprod().sum(),
    "cummax": lambda x: (x.cummax() * x).sum(),
    "sort": lambda x: (x.sort() * x).sum(),
    "descending": lambda x: x.sort(descending=True).index(0),
    "topk": lambda x: x.topk(1)[0].sum() + x.topk(1)[1].sum(),
    "argsort": lambda x: x.argsort().max().cast("f64"),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(3),
    "logsumexp": lambda x: x.logsumexp(),
    "round": lambda x: (x * 3.0).round().sum(),
    "roll": lambda x: (x.roll(1, 0) * x).sum(),
    "any": lambda x: (x > 1.0).any().cast("f64"),
    "scatter": lambda x: x.scatter(0, (x > 0.0).cast("i32"), x, reduce="add").max(),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is hidden then
@pytest.mark.parametrize("name", GROWING)
def test_ranges_that_grow(name: str) -> None:
    f, x = GROWING[name], operand("f[3]", 3).reshape(-1)
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        given = rc.input(rc.f64, (t,), name="x")
        so_far, rest = f(given[0 : t + 1]), f(given[t:T])
        rc.output(so_far=so_far, rest=rest)
        if name not in ("argsort", "any", "round"):
            (so_far[0:T] + rest[0:T]).sum().backward(wrt=[given])
            assert given.grad is not None
            rc.output(slope=given.grad)
    found = everywhere(ctx, {T: len(x)}, {"x": x})
    for backend in BACKENDS:
        for part, want in found["interpreter"].items():
            np.testing.assert_allclose(found[backend][part], want, rtol=1e-9, err_msg=backend)


ROWS_THAT_END = [
    "prod",
    "cumprod",
    "cummax",
    "sort",
    "argsort",
    "topk",
    "std",
    "norm",
    "logsumexp",
    "round",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is hidden then
@pytest.mark.parametrize("name", ROWS_THAT_END)
def test_rows_that_end(name: str) -> None:
    """A row that the data end has the results of a row of its length."""
    f, ends, longest = GROWING[name], np.array([2, 4, 1], np.int32), 5
    x = np.random.default_rng(11).normal(size=(3, longest))
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        given = rc.input(rc.f64, (b, t), name="x")
        last = rc.input(rc.i32, (b,), name="ends")
        rc.output(y=f(given[b, 0:T]))
        end = rc.until(rc.value(t, "i32") + 1 >= last, max=longest)
    for backend in BACKENDS:
        inputs = {"x": x, "ends": ends}
        found = ctx.run({B: 3, T: end}, inputs=inputs, backend=backend)["y"]
        for row, n in enumerate(ends):
            one = rc.Context(num_dims=0)
            with one:
                rc.output(y=f(rc.constant(x[row, :n], rc.f64)))
            np.testing.assert_allclose(
                found[row], one.run({}, backend="numpy")["y"], rtol=1e-9, err_msg=backend
            )


def test_workers_join_products() -> None:
    ctx = rc.Context(dims="b i")
    with ctx as ((b, B), (i, I)):
        x = rc.uniform((b, i)) + 0.5
        rc.log(all=x[0:B, i].prod())
    one = ctx.run({B: 4, I: 3}, backend="numpy")["all"]
    two = ctx.run({B: 4, I: 3}, backend="numpy", workers=2)["all"]
    np.testing.assert_allclose(two, one, rtol=1e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_of_the_largest_nan_comes_first_and_of_equals_the_first(kind: str) -> None:
    x = np.array([[0.0, -0.0, 3.0, 0.0, 3.0], [-np.nan, -np.inf, np.inf, np.nan, -0.0]])
    ctx = rc.Context(num_dims=0)
    with ctx:
        given = rc.constant(x, kind)
        rc.output(along_last=given.topk(4)[1], along_first=given.T.topk(4, axis=0)[1])
    for backend, found in everywhere(ctx, {}).items():
        want = [[2, 4, 0, 1], [0, 3, 2, 4]]
        assert found["along_last"].tolist() == want, backend
        assert found["along_first"].T.tolist() == want, backend


def test_more_of_the_largest_than_there_are_is_refused() -> None:
    ctx = rc.Context(dims="b")
    with ctx as (b, B):
        best, _ = rc.input(rc.f32, (b,), name="x")[0:B].topk(5)
        rc.output(best=best)
    assert ctx.compile({B: 5}, backend="numpy").run(inputs={"x": range(5)})["best"][0] == 4
    with pytest.raises(ShapeError, match="its axis has B; at B=3 that is 3"):
        ctx.compile({B: 3}, backend="numpy")
    with ctx, pytest.raises(ShapeError, match="has no 5 elements on axis 0"):
        rc.constant([1.0, 2.0]).topk(5)


HALVES = {
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "sort": lambda x: x.sort(1),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(2, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "round": lambda x: (x * 3).round(),
    "gelu": lambda x: x.gelu(),
    "scatter": lambda x: x.scatter(1, np.zeros((2, 1), np.int32), x[:, 0:1]),
}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(kind: str) -> None:
    x = operand("f[2,3]", 1)[0]
    ctx = rc.Context(num_dims=0)
    with ctx:
        half = rc.constant(x, kind)
        for name, f in HALVES.items():
            rc.output(**{name: f(half), f"{name}_wide": f(half.cast(rc.f64))})
    for backend, found in everywhere(ctx, {}).items():
        for name in HALVES:
            assert str(found[name].dtype) == {"f16": "float16", "bf16": "bfloat16"}[kind]
            np.testing.assert_allclose(
                found[name].astype(float), found[f"{name}_wide"], 0.03, err_msg=f"{name}, {backend}"
            )


@pytest.mark.slow
def test_draws() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        chance = rc.value(t, "f32") / T
        rc.output(
            die=rc.randint(1, 7, (t,)),
            signed=rc.randint(-3, 0, (t,), (2,), rc.i64),
            coin=rc.bernoulli(0.25, (t,)),
            rare=rc.bernoulli(chance),
        )
        with pytest.raises(RecurraError, match=r"cannot draw from 3 \.\. 2"):
            rc.randint(3, 3)
    found = everywhere(ctx, {T: 3000})
    for name, y in found["numpy"].items():
        for backend, ys in found.items():
            np.testing.assert_array_equal(ys[name], y, err_msg=f"{name} on {backend}")
    numpy = found["numpy"]
    assert set(numpy["die"]) == set(range(1, 7))
    assert set(numpy["signed"].ravel()) == {-3, -2, -1}
    assert numpy["signed"].dtype == np.int64
    assert numpy["coin"].dtype == bool
    assert abs(numpy["coin"].mean() - 0.25) < 0.05
    assert numpy["rare"].shape == (3000,)
    assert not numpy["rare"][:20].all()
    assert abs(numpy["rare"].mean() - 0.5) < 0.05
