"""Meter memory: the buffers that are alive, and the moment of most bytes.

Buffers are freed as Python frees arrays, by reference counts. So a program that runs on buffers
without numbers holds at every moment the same buffers as with numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recurra.cost.thresholds import MAX_PEAK_CANDIDATES
from recurra.memory_model.amount import Amount, Monomial, maximal, number, sum_of_terms
from recurra.memory_model.peak import KINDS, PeakPoint


@dataclass
class Label:
    """The owner of a buffer: a name, which may be set later, and a kind (memory_model/peak.py)."""

    name: str
    kind: str
    nbytes: int
    amount: Amount


class MeteredBuffer:
    """Some bytes, which are freed with the last array in them."""

    __slots__ = ("label", "meter")

    def __init__(self, meter: Meter, label: Label):
        self.meter, self.label = meter, label
        meter.allocate(label)

    def __del__(self) -> None:
        self.meter.free(self.label)


@dataclass(frozen=True)
class Moment:
    """The memory at one time, and where that was."""

    nbytes: int = 0
    at: str = ""
    labels: tuple[Label, ...] = ()


@dataclass
class Meter:
    """A counter of live buffers; it looks at a moment when a buffer is freed after it."""

    at: str = ""  # the statement or launch that runs
    live: int = 0
    terms: dict[Monomial, int] = field(default_factory=dict[Monomial, int])  # of live buffers
    peak: Moment = field(default_factory=Moment)
    peak_candidates: dict[Amount, None] = field(default_factory=dict[Amount, None])
    state: frozenset[str] = frozenset()  # variables that the outermost loop carries
    history: list[PeakPoint] = field(default_factory=list[PeakPoint])

    def __post_init__(self) -> None:
        self.labels: dict[int, Label] = {}
        self.rising, self.where = False, ""
        self.fixed = False  # some bytes are known for these bounds only, from a backend

    def allocate(self, label: Label) -> None:
        self.live += label.nbytes
        for m, a in label.amount.terms:
            self.terms[m] = self.terms.get(m, 0) + a
        self.labels[id(label)] = label
        self.rising, self.where = True, self.at

    def free(self, label: Label) -> None:
        self.update_peak()
        self.live -= label.nbytes
        for m, a in label.amount.terms:
            self.terms[m] -= a
        del self.labels[id(label)]

    def update_peak(self) -> None:
        """Update the peak if memory has grown since the last look."""
        if not self.rising:
            return
        self.rising = False
        self.peak_candidates[sum_of_terms(*self.terms.items())] = None
        if len(self.peak_candidates) > MAX_PEAK_CANDIDATES:
            self.peak_candidates = dict.fromkeys(maximal(self.peak_candidates))
        if self.live > self.peak.nbytes:
            self.peak = Moment(self.live, self.where, tuple(self.labels.values()))
        self.remember()

    def remember(self) -> None:
        """Add to the history; it has the highest moment of each statement or launch."""
        if self.history and self.history[-1].at == self.where:
            if self.history[-1].nbytes >= self.live:
                return
            self.history.pop()
        kinds = dict.fromkeys(KINDS, 0)
        for x in self.labels.values():
            kinds[self.kind(x)] += x.nbytes
        self.history.append(PeakPoint(self.where, kinds))

    def kind(self, label: Label) -> str:
        """The kind of a buffer, one of KINDS."""
        if label.kind != "made":
            return label.kind
        return "state" if label.name in self.state else "temporary"

    def extra(self, nbytes: int, name: str, kind: str = "made") -> MeteredBuffer:
        """Allocate bytes whose dependence on the bounds is unknown."""
        return MeteredBuffer(self, Label(name, kind, nbytes, number(nbytes)))
