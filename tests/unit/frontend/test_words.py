"""Words of other libraries: each is refused with a line that works when it is pasted."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import recurra as rc
from recurra.analysis.argument_checks import KEYWORDS, WrongCall
from recurra.errors import RecurraError
from recurra.frontend.foreign_names import OF_MODULES, WORDS
from recurra.frontend.operator_table import OPERATORS

PI = "pi = rc.nn.Categorical(x.index(0)); a = pi.sample(); pi.log_prob(a)"
OWNERS = "x rc rc.nn rc.optim rc.rl"  # where a word is looked for


def works(
    refuse: Callable[[dict[str, Any]], list[str]],
    shape: tuple[int, ...] = (2, 3),
    dtype: str = "f32",
) -> None:
    """Lines that a refusal gives: each runs in the program, is put out if it is a tensor, and so
    the program runs.

    Args:
        refuse: makes the refusal, given the names in the program: x, y and i of `shape`, y of
            `dtype`, as is x, and i of positions.
    """
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x, y = (rc.normal((t,), shape).cast(dtype).abs() for _ in "xy")
        i = rc.randint(0, 2, (t,), shape)
        rc.output(first=x)
        given: dict[str, Any] = {
            "rc": rc,
            "np": np,
            "jax": jax,
            "jnp": jnp,
            "math": math,
            "torch": torch,
            "F": F,
        }
        given |= {"net": rc.nn.Linear(3, 2, domain=()), "k": i.index(0).index(0)}
        given |= {"ctx": ctx, "t": t, "T": T, "x": x, "y": y, "i": i, "z": x.sum()[t]}
        for k, line in enumerate(refuse(given)):
            try:
                made = eval(line, given)
            except SyntaxError:
                exec(line, given)
                made = given["h" if line.startswith("h = ") else "x"]
            for n, part in enumerate(made if isinstance(made, tuple) else [made]):
                if hasattr(part, "backward"):
                    rc.output(**{f"made_{k}_{n}": part})
    assert "first" in ctx.compile({T: 3}, backend="numpy").run()


@pytest.mark.parametrize("word", WORDS)
def test_the_line_works(word: str) -> None:
    def refuse(given: dict[str, Any]) -> list[str]:
        owners = [eval(o, given) for o in OWNERS.split()]
        strangers = [o for o in owners if not hasattr(o, word)]
        assert strangers
        for owner in strangers:
            with pytest.raises(RecurraError, match=f"has no '{word}'") as refused:
                getattr(owner, word)
            assert refused.value.hint == f"write {WORDS[word]}"
        return [WORDS[word]]

    works(refuse)


@pytest.mark.parametrize("word", KEYWORDS)
def test_the_line_of_a_keyword_works(word: str) -> None:
    def refuse(given: dict[str, Any]) -> list[str]:
        with pytest.raises(WrongCall, match=f"unexpected keyword argument '{word}'") as refused:
            given["z"].backward(**{word: 1})
        assert refused.value.hint == f"write {KEYWORDS[word]}"
        return [KEYWORDS[word]]

    works(refuse)


@pytest.mark.parametrize("word", OF_MODULES)
def test_the_line_of_a_word_of_modules_works(word: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        net, x = rc.nn.Linear(3, 2, domain=(t,)), rc.normal((t,), 3)
        rc.output(first=x)
        with pytest.raises(RecurraError, match=f"the module Linear has no '{word}'") as refused:
            getattr(net, word)
        assert refused.value.hint == f"write {OF_MODULES[word]}"
        given = {"net": net, "x": x, "rc": rc, "ctx": ctx, "t": t, "T": T}
        made = eval(OF_MODULES[word], given)
        if isinstance(made, rc.Tensor):
            rc.output(made=made)
    assert "first" in ctx.compile({T: 3}, backend="numpy").run()


def test_a_tensor_without_a_name_of_the_users_is_called_by_none() -> None:
    with rc.Context(dims="t") as (t, _):
        x = rc.normal((t,), 3)
        with pytest.raises(RecurraError) as refused:
            (x * 2.0)[0, 1]
        assert refused.value.what == "(..) is indexed with 2 expressions"
        assert refused.value.hint == "write (..)[0][1]"
        y = x * 2.0
        with pytest.raises(RecurraError, match="y is indexed"):
            y[0, 1]


def test_a_large_argument_is_told_by_its_shape() -> None:
    zeros: Any = rc.zeros
    with rc.Context(dims="t"), pytest.raises(RecurraError) as refused:
        zeros(np.zeros((40, 30)), 1, 2)
    assert "rc.zeros(<array of [40, 30]>, 1, 2) does not fit" in refused.value.what


OF_INTEGERS = ("x & y", "x | y", "x ^ y", "x << y", "x >> y", "~x")


@pytest.mark.parametrize("key", OPERATORS)
def test_the_line_of_an_operator_works(key: str) -> None:
    works(lambda _: [OPERATORS[key].ours], (3, 3), "i32" if key in OF_INTEGERS else "f32")


WRITTEN = {  # what is written first: lines of the hint, each of which works
    "jnp.where(x > 0, x, 0.0)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "jnp.exp(x)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "jnp.add(jnp.ones(3), x)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "jax.nn.relu(x)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "jax.lax.exp(x)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "jnp.asarray(x)": ["rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x)"],
    "np.where(x > 0, x, 0.0)": ["rc.where(x > 0.0, x, y)"],
    "torch.where(x > 0, x, 0.0)": ["rc.where(x > 0.0, x, y)"],
    "torch.stack([x, x])": ["rc.stack([x, y], axis=0)"],
    "F.softmax(x, dim=-1)": ["x.softmax(axis=-1)"],
    "F.linear(x, x)": ["rc.nn.Linear(3, 2, domain=())(x)"],
    "np.dot(x, x)": ["x @ x.T"],
    "rc.nn.Linear(3, 2)": ["rc.nn.Linear(3, 2, domain=(t,))"],
    "rc.nn.functional.relu(x)": ["x.relu()"],
    'x.type("f32")': ['x.cast("f32")'],
    'x.to("cuda")': ['x.cast("f32")'],
    "x.detach().numpy()": ["rc.output(x=x)"],
    "x[0:T].sum().backward(retain_graph=True)": ["x[0:T].sum().backward(wrt=[x])"],
    "x[0:T].sum().backward(inputs=[x])": ["x[0:T].sum().backward(wrt=[x])"],
    "x[0:T].sum().backward([x], True)": ["x[0:T].sum().backward(wrt=[x])"],
    "x[0:T].sum().backward(gradient=y)": ["(x * y)[0:T].sum().backward(wrt=[x])"],
    "x[t:T].discounted_sum(0.99 * (x > 0.0))": [
        "g = rc.like(x.type, domain=(t,)); g[T - 1] = x[T - 1]; "
        "g[t] = x + 0.99 * rc.where(y > 1.0, 0.0, g[t + 1])"
    ],
    "x[t:T].discounted_sum('a')": [],
    "x == None": ["x is None"],
    "None != x": ["x is None"],
    "x + None": ["x is None"],
    "rc.where(x > 0.0, x)": ["rc.where(x > 0.0, x, y)"],
    "rc.concat(x, x)": ["rc.concat([x, y], axis=0)"],
    "rc.concat([])": ["rc.concat([x, y], axis=0)"],
    "rc.stack([])": ["rc.stack([x, y], axis=0)"],
    "rc.stack(x)": ["rc.stack([x, y], axis=0)"],
    "rc.einsum(x, x)": ['rc.einsum("ab,bc->ac", x, x.T)'],
    'rc.einsum("a,a")': ['rc.einsum("ab,bc->ac", x, x.T)'],
    "rc.input()": [],
    "rc.like()": [],
    "rc.bound(3)": ['N = rc.bound("N")'],
    "i.one_hot()": ["i.one_hot(size=3)"],
    "rc.nn.Categorical(probs=x)": ["rc.nn.Categorical(x.index(0).log())"],
    "rc.nn.Categorical()": [PI],
    "rc.nn.Categorical(x.index(0)).log_prob()": [PI],
    "rc.nn.MLP([3, 2], (t,), activation='relu')": ["rc.nn.MLP([3, 2], (t,))"],
    "rc.optim.Adam(net.params, lr=lambda k: 0.1)": [],
    "rc.optim.Adam(net.params, lr=None)": [],
    "f'{x:.3f}'": ["rc.output(x=x)"],
    "len(x)": ["x.shape[0]"],
    "[v for v in x]": ["x.index(0, axis=0)", "x[t]"],
    "x if x > 0 else 0.0": ["rc.where(x > 0.0, x, 0.0)"],
    "max(x, 0.0)": ["rc.maximum(x, 0.0)"],
    "0.0 < x < 1.0": ["(x > 0.0) & (x < 1.0)"],
    "float(x)": ["rc.output(x=x)"],
    "math.exp(x)": ["x.exp()"],
    "int(x)": ['x.cast("i32")', "x.floor()"],
    "np.asarray(x)": ["rc.output(x=x)"],
    "x.__setitem__(t, x[t] + 1)": ["x = x + 1.0"],
    "x[t, :]": ["x[t][:]"],
    "x[:, 0]": ["x[:][:, 0]"],
    "x[t, None]": ["x[t][None]"],
    "x[t - 1, 0, 1]": ["x[t-1][0, 1]"],
    "z[0:T]": ["(z * 1.0)[0:T]"],
    "x[None]": ["x.reshape(1, *x.shape)"],
    "x[x > 0.0]": ["rc.where(x > 0.0, x, 0.0)"],
    "x[t][x > 0.0]": ["rc.where(x > 0.0, x, 0.0)", "x.take(i, axis=0)"],
    "x[i]": ["x[0:T].take(i, axis=0)"],
    "x.max(y)": ["rc.maximum(x, y)", "x.max(axis=0)"],
    "x.sum(t)": ["x[0:T].sum(axis=0)", "x.sum(axis=0)"],
    "x.std(unbiased=False)": ["x.std(axis=0, correction=0)"],
    "x.expand(4, -1, -1)": ["x.expand(size=4, axis=0)"],
    "rc.log(x)": ["x.log()", "rc.log(loss=x.mean())"],
    "rc.zeros(4, 2)": ["rc.zeros((4, 2), rc.f32)"],
    'rc.einsum("...j->j...", x)': ['rc.einsum("ab,bc->ac", x, y.T)'],
}


@pytest.mark.parametrize("wrong", WRITTEN)
def test_what_is_written_first(wrong: str) -> None:
    def refuse(given: dict[str, Any]) -> list[str]:
        with pytest.raises(RecurraError) as refused:
            eval(compile(wrong, "program.py", "eval"), given)
        told = refused.value
        assert told.what
        assert told.facts
        for line in WRITTEN[wrong]:
            assert line.replace("y.T", "y") in told.hint
        assert told.loc
        assert told.loc.file == "program.py"
        return WRITTEN[wrong]

    works(refuse)


def test_what_works_as_elsewhere() -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3) - 5.5
    with (ctx := rc.Context(dims="t")) as (t, T):
        x: Any = rc.input(rc.f32[2, 3], (t,), "x")
        rc.output(last=x[..., 0], new=x[t][None, ..., 1], listed=x[t][:, [2, 0]])
        rc.output(low=x.clip(min=0.0), high=x.clip(hi=1.0), both=x.clip(a_min=-1, a_max=1.0))
        rc.output(rounded=round(x), floored=math.floor(x))
        rc.output(cast=x.cast(torch.float64), small=x.cast(np.int8), named=x.cast("float16"))
        rc.output(product=rc.einsum("ji,kj", x, x.T), left=jnp.ones(3) * x)
        (x.clip(min=0.0) * x)[0:T].sum().backward(wrt=[x])
        rc.output(slope=x.grad)
    found = ctx.run({T: 2}, inputs={"x": values}, backend="numpy")
    want = {
        "last": values[..., 0],
        "new": values[:, None, :, 1],
        "listed": values[:, :, [2, 0]],
        "low": values.clip(0),
        "high": values.clip(None, 1),
        "both": values.clip(-1, 1),
        "rounded": values.round(),
        "floored": np.floor(values),
        "cast": values.astype("f8"),
        "small": values.astype("i1"),
        "named": values.astype("f2"),
        "product": np.stack([np.einsum("ji,kj", v, v.T) for v in values]),
        "left": values,
        "slope": np.where(values > 0, 2 * values, 0),
    }
    for name, array in want.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("sub", "x - y"),
        ("matmul", "x @ y"),
        ("eq", "x == y"),
        ("clamp", "x.clip(lo=0.0, hi=1.0)"),
        ("concatenate", "rc.concat([x, y], axis=0)"),
        ("randn", "rc.normal(domain=(t,), shape=(2, 3))"),
        ("exp_", "x = x + 1.0"),
    ],
)
def test_an_operator_of_another_name(word: str, line: str) -> None:
    with rc.Context(dims="t") as (t, _):
        x = rc.normal((t,), (2, 3))
        with pytest.raises(AttributeError) as refused:
            getattr(x, word)
    assert str(refused.value).endswith(f"write {line}")


def test_what_python_asks_for_is_as_ever() -> None:
    with rc.Context(dims="t") as (t, _):
        x = rc.normal((t,), (2, 3))
        assert not hasattr(x, "view")
        assert not hasattr(x, "__array_interface__")
        assert getattr(x, "nonsense", None) is None
        assert copy.copy(x).shape == x.shape
    assert not hasattr(rc, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'tensor'"):
        exec("from recurra import tensor")


BITS = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.tensor(BITS, dtype=torch.bfloat16), "bf16"),
        (jnp.asarray(BITS, jnp.bfloat16), "bf16"),
        (BITS.astype(ml_dtypes.bfloat16), "bf16"),
        (torch.tensor(BITS, requires_grad=True), "f32"),
        (BITS.tolist(), "f32"),
        (torch.tensor([0.1, 1 / 3], dtype=torch.float64), "f64"),
        (np.array([0.1, 1 / 3]), "f64"),
        (torch.tensor([2**40 + 1, -(2**50)]), "i64"),
        (np.float64(0.1), "f64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_constants_of_any_library_keep_their_bits(given: Any, dtype: Any, backend: str) -> None:
    with (ctx := rc.Context(dims="t")) as (_, T):
        x = rc.constant(given, dtype if dtype in ("f64", "i64") else None)
        assert x.dtype == dtype
        rc.output(x=x)
    have = np.asarray(ctx.compile({T: 1}, backend=backend).run()["x"])
    plain = given.detach().double() if isinstance(given, torch.Tensor) else given
    np.testing.assert_array_equal(have.astype(np.float64), np.asarray(plain, np.float64))


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_bounds_are_sizes_and_dims_are_numbers_in_every_word(backend: str) -> None:
    """They came to the equations as what the user holds, and ended in an AttributeError."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        N = rc.bound("N")
        x = rc.value(b) * 10.0 + rc.value(t) * (5.0 - rc.value(t))
        row, at = x[b, 0:T], rc.value(t, "i32")
        rc.output(best=row.topk(N)[0], all=row.topk(T)[0], least=row.topk(N, largest=False)[0])
        rc.output(wide=x.broadcast_to((N, T)).sum(), hot=at.one_hot(T), few=at.one_hot(N))
        rc.output(two=x[b, np.int64(2)] * 1.0, pair=rc.stack([t, t + 1]), three=rc.stack([x, t, N]))
        rc.output(scaled=rc.einsum("a,->a", rc.arange(3), t), again=rc.arange(2).tile(N))
    got = ctx.run({B: 2, T: 4, N: 2}, backend=backend)
    x = np.array([[10.0 * b + t * (5.0 - t) for t in range(4)] for b in range(2)])
    t, ordered = np.arange(4), np.sort(x)
    want = {
        "best": ordered[:, :1:-1],
        "all": ordered[:, ::-1],
        "least": ordered[:, :2],
        "wide": x * 8,
        "hot": np.eye(4),
        "few": np.eye(4)[:, :2],
        "two": x[:, 2],
        "pair": np.stack([t, t + 1], 1),
        "three": np.stack([x, np.stack([t, t]), np.full((2, 4), 2)], 2),
        "scaled": np.outer(t, np.arange(3)),
        "again": np.tile(np.arange(2), 2),
    }
    for name, y in want.items():
        np.testing.assert_array_equal(got[name], y, err_msg=name)


