"""Shuffled samples of offloaded stores: the host takes the rows that a minibatch learns from."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from numpy_memory import counted
from random_epochs import write
from recurra.errors import RecurraError
from recurra.ops.sampled_rows import Samples
from recurra.reference import interpreter
from recurra.runtime.executable import Executable
from recurra.storage.offload import Offload

PIXELS = (3, 8, 8)
MOVED = Offload("disk", least=0, stores=("o",))


def world(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that depend on what was done."""
    seen = np.arange(int(np.prod(PIXELS))).reshape(PIXELS) * (1 + a[:, None, None, None])
    return seen.astype(np.uint8), (a == 2).astype(np.float32)


def learner(backend: str = "numpy", **options: Any) -> Executable:
    """Two epochs of three shuffled minibatches, whose advantages are normalized in each."""
    size = int(np.prod(PIXELS))
    ctx = rc.Context(dims="b i e m n t")
    with ctx as ((b, B), (i, iterations), (e, E), (m, M), (n, N), (t, T)):
        net = rc.nn.MLP([size, 8, 4], ((i, e, m),))

        def chances(o: Any, where: Any) -> Any:
            return where(o.cast("f32").reshape((size,)) / 255.0).softmax()

        o = rc.like(rc.u8[PIXELS], domain=(b, i, t), name="o")
        o[b, i, 0] = rc.constant(np.ones(PIXELS, np.uint8))
        p = chances(o, net[i, 0, 0])
        a = (p.cumsum() < rc.uniform((b, i, t))).cast("i32").sum()
        o[b, i, t + 1], r = rc.call(world, (rc.u8[PIXELS], rc.f32), a, batch=(b,))
        g = r[b, i, t:T].discounted_sum(0.9)
        k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
        batch = (rc.rl.rows(x.detach(), k, over=(b, t)) for x in (o, a, g, p.take(a).log()))
        new_o, new_a, gain, old = batch
        ratio = (chances(new_o, net).take(new_a).log() - old).exp()
        loss = (-ratio * rc.rl.normalize(gain, over=(n,)))[i, e, m, 0:N].mean()
        loss.backward(wrt=net.params)
        rc.optim.Adam(net.params, lr=1e-2).step()
        rc.log(loss=loss[i, E - 1, M - 1])
    bounds = {B: 4, iterations: 3, E: 2, M: 3, N: 16, T: 12}
    return ctx.compile(bounds, backend=backend, **options)


