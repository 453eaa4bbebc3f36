"""Type annotations of a function, read to describe arguments that it does not accept.

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
_WORDS = {  # the words for one instance of a class, and for several
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
    """A function, the annotation of each parameter, and a cache of the argument types it allows."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._allowed: set[tuple[object, ...]] = set()  # classes of arguments that passed

    def first_mismatch(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], accepted: bool
    ) -> tuple[str, Any, str] | None:
        """The first argument that its annotation does not allow: its name, value, and what fits.

        Args:
            accepted: the function ran with these arguments, so values that it converts to tensors
                or types are allowed where the annotation names a tensor or type.
        """
        if not self.kinds:
            return None
        classes = (accepted, *map(type, args), *kwargs, *map(type, kwargs.values()))
        if classes in self._allowed:
            return None
        names, others = self.positions
        placed = [(names[k] if k < len(names) else others, x) for k, x in enumerate(args)]
        for name, x in (*placed, *kwargs.items()):
            kind = self.kinds.get(name, object)
            if kind is not object and not _is(x, kind, accepted):
                return name, x, _described(kind)
        if all(_is_of_known_class(x) for x in (*args, *kwargs.values())):
            self._allowed.add(classes)
        return None

    @cached_property
    def positions(self) -> tuple[tuple[str, ...], str]:
        """The names of the positional parameters, and of the variadic one ("" if there is none)."""
        own = signature(self.function).parameters.values()
        others = next((p.name for p in own if p.kind is Parameter.VAR_POSITIONAL), "")
        by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in own if p.kind in by_place), others

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The annotations by parameter, except Any, object, and names not known at run time."""
        own = unwrap(self.function)
        code = getattr(own, "__code__", None)
        if code is None or OURS not in Path(code.co_filename).parents:
            return {}  # a user's function: its annotations are not enforced
        known = vars(sys.modules[own.__module__])
        out: dict[str, Any] = {}
        for p in signature(own).parameters.values():
            if not isinstance(p.annotation, str) or p.kind is Parameter.VAR_KEYWORD:
                continue
            with suppress(NameError):
                out[p.name] = eval(p.annotation, dict(known))
        return {name: kind for name, kind in out.items() if kind not in _ANYTHING}


def _is(value: Any, kind: Any, accepted: bool) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _ANYTHING:
        return True
    if origin in _UNIONS:
        return any(_is(value, part, accepted) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and not _is_of_any_length(kind):
        return (
            _is_list(value)
            and len(value) == len(parts)
            and all(_is(y, part, accepted) for y, part in zip(value, parts, strict=True))
        )
    if origin in _LISTS:
        return _is_list(value) and all(_is(y, parts[0], accepted) for y in value)
    if isinstance(kind, type) and kind in _NUMBERS:
        abstract, letters = _NUMBERS[kind]
        is_truth = isinstance(value, bool) and kind is not bool
        return not is_truth and (isinstance(value, abstract) or _is_number_of(value, letters))
    if kind is None:
        return value is None
    if accepted and _name(kind) in _CONVERTED:
        return _CONVERTED[_name(kind)](value)
    own = origin or kind
    return not isinstance(own, type) or isinstance(value, own)


def _is_of_known_class(value: Any) -> bool:
    """Does its class alone decide whether it is allowed? Only such classes are cached."""
    return type(value) in _BY_CLASS or type(value).__module__.partition(".")[0] == OURS.name


def _stands_for_tensor(value: Any) -> bool:
    return isinstance(value, Real) or _is_list(value) or hasattr(type(value), "__array__")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number_of(value: Any, letters: str) -> bool:
    """Is it a 0-d array of any library whose dtype kind is one of these letters?"""
    return getattr(value, "ndim", None) == 0 and getattr(value.dtype, "kind", "f") in letters


def _described(kind: Any, plural: bool = False) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return _alternatives(parts, plural)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and not _is_of_any_length(kind):
        return f"({', '.join(map(_described, parts))})"
    if origin in _LISTS:
        return (
            "a list" if parts[0] in _ANYTHING else f"a list of {_described(parts[0], plural=True)}"
        )
    name = _name(origin or kind)
    return _WORDS.get(name, (f"a {name}", f"a {name} each"))[plural]


def _alternatives(kinds: Sequence[Any], plural: bool) -> str:
    """Describe a union: `a number or a tensor, or a list of them`."""
    single = [k for k in kinds if not _is_of_any_length(k) and not (k is int and float in kinds)]
    them = " or ".join(dict.fromkeys(_described(k, plural) for k in single))
    lists = [_described(k) for k in kinds if _is_of_any_length(k)]
    many = f"a list of {' or '.join(dict.fromkeys(_described(k, True) for k in single))}"
    return ", or ".join([them, *("a list of them" if text == many else text for text in lists)])


def _is_of_any_length(kind: Any) -> bool:
    origin = get_origin(kind)
    return origin in _LISTS and (origin is not tuple or Ellipsis in get_args(kind))


def _name(kind: Any) -> str:
    return "NoneType" if kind is None else getattr(kind, "__name__", str(kind))


_BY_CLASS = (bool, int, float, dict, type(None))  # classes that decide, whatever the value
_CONVERTED: dict[str, Callable[[Any], bool]] = {  # values that functions convert to a class
    **dict.fromkeys(("Dtype", "Type"), lambda _: True),
    **dict.fromkeys(("Read", "RecurrentTensor"), _stands_for_tensor),
}
