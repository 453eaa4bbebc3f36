"""What a GPU asks of programs, seen without one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import sleep
from typing import Any

import jax
import numpy as np
import pytest
import torch
from test_torch_graphs import walk

import recurra as rc
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch import cuda_graphs as graphs
from recurra.backends.torch.array_namespace import TorchNamespace
from recurra.backends.torch.cuda_graphs import RecordedLoop
from recurra.backends.torch.region import TorchBackend


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy cannot read the memory of Torch's tensors, as if it were a GPU's."""

    def refused(*_: Any) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(torch.Tensor, "__array__", refused)


@pytest.mark.usefixtures("out_of_reach")
def test_operands_of_host_calls_are_brought_to_the_host() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f32[2], domain=(t,))
        x[0] = 1.0
        x[t + 1] = rc.call(lambda y, z: y * 0.5 + z, rc.f32[2], x, x[0 : t + 1].sum(axis=0))
        rc.output(x=x[0:T])
    want = ctx.run({T: 5}, backend="numpy")["x"]
    np.testing.assert_allclose(ctx.run({T: 5}, backend="torch")["x"], want, rtol=1e-6)


class OfADevice:
    """An array whose memory NumPy cannot read."""

    shape, dtype = (3,), np.dtype(np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA's

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Unsupported device in DLTensor.")

    def cpu(self) -> np.ndarray:
        return np.arange(3, dtype=np.float32)


def test_numpy_copies_arrays_of_a_device() -> None:
    assert NumpyBackend().from_dlpack(OfADevice()).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [(None, "HIGHEST"), ("tensorfloat32", "HIGH,"), ("bfloat16", "DEFAULT")],
)
def test_products_on_jax_are_of_the_precision_of_their_types(asked: str | None, told: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[4, 4], (t,), name="x")
        rc.output(y=x @ x)
    program = ctx.compile({T: 3}, backend="jax")
    plan, backend = program.compiled.plan, program.backend
    region = program.compiled.program.items[0].region
    with jax.default_matmul_precision(asked):
        text = backend.lowered(plan, region).as_text()
    assert f"precision = [{told}" in text.replace("]", ",")


@pytest.mark.parametrize("labels", ["ab,bc->ac", "aab,b->a", "ab,ab->ab", "abc,cd,a->d", "ab->ba"])
def test_products_of_integers_without_a_library(labels: str) -> None:
    size = dict(zip("abcd", (3, 4, 5, 2), strict=True))
    rng = np.random.default_rng(3)
    xs = [
        rng.integers(-(2**20), 2**20, [size[c] for c in mine], np.int32)
        for mine in labels.partition("->")[0].split(",")
    ]
    made = TorchNamespace("cpu").summed_products(labels, *map(torch.from_numpy, xs))
    assert made.dtype == torch.int32
    np.testing.assert_array_equal(made.numpy(), np.einsum(labels, *xs))


def test_nan_has_no_sign_where_bits_are_sorted() -> None:
    x = torch.tensor([[-torch.nan, 1.0, torch.nan]], dtype=torch.bfloat16)
    made = TorchNamespace("cuda").sortable(x)
    assert made.dtype == x.dtype
    assert torch.signbit(made[made != made]).tolist() == [False, False]


def test_threads_take_turns_with_a_recorded_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording has one place for what it is given: whoever comes in between changes it."""
    monkeypatch.setattr(graphs, "MIN_GRAPH_LAUNCHES", 1)
    within: list[RecordedLoop] = []
    calls = count()
    called = RecordedLoop.called

    def alone(self: RecordedLoop, *args: Any) -> Any:
        assert self not in within
        within.append(self)
        next(calls)
        sleep(0.001)  # another thread has time to come in
        try:
            return called(self, *args)
        finally:
            within.remove(self)

    monkeypatch.setattr(RecordedLoop, "called", alone)
    backend = TorchBackend(fuse=False, graphs=True)
    backend.record = lambda run: run
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        rc.output(last=walk(i, t, T)[i, T - 1])
    program = ctx.compile({I: 4, T: 9}, backend=backend)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda seed: program.run(seed=seed), range(12)))) == 12
    assert next(calls) >= 12 * 4
