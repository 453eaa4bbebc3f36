"""strip: tiles of ranges that grow give the oracle's answer, and cost what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from fuzzing import drawn_at_length
from hlo import computations, written_whole
from program_checks import compiled, oracle, passes
from random_programs import Case
from recurra.backends.jax.region import JaxBackend
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch.region import TorchBackend
from recurra.errors import RecurraError
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.reference.interpreter import run
from recurra.runtime.executable import Executable
from recurra.transforms.strip_mine.strip_mine import strip

QUICK = settings(max_examples=15, deadline=None, derandomize=True, database=None)
RANGES = (  # of the past, and how long they are
    ("0:t+1", "t+1"),
    ("0:t//2+1", "t//2+1"),
    ("0:min(t+1,3)", "min(t+1,3)"),
    ("0:max(t,1)", "max(t,1)"),
    ("0:(t+3)//2", "(t+3)//2"),
)
WINDOWS = (
    ("max(t-2,0):t+1", "t-max(t-2,0)+1"),
    ("max(t-4,0):t+1", "t-max(t-4,0)+1"),
    ("t//3*3:t+1", "t-3*(t//3)+1"),
    ("t//4*4:t+1", "t-4*(t//4)+1"),
)


@st.composite
def attentions(draw: st.DrawFn, ranges: tuple[tuple[str, str], ...]) -> Case:
    """A recurrence whose next value is made of its past: weighted, or folded, in several ways."""
    past, length = draw(st.sampled_from(ranges))
    lines = [
        "dims t<T",
        "x0: f64[3] = uniform(id=1, counter=(0,), shape=(3,), dtype='f64')",
        "h[t<T]: f64[3] = merge(x0, next[t-1], when=(t == 0, t > 0))",
        f"r0[t<T]: f64[{length}] = einsum(h, h[{past}], labels='d,nd->n')",
    ]
    ragged, found = ["r0"], ["h"]
    for k in range(draw(st.integers(1, 4))):
        a = draw(st.sampled_from(ragged))
        b = draw(st.sampled_from(ragged))
        name = f"r{k + 1}"
        made = {
            "tanh": f"tanh({a})",
            "exp": f"tanh({a})",
            "softmax": f"softmax({a}, axis=0)",
            "product": f"mul({a}, {b})",
            "shifted": f"sub({a}, m{k}, labels='a,->a')",
        }
        what = draw(st.sampled_from(sorted(made)))
        if what == "shifted":
            lines.append(
                f"m{k}[t<T]: f64[] = {draw(st.sampled_from(('max', 'sum')))}({b}, axes=(0,))"
            )
        lines.append(f"{name}[t<T]: f64[{length}] = {made[what]}")
        ragged.append(name)
        if what == "shifted" and draw(st.booleans()):
            lines.append(f"e{k}[t<T]: f64[{length}] = exp({name})")
            ragged.append(f"e{k}")
    for k in range(draw(st.integers(1, 3))):
        a = draw(st.sampled_from(ragged))
        ways = {
            "weigh": f"einsum({a}, h[{past}], labels='n,nd->d')",
            "both": f"einsum({a}, h[{past}], h[{past}], labels='n,nd,ne->d')",
            **{w: f"{w}({a}, axes=(0,))" for w in ("sum", "max", "min")},
        }
        way = draw(st.sampled_from(sorted(ways)))
        shape = "3" if way in ("weigh", "both") else ""
        lines.append(f"f{k}[t<T]: f64[{shape}] = {ways[way]}")
        new, labels = f"n{k}", "a,a->a" if shape else "a,->a"
        lines.append(f"{new}[t<T]: f64[3] = add({found[-1]}, f{k}, labels='{labels}')")
        found.append(new)
    lines += [f"next[t<T]: f64[3] = tanh({found[-1]})", "return next"]
    sizes = {"T": draw(st.integers(1, 9))}
    return Case(verify(parse("\n".join(lines))), sizes)


def keeps(case: Case, size: int) -> None:
    want = oracle(case)
    after = verify(strip(case.graph, case.sizes, size)[0])
    assert parse(str(after)) == after
    assert "tj" in str(after)
    found = run(after, case.sizes)
    np.testing.assert_allclose(found["next"], want[0], rtol=1e-9, atol=1e-9)
    passes(
        case,
        ("incrementalize", "strip_mine", "pad", "rematerialize", "reductions_to_accumulators"),
        want,
    )
    for points in (size, 0):
        compiled(case, NumpyBackend(), want, tile_points=points, launch_steps=3)


@pytest.mark.slow
@given(attentions(RANGES), st.integers(1, 4))
@QUICK
def test_random_folds(case: Case, size: int) -> None:
    keeps(case, size)


@pytest.mark.slow
@given(attentions(WINDOWS), st.integers(1, 4))
@QUICK
def test_random_windows(case: Case, size: int) -> None:
    keeps(case, size)


@drawn_at_length()
@given(attentions(RANGES + WINDOWS), st.integers(1, 5))
def test_many_random_folds(case: Case, size: int) -> None:
    keeps(case, size)


# ---- on backends

KV, G, HD = 2, 2, 4


PAST: dict[str, Callable[[Any], Any]] = {
    "causal": lambda t: 0,
    "window": lambda t: rc.max(t - 3, 0),
    "chunk": lambda t: t // 4 * 4,
    "long window": lambda t: rc.max(t - 511, 0),
    "long chunk": lambda t: t // 512 * 512,
}


def attention(
    T: int, B: int = 2, ragged: bool = False, past: str = "causal", **options: Any
) -> Executable:
    """Grouped attention over some of the past; with `ragged`, places before pad[b] are hidden."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, N), (t, end)):
        x = rc.like(rc.f32[KV * G * HD], domain=(b, t), name="x")
        start = rc.input(rc.f32[KV * G * HD], (b,), name="start")
        wk, wv = (rc.input(rc.f32[KV * G * HD, KV * HD], (), name=n) for n in ("wk", "wv"))
        named = {n: rc.like(rc.f32[KV, HD], domain=(b, t), name=n) for n in ("k", "v")}
        named["k"][b, t] = (x @ wk).reshape(KV, HD)
        named["v"][b, t] = (x @ wv).reshape(KV, HD)
        seen = slice(PAST[past](t), t + 1)
        q = x.reshape(KV, G, HD)
        scores = rc.einsum("kgd,nkd->kgn", q, named["k"][b, seen])
        if ragged:
            place = rc.value(t, "i32") - rc.input(rc.i32, (b,), name="pad")
            scores = rc.where(place[b, seen] >= 0, scores, -1e30)
        y = rc.einsum("kgn,nkd->kgd", scores.softmax(axis=2), named["v"][b, seen])
        x[b, 0] = start
        x[b, t + 1] = (y.reshape(KV * G * HD) + x).tanh()
        rc.output(y=y)
    return ctx.compile({N: B, end: T}, **options)


