"""Recurra: deep-learning programs as recurrence equations, compiled to a few large programs.

Names are imported when they are first used, so that `import recurra` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurra import nest, optim, rl
    from recurra.cost.tuning import Tuning
    from recurra.imported import import_jax
    from recurra.ir.types import Type
    from recurra.lang import nn
    from recurra.lang.creation import arange, bernoulli, full, ones, randint, zeros
    from recurra.lang.dims import maximum as max
    from recurra.lang.dims import minimum as min
    from recurra.lang.dtypes import bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u32
    from recurra.lang.functions import (
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
    from recurra.lang.hosted import call
    from recurra.lang.until import until
    from recurra.memory.swap import Swap
    from recurra.session import Context, jax_fn

_HOME = {
    "recurra": "nest optim rl",
    "recurra.cost.tuning": "Tuning",
    "recurra.imported": "import_jax",
    "recurra.ir.types": "Type",
    "recurra.lang": "nn",
    "recurra.lang.creation": "arange bernoulli full ones randint zeros",
    "recurra.lang.dims": "max=maximum min=minimum",
    "recurra.lang.dtypes": "bf16 boolean f16 f32 f64 i8 i32 i64 u8 u32",
    "recurra.lang.functions": (
        "bound concat constant einsum input like log maximum minimum normal output permutation "
        "stack uniform value where"
    ),
    "recurra.lang.hosted": "call",
    "recurra.lang.until": "until",
    "recurra.memory.swap": "Swap",
    "recurra.session": "Context jax_fn",
}
_WHERE = {
    name.split("=")[0]: (module, name.split("=")[-1])
    for module, names in _HOME.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        importlib.import_module("recurra.lang.tensor")  # the table of operators
        importlib.import_module("recurra.lang.words").only("recurra", __all__)(name)
    module, own = _WHERE[name]
    if name in ("nest", "nn", "optim", "rl"):
        found: Any = importlib.import_module(f"{module}.{own}")
    else:
        found = getattr(importlib.import_module(module), own)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


__all__ = [
    "Context",
    "Swap",
    "Tuning",
    "Type",
    "arange",
    "bernoulli",
    "bf16",
    "boolean",
    "bound",
    "call",
    "concat",
    "constant",
    "einsum",
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
    "log",
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
    "zeros",
]
