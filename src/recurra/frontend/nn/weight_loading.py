"""Loading of initial values for the parameters of a module, in this package's or torch's layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from recurra.errors import RecurraError, ShapeError, here
from recurra.ir.expr import Expr
from recurra.ir.types import Type
from recurra.ir.value_conversion import array_of

LAYOUTS = ("recurra", "torch")


class Weight(Protocol):
    """The interface of a parameter that is loaded."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Type: ...
    @property
    def shape(self) -> tuple[Expr | int, ...]: ...
    def restart(self, initial: object, /) -> None: ...


class Weighted(Protocol):
    """The interface of a module that is loaded."""

    def named_params(self) -> Iterator[tuple[str, Weight]]: ...
    def torch_params(self) -> Iterator[tuple[str, Weight, bool]]: ...


def load(module: Weighted, arrays: Mapping[str, ArrayLike], layout: str) -> None:
    """Set the initial values of the parameters of a module; see `Module.load`."""
    if layout not in LAYOUTS:
        raise RecurraError.at_user_line(
            f"there is no layout {layout!r}",
            facts=f"arrays of parameters lie as those of {' or '.join(LAYOUTS)}",
            hint='net.load(arrays, layout="torch")',
        )
    torch_params = list(module.torch_params())
    by_torch_name = {k: p for k, p, _ in torch_params}
    by_name = by_torch_name if layout == "torch" else dict(module.named_params())
    matrices = {p.name for _, p, is_matrix in torch_params if is_matrix}
    values = {k: v for k, v in arrays.items() if not k.startswith("state/")}
    _expect_names([*by_name], values, [*by_torch_name])
    for name, parameter in by_name.items():
        value, is_matrix = values[name], parameter.name in matrices
        if is_matrix and layout != "torch" and _is_of_torch(value):
            raise RecurraError.at_user_line(
                f"{name} is given as a tensor of torch",
                facts=f"layers of torch hold matrices [out, in]; {name} is [in, out]",
                hint='net.load(arrays, layout="torch") for the state_dict of a module of torch; '
                "as numbers, v.numpy(), it is taken as it lies",
            )
        array = array_of(value, name, here())
        array = array.T if is_matrix and layout == "torch" else array
        _expect_shape(name, parameter, array, is_matrix)
        parameter.restart(array)


def _is_of_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _expect_names(names: list[str], arrays: Mapping[str, ArrayLike], in_torch: list[str]) -> None:
    if set(names) == set(arrays):
        return
    raise RecurraError.at_user_line(
        "the arrays are not those of the module",
        facts=f"without array: {', '.join(sorted(set(names) - arrays.keys())) or 'none'}; "
        f"without parameter: {', '.join(sorted(arrays.keys() - set(names))) or 'none'}",
        hint='these names are those of torch: net.load(arrays, layout="torch")'
        if set(in_torch) == set(arrays)
        else f"give one array for each: {{{', '.join(f'{n!r}: ..' for n in names)}}}",
    )


def _expect_shape(name: str, parameter: Weight, array: np.ndarray, is_matrix: bool) -> None:
    if array.shape == parameter.shape:
        return
    is_transposed = is_matrix and array.T.shape == parameter.shape
    raise ShapeError.at_user_line(
        f"{name} cannot start at an array {list(array.shape)}",
        facts=f"it is {parameter.type}" + ", [in, out]" * is_matrix,
        hint='matrices of torch are [out, in]: net.load(arrays, layout="torch")'
        if is_transposed
        else f"give it one of {list(parameter.shape)}",
    )
