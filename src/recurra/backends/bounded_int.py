"""Count: an integer (or truth value) that the generated code computes, with its range."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

Range = tuple[int, int]  # first and last
ANY: Range = (-(2**31), 2**31 - 1)
BOOL: Range = (0, 1)
ON_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "and": operator.and_,
    "or": operator.or_, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Count:
    """The number `text + offset` of the generated code; `tensor` makes a tensor of it."""

    text: str
    range: Range
    tensor: Callable[[Count], Any]
    offset: int = 0
    truth: bool = False

    __array_ufunc__ = None  # NumPy's arrays defer to the operators below

    def __str__(self) -> str:
        if not self.offset:
            return self.text
        return f"{self.text} {'+' if self.offset > 0 else '-'} {abs(self.offset)}"

    @property
    def clock(self) -> str:
        """The loop variable of `t`, `t + 3` or `-t`."""
        return self.text.removeprefix("-")

    @property
    def atom(self) -> str:
        """The text as an operand, in parentheses if it is no name."""
        text = str(self)
        return text if text.isidentifier() else f"({text})"

    def plus(self, count: int) -> Count:
        lo, hi = self.range
        return Count(self.text, (lo + count, hi + count), self.tensor, self.offset + count)

    def new(self, text: str, range: Range, truth: bool = False) -> Count:
        return Count(text, range, self.tensor, truth=truth)

    def _arithmetic(self, sign: str, other: Any) -> Any:
        if not isinstance(other, (int, Count)):
            return ON_TENSORS[sign](self.tensor(self), other)
        if isinstance(other, int) and sign != "*":
            return self.plus(other if sign == "+" else -other)
        (a, b), ends = self.range, range_of(other)
        corners = [ON_TENSORS[sign](x, y) for x in (a, b) for y in ends]
        return self.new(f"{self.atom} {sign} {atom(other)}", (min(corners), max(corners)))

    __add__ = __radd__ = partialmethod(_arithmetic, "+")
    __sub__ = partialmethod(_arithmetic, "-")
    __mul__ = __rmul__ = partialmethod(_arithmetic, "*")

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Count:
        lo, hi = self.range
        return self.new(f"-{self.atom}", (-hi, -lo))

    def __floordiv__(self, count: int) -> Count:
        lo, hi = self.range
        return self.new(f"{self.atom} // {count}", (lo // count, hi // count))

    def __mod__(self, count: int) -> Count:
        lo, hi = self.range
        if lo // count == hi // count == 0:
            return self
        return self.new(f"{self.atom} % {count}", (0, count - 1))

    def _compare(self, sign: str, other: Any) -> Any:
        """Return a bool if the ranges decide, else a Count that is a truth value."""
        if not isinstance(other, (int, Count)):
            return ON_TENSORS[sign](self.tensor(self), other)
        if (known := compare_ranges(self.range, range_of(other), sign)) is not None:
            return known
        return self.new(f"{self.atom} {sign} {atom(other)}", BOOL, truth=True)

    __lt__ = partialmethod(_compare, "<")
    __le__ = partialmethod(_compare, "<=")
    __gt__ = partialmethod(_compare, ">")
    __ge__ = partialmethod(_compare, ">=")

    def __eq__(self, other: Any) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: Any) -> Any:
        return self._compare("!=", other)

    def _logic(self, word: str, other: Any) -> Any:
        if not isinstance(other, (bool, Count)):
            return ON_TENSORS[word](self.tensor(self), other)
        if isinstance(other, bool):
            return other if other is (word == "or") else self
        return self.new(f"{self.atom} {word} {atom(other)}", BOOL, truth=True)

    __and__ = __rand__ = partialmethod(_logic, "and")
    __or__ = __ror__ = partialmethod(_logic, "or")

    def __invert__(self) -> Count:
        return self.new(f"not {self.atom}", BOOL, truth=True)


def atom(number: Any) -> str:
    return (
        number.atom if isinstance(number, Count) else str(number) if number >= 0 else f"({number})"
    )


def range_of(value: int | Count) -> Range:
    return value.range if isinstance(value, Count) else (value, value)


def compare_ranges(left: Range, right: Range, sign: str) -> bool | None:
    """Return a comparison's result if it is the same for all numbers of two ranges, else None."""
    (al, ah), (bl, bh) = left, right
    match sign:
        case "<":
            return True if ah < bl else False if al >= bh else None
        case "<=":
            return True if ah <= bl else False if al > bh else None
        case ">" | ">=":
            return compare_ranges(right, left, "<" if sign == ">" else "<=")
        case _:
            apart, same = ah < bl or bh < al, al == ah == bl == bh
            return None if not (apart or same) else same == (sign == "==")


def bounded(lo: int | Count, hi: int | Count) -> bool:
    """Is it known how many steps a loop from `lo` to `hi` has at most?"""
    return range_of(lo)[0] > ANY[0] and range_of(hi)[1] < ANY[1]


def extreme(which: str, left: Count | int, right: Count | int) -> Count | int:
    """The minimum or maximum of two numbers: a Count unless their ranges decide."""
    choose = min if which == "min" else max
    if isinstance(left, int) and isinstance(right, int):
        return choose(left, right)
    (al, ah), (bl, bh) = range_of(left), range_of(right)
    is_left, is_right = (ah <= bl, bh <= al) if which == "min" else (al >= bh, bl >= ah)
    if is_left or is_right:
        return left if is_left else right
    some = left if isinstance(left, Count) else right
    assert isinstance(some, Count)
    return some.new(f"{which}({left}, {right})", (choose(al, bl), choose(ah, bh)))


def box_keys(
    starts: Sequence[Any], sizes: Sequence[int], shape: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Return the slice `at:at + n` of each axis of a box, empty for a whole axis.

    The starts are clamped so that the box lies within `shape`. Also return the slices with the
    number `at` in place of those of one element.
    """
    slices, points = list[str](), list[str]()
    for start, n, full in zip(starts, sizes, shape, strict=True):
        at = extreme("min", extreme("max", start, 0), full - n)
        slices.append("" if n == full else f"{at}:{at + n}")
        points.append(str(at) if n == 1 else slices[-1])
    return slices, points