THRESHOLDS = {
    "MAX_BLOCK_LAYER_BYTES": 1 << 7,
    "MAX_TILE_VALUE_BYTES": 1 << 12,
    "MIN_BLOCK_POINTS": 2,
}


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minibatches go in blocks of a few samples, as those of large pictures do."""
    for name, value in THRESHOLDS.items():
        monkeypatch.setattr(f"recurra.transforms.strip_mine.tiling.{name}", value)


def taken(p: Executable) -> list[str]:
    """Calls that the host takes samples in."""
    graph = p.compiled.plan.graph
    return [n.name for n in graph.nodes.values() if isinstance(n.op, Samples)]


@cache
def unmoved(in_blocks: bool) -> Any:
    """The losses on NumPy, with all in memory."""
    p = learner()
    assert any("n: tiles of" in str(d) for d in p.compiled.stages.decisions) == in_blocks
    return p.run(seed=1)["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_to_the_last_digits(backend: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_blocks:
        small_blocks(monkeypatch)
    want = unmoved(in_blocks)
    host = Offload("host", least=0, stores=("o",), room=2)
    some = (host,) if in_blocks else (MOVED,)  # regions are the same for both
    for offload in (MOVED, host) if backend == "numpy" else some:
        p = learner(backend, offload=offload)
        assert any("n: tiles of" in str(d) for d in p.compiled.stages.decisions) == in_blocks
        assert [f"{name}_call((i, e, m), o_store, k" in p.source for name in taken(p)] == [True]
        np.testing.assert_allclose(p.run(seed=1)["loss"], want, rtol=1e-4)
        assert p.run(seed=1)["loss"].tobytes() == p.run(seed=1)["loss"].tobytes()


@pytest.mark.slow
def test_a_minibatch_is_there_and_a_few_points() -> None:
    p, all_ = learner(offload=MOVED), learner()
    assert all_.memory.nbytes - p.memory.nbytes > 4 * 4 * int(np.prod(PIXELS))
    p.run()
    with counted() as count:
        p.run()
    assert 0.8 * p.memory.nbytes <= count.peak <= 1.05 * p.memory.nbytes


@pytest.mark.slow
def test_random_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other program in blocks; some have samples that the host takes, some none."""
    found = 0
    for seed in range(40, 64):
        with monkeypatch.context() as patched:
            if seed % 2:
                small_blocks(patched)
            ctx, bounds = write(seed)
            offload = Offload("host" if seed % 3 else "disk", least=0, room=2 + seed % 3)
            p = ctx.compile(bounds, backend="numpy", offload=offload)
        found += bool(taken(p))
        want = interpreter.run(p.source_graph, p.sizes, seed=2)
        for name, x in p.run(seed=2).items():
            wanted = want[p.logs[name]]
            np.testing.assert_allclose(x, wanted, rtol=2e-4, atol=2e-5, err_msg=f"{name}, {seed}")
    assert 3 <= found < 24


def test_a_window_beside_samples_stays() -> None:
    """What is read in windows as well is all in memory, and nothing is taken by the host."""
    ctx = rc.Context(dims="b i m n t")
    with ctx as ((b, B), (i, iterations), (m, M), (n, N), (t, T)):
        w = rc.nn.Parameter(rc.constant(0.5), domain=((i, m),), name="w")
        x = rc.like(rc.f32[64], domain=(b, i, t), name="x")
        x[b, i, 0] = w[i, 0].broadcast_to((64,))
        x[b, i, t + 1] = (x * 1.01).tanh()
        y = x[b, i, t : rc.min(t + 3, T)].mean(axis=0).sum()
        k = rc.permutation(B * T, at=m * N + n, domain=(i,))
        error = rc.rl.rows(x.detach(), k, over=(b, t)).sum() * w
        loss = error[i, m, 0:N].mean()
        loss.backward(wrt=[w])
        rc.optim.SGD([w], lr=0.01).step()
        rc.output(w=w, y=y[0:B, i, 0:T].mean())
    bounds = {B: 4, iterations: 2, M: 2, N: 40, T: 20}
    p = ctx.compile(bounds, backend="numpy", offload=Offload("disk", least=0, stores=("x",)))
    q = ctx.compile(bounds, backend="numpy")
    assert not taken(p)
    assert any("stay" in str(d) for d in p.compiled.stages.decisions if str(d).startswith("x: "))
    np.testing.assert_array_equal(p.run()["w"], q.run()["w"])


def test_a_disk_that_fails_while_samples_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, real = learner(offload=Offload("disk", str(tmp_path), least=0, stores=("o",))), os.preadv

    def fails(fd: int, buffers: Any, at: int) -> int:
        if len(buffers[0]) == int(np.prod(PIXELS)):  # a row, not a point
            raise OSError(5, "Input/output error")
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(
        RecurraError, match=r"o \[\d+\] cannot be read from .*: Input/output error|o"
    ):
        p.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_budget_takes_samples_from_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a budget finds for shuffled samples is what `offload=` would do."""
    kept = learner()
    least = learner(offload=MOVED).memory.nbytes
    p = learner(memory=(kept.memory.nbytes + least) // 2)
    assert p.memory.nbytes < kept.memory.nbytes
    np.testing.assert_allclose(p.run(seed=1)["loss"], kept.run(seed=1)["loss"], rtol=1e-4)
