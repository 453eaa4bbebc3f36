"""coalesce: a prompt's points are in memory once, where the loop reads them, and are not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from hlo import computations, written_whole
from recurra.backends.jax.region import JaxBackend
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch.region import TorchBackend
from recurra.runtime.executable import Executable
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.verifier import validate

D = 4
BOTH = ("all", "window")


def text(T: int, P: int, B: int, past: str = "all", **options: Any) -> Executable:
    """Two layers over a prompt and what follows it: [B, T, D] of what follows each position."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, N), (t, end)):
        prompt = rc.input(rc.f32[D], (b, t), name="prompt")
        h = rc.like(rc.f32[D], domain=(b, t), name="h")
        x, lo = h, 0 if past == "all" else rc.max(t - 31, 0)
        weights = [rc.input(rc.f32[3, D, D], (), name=f"w{n}_") for n in range(2)]
        for n in range(2):
            k = rc.like(rc.f32[D], domain=(b, t), name="k")
            v = rc.like(rc.f32[D], domain=(b, t), name="v")
            k[b, t] = x @ weights[n].index(0)
            v[b, t] = (x @ weights[n].index(1)).tanh()
            scores = rc.einsum("d,nd->n", x @ weights[n].index(2), k[b, lo : t + 1])
            x = x + rc.einsum("n,nd->d", scores.softmax(axis=0), v[b, lo : t + 1])
        after = x / (x.square().sum() + 1.0).sqrt()
        h[b, t, t < P] = prompt
        h[b, t] = after[b, t - 1]
        out = rc.like(rc.f32[D], domain=(b, t))
        out[b, t, t < P - 1] = rc.constant(np.zeros(D), "f32")
        out[b, t] = after
        rc.output(y=out)
    return ctx.compile({N: B, end: T}, **options)


def data(T: int, P: int, B: int) -> dict[str, Any]:
    """What is given past the prompt is not to be looked at."""
    r = np.random.default_rng(7)
    prompt = r.normal(size=(B, T, D)).astype("f4")
    prompt[:, P:] = np.nan
    weights = {f"w{n}_": r.normal(size=(3, D, D)).astype("f4") for n in range(2)}
    return weights | {"prompt": prompt}


def by_hand(T: int, P: int, given: dict[str, Any], past: str) -> np.ndarray:
    """Position by position, in f64."""
    B = given["prompt"].shape[0]
    y, kept = np.zeros((B, T, D)), np.zeros((2, 2, B, T, D))
    x = np.zeros((B, D))
    for t in range(T):
        x = given["prompt"][:, t].astype(float) if t < P else x
        lo = 0 if past == "all" else max(t - 31, 0)
        for n in range(2):
            w = given[f"w{n}_"].astype(float)
            kept[n, :, :, t] = x @ w[0], np.tanh(x @ w[1])
            k, v = kept[n, :, :, lo : t + 1]
            s = np.exp(np.einsum("bd,bnd->bn", x @ w[2], k))
            x = x + np.einsum("bn,bnd->bd", s / s.sum(1, keepdims=True), v)
        x = x / np.sqrt((x**2).sum(1, keepdims=True) + 1)
        y[:, t] = x if t >= P - 1 else 0
    return y


def kept(plan: StoragePlan) -> dict[str, int]:
    """Bytes of what is neither given nor put out."""
    stores = plan.stores.values()
    return {s.name: s.nbytes(plan.sizes) for s in stores if not (s.given or s.output)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", [NumpyBackend, JaxBackend, TorchBackend])
@pytest.mark.parametrize("past", BOTH)
@pytest.mark.parametrize(("T", "P"), [(60, 50), (72, 65)])
def test_prompts_by_hand(backend: Any, past: str, T: int, P: int) -> None:
    """In chunks of which the last is not full, and what is given past the prompt is no number."""
    given = data(T, P, 3)
    program = text(T, P, 3, past, backend=backend(), tile_rows=24, tile_points=16)
    assert "8 at a time" in program.compiled.stages.decisions[0]
    homes = program.compiled.plan.homes
    assert len(homes) == (4 if past == "all" else 0)
    assert all(n == f"{h.store}_head" for n, h in homes.items())
    got = program.run(inputs=given)["y"]
    np.testing.assert_allclose(got, by_hand(T, P, given, past), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("past", BOTH)
def test_the_plan_holds_point_by_point(past: str) -> None:
    assert validate(text(60, 50, 2, past, tile_rows=16, tile_points=16).compiled.plan) == []


def test_all_the_past_is_there_once_and_nothing_moves_it() -> None:
    T, P, B = 700, 600, 2
    program = text(T, P, B).compiled
    one = -(-T // 256) * 256 * B * D * 4  # whole tiles
    found = kept(program.plan)
    large = {n: x for n, x in found.items() if x >= one}
    assert large == {h.store: one for h in program.plan.homes.values()}
    assert len(large) == 4
    assert sum(found.values()) < 4.02 * one
    assert not any("_of" in n for n in program.plan.graph.nodes)


def test_a_window_takes_the_same_however_long_the_prompt_is() -> None:
    found = [kept(text(P + 100, P, 2, "window").compiled.plan) for P in (1200, 2500)]
    assert found[0] == found[1]


def test_no_launch_of_a_prompt_copies_what_is_kept() -> None:
    program = text(2100, 2000, 2).compiled.program
    plan, stores = program.plan, {h.store for h in program.plan.homes.values()}
    shapes = {plan.stores[n].shape(plan.sizes) for n in stores}
    (region,) = (r for r in program.regions if r.chunk is not None and r.chunk.dim == "tpz")
    assert stores <= {*region.stores}
    compiled = JaxBackend().lowered(plan, region).compile()
    assert written_whole(compiled.as_text(), shapes) == []
    banned = {int(np.prod(s)) for s in shapes}
    for body in computations(compiled.as_text()).values():
        for line in body:
            whole = {int(np.prod(s)) for s in line.shapes} & banned
            assert not (line.op in ("copy", "transpose") and whole), line
