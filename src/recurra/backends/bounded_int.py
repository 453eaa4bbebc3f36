"""Count: an integer (or truth value) that the generated code computes, with its range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Range = tuple[int, int]  # first and last
ANY: Range = (-(2**31), 2**31 - 1)
BOOL: Range = (0, 1)


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

    def _arithmetic(self, other: Any, sign: str, on_tensors: Callable[[Any], Any]) -> Any:
        if not isinstance(other, (int, Count)):
            return on_tensors(self.tensor(self))
        (a, b), (c, d) = self.range, range_of(other)
        corners = {
            "+": (a + c, b + d),
            "-": (a - d, b - c),
            "*": (min(a * c, a * d, b * c, b * d), max(a * c, a * d, b * c, b * d)),
        }
        return self.new(f"{self.atom} {sign} {atom(other)}", corners[sign])

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self.plus(other)
        return self._arithmetic(other, "+", lambda me: me + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self.plus(-other)
        return self._arithmetic(other, "-", lambda me: me - other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Count:
        lo, hi = self.range
        return self.new(f"-{self.atom}", (-hi, -lo))

    def __mul__(self, other: Any) -> Any:
        return self._arithmetic(other, "*", lambda me: me * other)

    __rmul__ = __mul__

    def __floordiv__(self, count: int) -> Count:
        lo, hi = self.range
        return self.new(f"{self.atom} // {count}", (lo // count, hi // count))

    def __mod__(self, count: int) -> Count:
        lo, hi = self.range
        inside = lo // count == hi // count
        return (
            self
            if inside and lo // count == 0
            else self.new(f"{self.atom} % {count}", (0, count - 1))
        )

    def _compare(self, other: Any, sign: str, on_tensors: Callable[[Any], Any]) -> Any:
        """Return a bool if the ranges decide, else a Count that is a truth value."""
        if not isinstance(other, (int, Count)):
            return on_tensors(self.tensor(self))
        if (known := compare_ranges(self.range, range_of(other), sign)) is not None:
            return known
        return self.new(f"{self.atom} {sign} {atom(other)}", BOOL, truth=True)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<", lambda me: me < other)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "<=", lambda me: me <= other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, ">", lambda me: me > other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, ">=", lambda me: me >= other)

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "==", lambda me: me == other)

    def __ne__(self, other: Any) -> Any:
        return self._compare(other, "!=", lambda me: me != other)

    def _logic(self, other: Any, word: str, on_tensors: Callable[[Any], Any]) -> Any:
        if not isinstance(other, (bool, Count)):
            return on_tensors(self.tensor(self))
        if isinstance(other, bool):
            return other if other is (word == "or") else self
        return self.new(f"{self.atom} {word} {atom(other)}", BOOL, truth=True)

    def __and__(self, other: Any) -> Any:
        return self._logic(other, "and", lambda me: me & other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self._logic(other, "or", lambda me: me | other)

    __ror__ = __or__

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
    if isinstance(left, int) and isinstance(right, int):
        return (min if which == "min" else max)(left, right)
    (al, ah), (bl, bh) = range_of(left), range_of(right)
    some = left if isinstance(left, Count) else right
    assert isinstance(some, Count)
    if which == "min":
        if ah <= bl or bh <= al:
            return left if ah <= bl else right
        return some.new(f"min({left}, {right})", (min(al, bl), min(ah, bh)))
    if al >= bh or bl >= ah:
        return left if al >= bh else right
    return some.new(f"max({left}, {right})", (max(al, bl), max(ah, bh)))


def clamped_start(start: Any, size: int, full: int) -> Any:
    """The start of a slice of `size` elements, clamped so that it lies within `full` ones."""
    return extreme("min", extreme("max", start, 0), full - size)
