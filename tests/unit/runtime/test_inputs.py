"""What the caller gives lies as he gives it, whatever the compiler makes of its dims."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS, interpreted
from example_programs import EXAMPLES, TINY_SIZES, read_example
from given_inputs import Given, with_inputs
from recurra.codegen.input_layout import is_row_major
from recurra.errors import RecurraError, ShapeError
from recurra.ir.graph_parser import parse
from recurra.runtime.initial_buffers import Given as GivenStores
from recurra.transforms.strip_mine import tiling


@cache
def example(name: str) -> Given:
    found = read_example(name)
    bounds: dict[Any, Any] = {found[k]: n for k, n in TINY_SIZES[name].items()}
    if name == "newton":
        bounds[found["T"]] = found["converged"]
    return with_inputs(found["ctx"], bounds)


def test_every_example_is_there() -> None:
    assert set(TINY_SIZES) == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TINY_SIZES)
@pytest.mark.usefixtures("hasty_xla")
def test_examples_are_given_their_data(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they draw, and what an environment showed them, in tiles of a few points."""
    monkeypatch.setattr(tiling, "MAX_BLOCK_LAYER_BYTES", 512)
    monkeypatch.setattr(tiling, "MIN_BLOCK_POINTS", 2)
    e = example(name)
    assert e.inputs
    program = e.compiled(backend=backend, tile_rows=4, tile_points=4)
    got = program.run(inputs=e.inputs)
    assert set(program.inputs) == set(e.inputs)
    for key, want in e.want.items():
        np.testing.assert_allclose(got[key], want, rtol=2e-4, atol=2e-4, err_msg=key)


# ---- loops over what is given


def dataset(count: int) -> tuple[rc.Context, dict[Any, int]]:
    """A mean over samples, so many that they are taken in blocks."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[64], (t,), name="samples")
        w = rc.constant(np.full((64, 64), 0.01, "f4"))
        rc.output(loss=(x @ w).tanh().sum()[0:T].sum())
    return ctx, {T: count}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_data_set_in_blocks(backend: str) -> None:
    ctx, bounds = dataset(2048)
    program = ctx.compile(bounds, backend=backend)
    assert any("te<1024" in str(d) for d in program.compiled.plan.graph.dims)
    x = np.random.default_rng(0).normal(size=(2048, 64)).astype("f4")
    want = np.tanh(x @ np.full((64, 64), 0.01, "f4")).sum()
    np.testing.assert_allclose(program.run(inputs={"samples": x})["loss"], want, rtol=1e-4)
    with pytest.raises(ShapeError, match="the input samples has the shape"):
        program.run(inputs={"samples": x.reshape(2, 1024, 64)})


def test_training_on_a_data_set_in_blocks() -> None:
    """As with one block."""
    ctx = rc.Context(dims="i n")
    with ctx as ((i, I), (n, N)):
        x, y = rc.input(rc.f32[64], (n,), name="x"), rc.input(rc.f32, (n,), name="y")
        net = rc.nn.MLP([64, 64, 1], domain=(i,))
        loss = (net(x).index(0) - y).square()[i, 0:N].mean()
        loss.backward()
        rc.optim.SGD(net.params, lr=1e-2).step()
        rc.log(loss=loss)
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(512, 64)), "y": rng.normal(size=512)}
    four = {k: np.concatenate([a] * 4).astype("f4") for k, a in data.items()}
    program = ctx.compile({I: 3, N: 2048}, backend="numpy")
    assert any("n: tiles of" in d for d in program.compiled.stages.decisions)
    one = ctx.run({I: 3, N: 512}, backend="numpy", inputs=data)["loss"]
    np.testing.assert_allclose(program.run(inputs=four)["loss"], one, rtol=1e-4)


def summed_beside_a_loop(t: Any, T: Any) -> None:
    w, z = rc.input(rc.f32, (t,), name="w"), rc.input(rc.f32, (t,), name="z")
    y = rc.like(rc.f32, (t,))
    y[0] = z
    y[t] = (0.3 * y[t - 1] + z).tanh()
    rc.output(mean=w[0:T].mean(), y=y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_an_input_that_is_only_summed(backend: str, count: int) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        summed_beside_a_loop(t, T)
    a = np.linspace(-1.0, 2.0, count, dtype="f4")
    got = ctx.compile({T: count}, backend=backend).run(inputs={"w": a, "z": a})
    y = [a[0]]
    for z in a[1:]:
        y.append(np.tanh(0.3 * y[-1] + z))
    np.testing.assert_allclose(got["mean"], a.mean(), rtol=1e-4)
    np.testing.assert_allclose(got["y"], y, rtol=1e-4)


def rows_and_steps() -> tuple[rc.Context, dict[Any, int]]:
    """A loop over t, and sums over windows of it, which are not whole at the ends."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32[3], (b, t), name="x")
        h = rc.like(rc.f32[3], (b, t))
        h[b, 0] = x
        h[b, t] = 0.5 * h[b, t - 1] + x
        past = x[b, 0 : t + 1].sum(axis=0)
        ahead = x[b, t : rc.min(t + 5, T)].sum(axis=0)
        error = (h * past - ahead).square().sum()
        rc.output(h=h, error=error[0:B, 0:T].sum())
    return ctx, {B: 4, T: 13}


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2, "backend": "numpy"},
        {"offload": rc.Offload("host", least=1), "backend": "numpy"},
        {"offload": rc.Offload("disk", least=1), "backend": "torch"},
        {"memory": "16KiB", "backend": "numpy"},
        {"tile_rows": 4, "tile_points": 4, "min_peeled_points": 1, "backend": "jax"},
        {"tile_rows": 4, "tile_points": 4, "min_peeled_points": 1, "backend": "torch"},
    ],
    ids=lambda x: " ".join(x),
)
def test_inputs_under_every_option(options: dict[str, Any]) -> None:
    ctx, bounds = rows_and_steps()
    x = np.random.default_rng(2).normal(size=(4, 13, 3)).astype("f4")
    want = interpreted(ctx, bounds, {"x": x})
    got = ctx.compile(bounds, **options).run(inputs={"x": x})
    for name, y in want.items():
        np.testing.assert_allclose(got[name], y, rtol=1e-4, atol=1e-4)


