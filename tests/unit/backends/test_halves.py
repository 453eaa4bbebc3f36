"""Floats of 16 bits on JAX: held as they are, written in place, and the same numbers for all."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import recurra as rc
from recurra.backends.jax.region import JaxBackend

KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
T, N = 300, 64


def program(kind: str, backend: str, **options: Any) -> Any:
    """A store of T rows that a loop writes one by one, and reads up to there."""
    ctx = rc.Context(dims="t")
    with ctx as (t, end):
        given = rc.input(rc.Type(kind, (N,)), name="given")
        x = rc.like(rc.Type("f32", (N,)), domain=(t,))
        kept = (x * 0.5).cast(kind)
        x[0] = given.cast("f32")
        x[t + 1] = kept[0 : t + 1].cast("f32").mean(axis=0).cos() + given.cast("f32")
        rc.output(kept=kept)
    return ctx.compile({end: T}, backend=backend, **options)


def given(kind: str) -> np.ndarray:
    return np.linspace(-1, 1, N).astype(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_written_in_place(kind: str):
    """XLA writes a row of it, as words, and copies it nowhere."""
    plan = (p := program(kind, "jax", launch_steps=16)).compiled.program.plan
    (region,) = (r for r in p.compiled.program.regions if r.chunk is not None)
    text = JaxBackend().lowered(plan, region).compile().as_text()
    (size,) = {plan.stores[s].shape(plan.sizes) for s in region.stores if plan.stores[s].output}
    shape = ",".join(map(str, size))
    written = re.findall(rf"= (\w+)\[{shape}\]\S* dynamic-update-slice\(", text)
    assert set(written) == {"u16" if kind == "bf16" else "s16"}
    assert not re.search(rf"\w+16\[{shape}\]\S* copy\(", text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"launch_steps": 16}])
def test_what_comes_out_has_its_type(kind: str, options: dict[str, Any]):
    found = program(kind, "jax", **options).run(inputs={"given": given(kind)})["kept"]
    want = program(kind, "numpy", **options).run(inputs={"given": given(kind)})["kept"]
    assert found.dtype == want.dtype == KINDS[kind]
    np.testing.assert_allclose(found.astype("f4"), want.astype("f4"), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_jax_and_torch_are_lent(kind: str):
    import jax.numpy as jnp
    import torch

    p, x = program(kind, "jax"), given(kind)
    want = p.run(inputs={"given": x})["kept"]
    of_torch = torch.from_numpy(x.view(np.int16)).view(getattr(torch, x.dtype.name))
    for other in (jnp.asarray(x), of_torch):
        np.testing.assert_array_equal(p.run(inputs={"given": other})["kept"], want)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_on_the_host_see_numbers(kind: str):
    seen: list[Any] = []

    def doubled(x: np.ndarray) -> np.ndarray:
        seen.append(x.dtype)
        return (x * 2).astype(x.dtype)

    ctx = rc.Context(dims="t")
    with ctx as (t, end):
        x = rc.like(rc.Type(kind, (4,)), domain=(t,))
        x[0] = rc.constant(np.ones(4)).cast(kind)
        x[t + 1] = rc.call(doubled, rc.Type(kind, (4,)), x)
        rc.output(x=x)
    found = ctx.compile({end: 5}, backend="jax").run()["x"]
    assert set(seen) == {np.dtype(KINDS[kind])}
    np.testing.assert_array_equal(found.astype("f4")[:, 0], [1, 2, 4, 8, 16])
