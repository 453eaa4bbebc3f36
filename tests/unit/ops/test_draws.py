"""Random numbers are pure functions of (seed, id, key, counter), checked against plain integers."""

from __future__ import annotations

import numpy as np
import pytest

from programs import finished, given, run, tracing
from recurra.frontend import functions as rc
from recurra.frontend.nn import Categorical
from recurra.ir.types import Type
from recurra.ops.random import Uniform
from recurra.reference import interpreter

SIZES = {"B": 2, "I": 3, "T": 5}
M = 0xFFFFFFFF


def threefry2x32(k0: int, k1: int, c0: int, c1: int) -> tuple[int, int]:
    """Twenty rounds on plain integers (Salmon et al., 2011)."""
    keys = [k0, k1, k0 ^ k1 ^ 0x1BD11BDA]
    x0, x1 = (c0 + k0) & M, (c1 + k1) & M
    for block in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = (x0 + x1) & M
            x1 = ((x1 << r) | (x1 >> (32 - r))) & M ^ x0
        x0 = (x0 + keys[(block + 1) % 3]) & M
        x1 = (x1 + keys[(block + 2) % 3] + block + 1) & M
    return x0, x1


def test_threefry_known_answers() -> None:
    """The vectors of Random123."""
    assert threefry2x32(0, 0, 0, 0) == (0x6B200159, 0x99BA4EFE)
    assert threefry2x32(M, M, M, M) == (0x1CB996FC, 0xBB002BE7)
    pi = (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)
    assert threefry2x32(*pi) == (0xC4923A9C, 0x483DF7A0)


def draw(seed: int, id: int, key: list[int], c0: int, c1: int) -> float:
    """seed and id are the first key; the rest of the key folds in two words at a time."""
    words = [*(key or [0])]
    words += [0] * (len(words) % 2)
    k0, k1 = seed, id
    for a, b in zip(words[::2], words[1::2], strict=True):
        k0, k1 = threefry2x32(k0, k1, a, b)
    bits, _ = threefry2x32(k0, k1, c0, c1)
    return (bits >> 9) * 2.0**-23


DRAWS = {  # domain, shape: key, counter; the words of the draw at (b, i, t) and element e
    ("bi", ()): ("uniform(id=1, counter=(b, i))", lambda b, i, t, e: ([], b, i)),
    ("bit", ()): ("uniform(id=1, key=(i,), counter=(b, t))", lambda b, i, t, e: ([i], b, t)),
    ("i", ()): ("uniform(id=1, counter=(i,))", lambda b, i, t, e: ([], i, 0)),
    ("", ()): ("uniform(id=1)", lambda b, i, t, e: ([], 0, 0)),
    ("i", (2, 3)): ("uniform(id=1, counter=(i,), shape=(2, 3))", lambda b, i, t, e: ([], i, e)),
    ("bi", (6,)): (
        "uniform(id=1, key=(i,), counter=(b,), shape=(6,))", lambda b, i, t, e: ([i], b, e)),
    ("bit", (6,)): (
        "uniform(id=1, key=(i, t), counter=(b,), shape=(6,))", lambda b, i, t, e: ([i, t], b, e)),
    ("", (2,)): ("uniform(id=1, shape=(2,))", lambda b, i, t, e: ([], e, 0)),
}  # fmt: skip


@pytest.mark.parametrize(("dims", "shape"), DRAWS)
@pytest.mark.parametrize("seed", [0, 12345])
def test_draws(dims: str, shape: tuple[int, ...], seed: int) -> None:
    text, words = DRAWS[dims, shape]
    with tracing("bit") as (builder, idx):
        box = dict(zip("bit", idx, strict=True))
        u = rc.uniform([box[d] for d in dims], shape)
        rc.output(u=u)
        graph = finished(builder)
    assert repr(graph[u.name].op) == text
    got = interpreter.run(graph, SIZES, seed=seed)[u.name]
    assert got.dtype == np.float32
    for point in np.ndindex(got.shape):
        at = dict(zip(dims, point, strict=False))
        element = int(np.ravel_multi_index(point[len(dims) :], shape)) if shape else 0
        key, c0, c1 = words(at.get("b", 0), at.get("i", 0), at.get("t", 0), element)
        assert got[point] == draw(seed, 1, key, c0, c1), point


def test_every_draw_has_its_own_id_and_numbers_look_uniform() -> None:
    with tracing("bt") as (builder, (b, t)):
        u, v = rc.uniform((b, t), (50,)), rc.uniform((b, t), (50,))
        n = rc.normal((b, t), (50,))
        rc.output(u=u, v=v, n=n)
        ops = [x.op for x in finished(builder).nodes.values() if isinstance(x.op, Uniform)]
        assert [o.id for o in ops] == [1, 2, 3, 4]
        out = run(builder, {"B": 8, "T": 10})
    flat = np.concatenate([out["u"].ravel(), out["v"].ravel()])
    assert len(np.unique(flat)) > 0.999 * flat.size
    assert 0 <= flat.min() < 0.01
    assert 0.99 < flat.max() < 1
    assert abs(flat.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(out["u"].ravel(), out["v"].ravel())[0, 1]) < 0.05
    assert abs(out["n"].mean()) < 0.05
    assert abs(out["n"].std() - 1) < 0.05


@pytest.mark.slow
def test_a_categorical_sample_follows_its_probabilities() -> None:
    with tracing("bt") as (builder, (b, t)):
        logits = given(Type("f32", (3,)), (b, t), "logits")
        pi = Categorical(logits)
        a = pi.sample()
        rc.output(a=a, logp=pi.log_prob(a), entropy=pi.entropy())
        p = np.array([0.2, 0.5, 0.3])
        out = run(builder, {"B": 40, "T": 50}, {"logits": np.broadcast_to(np.log(p), (40, 50, 3))})
    np.testing.assert_allclose(np.bincount(out["a"].ravel()) / 2000, p, atol=0.04)
    np.testing.assert_allclose(out["logp"], np.log(p)[out["a"]], rtol=1e-5)
    np.testing.assert_allclose(out["entropy"], -(p * np.log(p)).sum(), rtol=1e-5)
