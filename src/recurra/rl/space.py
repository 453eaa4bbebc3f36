"""Observation and action spaces: one tensor, or several under names or positions.

Space(f32[4])                                     a tensor
CompositeSpace({"image": Space(u8[3,64,64]), "at": ...})   a dict of them, as a Tree
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from recurra.errors import NoSuchName, RecurraError, ShapeError
from recurra.frontend import functions
from recurra.frontend.dims import Dims
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import Expr
from recurra.ir.types import Type

Key = str | int


@dataclass(frozen=True)
class Space:
    """A space of one tensor.

    Args:
        actions: the number of values, if these are 0, 1, .. actions - 1.
        counts: the number of values of each element.
    """

    type: Type
    actions: int | None = None
    counts: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[Expr | int, ...]:
        """The shape of the tensor; an observed class is one-hot, [n]."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The element type of the tensor: "f32"."""
        return self.type.dtype

    @property
    def n(self) -> int:
        """The number of values, as in `Discrete`. Raises NoSuchName for other spaces."""
        if self.actions is None:
            raise _not_counted(self, "space.shape, space.dtype; space.counts of MultiDiscrete")
        return self.actions

    def leaves(self) -> list[Space]:
        """Every tensor of it."""
        return [self]

    def tensors(self, value: object) -> list[RecurrentTensor]:
        """The tensors of a value of this space."""
        return tensors_of(self, value)

    def tree(self, tensors: Sequence[object]) -> Any:
        """The value that has these tensors."""
        return tree_of(self, tensors)

    def __str__(self) -> str:
        return str(self.type)


@dataclass(frozen=True)
class CompositeSpace:
    """Spaces under names (a dict) or positions (a tuple)."""

    parts: Mapping[str, AnySpace] | tuple[AnySpace, ...]

    @property
    def type(self) -> Type:
        raise RecurraError.at_user_line(
            "a space of several parts is no single tensor",
            facts=f"it is {self}",
            hint="take one part of it: space.parts[...], o[...]",
        )

    @property
    def shape(self) -> None:
        """None, as Gymnasium has it: each part has its own."""
        return None

    @property
    def dtype(self) -> None:
        """None, as Gymnasium has it: each part has its own."""
        return None

    @property
    def n(self) -> NoReturn:
        """Raises NoSuchName: each part has its own."""
        raise _not_counted(self, "take one part of it: space.parts[...].n")

    @property
    def actions(self) -> None:
        return None

    def leaves(self) -> list[Space]:
        """Every tensor of it."""
        return [s for _, s in leaves(self)]

    def tensors(self, value: object) -> list[RecurrentTensor]:
        """The tensors of a value of this space, in the order of `leaves`."""
        return tensors_of(self, value)

    def tree(self, tensors: Sequence[object]) -> Any:
        """The value that has these tensors."""
        return tree_of(self, tensors)

    def like(self, domain: Dims, name: str | None = None) -> Tree:
        """A tree of tensors to be defined later, as rc.like returns for this space."""
        make, stem = (functions.declared, "x") if name is None else (functions.named, name)
        parts = [make(s.type, domain, "_".join([stem, *path])) for path, s in leaves(self)]
        return tree_of(self, parts)

    def __str__(self) -> str:
        if isinstance(self.parts, tuple):
            return f"({', '.join(map(str, self.parts))})"
        return "{" + ", ".join(f"{k}: {s}" for k, s in self.parts.items()) + "}"


AnySpace = Space | CompositeSpace


def _not_counted(space: AnySpace, hint: str) -> NoSuchName:
    what = "the space has no n: its values are not 0, 1, .. n - 1"
    return NoSuchName.at_user_line(what, facts=f"it is {space}", hint=hint)


class Tree:
    """Tensors under names or positions; reads and definitions by dims apply to each of them.

    o["image"];  first, second = o;  o[b, i, 0] = env.reset(domain=(b, i))
    """

    def __init__(self, parts: Mapping[str, Any] | tuple[Any, ...]):
        self.parts = parts

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, str):
            assert isinstance(self.parts, Mapping), f"{self!r} has positions, no names"
            return self.parts[key]
        return self.map(lambda x: x[key])

    def __setitem__(self, key: object, value: object) -> None:
        own, theirs = children(self.parts), children(parts_of(value))
        if own.keys() != theirs.keys():
            raise ShapeError.at_user_line(
                "a tree is defined by one with other parts",
                facts=f"it has {list(own)}, the value {list(theirs) or 'none'}",
            )
        for k, x in own.items():
            x[key] = theirs[k]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def keys(self) -> KeysView[Key]:
        return children(self.parts).keys()

    def map(self, function: Callable[[Any], object]) -> Tree:
        """Apply a function to each tensor, or tree, in it."""
        if isinstance(self.parts, tuple):
            return Tree(tuple(map(function, self.parts)))
        return Tree({k: function(x) for k, x in self.parts.items()})

    def detach(self) -> Tree:
        """The same values; no gradient passes."""
        return self.map(lambda x: x.detach())

    def __repr__(self) -> str:
        return f"Tree({self.parts!r})"


def parts_of(value: object) -> object:
    return value.parts if isinstance(value, (Tree, CompositeSpace)) else value


def children(parts: object) -> dict[Key, Any]:
    """The direct parts of a dict, a tuple or a list, by name or position."""
    if isinstance(parts, Mapping):
        return dict(parts)
    return dict(enumerate(parts)) if isinstance(parts, (tuple, list)) else {}


def leaves(space: AnySpace, at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Space]]:
    """Every tensor of a space, with the names and positions that lead to it."""
    if isinstance(space, Space):
        return [(at, space)]
    return [x for k, s in children(space.parts).items() for x in leaves(s, (*at, str(k)))]


def tree_of(space: AnySpace, tensors: Sequence[object]) -> Any:
    """Arrange tensors, in the order of `leaves`, as the space does."""
    remaining = iter(tensors)

    def build(any_space: AnySpace) -> object:
        if isinstance(any_space, Space):
            return next(remaining)
        if isinstance(any_space.parts, tuple):
            return Tree(tuple(build(p) for p in any_space.parts))
        return Tree({k: build(p) for k, p in any_space.parts.items()})

    return build(space)


def tensors_of(space: AnySpace, value: object) -> list[RecurrentTensor]:
    """The tensors of a value that has the parts of a space, in the order of `leaves`."""
    if isinstance(space, Space):
        if children(parts_of(value)):
            raise ShapeError.at_user_line(f"{value!r} has parts", facts=f"it is to be {space}")
        return [as_tensor(value)]
    parts, values = children(space.parts), children(parts_of(value))
    if parts.keys() != values.keys():
        raise ShapeError.at_user_line(
            f"a value for {space} has other parts",
            facts=f"it has {list(values) or 'none'}, to be there are {list(parts)}",
        )
    return [x for k, s in parts.items() for x in tensors_of(s, values[k])]
