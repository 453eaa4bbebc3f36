"""Rows split over workers: one program, the same numbers for any count of them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import recurra as rc
from benchmarks.ppo.recurra_program import program
from benchmarks.ppo.workload import Work
from documents import env
from recurra.errors import RecurraError, ScheduleError
from recurra.ir.graph_parser import parse
from recurra.transforms.shard import Refusal, Shard, refusal, shard_rows
from sharded_programs import lengths, ppo

SIZES = {"B": 4, "I": 10, "T": 6}
WAYS: dict[str, dict[str, Any]] = {
    "loops": {"vectorized": False},
    "vectorized": {"tile_rows": 0},
    "tiled": {"tile_rows": 16},
    "kept": {"memory_price": 0.0},
    "recomputed": {"memory_price": 1e9},
    "2 workers": {"workers": 2},
    "4 workers": {"workers": 4},
    "2 workers, loops": {"workers": 2, "vectorized": False},
    "2 workers, tiled": {"workers": 2, "tile_rows": 8},
}


def regression() -> tuple[rc.Context, Any]:
    """Ten steps of SGD in float64 on recorded actions, states drawn, with std over all rows."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        a = rc.input(rc.f64, domain=(b, i, t), name="a")
        w, c = (
            rc.nn.Parameter(rc.constant(np.linspace(-1, 1, 12).reshape(shape), "f64"), (i,), name)
            for shape, name in (((3, 4), "w"), ((4, 3), "c"))
        )
        u = rc.uniform((b, i, t), (3,), dtype="f64")
        x = rc.like(rc.f64[3], domain=(b, i, t), name="x")
        x[b, i, 0] = u
        x[b, i, t + 1] = 0.7 * x + 0.3 * u * a
        y = ((x @ w).tanh() @ c).sum(axis=0)
        g = rc.rl.normalize(a[b, i, t:T].discounted_sum(0.9), over=(b, t))
        loss = ((y - g) * (y - g))[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.SGD([w, c], lr=0.3).step()
        rc.log(loss=loss, far=y[0:B, i, 0:T].max())
        rc.output(u=u, w=w, c=c)
    return ctx, (B, I, T)


@cache
def recorded() -> np.ndarray:
    return np.random.default_rng(0).normal(size=tuple(SIZES.values()))


@cache
def plain() -> dict[str, np.ndarray]:
    return trained({})


def trained(options: dict[str, Any]) -> dict[str, np.ndarray]:
    ctx, bounds = regression()
    p = ctx.compile(dict(zip(bounds, SIZES.values(), strict=True)), backend="numpy", **options)
    return p.run(seed=3, inputs={"a": recorded()})


@pytest.mark.slow
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_every_way_to_run_it_learns_the_same(options: dict[str, Any]) -> None:
    """Parameters after ten steps to 1e-10, draws to the last bit."""
    want, got = plain(), trained(options)
    assert np.ptp(want["loss"]) > 0.01
    assert got["u"].shape == want["u"].shape
    assert np.array_equal(got["u"], want["u"])
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-10, atol=1e-10, err_msg=name)


BEFORE = """
dims b<B, t<T
u[b<B,t<T]: f32[] = uniform(id=1, counter=(b, t))
n: f32[] = value(expr=B*T, dtype='f32')
s: f32[] = sum(u[0:B,0:T], axes=(0, 1))
m[t<T]: f32[] = max(u[0:B,t], axes=(0,))
r[b<B]: f32[] = sum(u[b,0:T], axes=(0,))
return n, s, m, r
"""
AFTER = """
dims b<B, t<T
u[b<B,t<T]: f32[] = uniform(id=1, counter=(B*shard+b, t))
n: f32[] = value(expr=B*T*shards, dtype='f32')
s_own: f32[] = sum(u[0:B,0:T], axes=(0, 1))
s: f32[] = allreduce(s_own)
m_own[t<T]: f32[] = max(u[0:B,t], axes=(0,))
m[t<T]: f32[] = allreduce(m_own, monoid_of='maximum')
r[b<B]: f32[] = sum(u[b,0:T], axes=(0,))
return n, s, m, r
"""


def test_sums_over_rows_become_sums_over_workers() -> None:
    graph, sizes = parse(BEFORE), {"B": 6, "T": 3}
    found = refusal(graph, sizes, "b", 3)
    assert isinstance(found, Shard)
    assert found.sizes(sizes) == {"B": 2, "T": 3, "shards": 3}
    assert str(shard_rows(graph, found)) == str(parse(AFTER))


REFUSED = {
    "y[b<B]: f32[] = merge(x, x[b-1], when=(b == 0, b > 0))": "y reads another row, x[b-1]",
    "y[b<B]: f32[B] = sub(x[0:B], x[0:B])": "y is an array of all rows, f32[B]",
    "y[b<B]: f32[] = merge(x, one, when=(b == 0, b > 0))": "y is merge",
    "y[b<2]: f32[] = add(x, x)": "y is over b<2",
    "y: i32[] = argmax(x[0:B], axes=(0,))": "y reads x[0:B] as one array",
    "y: f32[] = sum(x[0:2], axes=(0,))": "y reads x[0:2] as one array",
    "y[t<T]: f32[] = add(z[t,0], z[t,0])": "y reads another row, z[t,0]",
}