def data(B: int, ragged: bool) -> dict[str, np.ndarray]:
    r = np.random.default_rng(5)
    D = KV * G * HD
    out = {n: r.normal(size=(D, KV * HD)).astype("f4") for n in ("wk", "wv")}
    out["start"] = r.normal(size=(B, D)).astype("f4")
    return out | ({"pad": np.arange(B, dtype="i4")} if ragged else {})


def by_hand(T: int, given: dict[str, np.ndarray], past: str = "causal") -> np.ndarray:
    """The same in float64, with a loop over rows and times."""
    B = len(given["start"])
    out = np.zeros((B, T, KV, G, HD))
    for b in range(B):
        x, ks, vs = given["start"][b].astype("f8"), [], []
        first = int(given["pad"][b]) if "pad" in given else 0
        for t in range(T):
            ks.append((x @ given["wk"]).reshape(KV, HD))
            vs.append((x @ given["wv"]).reshape(KV, HD))
            lo = {"causal": 0, "window": max(t - 3, 0), "chunk": t // 4 * 4}[past]
            hidden = np.arange(lo, t + 1) < first
            for h in range(KV):
                s = x.reshape(KV, G, HD)[h] @ np.array(ks)[lo:, h].T
                s = np.where(hidden, -1e30, s)
                w = np.exp(s - s.max(-1, keepdims=True))
                out[b, t, h] = w / w.sum(-1, keepdims=True) @ np.array(vs)[lo:, h]
            x = np.tanh(out[b, t].reshape(-1) + x)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("backend", [NumpyBackend, JaxBackend, TorchBackend])
@pytest.mark.parametrize("past", ["causal", "window", "chunk"])
def test_attention_on_backends(backend: Any, past: str, ragged: bool) -> None:
    given, want = data(3, ragged), by_hand(11, data(3, ragged), past)
    for size in (0, 1, 4, 16) if past == "causal" else (0, 2, 3):
        program = attention(11, 3, ragged, past, backend=backend(), tile_points=size)
        got = program.run(inputs=given)["y"]
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"tiles of {size}")


