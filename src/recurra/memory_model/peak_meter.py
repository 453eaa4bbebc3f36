"""Meter: what is alive of memory, buffer by buffer, and the moment at which it was most.

Buffers are let go of as Python lets go of arrays: by their references. So a program that runs on
buffers without numbers holds at every moment what it holds with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recurra.cost.thresholds import MAX_PEAK_CANDIDATES
from recurra.memory_model.amount import Amount, Monomial, most, number, sum_of_terms
from recurra.memory_model.peak import KINDS, PeakPoint


@dataclass
class Label:
    """The owner of some bytes: a name, which may come later, and a kind (memory_model/peak.py)."""

    name: str
    kind: str
    nbytes: int
    amount: Amount


class MeteredBuffer:
    """Some bytes; when the last array in it is gone, so is it."""

    __slots__ = ("label", "meter")

    def __init__(self, meter: Meter, label: Label):
        self.meter, self.label = meter, label
        meter.took(label)

    def __del__(self) -> None:
        self.meter.gave(self.label)


@dataclass(frozen=True)
class Moment:
    """The memory at one time, and where that was."""

    nbytes: int = 0
    at: str = ""
    labels: tuple[Label, ...] = ()


@dataclass
class Meter:
    """Counts buffers; a moment is looked at when something is let go of after it."""

    at: str = ""  # what runs
    live: int = 0
    terms: dict[Monomial, int] = field(default_factory=dict[Monomial, int])  # of what is alive
    peak: Moment = field(default_factory=Moment)
    tops: dict[Amount, None] = field(default_factory=dict[Amount, None])
    state: frozenset[str] = frozenset()  # variables that one step leaves for the next
    history: list[PeakPoint] = field(default_factory=list[PeakPoint])

    def __post_init__(self) -> None:
        self.labels: dict[int, Label] = {}
        self.rising, self.where = False, ""
        self.asked = False  # has a backend told bytes that it knows for these bounds alone?

    def took(self, label: Label) -> None:
        self.live += label.nbytes
        for m, a in label.amount.terms:
            self.terms[m] = self.terms.get(m, 0) + a
        self.labels[id(label)] = label
        self.rising, self.where = True, self.at

    def gave(self, label: Label) -> None:
        self.look()
        self.live -= label.nbytes
        for m, a in label.amount.terms:
            self.terms[m] -= a
        del self.labels[id(label)]

    def look(self) -> None:
        """Was there ever more?"""
        if not self.rising:
            return
        self.rising = False
        self.tops[sum_of_terms(*self.terms.items())] = None
        if len(self.tops) > MAX_PEAK_CANDIDATES:
            self.tops = dict.fromkeys(most(self.tops))
        if self.live > self.peak.nbytes:
            self.peak = Moment(self.live, self.where, tuple(self.labels.values()))
        self.remember()

    def remember(self) -> None:
        """Record a top; of several while one thing runs, the highest."""
        if self.history and self.history[-1].at == self.where:
            if self.history[-1].nbytes >= self.live:
                return
            self.history.pop()
        kinds = dict.fromkeys(KINDS, 0)
        for x in self.labels.values():
            kinds[self.kind(x)] += x.nbytes
        self.history.append(PeakPoint(self.where, kinds))

    def kind(self, label: Label) -> str:
        """One of KINDS."""
        if label.kind != "made":
            return label.kind
        return "state" if label.name in self.state else "temporary"

    def extra(self, nbytes: int, name: str, kind: str = "made") -> MeteredBuffer:
        """Bytes that are the same for all bounds, as far as anybody knows."""
        return MeteredBuffer(self, Label(name, kind, nbytes, number(nbytes)))