def test_rows_that_take_turns_read_their_own() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="absorbing", vectorization_mode="sync")
        push = rc.input(rc.i32, (b, t), name="push")
        o = rc.like(env.observation_space, domain=(b, t))
        o[b, 0] = env.reset(domain=(b,))
        o[b, t + 1], _, _ = env.step(push)
        rc.output(o=o, pushes=push[b, 0:T].sum())
    pushes = np.random.default_rng(3).integers(0, 2, (4, 6)).astype("i4")
    one, two = (
        ctx.compile({B: 4, T: 6}, backend="numpy", groups=groups).run(inputs={"push": pushes})
        for groups in (1, 2)
    )
    np.testing.assert_array_equal(two["pushes"], pushes.sum(axis=1))
    np.testing.assert_allclose(two["o"], one["o"], rtol=1e-5)


def test_an_input_that_is_tiled_is_not_copied() -> None:
    ctx, bounds = dataset(2048)
    program = ctx.compile(bounds, backend="numpy")
    x = np.zeros((2048, 64), "f4")
    given = GivenStores(program.compiled.program.plan, program.backend, {"samples": x}, None)
    (store,) = (s for s in program.compiled.program.plan.stores.values() if s.given)
    assert np.shares_memory(given.store(store), x)


# ---- inputs that nothing reads


def off(t: Any, x: Any, c: Any) -> dict[str, Any]:
    return {"y": rc.where(rc.constant(0.0) > 0.5, x + c, x)}


def weightless(t: Any, x: Any, c: Any) -> dict[str, Any]:
    return {"y": x + 0.0 * c}


def nothing(t: Any, x: Any, c: Any) -> dict[str, Any]:
    return {"y": x, "z": c - c}


def unread(t: Any, x: Any, c: Any) -> dict[str, Any]:
    return {"y": x}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [off, weightless, nothing, unread])
def test_an_input_that_is_dropped(program: Any, backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x, c = rc.input(rc.f32, (t,), name="x"), rc.input(rc.f32, (t,), name="c")
        rc.output(**program(t, x, c))
    made = ctx.compile({T: 3}, backend=backend)
    assert [str(x) for x in made.inputs.values()] == [
        "x: f32[] over [t<T]",
        "c: f32[] over [t<T], which nothing reads",
    ]
    one = np.ones(3, "f4")
    for given in ({"x": one}, {"x": one, "c": one}):
        np.testing.assert_array_equal(made.run(inputs=given)["y"], one)
    for c, told in ((np.ones(4, "f4"), "has the shape"), (1j * one, "complex"), ("c", "no number")):
        with pytest.raises(ShapeError, match=f"the input c.*|.*{told}"):
            made.run(inputs={"x": one, "c": c})
    with pytest.raises(RecurraError, match="perhaps you meant x"):
        made.run(inputs={"x": one, "xx": one})


# ---- names

TEXTS: tuple[str, ...] = (
    "a b",
    "my weights of the policy head, layer one",
    "it's",
    'say "x"',
    "x\ny",
    "🙂",
    "x²",
    "1",
    "class",
    "+w",
    "w@-1",
    "w_again",
    "+add",
    "x[]",
    "x.0",
    "a[t]: f32[] = b(#)",
    "x" * 500,
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_name_is_any_text(backend: str) -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        total = rc.constant(0.0)
        for name in TEXTS:
            w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name=f"{name}?")
            x = rc.input(rc.f32, (i,), name=name)
            (x * w).square().backward()
            rc.optim.SGD([w], lr=1e-2).step()
            h = rc.like(rc.f32, (i,), name=f"{name}!")
            h[0] = w
            h[i] = h[i - 1] + x * w
            total = total + h
        rc.output(total=total)
    assert parse(str(ctx.graph), ctx.builder.resources.values()) == ctx.graph
    x = np.linspace(0.0, 1.0, 4, dtype="f4")
    given = dict.fromkeys(TEXTS, x)
    want = interpreted(ctx, {I: 4}, given)["total"]
    got = ctx.compile({I: 4}, backend=backend).run(inputs=given)["total"]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_name_that_is_given_is_final() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, _),):
        obs = rc.input(rc.f32, (t,), name="z")
        w = rc.nn.Parameter(rc.constant(1.0), domain=(t,), name="weight")
        y = rc.like(rc.f32, (t,), name="state")
        y[t] = obs * w
        seen = rc.input(rc.f32, (t,))
        h = rc.like(rc.f32, (t,))
        h[0] = seen
        h[t] = h[t - 1] + y
        rc.output(h=h)
    assert (obs.name, w.name, y.name) == ("z", "weight", "state")
    assert (seen.name, h.name) == ("seen", "h")


