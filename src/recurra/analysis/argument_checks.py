"""Argument checks: a call that does not fit raises with the parameters and a line that works.

loss.backward(retain_graph=True)     hint: write x[0:T].sum().backward(wrt=[x])
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from types import FrameType, FunctionType
from typing import Any, TypeVar

from recurra.analysis.type_annotations import Annotations
from recurra.errors import RecurraError

F = TypeVar("F", bound=Callable[..., Any])


def by_word(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Index lines by each of the words before them."""
    return {word: line for words, line in lines for word in words.split()}


ALIKE = (  # keywords of other libraries, and the line that does the same here
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
KEYWORDS = by_word(ALIKE)


class WrongCall(RecurraError, TypeError):
    """A call whose arguments do not fit the function; also a TypeError, as in Python."""


@dataclass(frozen=True)
class _Checked:
    """A function whose arguments are checked, with a hint for calls that do not fit."""

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
        """The number of leading arguments, such as `self`, that are not shown in parentheses."""
        return int(self.is_method or next(iter(self.own), "") == "self")

    def suggestion(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        written = [argument_text(x) for x in args[self.skipped :]]
        known = {k: v for k, v in kwargs.items() if k in self.own}
        unknown = [k for k in kwargs if k not in self.own]
        if line := next((KEYWORDS[k] for k in unknown if k in KEYWORDS), ""):
            return f"write {line}"
        if unknown and self.by_keyword is not None:
            return self.by_keyword(unknown[0])
        if isinstance(self.hint, str):
            return self.hint
        if unknown and not _misfit(self.function, args, known):
            return f"write {self.name}({_joined(written, known)})"
        return self.hint(_joined(written, known))

    def error(
        self, args: Sequence[object], kwargs: Mapping[str, object], misfit: str, hint: str
    ) -> WrongCall:
        written = _joined([argument_text(x) for x in args[self.skipped :]], kwargs)
        return WrongCall.at_user_line(
            f"{self.name}({written}) does not fit: {misfit}",
            facts=f"its arguments are {_arguments(self.function, self.skipped)}",
            hint=hint,
        )

    def expect_signature(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if misfit := _misfit(self.function, args, kwargs):
            raise self.error(args, kwargs, misfit, self.suggestion(args, kwargs)) from None

    def expect_kinds(
        self, args: Sequence[object], kwargs: Mapping[str, object], accepted: bool
    ) -> None:
        found = self.annotations.first_mismatch(args, kwargs, accepted)
        if found is None:
            return
        word, x, kind = found
        default = self.own[word].default
        hint = (
            self.suggestion(args, kwargs)
            if isinstance(self.hint, str) or default is Parameter.empty
            else f"leave {word} out: it is {argument_text(default)} then"
        )
        raise self.error(args, kwargs, f"{word} is {kind}, not {argument_text(x)}", hint) from None


def check_arguments(
    function: F,
    name: str,
    hint: str | Callable[[str], str],
    by_keyword: Callable[[str], str] | None = None,
    is_method: bool = False,
) -> F:
    """Wrap a function to raise WrongCall, with a hint, if its arguments do not fit.

    RecurraErrors that `function` raises itself pass through; otherwise its arguments are checked
    against its signature and annotations, whether it succeeds or fails.

    Args:
        hint: the line to write instead, or a function that returns it for the arguments as text.
        by_keyword: returns the hint for a keyword that the function does not have.
        is_method: the first argument is the object before the dot, even if it is not called self.
    """
    checked = _Checked(Annotations(function), name, hint, by_keyword, is_method)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, RecurraError) and not isinstance(error, WrongCall):
                raise
            checked.expect_signature(args, kwargs)
            checked.expect_kinds(args, kwargs, accepted=False)
            raise
        checked.expect_kinds(args, kwargs, accepted=True)
        return result

    return call  # pyright: ignore[reportReturnType]


def _misfit(
    function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]
) -> str:
    """Python's message about arguments that do not fit the signature; "" if they fit."""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as misfit:
        return str(misfit)
    return ""


def _joined(positions: Sequence[str], keywords: Mapping[str, object]) -> str:
    return ", ".join([*positions, *(f"{k}={argument_text(v)}" for k, v in keywords.items())])


def _arguments(function: Callable[..., Any], skip: int) -> str:
    """The parameters of a function as text, without their types."""
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
    return f"{plain}={argument_text(parameter.default)}" if has_default else str(plain)


def argument_text(value: object) -> str:
    """The text of an argument: a function by its name, a large array by its shape."""
    text = value.__name__ if isinstance(value, FunctionType) else repr(value)
    if "\n" not in text and len(text) <= 60:
        return text
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}>" if shape is None else f"<array of {list(shape)}>"


def names_unpacked(frame: FrameType) -> int | None:
    """The number of names to which the current instruction of a frame unpacks a value, if any."""
    at = (x for x in dis.get_instructions(frame.f_code) if x.offset == frame.f_lasti)
    return next((x.arg for x in at if x.opname == "UNPACK_SEQUENCE"), None)
