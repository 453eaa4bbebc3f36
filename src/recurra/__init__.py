"""Recurra: deep-learning programs as recurrence equations, compiled to a few large programs."""

from __future__ import annotations

import importlib
from typing import Any

from recurra.ir.types import Type
from recurra.lang import nn, optim
from recurra.lang.dims import maximum as max  # noqa: A004
from recurra.lang.dims import minimum as min  # noqa: A004
from recurra.lang.functions import (
    concat,
    constant,
    einsum,
    input,  # noqa: A004
    like,
    log,
    normal,
    output,
    stack,
    uniform,
    value,
    where,
)
from recurra.session import Context, jax_fn


class _Dtype:
    """`rc.f32[4]`: the type of one point of a tensor."""

    def __init__(self, name: str):
        self.name = name

    def __getitem__(self, shape: Any) -> Type:
        return Type(self.name, shape if isinstance(shape, tuple) else (shape,))


f64, f32, i32, u32, u8 = (_Dtype(n) for n in ("f64", "f32", "i32", "u32", "u8"))
boolean = _Dtype("bool")


def __getattr__(name: str) -> Any:
    if name == "rl":
        return importlib.import_module("recurra.rl")
    raise AttributeError(f"module 'recurra' has no attribute {name!r}")


__all__ = [
    "Context",
    "Type",
    "boolean",
    "concat",
    "constant",
    "einsum",
    "f32",
    "f64",
    "i32",
    "input",
    "jax_fn",
    "like",
    "log",
    "max",
    "min",
    "nn",
    "normal",
    "optim",
    "output",
    "stack",
    "u8",
    "u32",
    "uniform",
    "value",
    "where",
]
