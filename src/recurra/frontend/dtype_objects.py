"""Element types such as rc.f32; `rc.f32[4]` is the type of a tensor at each point."""

from __future__ import annotations

from typing import NoReturn

from recurra.errors import RecurraError
from recurra.frontend.index_arguments import Size, unwrap
from recurra.ir.types import SHORT_NAME, WIDTH, Type


class Dtype:
    """An element type; brackets give it a shape."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"rc.{'boolean' if self.name == 'bool' else self.name}"

    @property
    def type(self) -> Type:
        """The scalar type: where a type is expected, `rc.f32` means `rc.f32[()]`."""
        return Type(self.name)

    def __call__(self, *_: object) -> NoReturn:
        raise RecurraError.at_user_line(
            f"{self!r} is a type, and makes no tensor",
            facts="brackets give it a shape, as in rc.f32[4]",
            hint=f"write rc.constant(3.0, {self!r}), or x.cast({self!r}) of a tensor",
        )

    def __getitem__(self, shape: Size | tuple[Size, ...]) -> Type:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        return Type(self.name, tuple(map(unwrap, sizes)))


f64, f32, f16, bf16 = (Dtype(n) for n in ("f64", "f32", "f16", "bf16"))
i64, i32, i8, u32, u8 = (Dtype(n) for n in ("i64", "i32", "i8", "u32", "u8"))
boolean = Dtype("bool")


def dtype_name(of: object) -> str:
    """The name of an element type, "f32", from the name, rc.f32, or a dtype of NumPy, torch or JAX.

    Raises RecurraError for anything else.
    """
    name = of.name if isinstance(of, Dtype) else of
    if isinstance(name, str) and name in WIDTH:
        return name
    if known := SHORT_NAME.get(getattr(of, "__name__", str(of)).rpartition(".")[2]):
        return known
    raise RecurraError.at_user_line(
        f"{of!r} is no type of elements",
        facts=f"they are {', '.join(map(repr, (boolean, u8, i8, u32, i32, i64)))}, "
        f"{', '.join(map(repr, (bf16, f16, f32, f64)))}",
        hint="write rc.f32; a shape is one tuple, as in rc.zeros((4, 2), rc.f32)",
    )
