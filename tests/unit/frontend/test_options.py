"""Every option: told in docs/options.md, spelled out in `compile`, and right by the oracle."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import numpy as np
import pytest

import recurra as rc
from documents import ROOT, fill, table
from recurra.compiler.options import CompileOptions
from recurra.cost.attention import AttentionKernel
from recurra.cost.prices import PRICES
from recurra.cost.tuning_knobs import Tuning
from recurra.errors import RecurraError
from recurra.frontend.context import Context, compiling
from recurra.reference import interpreter
from recurra.runtime.executable import Executable
from recurra.storage.offload import Offload

Written = tuple[Context, dict[str, Any]]


def docstrings(kind: type) -> dict[str, str]:
    """What stands below every field of a dataclass."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for of, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(of, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(of.target, ast.Name)
            found[of.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def default(f: Field[Any]) -> str:
    return f"`{f.default!r}`" if f.default is not MISSING else f"`{f.type}()`"


def described(kind: type) -> str:
    told = docstrings(kind)
    kinds = {f.name: f.type.replace("|", "or") for f in fields(kind)}
    rows = [(f"`{f.name}`", kinds[f.name], default(f), told[f.name]) for f in fields(kind)]
    return table(("option", "type", "default", "what it means"), rows)


def test_the_page_of_options() -> None:
    contents = {"options": described(CompileOptions), "tuning": described(Tuning)}
    fill(ROOT / "docs" / "options.md", contents)


def test_options_are_spelled_out() -> None:
    """With the defaults of their fields, so that editors complete them."""
    for method in (Context.compile, Context.run):
        found = inspect.signature(method).parameters
        for f in fields(CompileOptions):
            if f.name != "tuning":
                assert found[f.name].default == f.default, f.name
                assert found[f.name].annotation == f.type, f.name


# ---- programs


def looking_back() -> Written:
    """Rows that look at all of their own past, and what is learned of them all."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        w = rc.like(rc.f32[3, 3], domain=(i,))
        w[0] = rc.uniform((), (3, 3))
        x = rc.like(rc.f32[3], domain=(b, i, t))
        x[b, i, 0] = rc.uniform((b, i), (3,))
        past = x[b, i, 0 : t + 1]
        seen = (past @ x).softmax(axis=0) @ past
        x[b, i, t + 1] = (seen @ w).tanh() + rc.uniform((b, i, t), (3,))
        loss = x[0:B, i, 0:T].square().mean()
        w[i + 1] = w * (1.0 - 0.1 * loss)
        rc.output(loss=loss, x=x)
    return ctx, {"B": 4, "I": 3, "T": 6}


def learning() -> Written:
    """What is learned of rows needs what was made when they were acted."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        layer = rc.nn.Linear(4, 4, domain=(i,))
        o = rc.like(rc.f32[4], domain=(b, i, t))
        o[b, i, 0] = rc.uniform((b, i), (4,))
        o[b, i, t + 1] = layer(o).tanh() + rc.uniform((b, i, t), (4,))
        loss = o.square().mean()
        loss[0:B, i, 0:T].mean().backward(wrt=layer.params)
        rc.optim.SGD(layer.params, lr=0.1).step()
        rc.output(loss=loss[0:B, i, 0:T].mean())
    return ctx, {"B": 4, "I": 3, "T": 8}


def given_a_prompt() -> Written:
    """The first points are given."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        prompt = rc.uniform((t,), (3,))
        x = rc.like(rc.f32[3], domain=(t,))
        key = x.tanh()
        y = rc.einsum("nd,d->d", key[0 : t + 1], x)
        x[t, t < 5] = prompt
        x[t] = y[t - 1].tanh()
        rc.output(y=y)
    return ctx, {"T": 9}


def a_table() -> Written:
    """Cells that wait for their neighbors."""
    ctx = rc.Context(dims="b j k")
    with ctx as ((b, B), (j, J), (k, K)):
        cost = rc.uniform((b, j, k), ())
        d = rc.like(rc.f32, domain=(b, j, k))
        d[b, 0, k] = cost
        d[b, j, 0] = cost
        d[b, j + 1, k + 1] = cost[b, j + 1, k + 1] + rc.minimum(d[b, j, k + 1], d[b, j + 1, k])
        rc.output(d=d)
    return ctx, {"B": 2, "J": 5, "K": 4}


def ended_by_data() -> Written:
    """Rows that end where their data say."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = rc.value(b).cast("f32")
        x[b, t + 1] = x + 1.0
        rc.output(total=x[0:B, 0:T].sum())
        end = rc.until(x > 3.5, max=9)
    return ctx, {"B": 3, "T": end}


def stepped_on_the_host() -> Written:
    """Rows of an environment."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="autoreset", vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, t))
        o[b, 0] = env.reset(domain=(b,))
        o[b, t + 1], _, _ = env.step((o.sum() > 0.0).cast("i32"))
        rc.output(o=o)
    return ctx, {"B": 4, "T": 5}


KERNEL = AttentionKernel("it", 1.0, 1.0, 1.0, 1.0)
VALUES: dict[str, tuple[Callable[[], Written], Any]] = {
    "backend": (looking_back, "torch"),
    "memory": (learning, "1MiB"),
    "check": (learning, "nan"),
    "workers": (learning, 2),
    "groups": (stepped_on_the_host, 2),
    "offload": (learning, Offload("host", least=1)),
    "placement": (learning, "greedy"),
    "scheduler": (learning, "isl"),
    "tuning": (looking_back, Tuning(vectorized=False, launch_steps=2)),
    "vectorized": (looking_back, False),
    "batch_last": (looking_back, True),
    "single_launch": (looking_back, False),
    "launch_steps": (learning, 2),
    "memory_price": (learning, 4096.0),
    "tile_points": (looking_back, 2),
    "fused_attention": (looking_back, False),
    "min_peeled_points": (given_a_prompt, 2),
    "min_skew_gain": (a_table, 0.0),
    "tile_rows": (learning, 8),
    "untiled_step_ns": (learning, 0.0),
    "poll_steps": (ended_by_data, 2.0),
    "min_overlapped_ns": (stepped_on_the_host, 0.0),
    "host_loops": (learning, ("t",)),
    "attention_kernel": (looking_back, KERNEL),
    "prices": (learning, replace(PRICES, disk=1e4)),
}


def test_every_option_has_a_program() -> None:
    assert set(VALUES) == {f.name for f in (*fields(CompileOptions), *fields(Tuning))}


def close(p: Executable) -> None:
    """The answer of a program is the oracle's."""
    want = interpreter.run(p.source_graph, p.sizes, seed=3)
    for name, got in p.run(seed=3).items():
        np.testing.assert_allclose(got, want[p.logs[name]], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("option", VALUES)
def test_the_answer_is_the_interpreters(option: str) -> None:
    write, value = VALUES[option]
    ctx, bounds = write()
    close(ctx.compile(bounds, **{"backend": "numpy", option: value}))


def test_knobs_are_fields_of_tuning() -> None:
    ctx, bounds = looking_back()
    apart = ctx.compile(bounds, backend="numpy", vectorized=False, tile_points=2)
    joined = ctx.compile(bounds, backend="numpy", tuning=Tuning(vectorized=False, tile_points=2))
    assert apart.schedule_text == joined.schedule_text
    assert apart.source == joined.source
    both = ctx.compile(bounds, backend="numpy", tuning=Tuning(vectorized=False), tile_points=2)
    assert both.schedule_text == joined.schedule_text


def test_what_is_given_goes_before_what_is_set_around_it() -> None:
    ctx, bounds = learning()
    with compiling(workers=2):
        assert ctx.compile(bounds, backend="numpy").compiled.shards is not None
    with compiling(check="nan"):
        assert ctx.compile(bounds, backend="numpy").compilation.check == "nan"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tile_point": 2}, "perhaps you meant tile_points"),
        ({"check": "inf"}, "there is no check 'inf'"),
        ({"workers": 0}, "a program cannot run on 0 workers"),
        ({"groups": "two"}, "a program cannot run on 'two' groups"),
        ({"workers": 2, "check": "nan"}, "check='nan' looks at one worker only"),
        ({"workers": 2, "offload": "host"}, "stores of several workers cannot be offloaded"),
        ({"scheduler": "mine"}, "there is no scheduler 'mine'"),
        ({"tile_points": -1}, "tile_points cannot be -1"),
        ({"launch_steps": 0}, "launch_steps cannot be 0"),
        ({"launch_steps": "a"}, "launch_steps cannot be 'a'"),
        ({"tile_rows": True}, "tile_rows cannot be True"),
        ({"memory_price": -1.0}, "memory_price cannot be -1.0"),
        ({"vectorized": "no"}, "vectorized cannot be 'no'"),
    ],
)
def test_options_that_cannot_be_meant(given: dict[str, Any], message: str) -> None:
    ctx, bounds = learning()
    with pytest.raises(RecurraError, match=message.replace("(", r"\(")):
        ctx.compile(bounds, **{"backend": "numpy", **given})
