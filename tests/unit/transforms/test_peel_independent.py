"""peel_independent: given points are computed at once, and nothing that is read of them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from fuzzing import drawn_at_length
from program_checks import compiled, oracle
from random_programs import Case
from recurra.backends.jax.region import JaxBackend
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch.region import TorchBackend
from recurra.codegen.host_program import ChunkLoop
from recurra.codegen.host_source import host_source
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.reference.interpreter import run
from recurra.runtime.executable import Executable
from recurra.transforms.iteration_domains.peel_independent import split
from recurra.transforms.padding.pad_axes import pad
from recurra.transforms.recurrences.incrementalize import lift
from recurra.transforms.strip_mine.strip_mine import strip

READS = (  # of the past, and how long they are
    ("0:t+1", "t+1"),
    ("0:t+1", "t+1"),
    ("max(t-1,0):t+1", "t-max(t-1,0)+1"),
    ("max(t-4,0):t+1", "t-max(t-4,0)+1"),
    ("t//3*3:t+1", "t-3*(t//3)+1"),
    ("t//4*4:t+1", "t-4*(t//4)+1"),
    ("0:t//2+1", "t//2+1"),
    ("t%3:t+1:3", "(t-t%3+3)//3"),
)
QUICK = settings(max_examples=15, deadline=None, derandomize=True, database=None)


def one_range(k: int, read: str, n: str) -> list[str]:
    """Attention to a range."""
    return [
        f"s{k}[t<T]: f64[{n}] = einsum(q{k}, k{k}[{read}], labels='d,nd->n')",
        f"p{k}[t<T]: f64[{n}] = softmax(s{k}, axis=0)",
        f"a{k}[t<T]: f64[2] = einsum(p{k}, k{k}[{read}], labels='n,nd->d')",
    ]


def linear(k: int) -> list[str]:
    """Attention without a softmax, whose past is a state."""
    return [
        f"s{k}[t<T]: f64[t+1] = einsum(q{k}, k{k}[0:t+1], labels='d,nd->n')",
        f"r{k}[t<T]: f64[2] = einsum(s{k}, x{k}[0:t+1], labels='n,nd->d')",
        f"n{k}[t<T]: f64[] = sum(s{k}, axes=(0,))",
        f"one{k}: f64[] = const(value=9.0, dtype='f64')",
        f"d{k}[t<T]: f64[] = add(n{k}, one{k})",
        f"a{k}[t<T]: f64[2] = div(r{k}, d{k}, labels='a,->a')",
    ]


def sinks(k: int, first: int, back: int) -> list[str]:
    """Attention to the first points, and to a window."""
    lo = f"max(t-{back},0)" if back else "t"
    n, m = f"min({lo},{first})", f"t-{lo}+1" if back else "1"
    both = f"{n}+{m}"
    return [
        f"f{k}[t<T]: f64[{n}] = einsum(q{k}, k{k}[0:{n}], labels='d,nd->n')",
        f"g{k}[t<T]: f64[{m}] = einsum(q{k}, k{k}[{lo}:t+1], labels='d,nd->n')",
        f"s{k}[t<T]: f64[{both}] = concat(f{k}, g{k}, axis=0)",
        f"p{k}[t<T]: f64[{both}] = softmax(s{k}, axis=0)",
        f"pf{k}[t<T]: f64[{n}] = cut(p{k}, axis=0, start=0, size={n})",
        f"pg{k}[t<T]: f64[{m}] = cut(p{k}, axis=0, start={n}, size={m})",
        f"af{k}[t<T]: f64[2] = einsum(pf{k}, k{k}[0:{n}], labels='n,nd->d')",
        f"ag{k}[t<T]: f64[2] = einsum(pg{k}, k{k}[{lo}:t+1], labels='n,nd->d')",
        f"a{k}[t<T]: f64[2] = add(af{k}, ag{k})",
    ]


@st.composite
def prompts(draw: st.DrawFn) -> Case:
    """A few layers over a text whose first points are given; each reads the past in some way."""
    P, T = draw(st.integers(2, 9)), draw(st.integers(1, 14))
    lines = [
        "dims t<T",
        "w: f64[2,2] = uniform(id=1, counter=(), shape=(2, 2), dtype='f64')",
        "text[t<T]: f64[2] = uniform(id=2, counter=(t,), shape=(2,), dtype='f64')",
        "place[t<T]: f64[] = value(expr=t, dtype='f64')",
        "turn[t<T]: f64[] = cos(place)",
        f"x0[t<T]: f64[2] = merge(text, next[t-1], when=(t < {P}, (t >= 1) & (t >= {P})))",
    ]
    x = "x0"
    for k in range(draw(st.integers(1, 3))):
        lines.append(f"q{k}[t<T]: f64[2] = einsum({x}, w, labels='a,ab->b')")
        lines.append(f"k{k}[t<T]: f64[2] = mul(q{k}, turn, labels='a,->a')")
        match draw(st.integers(0, 5)):
            case 0:
                lines += sinks(k, *draw(st.tuples(st.integers(1, 3), st.integers(0, 4))))
            case 1:
                lines += linear(k)
            case _:
                lines += one_range(k, *draw(st.sampled_from(READS)))
        lines.append(f"x{k + 1}[t<T]: f64[2] = add({x}, a{k})")
        x = f"x{k + 1}"
    if draw(st.booleans()):  # something that only the step before knows
        lines.append("none: f64[2] = const(value=0.0, dtype='f64', shape=(2,))")
        lines.append("seen[t<T]: f64[2] = merge(none, seen_now[t-1], when=(t == 0, t > 0))")
        lines.append("seen_now[t<T]: f64[2] = maximum(seen, x0)")
        lines.append(f"last[t<T]: f64[2] = add({x}, seen_now)")
        x = "last"
    lines.append(f"next[t<T]: f64[2] = tanh({x})")
    since = draw(st.sampled_from((0, P - 1)))
    lines.append("zero: f64[2] = const(value=0.0, dtype='f64', shape=(2,))")
    lines.append(f"out[t<T]: f64[2] = merge(zero, next, when=(t < {since}, t >= {since}))")
    lines.append("return out")
    return Case(verify(parse("\n".join(lines))), {"T": T})


def keeps(case: Case, chunk: int, rows: int) -> None:
    want = oracle(case)
    after, _ = split(lift(case.graph, case.sizes), case.sizes, 1, rows, chunk)
    verify(after)
    assert parse(str(after)) == after
    for f in (lambda g: g, lambda g: strip(g, case.sizes, 2)[0], lambda g: pad(g, case.sizes)):
        after = verify(f(after))
        np.testing.assert_allclose(run(after, case.sizes)["out"], want[0], rtol=1e-9, atol=1e-9)
    compiled(
        case,
        NumpyBackend(),
        want,
        tile_points=2,
        launch_steps=chunk,
        min_peeled_points=1,
        tile_rows=rows,
    )


@pytest.mark.slow
@given(prompts(), st.integers(1, 3), st.integers(0, 4))
@QUICK
def test_random_prompts(case: Case, chunk: int, rows: int) -> None:
    keeps(case, chunk, rows)


@pytest.mark.parametrize("T", [1, 4])
def test_rows_of_which_there_may_be_none(T: int) -> None:
    text = """
    dims i<I, t<T
    u: f64[] = uniform(id=1, counter=(), shape=(), dtype='f64')
    x[i<I,t<T-1]: f64[] = merge(u, y[i-1,t], when=(i == 0, i >= 1))
    y[i<I,t<T-1]: f64[] = tanh(x)
    return y
    """
    case = Case(verify(parse(text)), {"I": 2, "T": T})
    compiled(case, NumpyBackend(), oracle(case), min_peeled_points=1)


def test_sinks_of_which_there_may_be_none_and_more_than_a_chunk_has() -> None:
    """They have no last tile at the first point, so they are no range of a chunk."""
    text = """
    dims t<T
    w: f64[2,2] = uniform(id=1, shape=(2, 2), dtype='f64')
    text[t<T]: f64[2] = uniform(id=2, counter=(t,), shape=(2,), dtype='f64')
    x[t<T]: f64[2] = merge(text, next[t-1], when=(t < 2, t >= 2))
    k[t<T]: f64[2] = einsum(x, w, labels='a,ab->b')
    f[t<T]: f64[min(max(t-1,0),3)] = einsum(x, k[0:min(max(t-1,0),3)], labels='d,nd->n')
    g[t<T]: f64[t-max(t-1,0)+1] = einsum(x, k[max(t-1,0):t+1], labels='d,nd->n')
    s[t<T]: f64[min(max(t-1,0),3)+t-max(t-1,0)+1] = concat(f, g, axis=0)
    p[t<T]: f64[min(max(t-1,0),3)+t-max(t-1,0)+1] = softmax(s, axis=0)
    pf[t<T]: f64[min(max(t-1,0),3)] = cut(p, axis=0, start=0, size=min(max(t-1,0),3))
    pg[t<T]: f64[t-max(t-1,0)+1] = cut(p, axis=0, start=min(max(t-1,0),3), size=t-max(t-1,0)+1)
    y[t<T]: f64[2] = einsum(pf, k[0:min(max(t-1,0),3)], labels='n,nd->d')
    z[t<T]: f64[2] = einsum(pg, k[max(t-1,0):t+1], labels='n,nd->d')
    next[t<T]: f64[2] = add(y, z)
    out[t<T]: f64[2] = merge(next, when=(true,))
    return out
    """
    keeps(Case(verify(parse(text)), {"T": 3}), chunk=1, rows=2)


@drawn_at_length()
@given(prompts(), st.integers(1, 4), st.integers(0, 5))
def test_many_random_prompts(case: Case, chunk: int, rows: int) -> None:
    keeps(case, chunk, rows)


PAST: dict[str, Callable[[Any], Sequence[slice]]] = {
    "all": lambda t: [slice(0, t + 1)],
    "window": lambda t: [slice(rc.max(t - 5, 0), t + 1)],
    "chunk": lambda t: [slice(t // 8 * 8, t + 1)],
    "sinks": lambda t: [slice(0, rc.min(rc.max(t - 5, 0), 3)), slice(rc.max(t - 5, 0), t + 1)],
}


def text(
    T: int, P: int, B: int, past: str = "all", stops: float | None = None, **options: Any
) -> Executable:
    """Two layers of attention over a prompt and what follows it, rows of other lengths.

    `past`: what the first layer sees. `stops`: rows end after the prompt, where a number is more.
    """
    ctx = rc.Context(dims="b t")
    with ctx as ((b, N), (t, end)):
        prompt = rc.input(rc.f32[4], (b, t), name="prompt")
        place = rc.value(t, "i32") - rc.input(rc.i32, (b,), name="pad")
        h = rc.like(rc.f32[4], domain=(b, t), name="h")
        x = h
        for k in range(2):
            key = rc.like(rc.f32[4], domain=(b, t), name=f"k{k}")
            key[b, t] = x @ rc.input(rc.f32[4, 4], (), name=f"w{k}")
            if past == "linear":
                weights = rc.where(place[b, 0 : t + 1] >= 0, key[b, 0 : t + 1] @ x.exp(), 0.0)
                x = x + rc.einsum("n,nd->d", weights, key[b, 0 : t + 1])
                continue
            parts = PAST["all" if k else past](t)
            found = [rc.einsum("d,nd->n", x, key[b, s]) for s in parts]
            found = [
                rc.where(place[b, s] >= 0, y, -1e30) for y, s in zip(found, parts, strict=True)
            ]
            if len(parts) == 1:
                x = x + rc.einsum("n,nd->d", found[0].softmax(axis=0), key[b, parts[0]])
                continue
            weights, at = rc.concat(found, axis=0).softmax(axis=0), 0
            for y, s in zip(found, parts, strict=True):
                mine = weights.cut(at, at + y.shape[0], axis=0)
                x, at = x + rc.einsum("n,nd->d", mine, key[b, s]), at + y.shape[0]
        after = x.tanh()
        h[b, t, t < P] = prompt
        h[b, t] = after[b, t - 1]
        out = rc.like(rc.f32[4], domain=(b, t))
        out[b, t, t < P - 1] = rc.constant(np.zeros(4), "f32")
        out[b, t] = after
        rc.output(y=out)
        last = T if stops is None else rc.until(after.index(0) > stops, P - 1, max=T)
    return ctx.compile({N: B, end: last}, **options)


def data(T: int, B: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(7)
    weights = {f"w{k}": r.normal(size=(4, 4)).astype("f4") for k in range(2)}
    return weights | {
        "prompt": r.normal(size=(B, T, 4)).astype("f4"),
        "pad": np.arange(B, dtype="i4"),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", [NumpyBackend, JaxBackend, TorchBackend])
@pytest.mark.parametrize("past", [*PAST, "linear"])
def test_a_prompt_on_backends(backend: Any, past: str) -> None:
    given = data(50, 3)
    want = text(50, 30, 3, past, backend="numpy", min_peeled_points=0).run(inputs=given)["y"]
    for chunk, rows in ((None, 12), (4, 24), (8, 512)):
        program = text(
            50, 30, 3, past, backend=backend(), launch_steps=chunk, tile_points=8, tile_rows=rows
        )
        assert any("points at once" in d for d in program.compiled.stages.decisions)
        got = program.run(inputs=given)["y"]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5, err_msg=f"chunk {chunk}")


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("past", ["all", "window"])
def test_rows_that_the_data_end_have_prompts_too(past: str) -> None:
    given = data(50, 3)
    whole = text(50, 30, 3, past, backend="numpy", min_peeled_points=0).run(inputs=given)["y"]
    level = float(np.median(whole[:, 30:, 0].max(axis=1))) - 1e-4
    want = text(50, 30, 3, past, level, backend="numpy", min_peeled_points=0).run(inputs=given)["y"]
    assert np.any(want != whole)
    assert np.any(want[:, 45:] != 0)
    for backend in (NumpyBackend, JaxBackend):
        program = text(50, 30, 3, past, level, backend=backend(), tile_points=8, tile_rows=12)
        assert "4 at a time" in program.compiled.stages.decisions[0]
        got = program.run(inputs=given)["y"]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def test_what_is_given_runs_ahead_of_the_loop_and_the_rest_in_chunks() -> None:
    program = text(50, 30, 3, launch_steps=8).compiled
    assert program.stages.decisions[0] == "t: 24 points at once for 7 equations"
    loops = [it for it in program.program.items if isinstance(it, ChunkLoop) and it.loop.dim == "t"]
    assert [(it.lo, it.hi, it.size) for it in loops] == [(0, 24, 8), (24, 50, 8)]
    assert not any("einsum" in s for s in loops[0].region.active)


def test_large_values_leave_some_of_the_prompt_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "recurra.transforms.iteration_domains.peel_independent.MAX_PEELED_BYTES", 4 * 3 * 20 * 20
    )
    said = text(50, 30, 3, launch_steps=4).compiled.stages.decisions[0]
    assert said == "t: 20 points at once for 7 equations"


def test_the_host_lets_go_of_a_prompt_once_it_is_in_its_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it has to be copied there; else it is made there."""
    monkeypatch.setattr("recurra.compiler.pipeline.coalesced", lambda p: p)
    host = host_source(
        text(2400, 2000, 4, launch_steps=8, tile_points=100).compiled.program
    )  # no tiles of chunks
    lines = [x.strip() for x in host.splitlines()]
    (gone,) = [k for k, x in enumerate(lines) if x.endswith("= None")]
    assert set(lines[gone].split(" = ")) == {"k0_head_store", "k1_head_store", "None"}
    assert not any("head" in x for x in lines[gone + 1 :])