@pytest.mark.parametrize("line", REFUSED, ids=REFUSED.values())
def test_what_needs_other_rows_is_not_split(line: str) -> None:
    text = (
        "dims b<B, t<T\none: f32[] = const(value=1.0)\n"
        "x[b<B]: f32[] = uniform(id=1, counter=(b,))\n"
        f"z[t<T,b<B]: f32[] = uniform(id=2, counter=(t, b))\n{line}\nreturn y"
    )
    found = refusal(parse(text), {"B": 4, "T": 3}, "b", 2)
    assert isinstance(found, Refusal)
    assert found.why.startswith(REFUSED[line])


def minibatches(own: bool) -> tuple[rc.Context, Any]:
    """Samples of all rows are shuffled together, or those of each worker by themselves."""
    ctx = rc.Context(dims="w b i n t")
    with ctx as ((w, W), (b, B), (i, I), (n, N), (t, T)):
        rows, count = ((w, b), B) if own else ((b,), B)
        x = rc.uniform((*rows, i, t)) + (rc.value(w, "f32") if own else 0.0)
        k = rc.permutation(count * T, at=n, domain=(w, i) if own else (i,))
        taken = rc.rl.rows(x * x, k, over=(b, t))
        at = (slice(0, W), i, slice(0, N)) if own else (i, slice(0, N))
        rc.output(total=taken[at].sum(), first=x[(*rows, i, 0)], k=k)
    return ctx, (W, B, I, N, T)


@pytest.mark.parametrize("own", [False, True], ids=["together", "apart"])
def test_samples_of_all_rows_or_of_each_worker(own: bool) -> None:
    """Shuffled together, only what is done with samples is split."""
    ctx, bounds = minibatches(own)
    sizes = dict(zip(bounds, (4, 2, 3, 4, 4), strict=True))
    one = ctx.compile(sizes, backend="numpy").run(seed=1)
    split = ctx.compile(sizes, backend="numpy", workers=2)
    assert split.compiled.stages.decisions[0] == f"{'w' if own else 'n'}: split over 2 workers"
    got = split.run(seed=1)
    for name, x in one.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-6, err_msg=name)


def test_numbers_of_all_rows_are_told_apart() -> None:
    """A constant has those of all, on every worker; what a call gives has its own."""

    def made(workers: int) -> Any:
        ctx = rc.Context(num_dims=2)
        with ctx as ((b, B), (t, T)):
            x = rc.like(rc.f32, domain=(b, t))
            x[b, 0] = rc.constant(np.array([3.0, 9.0, 5.0, 2.0], np.float32)).index(b)
            x[b, t + 1] = x * 2.0
            rc.output(x=x)
        return ctx.compile({B: 4, T: 3}, backend="numpy", workers=workers).run()["x"]

    np.testing.assert_array_equal(made(2), made(1))
    assert made(2)[:, 0].tolist() == [3, 9, 5, 2]


def test_inputs_that_are_only_reduced_over_rows() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32[3], (b, t), "x")
        rc.output(mean=x[0:B, 0:T].mean(), most=x[0:B, t].max(axis=0))
    values = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    split = ctx.compile({B: 4, T: 5}, backend="numpy", workers=2)
    assert "b: split over 2 workers" in split.compiled.stages.decisions
    found = split.run(inputs={"x": values})
    np.testing.assert_allclose(found["mean"], values.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["most"], values.max(axis=0))


def test_statistics_over_rows() -> None:
    """Truth values are counted and deviations squared row by row, before they are summed."""
    ctx = rc.Context(dims="b i")
    with ctx as ((b, B), (i, I)):
        x = rc.uniform((b,), (2,))
        w = rc.nn.Parameter(rc.constant([1.0, 2.0]), domain=(i,), name="w")
        y = (x * w).sum()
        (y[0:B, i].std() + y[0:B, i].logsumexp()).backward()
        rc.optim.SGD([w], lr=0.1).step()
        rc.log(many=(y > 1.5)[0:B, i].sum(), far=y[0:B, 0:I].var(), w=w.sum())
    one, two = (ctx.run({B: 4, I: 3}, backend="numpy", workers=n) for n in (1, 2))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-5, err_msg=name)


def test_a_recurrence_that_begins_with_the_number_of_its_row() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f64, (b, t))
        x[b, 0] = rc.value(b, "f64")
        x[b, t + 1] = x * 0.5 + 1.0
        rc.output(x=x, most=x[0:B, t].max())
    one, two = (ctx.run({B: 4, T: 3}, backend="numpy", workers=n) for n in (1, 2))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, err_msg=name)


