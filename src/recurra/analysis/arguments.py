"""Arguments: a call that does not fit is refused with the arguments there are, and a line to write.

loss.backward(retain_graph=True)     hint: write x[0:T].sum().backward(wrt=[x])
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from types import FrameType, FunctionType
from typing import Any, TypeVar

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


def expecting(
    f: F,
    name: str,
    hint: str | Callable[[str], str],
    by_keyword: Callable[[str], str] | None = None,
    is_method: bool = False,
) -> F:
    """Refuse a call whose arguments do not fit as ours, with a line that does.

    Args:
        hint: that line, or what makes it of the arguments as they were written.
        by_keyword: makes it of a keyword that the function does not have.
        is_method: the first argument stands before the name, also where it is not called self.
    """

    @wraps(f)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return f(*args, **given)
        except TypeError as error:
            try:
                signature(f).bind(*args, **given)
            except TypeError as misfit:
                own = signature(f).parameters
                skip = int(is_method or next(iter(own), "") == "self")
                written = [shown(x) for x in args[skip:]]
                known = {k: v for k, v in given.items() if k in own}
                strange = [k for k in given if k not in own]
                if line := next((KEYWORDS[k] for k in strange if k in KEYWORDS), ""):
                    way_out = f"write {line}"
                elif strange and by_keyword is not None:
                    way_out = by_keyword(strange[0])
                elif isinstance(hint, str):
                    way_out = hint
                elif strange and _fits(f, args, known):
                    way_out = f"write {name}({_joined(written, known)})"
                else:
                    way_out = hint(_joined(written, known))
                raise WrongCall(
                    f"{name}({_joined(written, given)}) does not fit: {misfit}",
                    facts=f"its arguments are {_arguments(f, skip)}",
                    hint=way_out,
                    loc=here(),
                ) from None
            raise error

    return call  # pyright: ignore[reportReturnType]


def _fits(f: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    try:
        signature(f).bind(*args, **given)
    except TypeError:
        return False
    return True


def _joined(positions: Sequence[str], keywords: Mapping[str, Any]) -> str:
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


def shown(x: Any) -> str:
    """An argument as text: a function by its name, a large array by its shape."""
    text = x.__name__ if isinstance(x, FunctionType) else repr(x)
    if "\n" not in text and len(text) <= 60:
        return text
    shape = getattr(x, "shape", None)
    return f"<{type(x).__name__}>" if shape is None else f"<array of {list(shape)}>"


def names_unpacked(frame: FrameType) -> int | None:
    """How many names a value is unpacked to by the instruction that a frame is at, if by one."""
    at = (x for x in dis.get_instructions(frame.f_code) if x.offset == frame.f_lasti)
    return next((x.arg for x in at if x.opname == "UNPACK_SEQUENCE"), None)
