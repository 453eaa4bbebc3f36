"""Inputs of a program as its user wrote them, and checks of the arrays passed for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from recurra.codegen.input_layout import as_numpy
from recurra.errors import Loc, RecurraError, ShapeError, here
from recurra.ir.array_protocols import is_array
from recurra.ir.graph import Node
from recurra.ir.types import NUMPY_NAME, Domain, Type
from recurra.ir.value_conversion import array_of
from recurra.ops.source import Input

HINT = "program.run(inputs={name: array}), one array [*dims, *shape] for each rc.input"


@dataclass(frozen=True, repr=False)
class ProgramInput:
    """One rc.input of a program: its array is [*dims, *shape], here of the shape `shape`.

    One that is not read may be left out: results are the same without it.
    """

    name: str
    type: Type
    domain: Domain
    shape: tuple[int, ...]
    is_read: bool
    loc: Loc | None = None

    def __str__(self) -> str:
        over = f" over {self.domain}" if self.domain.dims else ""
        return f"{self.name}: {self.type}{over}{'' if self.is_read else ', which nothing reads'}"

    def __repr__(self) -> str:
        return f"<{self}, here {self.shape}>"


def program_inputs(
    nodes: Iterable[Node], sizes: Mapping[str, int], read: Iterable[str]
) -> dict[str, ProgramInput]:
    """Return the inputs among equations as they were written, by name; `read` are those in use."""
    out: dict[str, ProgramInput] = {}
    for n in nodes:
        if isinstance(n.op, Input) and isinstance(n.type, Type):
            shape = (*(r.size(sizes) for r in n.domain), *n.type.sizes(sizes))
            out[n.name] = ProgramInput(n.name, n.type, n.domain, shape, n.name in read, n.loc)
    return out


def expect_inputs(inputs: Mapping[str, ProgramInput], given: object) -> None:
    """Raise RecurraError if inputs that a program reads are missing, or others are passed."""
    if not isinstance(given, Mapping):
        raise RecurraError.at_user_line(
            f"inputs are given by their names, not as a {type(given).__name__}",
            facts="\n  ".join(map(str, inputs.values())) or "the program reads no inputs",
            hint=HINT,
        )
    strange = [name for name in given if name not in inputs]
    missing = [x.name for x in inputs.values() if x.is_read and x.name not in given]
    if strange or missing:
        near = [difflib.get_close_matches(n, inputs, 1) for n in map(str, strange)]
        close = next((names[0] for names in near if names), None)
        known = ", ".join(sorted(inputs))
        raise RecurraError.at_user_line(
            f"the program reads the inputs {known}" if known else "the program reads no inputs",
            facts="\n  ".join(
                [f"it was given {', '.join(sorted(map(str, given))) or 'none'}"]
                + [str(x) for x in inputs.values()]
            ),
            hint=(f"perhaps you meant {close}" if close and not missing else HINT)
            if known
            else f"leave {', '.join(map(str, strange))} out, or read it: rc.input(rc.f32, (t,))",
        )
    for name, x in given.items():
        _expect_array(inputs[name], x)


def _expect_array(wanted: ProgramInput, given: object) -> None:
    """Raise ShapeError if an array has not the shape of an input.

    Inputs that are read are converted to their type later, where the program takes them.
    """
    plain = given if is_array(given) else array_of(given, f"the input {wanted.name}", here())
    kind = getattr(getattr(plain, "dtype", None), "kind", "")
    shape = f"the input {wanted.name} has the shape {tuple(plain.shape)}"
    if kind == "O" and not plain.shape:
        shape = f"the input {wanted.name} is no array: it is of {type(given).__name__}"
    strange = kind in ("U", "S")
    if strange or tuple(plain.shape) != wanted.shape:
        raise ShapeError.at_user_line(
            f"the input {wanted.name} has no number: {given!r}" if strange else shape,
            facts=f"it is {wanted.type} over {wanted.domain}, here {wanted.shape}",
            hint="give the points of its dims first, then the axes of its type",
        )
    if not wanted.is_read or isinstance(given, np.ma.MaskedArray):  # also of the right type
        as_numpy(given, wanted.name, wanted.type.dtype, wanted.loc)


def with_blanks(
    inputs: Mapping[str, ProgramInput], given: Mapping[str, object]
) -> dict[str, object]:
    """Return a value for every input: broadcast zeros for those that are left out."""
    left = (x for x in inputs.values() if x.name not in given)
    zeros = {x.name: np.zeros((), NUMPY_NAME[x.type.dtype]) for x in left}
    return {**given, **{n: np.broadcast_to(zero, inputs[n].shape) for n, zero in zeros.items()}}
