"""`rc.f32[4]`: the type of one point of a tensor."""

from __future__ import annotations

from recurra.ir.expr import Expr
from recurra.ir.types import Type

Size = Expr | int


class Dtype:
    """An element type; brackets give it a shape."""

    def __init__(self, name: str):
        self.name = name

    @property
    def type(self) -> Type:
        """A scalar of it: where a type is asked for, `rc.f32` means `rc.f32[()]`."""
        return Type(self.name)

    def __getitem__(self, shape: Size | tuple[Size, ...]) -> Type:
        return Type(self.name, shape if isinstance(shape, tuple) else (shape,))


f64, f32, f16, bf16 = (Dtype(n) for n in ("f64", "f32", "f16", "bf16"))
i64, i32, i8, u32, u8 = (Dtype(n) for n in ("i64", "i32", "i8", "u32", "u8"))
boolean = Dtype("bool")
