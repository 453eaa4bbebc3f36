"""Amounts of memory as polynomials of the bounds.

    4·B·T + 16·B + 1,024, at B=64, T=200: 53,248

An `Extent` is an integer with its polynomial, so that a length that is computed anywhere in a
program is also known for other bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul


@dataclass(frozen=True)
class Quotient:
    """The quotient of // by, if `by` does not divide every factor."""

    of: Amount
    by: int

    def __str__(self) -> str:
        return f"({self.of})//{self.by}" if len(self.of.terms) > 1 else f"{self.of}//{self.by}"


Atom = str | Quotient  # a bound, by its name, or a quotient
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Amount:
    """A polynomial Σ factor · product of bounds; terms are sorted, and their factors nonzero."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    def __add__(self, other: Amount) -> Amount:
        return sum_of_terms(*self.terms, *other.terms)

    def __sub__(self, other: Amount) -> Amount:
        return self + other.times(-1)

    def __mul__(self, other: Amount) -> Amount:
        return sum_of_terms(
            *((_product(m, n), a * b) for m, a in self.terms for n, b in other.terms)
        )

    def times(self, count: int) -> Amount:
        return sum_of_terms(*((m, a * count) for m, a in self.terms))

    def divided_by(self, count: int) -> Amount:
        """The quotient self // count."""
        if all(a % count == 0 for _, a in self.terms):
            return sum_of_terms(*((m, a // count) for m, a in self.terms))
        return sum_of_terms(((Quotient(self, count),), 1))

    def at(self, bounds: Mapping[str, int]) -> int:
        """The value for bounds."""
        return sum(a * reduce(mul, (_value(x, bounds) for x in m), 1) for m, a in self.terms)

    def dominates(self, other: Amount) -> bool:
        """Tell whether this is at least as much for all bounds, by comparing factors."""
        own, others = dict(self.terms), dict(other.terms)
        return all(own.get(m, 0) >= others.get(m, 0) for m in own | others)

    def __str__(self) -> str:
        texts = [_term(m, a) for m, a in sorted(self.terms, key=lambda t: (-len(t[0]), -t[1]))]
        return " + ".join(texts).replace("+ -", "- ") or "0"


def number(count: int) -> Amount:
    return Amount((((), count),)) if count else Amount()


def sum_of_terms(*terms: tuple[Monomial, int]) -> Amount:
    """The sum of terms, with the factors of equal monomials added."""
    total: dict[Monomial, int] = {}
    for m, a in terms:
        total[m] = total.get(m, 0) + a
    return Amount(tuple(sorted(((m, a) for m, a in total.items() if a), key=lambda t: _text(t[0]))))


@lru_cache(1 << 12)
def _text(monomial: Monomial) -> str:
    return str(monomial)


def maximal(amounts: Iterable[Amount]) -> tuple[Amount, ...]:
    """The amounts that no other one covers."""
    out: list[Amount] = []
    for x in dict.fromkeys(amounts):
        if not any(y.dominates(x) for y in out):
            out = [y for y in out if not x.dominates(y)] + [x]
    return tuple(out)


def _product(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted((*left, *right), key=str))


def _value(atom: Atom, bounds: Mapping[str, int]) -> int:
    return bounds[atom] if isinstance(atom, str) else atom.of.at(bounds) // atom.by


def _term(monomial: Monomial, a: int) -> str:
    product = "·".join(map(str, monomial))
    if not monomial or abs(a) == 1:
        return f"{'-' if a < 0 and monomial else ''}{product}" if monomial else f"{a:,}"
    return f"{a:,}·{product}"


class Extent(int):
    """An integer with its amount for all bounds, which arithmetic with integers keeps."""

    amount: Amount

    def __new__(cls, value: int, amount: Amount) -> Extent:
        self = super().__new__(cls, value)
        self.amount = amount
        return self

    def __add__(self, other: int) -> int:
        return _combine(self, other, int(self).__add__, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return _combine(self, other, int(self).__sub__, lambda a, b: a - b)

    def __rsub__(self, other: int) -> int:
        return _combine(self, other, int(self).__rsub__, lambda a, b: b - a)

    def __mul__(self, other: int) -> int:
        return _combine(self, other, int(self).__mul__, lambda a, b: a * b)

    __rmul__ = __mul__

    def __neg__(self) -> Extent:
        return Extent(-int(self), self.amount.times(-1))

    def __floordiv__(self, other: int) -> int:
        value = int(self).__floordiv__(other)
        if type(other) is int and other > 0:
            return Extent(value, self.amount.divided_by(other))
        return value


def amount_of(count: int) -> Amount:
    """The amount of an extent, or of a number, which is the same for all bounds."""
    return count.amount if isinstance(count, Extent) else number(count)


def _combine(
    extent: Extent,
    other: int,
    plain: Callable[[int], int],
    combine: Callable[[Amount, Amount], Amount],
) -> int:
    value = plain(other)
    if value is NotImplemented:
        return value
    return Extent(value, combine(extent.amount, amount_of(other)))


def extents(bounds: Mapping[str, int]) -> dict[str, int]:
    """Bounds as extents of themselves."""
    return {name: Extent(n, sum_of_terms(((name,), 1))) for name, n in bounds.items()}
