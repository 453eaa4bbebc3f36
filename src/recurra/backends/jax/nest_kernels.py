"""XLA with kernels for contractions where they are faster, as custom calls on the CPU.

The maker of kernels is an argument (`recurra.nest.compiler_hook`). When a region is traced, the
kernel of each contraction is timed by itself against XLA's own code, and used if it is faster.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recurra.backends.jax.array_namespace import JaxNamespace
from recurra.backends.jax.devices import devices
from recurra.backends.jax.region import JaxBackend

_handlers: list[Any] = []  # JAX keeps registered handlers, so their code must stay


class TunedJax(JaxBackend):
    """JAX on the CPU. `choices` are the contractions so far, each with the times of both sides."""

    name = "jax+nest"

    def __init__(self, door: Any) -> None:
        super().__init__()
        self.choices: list[Any] = []
        self.door = door
        if devices()[0].platform == "cpu":
            self.machine.xp = _KernelNamespace(self)
        self.contraction = cache(self._contraction)

    @property
    def contraction_rows(self) -> list[dict[str, Any]]:
        """The contractions as rows of a report's table."""
        return self.door.rows(self.choices)

    def _contraction(
        self, labels: str, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., Any] | None:
        """The kernel as a function of traced arrays, or None if XLA's own code is as good."""
        kernel = self.door.contraction(labels, shapes)
        if kernel is None:
            return None
        name = f"recurra_contraction_{len(_handlers)}"
        handler = self.door.KernelHandler(kernel, _version())
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        function = kind(handler.address)
        _handlers.append((handler, function))
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
        out = jax.ShapeDtypeStruct(kernel.problem.output.shape, jnp.float32)
        ours = jax.ffi.ffi_call(name, out)
        times = self.compared([ours, lambda *xs: jnp.einsum(labels, *xs)], shapes)
        self.choices.append(self.door.choice(kernel, *times))
        return ours if self.choices[-1].taken else None

    def compared(
        self, functions: Sequence[Callable[..., Any]], shapes: Sequence[tuple[int, ...]]
    ) -> list[float]:
        """Time functions that must agree on their answers, in microseconds."""
        random = np.random.default_rng(0)
        with jax.ensure_compile_time_eval():
            arrays = [jnp.asarray(random.integers(-4, 5, s), jnp.float32) for s in shapes]
            compiled = [jax.jit(f) for f in functions]
            answers = [np.asarray(f(*arrays)) for f in compiled]
            assert np.array_equal(answers[0], answers[1]), "the kernel's answer is not XLA's"
            return self.door.measure_in_turns([partial(_waited, f, arrays) for f in compiled])


def _waited(function: Callable[..., Any], arrays: Sequence[Any]) -> None:
    jax.block_until_ready(function(*arrays))


class _KernelNamespace(JaxNamespace):
    """The namespace of JAX, with an einsum that calls a kernel where there is one."""

    def __init__(self, backend: TunedJax) -> None:
        self.backend = backend

    def einsum(self, labels: str, *xs: Any) -> Any:
        if all(x.dtype == jnp.float32 for x in xs):
            found = self.backend.contraction(labels, tuple(tuple(x.shape) for x in xs))
            if found is not None:
                return found(*xs)
        return jnp.einsum(labels, *xs)


@cache
def _version() -> tuple[int, int]:
    """The version of XLA's foreign function interface, from its header."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return int(found["MAJOR"]), int(found["MINOR"])