def test_dims_are_no_tensors() -> None:
    with rc.Context(dims="t") as (t, T):
        for index in (t, T - 1, t < 3):
            assert not hasattr(index, "shape")
            with pytest.raises(RecurraError, match="has no 'cast'") as e:
                index.cast("f32")
            assert f"rc.value({index})" in str(e.value)
        assert repr(copy.deepcopy(t + 1)) == "t+1"


def test_words_that_mix_axes_are_refused() -> None:
    with rc.Context(dims="t") as (t, T):
        x = rc.value(t) * 1.0
        with pytest.raises(RecurraError, match="have not as many axes"):
            rc.concat([x[0:T], t])
        with pytest.raises(RecurraError, match=r"arange\(0, 3, 0\) would have inf elements"):
            rc.arange(0, 3, 0)


def test_divmod_is_both_and_points_are_not_deleted() -> None:
    values: Any = np.array([1.5, -2.5, 5.0], np.float32)
    with (ctx := rc.Context(dims="t")) as (t, T):
        x: Any = rc.input(rc.f32, (t,), "x")
        q, r = divmod(x, 2.0)
        seven: Any = 7
        a, b = divmod(seven, x)
        c, d = divmod(t, 2)
        rc.output(q=q, r=r, a=a, b=b, c=c, d=d)
        reads: list[Any] = [x, t]
        for read in reads:
            with pytest.raises(RecurraError, match="cannot be deleted"):
                del read[0]
    got = ctx.run({T: 3}, inputs={"x": values}, backend="numpy")
    counted: Any = np.arange(3)
    pairs = [divmod(values, 2.0), divmod(7, values), divmod(counted, 2)]
    for name, want in zip("qrabcd", [y for pair in pairs for y in pair], strict=True):
        np.testing.assert_allclose(got[name], want, err_msg=name)
