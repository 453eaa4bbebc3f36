"""Recurra: deep-learning programs as recurrence equations, compiled to a few large programs.

Names are imported when they are first used, so that `import recurra` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurra import errors, llm, mapping, nest, rl, window
    from recurra.cost.tuning_knobs import Tuning
    from recurra.errors import RecurraError
    from recurra.frontend import nn, optim
    from recurra.frontend.conditional import cond
    from recurra.frontend.context import Context, jax_fn
    from recurra.frontend.creation import arange, bernoulli, full, ones, randint, zeros
    from recurra.frontend.dims import maximum as max
    from recurra.frontend.dims import minimum as min
    from recurra.frontend.dtype_objects import bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u32
    from recurra.frontend.dynamic_bounds import until
    from recurra.frontend.functions import (
        bound,
        concat,
        constant,
        einsum,
        input,
        like,
        log,
        maximum,
        minimum,
        normal,
        output,
        permutation,
        stack,
        uniform,
        value,
        where,
    )
    from recurra.frontend.host_calls import call
    from recurra.frontend.jax.importer import import_jax
    from recurra.frontend.tensor import RecurrentTensor as Tensor
    from recurra.ir.types import Type
    from recurra.storage.offload import Offload

__version__ = "0.1.0"

_HOME = {
    "recurra": "errors llm mapping nest rl window",
    "recurra.cost.tuning_knobs": "Tuning",
    "recurra.errors": "RecurraError",
    "recurra.frontend.jax.importer": "import_jax",
    "recurra.ir.types": "Type",
    "recurra.frontend": "nn optim",
    "recurra.frontend.creation": "arange bernoulli full ones randint zeros",
    "recurra.frontend.dims": "max=maximum min=minimum",
    "recurra.frontend.dtype_objects": "bf16 boolean f16 f32 f64 i8 i32 i64 u8 u32",
    "recurra.frontend.functions": (
        "bound concat constant einsum input like log maximum minimum normal output permutation "
        "stack uniform value where"
    ),
    "recurra.frontend.conditional": "cond",
    "recurra.frontend.host_calls": "call",
    "recurra.frontend.dynamic_bounds": "until",
    "recurra.frontend.tensor": "Tensor=RecurrentTensor",
    "recurra.storage.offload": "Offload",
    "recurra.frontend.context": "Context jax_fn",
}
_WHERE = {
    name.split("=")[0]: (module, name.split("=")[-1])
    for module, names in _HOME.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        importlib.import_module("recurra.frontend.tensor")  # the table of operators
        words = importlib.import_module("recurra.frontend.foreign_names")
        parts = {part: __getattr__(part) for part in ("optim", "nn", "rl")}
        inside = {n: f"rc.{part}.{n}" for part, found in parts.items() for n in found.__all__}
        return words.only("recurra", __all__, {"Swap": "Offload"}, __name__, inside)(name)
    module, own = _WHERE[name]
    if own == name and module in ("recurra", "recurra.frontend"):
        found: Any = importlib.import_module(f"{module}.{own}")
    else:
        found = getattr(importlib.import_module(module), own)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


__all__ = [
    "Context",
    "Offload",
    "RecurraError",
    "Tensor",
    "Tuning",
    "Type",
    "arange",
    "bernoulli",
    "bf16",
    "boolean",
    "bound",
    "call",
    "concat",
    "cond",
    "constant",
    "einsum",
    "errors",
    "f16",
    "f32",
    "f64",
    "full",
    "i8",
    "i32",
    "i64",
    "import_jax",
    "input",
    "jax_fn",
    "like",
    "llm",
    "log",
    "mapping",
    "max",
    "maximum",
    "min",
    "minimum",
    "nest",
    "nn",
    "normal",
    "ones",
    "optim",
    "output",
    "permutation",
    "randint",
    "rl",
    "stack",
    "u8",
    "u32",
    "uniform",
    "until",
    "value",
    "where",
    "window",
    "zeros",
]