def test_an_input_has_its_name_whoever_had_it() -> None:
    """Of others of one name the second is x_2."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, _),):
        first, second = (rc.like(rc.f32, (t,), name="x") for _ in range(2))
        first[t] = second[t] = 1.0
        assert (first.name, second.name) == ("x", "x_2")
        x = rc.input(rc.f32, (t,), name="x")
        assert (first.name, second.name, x.name) == ("x_3", "x_2", "x")


def test_two_inputs_of_one_name() -> None:
    with rc.Context(dims="t") as ((t, _),):
        rc.input(rc.f32, (t,), name="x")  # the first
        with pytest.raises(RecurraError, match="two inputs are called 'x'") as e:
            rc.input(rc.i32, (), name="x")  # the second
        assert 'name="x")  # the first' in str(e.value)
        assert 'name="x")  # the second' in str(e.value)
        with pytest.raises(RecurraError, match="an input cannot be called ''"):
            rc.input(rc.f32, (t,), name="")


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "abacus"])
def test_jax_without_a_device(platform: str) -> None:
    code = "import recurra as rc\nwith (ctx := rc.Context()):\n    rc.output(x=rc.constant(1.0))\n"
    code += "ctx.compile()"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
    )
    if found.returncode:  # a machine may have such a device
        assert "RecurraError: JAX finds no device to run the program on" in found.stderr
        assert f"look for {platform}" in found.stderr
        assert 'backend="numpy"' in found.stderr


GIVEN_WRONG: dict[str, tuple[Any, str]] = {
    "masked, of the right type": (
        {"x": np.ma.array(np.ones((2, 3), np.float32), mask=[[False] * 3, [True] * 3])},
        "the input x has a masked value",
    ),
    "ragged": ({"x": [[1.0, 2.0, 3.0], [1.0]]}, "the input x is ragged"),
    "no names": ([np.ones((2, 3))], "inputs are given by their names, not as a list"),
}


@pytest.mark.parametrize(("given", "said"), GIVEN_WRONG.values(), ids=GIVEN_WRONG)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_is_no_array_is_refused(given: Any, said: str, backend: str) -> None:
    """What a mask hides was taken for numbers; the others ended in a traceback."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        rc.output(y=rc.input(rc.f32, (b, t), name="x") * 2.0)
    program = ctx.compile({B: 2, T: 3}, backend=backend)
    with pytest.raises(RecurraError, match=said) as refused:
        program.run(inputs=given)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("program.run(x=x)", 'program.run(inputs={"x": x})'),
        ("program.run(0, None, x)", 'program.run(seed=0, inputs={"x": x})'),
        ("program(x)", 'program.run(inputs={"x": x})'),
        ("program(x=x)", 'program.run(inputs={"x": x})'),
        ("ctx.run({T: 3}, x=x)", 'inputs={"x": x}'),
    ],
)
def test_inputs_by_keyword_are_told_how_they_are_given(call: str, line: str) -> None:
    with (ctx := rc.Context(dims="t")) as (_, T):
        rc.output(y=rc.input(rc.f32, (_,), name="x") * 2.0)
    program, x = ctx.compile({T: 3}, backend="numpy"), np.arange(3, dtype="f4")
    given = {"program": program, "ctx": ctx, "T": T, "x": x}
    with pytest.raises(RecurraError) as refused:
        eval(call, given)
    assert refused.value.facts
    assert line in refused.value.hint
    if line.startswith("program"):
        np.testing.assert_array_equal(eval(line, given)["y"], 2.0 * x)


def test_rows_that_lie_apart_are_read_where_they_lie() -> None:
    x = np.zeros((4, 3, 2), np.float32)
    assert is_row_major(x[::2])
    assert is_row_major(x[1:2, :1])
    assert not any(map(is_row_major, (x[::-1], x[:, ::2], x.T, np.broadcast_to(x[0], x.shape))))
