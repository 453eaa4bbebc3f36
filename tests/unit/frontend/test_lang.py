"""What users write: domains, shapes, types, branches, host calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from programs import draws, finished, given, run, tracing
from recurra.analysis.graph_builder import disjoint
from recurra.errors import ShapeError
from recurra.frontend import functions as rc
from recurra.frontend.dims import Index, maximum, minimum
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import Sym
from recurra.ir.graph import Ref
from recurra.ir.types import Range, Type

B, T = Index(Sym("B")), Index(Sym("T"))
SIZES = {"B": 2, "I": 3, "T": 5}
ARRAY = np.array([1.0, 2.0])


def tensor(
    *dims: Index, shape: tuple[int, ...] = (), dtype: str = "f32", name: str = "x"
) -> RecurrentTensor:
    return given(Type(dtype, shape), dims, name)


# ---- domains


def test_domains_are_united() -> None:
    with tracing("bit") as (_, (b, i, t)):
        x, y, w = tensor(b, t), tensor(t, name="y"), tensor(i, name="w")
        assert str(x) == "f32[] over (b, t)"
        assert str((x + y).domain) == "[b<B,t<T]"
        assert str((y * w).domain) == "[i<I,t<T]"
        assert str((x * w * t).domain) == "[b<B,i<I,t<T]"
        assert str((w + 1.0).domain) == "[i<I]"
        assert str((x[b, 0] + w[i + 0]).domain) == "[b<B,i<I]"
        assert str(rc.constant(1.0).domain) == ""
        assert str((x[0, t:T]).domain) == "[t<T]"
        assert str((x[i, 0:T]).domain) == "[i<I]"
        assert str(x.reshape(1).index(i).domain) == "[b<B,i<I,t<T]"


def test_domains_follow_shifted_reads() -> None:
    with tracing("bt") as (_, (b, t)):
        x = tensor(b, t)
        assert str(x[b, t - 1].domain) == "[b<B,1<=t<T]"
        assert str(x[b, t + 2].domain) == "[b<B,t<T-2]"
        assert str((x - x[b, t - 1]).domain) == "[b<B,1<=t<T]"
        assert str((x[b, t + 1] - x[b, t - 2]).domain) == "[b<B,2<=t<T-1]"
        assert str((x[b, t - 1] * 2.0)[b, t + 1].domain) == "[b<B,t<T-1]"
        assert str((x[b, t - 1] * 2.0)[b, t - 1].domain) == "[b<B,2<=t<T]"
        assert str(x[b, t - 3 : t].domain) == "[b<B,3<=t<T]"
        assert str(x[b, t : t + 2].domain) == "[b<B,t<T-1]"
        assert str(x[b, t:T].domain) == "[b<B,t<T]"
        assert str(x[b, maximum(t - 1, 0)].domain) == "[b<B,t<T]"


def test_a_range_of_its_own_is_kept() -> None:
    with tracing("t") as (builder, (t,)):
        node = builder.declare(
            "x", builder.domain({"t"}, {"t": Range("t", Sym("T") + 1)}), Type("f32")
        )
        x = RecurrentTensor(builder, Ref(node.name, node.domain.identity))
        assert str((x * 2.0).domain) == "[t<T+1]"
        assert str(x[t + 1].domain) == "[t<T]"
        assert str((x + tensor(t, name="z")).domain) == "[t<T]"


# ---- shapes and types


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((3,), (3,), (3,)),
        ((2, 3), (3,), (2, 3)),
        ((3,), (2, 3), (2, 3)),
        ((), (2, 3), (2, 3)),
        ((2, 1), (3,), (2, 3)),
        ((1, 3), (2, 1), (2, 3)),
        ((1,), (1,), (1,)),
        ((1, 1), (1,), (1, 1)),
        ((4, 1, 3), (2, 1), (4, 2, 3)),
    ],
)
def test_broadcasting_is_numpy(a: Any, b: Any, shape: Any) -> None:
    x, y = draws(*a), draws(*b, seed=1)
    with tracing("") as (builder, _):
        p, q = given(Type("f64", a), (), "p"), given(Type("f64", b), (), "q")
        out = p - q
        assert out.shape == shape
        rc.output(y=out, z=(p > 0.0) & (q > 0.0))
        got = run(builder, {}, {"p": x, "q": y})
    np.testing.assert_array_equal(got["y"], x - y)
    np.testing.assert_array_equal(got["z"], (x > 0) & (y > 0))


def test_symbolic_shapes() -> None:
    with tracing("bt") as (_, (b, t)):
        r = tensor(b, t, shape=(4,))
        assert r[b, t:T].shape == (Sym("T") - Sym("t"), 4)
        assert r[b, 0:T:2].shape == ((Sym("T") + 1) // 2, 4)
        assert str(r[b, t : minimum(t + 5, T)].shape[0]) == "min(t+5,T)-t"
        assert r[0:B, t:T].shape == (Sym("B"), Sym("T") - Sym("t"), 4)
        assert (r[b, t:T] * r[b, t:T].sum(axis=1).expand(4, axis=-1)).shape == r[b, t:T].shape
        assert r[0:B, 0:T].reshape(B * T, 4).shape == (Sym("B") * Sym("T"), 4)
        assert r[0:B, 0:T].reshape(T, -1).shape == (Sym("T"), 4 * Sym("B"))
        assert r[b, t:T].reshape(-1, 2).shape == (2 * Sym("T") - 2 * Sym("t"), 2)
        assert r[b, t:T].roll(1).shape == (Sym("T") - Sym("t"), 4)
        with pytest.raises(ShapeError, match="T elements are not a multiple of 3"):
            r[b, 0:T].sum(axis=1).reshape(3, -1)
        assert r[b, t:T].mean().shape == ()
        assert r[b, t][1:3].shape == (2,)
        assert r[b, t][-1].shape == ()
        assert r[b, t][-3:-1].shape == (2,)
        assert r[b, t][1:99].shape == (3,)
        assert r[b, t][t:].shape == (4 - Sym("t"),)


def test_rows_of_different_length_are_not_stacked() -> None:
    with tracing("t") as (_, (t,)):
        ragged = tensor(t)[t:T] * 2.0
        assert ragged[0].shape == (Sym("T"),)
        with pytest.raises(ShapeError) as e:
            ragged[0:T].sum()
    assert "stacks rows of different length" in str(e.value)
    assert "which varies with t" in str(e.value)


def numbers() -> dict[str, Any]:
    i32, f32, f64 = (given(Type(d, (2,)), (), d) for d in ("i32", "f32", "f64"))
    mask = given(Type("bool", (2,)), (), "mask")
    t = Index(Sym("t"))
    return {
        "i32 + 1": (i32 + 1, "i32"),
        "i32 * 0.5": (i32 * 0.5, "f32"),
        "0.5 - i32": (0.5 - i32, "f32"),
        "i32 / i32": (i32 / i32, "f32"),
        "1 / i32": (1 / i32, "f32"),
        "i32 + f32": (i32 + f32, "f32"),
        "f32 + f64": (f32 + f64, "f64"),
        "f64 * 2": (f64 * 2, "f64"),
        "f64 * 0.5": (f64 * 0.5, "f64"),
        "f64 * t": (f64 * t, "f64"),
        "t * i32": (t * i32, "i32"),
        "t - f64": (t - f64, "f64"),
        "mask * 2": (mask * 2, "i32"),
        "mask * 2.0": (mask * 2.0, "f32"),
        "mask.sum()": (mask.sum(), "i32"),
        "mask.mean()": (mask.mean(), "f32"),
        "i32.mean()": (i32.mean(), "f32"),
        "f32 < 1": (f32 < 1, "bool"),
        "i32 == i32": (i32 == i32, "bool"),
        "where(mask, 1, 0)": (rc.where(mask, 1, 0), "i32"),
        "where(mask, 1.0, 0.0)": (rc.where(mask, 1.0, 0.0), "f32"),
        "where(mask, f64, 0)": (rc.where(mask, f64, 0), "f64"),
        "where(mask, i32, 0.5)": (rc.where(mask, i32, 0.5), "f32"),
        "f32 + array": (f32 + ARRAY, "f32"),
        "array + f32": (ARRAY + f32, "f32"),
        "np.float64(2.0) * f32": (np.float64(2.0) * f32, "f32"),
        "np.int64(2) * f32": (np.int64(2) * f32, "f32"),
        "[1, 2]": (as_tensor([1, 2]), "i32"),
        "array": (as_tensor(ARRAY), "f32"),
        "array * 1": (as_tensor(ARRAY, "f64"), "f64"),
        "np.float64(2)": (as_tensor(np.float64(2)), "f32"),
        "np.array(2)": (as_tensor(np.array(2)), "i32"),
        "0.9**t": (0.9**t, "f32"),
        "t / 2": (t / 2, "f32"),
    }


def test_types_meet() -> None:
    with tracing("t"):
        made = numbers()
        assert {k: x.dtype for k, (x, _) in made.items()} == {
            k: want for k, (_, want) in made.items()
        }


def test_numbers_are_right() -> None:
    inputs = {
        "i32": np.array([3, -4], np.int32),
        "f32": np.array([0.5, 2.0], np.float32),
        "f64": np.array([0.25, 8.0]),
        "mask": np.array([True, False]),
    }
    with tracing("t") as (builder, _):
        names = numbers()
        rc.output(**{str(k): x for k, (x, _) in enumerate(names.values())})
        out = run(builder, {"T": 3}, inputs)
    env = {**inputs, "t": np.arange(3)[:, None], "np": np, "where": np.where, "array": ARRAY}
    for k, text in enumerate(names):
        got, want = out[str(k)], np.asarray(eval(text, dict(env)))
        np.testing.assert_allclose(np.squeeze(got), np.squeeze(want), rtol=1e-6, err_msg=text)


def test_methods_are_numpy() -> None:
    x = draws(2, 3)
    cases: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "sum": (lambda a: a.sum(axis=-1), x.sum(-1)),
        "mean": (lambda a: a.mean(axis=(0, 1)), x.mean()),
        "max": (lambda a: a.max(axis=0), x.max(0)),
        "min": (lambda a: a.min(), x.min()),
        "argmax": (lambda a: a.argmax(), x.argmax(-1)),
        "T": (lambda a: a.T, x.T),
        "transpose": (lambda a: a.transpose(1, 0), x.T),
        "reshape": (lambda a: a.reshape(3, -1), x.reshape(3, -1)),
        "flip": (lambda a: a.flip(axis=1), x[:, ::-1]),
        "clip": (lambda a: a.clip(-0.5, 0.5), x.clip(-0.5, 0.5)),
        "matmul": (lambda a: a @ a.T, x @ x.T),
        "vector": (lambda a: a @ a[0], x @ x[0]),
        "outer row": (lambda a: a[0] @ a.T, x[0] @ x.T),
        "brackets": (lambda a: a[1, 1:], x[1, 1:]),
        "expand": (lambda a: a.expand(4, axis=-1), np.repeat(x[..., None], 4, -1)),
        "stack": (lambda a: rc.stack([a, a], axis=-1), np.stack([x, x], -1)),
        "concat": (lambda a: rc.concat([a, a], axis=1), np.concatenate([x, x], 1)),
        "take": (lambda a: a.take(as_tensor([2, 0]), axis=1), x[:, [2, 0]]),
        "one_hot": (lambda a: as_tensor([2, 0]).one_hot(3), np.eye(3)[[2, 0]]),
        "mod": (lambda a: a % 0.4, x % 0.4),
        "power": (lambda a: a.abs() ** 1.5, np.abs(x) ** 1.5),
        "cumsum": (lambda a: a.cumsum(axis=1), x.cumsum(1)),
        "any": (lambda a: (a > 0.0).any(axis=0), (x > 0).any(0)),
        "all": (lambda a: ~(a > 0.0).all(axis=0), ~(x > 0).all(0)),
        "relu": (lambda a: a.relu(), np.maximum(x, 0)),
    }
    with tracing("") as (builder, _):
        a = given(Type("f64", (2, 3)), (), "a")
        rc.output(**{k: f(a) for k, (f, _) in cases.items()})
        out = run(builder, {}, {"a": x})
    for k, (_, want) in cases.items():
        assert out[k].shape == np.shape(want), k
        np.testing.assert_allclose(out[k], want, rtol=1e-12, err_msg=k)


# ---- branches


def test_where_on_dims_is_a_branch_and_on_data_is_not() -> None:
    with tracing("t") as (builder, (t,)):
        x = given(Type("f32"), (t,), "x")
        by_dim = rc.where(t < T - 1, x[t + 1], -1.0)
        by_data = rc.where(x > 2.0, x, 0)
        rc.output(by_dim=by_dim, by_data=by_data)
        graph = finished(builder)
        out = run(builder, SIZES, {"x": np.arange(5.0)})
    node = graph[by_dim.name]
    assert node.text(graph.is_identity).endswith("= merge(x[t+1], const, when=(t < T-1, t >= T-1))")
    assert graph[by_data.name].op.name == "where"
    np.testing.assert_array_equal(out["by_dim"], [1, 2, 3, 4, -1])
    np.testing.assert_array_equal(out["by_data"], [0, 0, 0, 3, 4])


def test_the_first_true_branch_wins() -> None:
    with tracing("bt") as (builder, (b, t)):
        x = rc.like(Type("i32"), (b, t))
        x[b, 0] = 1
        x[b, -1] = 2
        x[b, t, (t % 2 == 0) | (b == 1)] = 3
        x[t >= 0] = 4
        rc.output(x=x)
        out = run(builder, SIZES)
    np.testing.assert_array_equal(out["x"], [[1, 4, 3, 4, 2], [1, 3, 3, 3, 2]])


def test_conditions_of_a_shifted_definition_are_those_of_its_value() -> None:
    """x[t+1, t % 2 == 0] = t: where t is even, x of the next is t."""
    with tracing("t") as (builder, (t,)):
        x = rc.like(Type("i32"), (t,))
        x[t + 1, t % 2 == 0] = t
        x[t >= 0] = -1
        rc.output(x=x)
        np.testing.assert_array_equal(run(builder, SIZES)["x"], [-1, 0, -1, 2, -1])


def test_definitions_outside_the_domain_are_dropped() -> None:
    with tracing("t") as (builder, (t,)):
        x, y = rc.like(Type("i32"), (t,)), rc.like(Type("i32"), (t,))
        x[t + 2] = t
        x[t >= 0] = -1
        y[t - 2] = t
        y[t >= 0] = -1
        rc.output(x=x, y=y)
        out = run(builder, SIZES)
    np.testing.assert_array_equal(out["x"], [-1, -1, 0, 1, 2])
    np.testing.assert_array_equal(out["y"], [2, 3, 4, -1, -1])


def test_plainly_disjoint_conditions_stay_as_written() -> None:
    with tracing("t") as (_, (t,)):
        pairs = [
            (t == 0, t >= 1, "(t == 0, t >= 1)"),
            (t == 100, t >= 99, "(t == 100, (t >= 99) & (t != 100))"),
            (t == 100, t >= 101, "(t == 100, t >= 101)"),
            (t < 3, t >= 3, "(t < 3, t >= 3)"),
            (t == 0, t == T - 1, "(t == 0, (t == T-1) & (t != 0))"),
        ]
        for a, b, want in pairs:
            assert str(disjoint([a.expr, b.expr])) == want


def test_inputs_and_outputs_start_where_their_domain_does() -> None:
    with tracing("t") as (builder, (t,)):
        x = given(Type("f32"), (t,), "x")
        rc.output(step=x - x[t - 1])
        out = run(builder, SIZES, {"x": np.array([1.0, 2.0, 4.0, 8.0, 16.0])})
        np.testing.assert_array_equal(out["step"], [1, 2, 4, 8])
        assert run(builder, {"T": 1}, {"x": np.ones(1)})["step"].shape == (0,)


# ---- host calls


def test_a_call_takes_batch_dims_whole() -> None:
    from recurra.ir.user_objects import HostFunction

    seen: list[tuple[int, ...]] = []

    def step(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(x.shape)
        return x + y[:, None], y > 0

    with tracing("bt") as (builder, (b, t)):
        x, y = given(Type("f32", (3,)), (b, t), "x"), given(Type("f32"), (b, t), "y")
        types = [Type("f32", (3,)), Type("bool")]
        z, d = rc.call(HostFunction("step", step), types, [x, y], [b], (x + y).domain)
        assert (str(z), str(d)) == ("f32[3] over (b, t)", "bool[] over (b, t)")
        rc.output(z=z, d=d)
        inputs = {"x": draws(2, 5, 3).astype("f"), "y": draws(2, 5).astype("f")}
        out = run(builder, SIZES, inputs)
    np.testing.assert_allclose(out["z"], inputs["x"] + inputs["y"][..., None])
    np.testing.assert_array_equal(out["d"], inputs["y"] > 0)
    assert seen == [(2, 3)] * 5
