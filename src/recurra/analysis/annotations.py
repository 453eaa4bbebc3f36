"""Annotations: the arguments that a function takes, read where it is written, for refusals.

topk(x: Tensor, k: Size)     x.topk("a"): k is a whole number or an index expression, not 'a'
"""

from __future__ import annotations

import collections.abc
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import Parameter, signature, unwrap
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

OURS = Path(__file__).parents[1]
_ANYTHING = (Any, object)
_UNIONS = (Union, types.UnionType)
_LISTS = (tuple, collections.abc.Sequence)
_NUMBERS = {bool: (Integral, "b"), int: (Integral, "iu"), float: (Real, "iuf")}
_SAID = {  # a class, as one of it is told, and as several are
    "bool": ("True or False", "truth values"),
    "Callable": ("a function", "functions"),
    "Dtype": ("a type such as rc.f32", "types"),
    "Expr": ("an index expression", "index expressions"),
    "float": ("a number", "numbers"),
    "Index": ("an index expression", "index expressions"),
    "int": ("a whole number", "whole numbers"),
    "Mapping": ("a dict", "dicts"),
    "NoneType": ("None", "None"),
    "Parameter": ("a parameter", "parameters"),
    "Read": ("a tensor", "tensors"),
    "RecurrentTensor": ("a tensor", "tensors"),
    "str": ("text", "texts"),
    "BareIndex": ("an index expression", "index expressions"),
    "Type": ("a type such as rc.f32[3]", "types"),
}


class Annotations:
    """A function, and what it takes for each argument: what was found of it goes when it goes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._allowed: set[tuple[object, ...]] = set()  # classes of arguments that were

    def stranger(
        self, args: Sequence[Any], given: Mapping[str, Any], are_taken: bool
    ) -> tuple[str, Any, str] | None:
        """The first argument that its annotation does not allow: its name, itself, what would be.

        Args:
            are_taken: the function took them all, and made tensors and types of what stands for
                them.
        """
        if not self.kinds:
            return None
        classes = (are_taken, *map(type, args), *given, *map(type, given.values()))
        if classes in self._allowed:
            return None
        names, others = self.positions
        placed = [(names[k] if k < len(names) else others, x) for k, x in enumerate(args)]
        for name, x in (*placed, *given.items()):
            kind = self.kinds.get(name, object)
            if kind is not object and not _is(x, kind, are_taken):
                return name, x, _said(kind)
        if all(_is_of_known_class(x) for x in (*args, *given.values())):
            self._allowed.add(classes)
        return None

    @cached_property
    def positions(self) -> tuple[tuple[str, ...], str]:
        """The parameters that are found by their place, and the one of all others, if there is."""
        own = signature(self.function).parameters.values()
        others = next((p.name for p in own if p.kind is Parameter.VAR_POSITIONAL), "")
        by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in own if p.kind in by_place), others

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The annotations that say something and whose names are known when the program runs."""
        own = unwrap(self.function)
        code = getattr(own, "__code__", None)
        if code is None or OURS not in Path(code.co_filename).parents:
            return {}  # users' annotations are theirs
        known = vars(sys.modules[own.__module__])
        out: dict[str, Any] = {}
        for p in signature(own).parameters.values():
            if not isinstance(p.annotation, str) or p.kind is Parameter.VAR_KEYWORD:
                continue
            with suppress(NameError):
                out[p.name] = eval(p.annotation, dict(known))
        return {name: kind for name, kind in out.items() if kind not in _ANYTHING}


def _is(value: Any, kind: Any, are_taken: bool) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _ANYTHING:
        return True
    if origin in _UNIONS:
        return any(_is(value, part, are_taken) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and not _is_of_any_length(kind):
        return (
            _is_list(value)
            and len(value) == len(parts)
            and all(_is(y, part, are_taken) for y, part in zip(value, parts, strict=True))
        )
    if origin in _LISTS:
        return _is_list(value) and all(_is(y, parts[0], are_taken) for y in value)
    if isinstance(kind, type) and kind in _NUMBERS:
        abstract, letters = _NUMBERS[kind]
        is_truth = isinstance(value, bool) and kind is not bool
        return not is_truth and (isinstance(value, abstract) or _is_number_of(value, letters))
    if kind is None:
        return value is None
    if are_taken and _name(kind) in _MADE:
        return _MADE[_name(kind)](value)
    own = origin or kind
    return not isinstance(own, type) or isinstance(value, own)


def _is_of_known_class(value: Any) -> bool:
    """Is what is allowed of it allowed of all of its class, which nobody lets go of?"""
    return type(value) in _BY_CLASS or type(value).__module__.partition(".")[0] == OURS.name


def _stands_for_tensor(value: Any) -> bool:
    return isinstance(value, Real) or _is_list(value) or hasattr(type(value), "__array__")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number_of(value: Any, letters: str) -> bool:
    """Is it an array without axes, of any library, whose type has one of these letters?"""
    return getattr(value, "ndim", None) == 0 and getattr(value.dtype, "kind", "f") in letters


def _said(kind: Any, are_several: bool = False) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return _alternatives(parts, are_several)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and not _is_of_any_length(kind):
        return f"({', '.join(map(_said, parts))})"
    if origin in _LISTS:
        return (
            "a list" if parts[0] in _ANYTHING else f"a list of {_said(parts[0], are_several=True)}"
        )
    name = _name(origin or kind)
    return _SAID.get(name, (f"a {name}", f"a {name} each"))[are_several]


def _alternatives(kinds: Sequence[Any], are_several: bool) -> str:
    """The kinds, each once; a list of those before it by one word."""
    single = [k for k in kinds if not _is_of_any_length(k) and not (k is int and float in kinds)]
    them = " or ".join(dict.fromkeys(_said(k, are_several) for k in single))
    lists = [_said(k) for k in kinds if _is_of_any_length(k)]
    many = f"a list of {' or '.join(dict.fromkeys(_said(k, True) for k in single))}"
    return ", or ".join([them, *("a list of them" if told == many else told for told in lists)])


def _is_of_any_length(kind: Any) -> bool:
    origin = get_origin(kind)
    return origin in _LISTS and (origin is not tuple or Ellipsis in get_args(kind))


def _name(kind: Any) -> str:
    return "NoneType" if kind is None else getattr(kind, "__name__", str(kind))


_BY_CLASS = (bool, int, float, dict, type(None))  # what is allowed of one of them is of all
_MADE: dict[str, Callable[[Any], bool]] = {  # what a class is made of, by functions that took it
    **dict.fromkeys(("Dtype", "Type"), lambda _: True),
    **dict.fromkeys(("Read", "RecurrentTensor"), _stands_for_tensor),
}
