"""Attention as one op: found by structure, of the same numbers on every backend, chosen by cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from test_strip_mine import QUICK, RANGES, WINDOWS, attention, attentions, by_hand, data

import recurra as rc
from program_checks import oracle
from random_programs import Case
from recurra.backends.jax.region import JaxBackend
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch.attention import attend as by_torch
from recurra.backends.torch.region import TorchBackend
from recurra.cost.attention import AttentionKernel
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.ops.attention import Attention
from recurra.reference.interpreter import run
from recurra.transforms.fuse_attention import fuse_attention as lifted
from recurra.transforms.padding.pad_axes import pad

ANY = AttentionKernel("it", 1.0, 1.0, 1.0, 1.0)


@given(attentions(RANGES + WINDOWS))
@QUICK
def test_random_programs(case: Case) -> None:
    """Lifted or not, and padded after it: the oracle's answer."""
    (want,) = oracle(case)
    for after in (g := lifted(case.graph, case.sizes, ANY, requested=True)[0], pad(g, case.sizes)):
        assert parse(str(verify(after))) == after
        found = run(after, case.sizes)
        np.testing.assert_allclose(found["next"], want, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [NumpyBackend, JaxBackend, TorchBackend])
@pytest.mark.parametrize("past", ["causal", "window", "chunk"])
@pytest.mark.parametrize("ragged", [False, True])
def test_backends(backend: Any, past: str, ragged: bool) -> None:
    given, want = data(3, ragged), by_hand(11, data(3, ragged), past)
    program = attention(
        11, 3, ragged, past, backend=backend(), attention_kernel=ANY, fused_attention=True
    )
    graph = program.compiled.program.plan.graph
    assert sum(isinstance(n.op, Attention) for n in graph.nodes.values()) == 1
    got = program.run(inputs=given)["y"]
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_one_row_on_torch() -> None:
    """Without a batch the kernel still gets its four axes; lengths are those that there are."""
    backend = TorchBackend()
    program = attention(11, 1, backend=backend, fused_attention=True, single_launch=False)
    got = program.run(inputs=data(1, False))["y"]
    np.testing.assert_allclose(got, by_hand(11, data(1, False)), rtol=2e-4, atol=2e-5)
    source = "".join(backend.sources.values())
    assert "attention(" in source
    assert "min(t + 1, 11)" in source


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("mask", ["", "kn", "gn"])
@pytest.mark.parametrize("wide", [5, 6])
@pytest.mark.parametrize("batch", ["", "k", "yzk"])
def test_the_kernels_by_torch_and_jax(cap: float, mask: str, batch: str, wide: int) -> None:
    """Any axes in any order; a row that sees nothing sees all alike, and is finite."""
    import jax.numpy as jnp
    import torch

    from recurra.backends.jax.attention import masked_attention as by_jax

    r, size = np.random.default_rng(0), {"y": 2, "z": 3, "k": 2, "g": 4, "n": 7, "d": 5, "e": wide}
    q, k, v = f"{batch}gd", f"n{batch[::-1]}d", f"{batch}en"
    mask = "".join(c for c in mask if c in f"{batch}gn")
    op = Attention(
        scores=f"{q},{k}->{batch}gn",
        values=f"{batch}gn,{v}->g{batch}e",
        axis=len(batch) + 1,
        cap=cap,
        mask=mask,
        length=5,
    )
    assert op.roles().attend
    xs = [r.normal(size=[size[c] for c in x]).astype("f4") for x in (q, k, v)]
    seen = r.random([size[c] for c in mask]) < 0.5
    if mask:
        seen[(0,) * (len(mask) - 1)] = False
    args = [*xs, seen] if mask else xs
    want = op.run(np, {}, *args)
    assert np.isfinite(want).all()
    labels = (op.scores, op.values, op.axis, op.cap, op.mask)
    got = by_torch(*labels, 5, *map(torch.from_numpy, args))
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-6)
    got = by_jax(op, {}, *map(jnp.asarray, args))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def decided(T: int, **options: Any) -> list[str]:
    program = attention(T, 2, **options)
    return [x for x in map(str, program.compiled.stages.decisions) if x.startswith("attention")]


def test_it_is_decided_by_cost_and_told() -> None:
    """A call costs less than many calls; what XLA fuses costs nothing, and a call reads it all."""
    (torch,) = decided(2048, backend="torch")
    assert ": one call of scaled_dot_product_attention (" in torch
    (jax,) = decided(2048, backend="jax")
    assert ": equations (dot_product_attention " in jax
    assert decided(2048, backend="numpy") == []
    (asked,) = decided(2048, backend="jax", fused_attention=True)
    assert ": one call of dot_product_attention as asked (" in asked
    assert decided(2048, backend="torch", fused_attention=False) == []


def test_what_orders_nothing_is_left_to_products() -> None:
    """Positions that are all there are an axis: their products are large."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[4], (t,), name="x")
        w = rc.einsum("d,nd->n", x, x[0 : t + 1]).softmax()
        rc.output(y=rc.einsum("n,nd->d", w, x[0 : t + 1]))
    program = ctx.compile({T: 600}, attention_kernel=ANY, fused_attention=True)
    nodes = program.compiled.program.plan.graph.nodes.values()
    assert not any(isinstance(n.op, Attention) for n in nodes)


def test_keys_lie_row_by_row() -> None:
    """All of a range is one tile, in which a head's positions lie side by side."""
    stores = attention(
        11, backend="torch", fused_attention=True, batch_last=False
    ).compiled.program.plan.stores
    assert str(stores["k"]) == "k: t: T in tiles of 11 of f32[B,2,4] as [0,1,place,2]"
