"""Arguments: a call that does not fit is refused with the arguments there are, and a line to write.

loss.backward(retain_graph=True)     hint: write x[0:T].sum().backward(wrt=[x])
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from types import FrameType, FunctionType
from typing import Any, TypeVar

from recurra.analysis.annotations import Annotations
from recurra.errors import RecurraError, here

F = TypeVar("F", bound=Callable[..., Any])

ALIKE = (  # keywords of other libraries, and the line that each of them is written as
    (
        "create_graph inputs params retain_graph",
        "x[0:T].sum().backward(wrt=[x])  # what is differentiated stays",
    ),
    ("device sharding", 'ctx.compile({T: 3}, backend="jax")'),
    ("generator rng", "ctx.run({T: 3}, seed=7)"),
    ("grad_tensors gradient", "(x * y)[0:T].sum().backward(wrt=[x])  # y is the slope of x"),
    ("max_steps num_steps steps", "ctx.run({T: 3})"),
    ("probs", "rc.nn.Categorical(x.index(0).log())"),
    ("requires_grad", 'rc.nn.Parameter(rc.zeros(3), domain=(t,), name="p")'),
)
KEYWORDS = {word: line for words, line in ALIKE for word in words.split()}


class WrongCall(RecurraError, TypeError):
    """Arguments that a function does not have; a TypeError too, as Python has it."""


@dataclass(frozen=True)
class _Checked:
    """A function whose calls are looked at, and the line that fits."""

    annotations: Annotations
    name: str
    hint: str | Callable[[str], str]
    by_keyword: Callable[[str], str] | None
    is_method: bool

    @property
    def function(self) -> Callable[..., Any]:
        return self.annotations.function

    @property
    def own(self) -> Mapping[str, Parameter]:
        return signature(self.function).parameters

    @property
    def skipped(self) -> int:
        """The number of arguments before the name."""
        return int(self.is_method or next(iter(self.own), "") == "self")

    def way_out(self, args: Sequence[object], given: Mapping[str, object]) -> str:
        written = [shown(x) for x in args[self.skipped :]]
        known = {k: v for k, v in given.items() if k in self.own}
        strange = [k for k in given if k not in self.own]
        if line := next((KEYWORDS[k] for k in strange if k in KEYWORDS), ""):
            return f"write {line}"
        if strange and self.by_keyword is not None:
            return self.by_keyword(strange[0])
        if isinstance(self.hint, str):
            return self.hint
        if strange and not _misfit(self.function, args, known):
            return f"write {self.name}({_joined(written, known)})"
        return self.hint(_joined(written, known))

    def refused(
        self, args: Sequence[object], given: Mapping[str, object], misfit: str, way_out: str
    ) -> WrongCall:
        written = _joined([shown(x) for x in args[self.skipped :]], given)
        return WrongCall(
            f"{self.name}({written}) does not fit: {misfit}",
            facts=f"its arguments are {_arguments(self.function, self.skipped)}",
            hint=way_out,
            loc=here(),
        )

    def expect_signature(self, args: Sequence[object], given: Mapping[str, object]) -> None:
        if misfit := _misfit(self.function, args, given):
            raise self.refused(args, given, misfit, self.way_out(args, given)) from None

    def expect_kinds(
        self, args: Sequence[object], given: Mapping[str, object], are_taken: bool
    ) -> None:
        found = self.annotations.stranger(args, given, are_taken)
        if found is None:
            return
        word, x, kind = found
        default = self.own[word].default
        way_out = (
            self.way_out(args, given)
            if isinstance(self.hint, str) or default is Parameter.empty
            else f"leave {word} out: it is {shown(default)} then"
        )
        raise self.refused(args, given, f"{word} is {kind}, not {shown(x)}", way_out) from None


def expecting(
    function: F,
    name: str,
    hint: str | Callable[[str], str],
    by_keyword: Callable[[str], str] | None = None,
    is_method: bool = False,
) -> F:
    """Refuse a call whose arguments do not fit as ours, with a line that does.

    What `function` refuses itself it says better; what it takes, or fails at, is held to its
    annotations.

    Args:
        hint: that line, or what makes it of the arguments as they were written.
        by_keyword: makes it of a keyword that the function does not have.
        is_method: the first argument stands before the name, also where it is not called self.
    """
    checked = _Checked(Annotations(function), name, hint, by_keyword, is_method)

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            result = function(*args, **given)
        except Exception as error:
            if isinstance(error, RecurraError) and not isinstance(error, WrongCall):
                raise
            checked.expect_signature(args, given)
            checked.expect_kinds(args, given, are_taken=False)
            raise
        checked.expect_kinds(args, given, are_taken=True)
        return result

    return call  # pyright: ignore[reportReturnType]


def _misfit(
    function: Callable[..., Any], args: Sequence[object], given: Mapping[str, object]
) -> str:
    """Say how the arguments do not fit the parameters, in Python's words; "" if they do."""
    try:
        signature(function).bind(*args, **given)
    except TypeError as misfit:
        return str(misfit)
    return ""


def _joined(positions: Sequence[str], keywords: Mapping[str, object]) -> str:
    return ", ".join([*positions, *(f"{k}={shown(v)}" for k, v in keywords.items())])


def _arguments(function: Callable[..., Any], skip: int) -> str:
    """The arguments of a function, without their types."""
    own = list(signature(function).parameters.values())[skip:]
    out: list[str] = []
    for k, p in enumerate(own):
        first = p.kind is Parameter.KEYWORD_ONLY and (
            k == 0 or own[k - 1].kind is Parameter.POSITIONAL_OR_KEYWORD
        )
        out += ["*", _argument(p)] if first else [_argument(p)]
    return ", ".join(out) or "none"


def _argument(parameter: Parameter) -> str:
    plain = parameter.replace(annotation=Parameter.empty, default=Parameter.empty)
    has_default = parameter.default is not Parameter.empty
    return f"{plain}={shown(parameter.default)}" if has_default else str(plain)


def shown(value: object) -> str:
    """An argument as text: a function by its name, a large array by its shape."""
    text = value.__name__ if isinstance(value, FunctionType) else repr(value)
    if "\n" not in text and len(text) <= 60:
        return text
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}>" if shape is None else f"<array of {list(shape)}>"


def names_unpacked(frame: FrameType) -> int | None:
    """Count the names that a frame's instruction unpacks a value to; None: it is another one."""
    at = (x for x in dis.get_instructions(frame.f_code) if x.offset == frame.f_lasti)
    return next((x.arg for x in at if x.opname == "UNPACK_SEQUENCE"), None)