def test_rows_that_are_no_multiple_of_the_workers() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        rc.output(y=rc.uniform((b, t))[b, 0:T].cumsum())
    with pytest.raises(ScheduleError, match=r"2 does not divide B = 3(?s:.*)compile with {B: 4}"):
        ctx.compile({B: 3, T: 5}, backend="numpy", workers=2)
    found = ctx.compile({B: 4, T: 5}, backend="numpy", workers=2).run()
    assert found["y"].shape == (4, 5)


def test_no_dim_can_be_split() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.uniform((b, t))
        rc.output(y=x[b, 0:T].cumsum(), z=x[0:B, t].cumsum())
    for bounds, facts in (
        ({B: 4, T: 6}, "b: z is an array of all rows.*; t: y is an array of all rows"),
        ({B: 3, T: 5}, "b: z is an array of all rows.*; t: y is an array of all rows"),
    ):
        with pytest.raises(ScheduleError, match=f"(?s)cannot be split over 2 workers.*{facts}"):
            ctx.compile(bounds, backend="numpy", workers=2)
    with (steps := rc.Context(dims="t")) as (t, T):
        h = rc.like(rc.f32, domain=(t,))
        h[0] = 1.0
        h[t] = h[t - 1] * 0.5
        rc.output(h=h)
    with pytest.raises(
        ScheduleError, match=r"(?s)  --> test_shard.py.*t: h runs along it in order"
    ):
        steps.compile({T: 4}, backend="numpy", workers=2)


def test_mistakes_with_workers() -> None:
    ctx, bounds = regression()
    sizes = dict(zip(bounds, SIZES.values(), strict=True))
    with pytest.raises(RecurraError, match=r"(?s)'torch' runs on one worker.*jax and numpy"):
        ctx.compile(sizes, backend="torch", workers=2)
    with pytest.raises(RecurraError, match="cannot run on 0 workers"):
        ctx.compile(sizes, workers=0)
    with pytest.raises(RecurraError, match="looks at one worker only"):
        ctx.compile(sizes, backend="numpy", workers=2, check="nan")


@pytest.mark.slow
def test_rows_keep_their_state() -> None:
    """Of the environments, and of a run that is resumed: by as many workers."""
    work = Work(B=4, T=6, width=4, features=8)
    want = program(work, 5, backend="numpy").run(seed=5)
    split = program(work, 5, backend="numpy", workers=2, launch_steps=2)
    states: list[Any] = []
    got = split.run(seed=5, on_state=lambda s: states.append((s.hi, dict(s.variables))))
    again = split.run(seed=5, resume=states[0])
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(again[name], x[2:], rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_host_functions_see_all_rows() -> None:
    """Gymnasium's rows are one environment, whatever the workers."""
    from recurra.rl.recipes import Ppo, Reinforce

    for recipe, dim in (
        (Reinforce(iterations=2, rows=4, steps=6), "b"),
        (Ppo(iterations=2, rows=4, steps=6, minibatches=2, epochs=2, hidden=(4,)), "n"),
    ):
        ctx, bounds = recipe.program()
        want = ctx.compile(bounds, backend="numpy").run(seed=1)
        split = ctx.compile(bounds, backend="numpy", workers=2)
        assert f"{dim}: split over 2 workers" in split.compiled.stages.decisions
        got = split.run(seed=1)
        for name, x in want.items():
            np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_rows_that_the_data_end() -> None:
    """All workers go on until the last row of all has ended."""
    want = lengths(backend="numpy")
    got = lengths(backend="numpy", workers=2)
    assert len(set(want["n"].ravel().tolist())) > 3
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-6, err_msg=name)


DEVICES = """
import json
from sharded_programs import lengths, ppo
runs = [ppo(8, workers=4).run(seed=5), lengths(workers=4)]
print(json.dumps([{k: x.tolist() for k, x in r.items()} for r in runs]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_devices_do_what_one_does() -> None:
    """JAX on four devices, in a process that has four."""
    wants = ppo(8, backend="numpy").run(seed=5), lengths(backend="numpy")
    theirs = env(JAX_PLATFORMS="cpu")
    out = subprocess.check_output([sys.executable, "-c", DEVICES], text=True, env=theirs)
    for want, got in zip(wants, json.loads(out), strict=True):
        for name, x in want.items():
            np.testing.assert_allclose(np.array(got[name]), x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_too_few_devices() -> None:
    import jax

    have = len(jax.local_devices())
    with pytest.raises(RecurraError, match=f"(?s)JAX has begun with {have}.*before anything else"):
        ppo(64, workers=2 * have if have > 1 else 2)


def test_a_gradient_is_told_by_the_dims_that_are_written() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        z = rc.like(rc.f32, (b, t))
        z[b, 0] = x
        z[0, t] = x[0, rc.max(t - 2, 0)]
        z[b, t] = z[b - 1, t] * z[b, t - 1]
        z.square()[0:B, 0:T].sum().backward(wrt=[x])
        rc.output(g=x.grad)
    with pytest.raises(ScheduleError, match="cannot be split over 2 workers") as refused:
        ctx.compile({B: 4, T: 7}, backend="numpy", workers=2)
    told = refused.value.facts
    assert [fact.split(":")[0] for fact in told.split("; ")] == ["b", "t"]
