"""Contractions by NumPy, Torch and jax.jit on one thread: our kernels are measured beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Contestant
from recurra.nest.dtypes import DTYPES
from recurra.nest.problem import NestProblem

Array = NDArray[Any]
Make = Callable[[Sequence[Array]], Callable[[], Any]]


def contestant(name: str, call: Callable[[], Any], inputs: Sequence[Array]) -> Contestant:
    """`call()` gives the result in the problem's layout, and has computed it when it returns."""

    def run(count: int) -> None:
        for _ in range(count):
            call()

    def answer() -> Mapping[str, Array]:
        return {"C": np.asarray(call()).astype(np.float64)}

    del inputs
    return Contestant(name, run, answer)


def peers(kind: str, inputs: Sequence[Array], options: Mapping[str, int]) -> list[Contestant]:
    """Every peer that has this kind of contraction."""
    found = [
        ("numpy", NUMPY.get(kind)),
        ("torch", TORCH.get(kind)),
        ("jax.jit", JAX.get(kind)),
    ]
    return [
        contestant(name, make(inputs, options), inputs) for name, make in found if make is not None
    ]


def _numpy(function: Callable[..., Any], shape: Callable[..., tuple[int, ...]]) -> Any:
    def make(inputs: Sequence[Array], options: Mapping[str, int]) -> Callable[[], Any]:
        out = np.empty(shape(*inputs), inputs[0].dtype)
        return lambda: function(*inputs, out=out)

    return make


def _numpy_pooling(inputs: Sequence[Array], options: Mapping[str, int]) -> Callable[[], Any]:
    (x,), s = inputs, options["window"]
    windows = x.reshape(x.shape[0] // s, s, x.shape[1] // s, s, x.shape[2])
    return lambda: windows.max(axis=(1, 3))


NUMPY: Mapping[str, Any] = {
    "matmul": _numpy(np.matmul, lambda a, b: (a.shape[0], b.shape[1])),
    "bf16 matmul": lambda x, o: lambda: x[0].astype(np.float32) @ x[1].astype(np.float32),
    "matvec": _numpy(np.matmul, lambda a, b: (a.shape[0],)),
    "reduction": lambda x, o: lambda: x[0].sum(axis=1),
    "transposition": lambda x, o: lambda: np.ascontiguousarray(x[0].T),
    "pooling": _numpy_pooling,
}


def _torch(build: Callable[..., Callable[[], Any]]) -> Any:
    def make(inputs: Sequence[Array], options: Mapping[str, int]) -> Callable[[], Any]:
        import torch

        torch.set_num_threads(1)
        return build(torch, options, *(_tensor(torch, x) for x in inputs))

    return make


def _tensor(torch: Any, x: Array) -> Any:
    if x.dtype == DTYPES["bf16"]:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _torch_matmul(torch: Any, options: Any, a: Any, b: Any) -> Callable[[], Any]:
    out = torch.empty(a.shape[0], *b.shape[1:])
    return lambda: torch.matmul(a, b, out=out)


def _torch_convolution(torch: Any, options: Any, x: Any, w: Any) -> Callable[[], Any]:
    image = x.permute(0, 3, 1, 2)  # channels last in memory, which is what Torch prefers
    groups = x.shape[3] if w.dim() == 3 else 1
    weight = w[:, :, None, :] if groups > 1 else w
    weight = weight.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    stride = options.get("stride", 1)

    def call() -> Any:
        y = torch.nn.functional.conv2d(image, weight, stride=stride, groups=groups)
        return y.permute(0, 2, 3, 1)

    return call


def _torch_pooling(torch: Any, options: Any, x: Any) -> Callable[[], Any]:
    image = x.permute(2, 0, 1)[None]
    pool = torch.nn.functional.max_pool2d
    return lambda: pool(image, options["window"])[0].permute(1, 2, 0)


TORCH: Mapping[str, Any] = {
    "matmul": _torch(_torch_matmul),
    "bf16 matmul": _torch(lambda torch, o, a, b: lambda: torch.matmul(a, b).float()),
    "matvec": _torch(_torch_matmul),
    "convolution": _torch(_torch_convolution),
    "depthwise": _torch(_torch_convolution),
    "pooling": _torch(_torch_pooling),
    "reduction": _torch(lambda torch, o, x: lambda: x.sum(dim=1)),
    "transposition": _torch(lambda torch, o, x: lambda: x.t().contiguous()),
}


def _jax(build: Callable[..., Callable[..., Any]]) -> Any:
    def make(inputs: Sequence[Array], options: Mapping[str, int]) -> Callable[[], Any]:
        import jax

        function = jax.jit(build(jax, options))
        arrays = [jax.numpy.asarray(x) for x in inputs]
        return lambda: function(*arrays).block_until_ready()

    return make


def _jax_convolution(jax: Any, options: Any) -> Callable[..., Any]:
    stride = (options.get("stride", 1),) * 2

    def convolve(x: Any, w: Any) -> Any:
        groups = x.shape[3] if w.ndim == 3 else 1
        return jax.lax.conv_general_dilated(
            x, w[:, :, None, :] if groups > 1 else w, stride, "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip

    return convolve


def _jax_pooling(jax: Any, options: Any) -> Callable[..., Any]:
    window = (options["window"], options["window"], 1)
    lowest, larger = -np.inf, jax.lax.max
    return lambda x: jax.lax.reduce_window(x, lowest, larger, window, window, "VALID")


def _jax_bf16(jax: Any, options: Any) -> Callable[..., Any]:
    return lambda a, b: jax.numpy.matmul(a, b, preferred_element_type=np.float32)


JAX: Mapping[str, Any] = {
    "matmul": _jax(lambda jax, o: jax.numpy.matmul),
    "bf16 matmul": _jax(_jax_bf16),
    "matvec": _jax(lambda jax, o: jax.numpy.matmul),
    "convolution": _jax(_jax_convolution),
    "depthwise": _jax(_jax_convolution),
    "pooling": _jax(_jax_pooling),
    "reduction": _jax(lambda jax, o: lambda x: x.sum(axis=1)),
    "transposition": _jax(lambda jax, o: lambda x: x.T.copy()),
}


def inputs_of(problem: NestProblem, seed: int = 5) -> list[Array]:
    """Numbers around 0 for every input, C-contiguous."""
    random = np.random.default_rng(seed)
    return [
        random.standard_normal(t.shape, dtype=np.float32).astype(DTYPES[t.dtype])
        for t in problem.inputs
    ]
