"""Given values for the parameters of a module, in our layout of matrices or in torch's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from recurra.errors import RecurraError, ShapeError, here
from recurra.ir.expr import Expr
from recurra.ir.types import Type
from recurra.ir.values import array_of

LAYOUTS = ("recurra", "torch")


class Weight(Protocol):
    """A parameter, as far as it is given a value."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Type: ...
    @property
    def shape(self) -> tuple[Expr | int, ...]: ...
    def restart(self, initial: object, /) -> None: ...


class Weighted(Protocol):
    """A module, as far as it has parameters."""

    def named_params(self) -> Iterator[tuple[str, Weight]]: ...
    def torch_params(self) -> Iterator[tuple[str, Weight, bool]]: ...


def load(module: Weighted, arrays: Mapping[str, ArrayLike], layout: str) -> None:
    """Starts the parameters of a module at given values; see `Module.load`."""
    if layout not in LAYOUTS:
        raise RecurraError(
            f"there is no layout {layout!r}",
            facts=f"arrays of parameters lie as those of {' or '.join(LAYOUTS)}",
            hint='net.load(arrays, layout="torch")',
            loc=here(),
        )
    of_torch = list(module.torch_params())
    named_there = {k: p for k, p, _ in of_torch}
    mine = named_there if layout == "torch" else dict(module.named_params())
    matrices = {p.name for _, p, is_matrix in of_torch if is_matrix}
    given = {k: v for k, v in arrays.items() if not k.startswith("state/")}
    _expect_names([*mine], given, [*named_there])
    for name, parameter in mine.items():
        value, is_matrix = given[name], parameter.name in matrices
        if is_matrix and layout != "torch" and _is_of_torch(value):
            raise RecurraError(
                f"{name} is given as a tensor of torch",
                facts=f"layers of torch hold matrices [out, in]; {name} is [in, out]",
                hint='net.load(arrays, layout="torch") for the state_dict of a module of torch; '
                "as numbers, v.numpy(), it is taken as it lies",
                loc=here(),
            )
        array = array_of(value, name, here())
        array = array.T if is_matrix and layout == "torch" else array
        _expect_shape(name, parameter, array, is_matrix)
        parameter.restart(array)


def _is_of_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _expect_names(names: list[str], given: Mapping[str, ArrayLike], in_torch: list[str]) -> None:
    if set(names) == set(given):
        return
    raise RecurraError(
        "the arrays are not those of the module",
        facts=f"without array: {', '.join(sorted(set(names) - given.keys())) or 'none'}; "
        f"without parameter: {', '.join(sorted(given.keys() - set(names))) or 'none'}",
        hint='these names are those of torch: net.load(arrays, layout="torch")'
        if set(in_torch) == set(given)
        else f"give one array for each: {{{', '.join(f'{n!r}: ..' for n in names)}}}",
        loc=here(),
    )


def _expect_shape(name: str, parameter: Weight, array: np.ndarray, is_matrix: bool) -> None:
    if array.shape == parameter.shape:
        return
    turned = is_matrix and array.T.shape == parameter.shape
    raise ShapeError(
        f"{name} cannot start at an array {list(array.shape)}",
        facts=f"it is {parameter.type}" + ", [in, out]" * is_matrix,
        hint='matrices of torch are [out, in]: net.load(arrays, layout="torch")'
        if turned
        else f"give it one of {list(parameter.shape)}",
        loc=here(),
    )