def test_a_store_has_the_rows_of_its_tiles_and_a_tile_lies_as_products_read_it() -> None:
    stores = attention(11, tile_points=4, batch_last=False).compiled.program.plan.stores
    assert str(stores["k"]) == "k: t: T in tiles of 4 of f32[B,2,4] as [0,1,2,place]"
    assert str(stores["v"]) == "v: t: T in tiles of 4 of f32[B,2,4] as [0,1,place,2]"
    assert stores["k"].shape({"B": 3, "T": 11}) == (3, 3, 2, 4, 4)


def test_a_window_is_read_in_one_piece_wherever_it_starts() -> None:
    sizes = {"B": 3, "T": 40}
    stores = attention(40, past="window", batch_last=False).compiled.program.plan.stores
    assert str(stores["k"]) == "k: t: window 4, 4 of it twice of f32[B,2,4] as [0,1,2,place]"
    assert stores["v"].shape(sizes) == (1, 3, 2, 8, 4)
    stores = attention(
        40, past="window", tile_points=2, batch_last=False
    ).compiled.program.plan.stores
    assert stores["k"].shape(sizes)[-1] == 6  # a tile of 2 may begin anywhere
    stores = attention(
        40, past="chunk", tile_points=2, batch_last=False
    ).compiled.program.plan.stores
    assert stores["k"].shape(sizes)[-1] == 4  # tiles of chunks never go round the end


def test_by_cost_only_long_ranges_are_tiled() -> None:
    def said(T: int) -> list[str]:
        return [d for d in attention(T).compiled.stages.decisions if "tiles" in d]

    assert said(511) == []
    assert said(600) == ["0:t+1: tiles of 256 for 6 equations"]


@pytest.mark.slow
@pytest.mark.parametrize("B", [1, 4])
@pytest.mark.parametrize("past", ["causal", "window", "chunk", "long window", "long chunk"])
def test_no_step_copies_a_cache_or_a_tile(past: str, B: int) -> None:
    """Stores are only read in slices and written in place; what is temporary does not grow."""
    temporary: list[int] = []
    for T in (600, 1200) if past == "causal" else (1200, 2400):
        program = attention(T, B, past=past).compiled.program
        (region,) = (r for r in program.regions if "k" in r.stores)
        compiled = JaxBackend().lowered(program.plan, region).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
        caches = [program.plan.stores[n].shape({"B": B, "T": T}) for n in ("k", "v")]
        # what a product makes of 4 points is as large as they are
        tiles = {B * KV * HD * 256} if "long" in past or past == "causal" else set[int]()
        banned = {*(int(np.prod(s)) for s in caches), *tiles}
        text = compiled.as_text()
        for body in computations(text).values():
            for line in body:
                whole = {int(np.prod(s)) for s in line.shapes} & banned
                assert not (line.op in ("copy", "transpose") and whole), line
        assert written_whole(text, caches) == []
    assert temporary[0] == temporary[1]


def test_a_number_of_points_that_is_none() -> None:
    with pytest.raises(RecurraError, match="tile_points cannot be -1"):
        attention(11, tile_points=-1)


def test_the_scheduler_of_isl_takes_no_tiles() -> None:
    given = data(2, False)
    program = attention(11, tile_points=4, scheduler="isl", backend="numpy")
    assert not any("tiles" in d for d in program.compiled.stages.decisions)
    np.testing.assert_allclose(
        program.run(inputs=given)["y"], by_hand(11, given), rtol=2e-5, atol=2e-6
    )
