"""A region as data: kernels (straight-line tensor code), loops, writes to stores.

region  = items
item    = StraightLineCode | For | Write | Bind
A kernel is a pure function of tensors; stores change only in a Write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from recurra.cost.thresholds import THREEFRY_CALLS
from recurra.support.source_text import words


@dataclass
class StraightLineCode:
    """A kernel: straight-line code without effects, `name = text` line by line."""

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    takes: dict[str, None] = field(default_factory=dict[str, None])  # tensors of the region
    views: dict[str, str] = field(default_factory=dict[str, str])  # parameter -> read, number
    gives: dict[str, None] = field(default_factory=dict[str, None])
    name: str = ""
    runs: int = 1  # per step of the region

    @property
    def calls(self) -> int:
        """The number of calls of torch that it makes."""
        return sum(THREEFRY_CALLS if text.startswith("threefry(") else 1 for _, text in self.lines)


@dataclass
class Write:
    """store[key].copy_(value)"""

    target: str
    value: str


@dataclass
class Bind:
    """name = text, outside of kernels: a call of another library, one of its results"""

    name: str
    text: str


@dataclass
class For:
    """A loop; `starts` before it and `steps` at the end of its body bind carried variables.

    With `stop`, it ends before the first step at which that condition holds.
    """

    clock: str
    lo: str
    hi: str
    starts: list[tuple[str, str]]
    trips: int = 1
    body: list[Item] = field(default_factory=list["Item"])
    steps: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stop: str = ""
    name: str = ""  # of the function that it becomes, if it is recorded


Item = StraightLineCode | Write | Bind | For


def at_any_depth(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items and those of the loops among them, in the order of the code."""
    for it in items:
        yield it
        if isinstance(it, For):
            yield from at_any_depth(it.body)


def used(items: Iterable[Item]) -> set[str]:
    """The tensors that items read and that are made outside of the kernel that reads them."""
    out: set[str] = set()
    for it in at_any_depth(items):
        match it:
            case StraightLineCode():
                out |= set(it.takes).union(*map(words, it.views.values()))
            case Write():
                out.add(it.value)
            case Bind():
                out |= words(it.text)
            case For():
                texts = (it.lo, it.hi, *(x for _, x in (*it.starts, *it.steps)))
                out = out.union(*map(words, texts))
    return out


def kernels(items: Iterable[Item], runs: int = 1) -> Iterator[StraightLineCode]:
    """Yield every kernel, in the order of the code, with its runs counted."""
    for it in items:
        if isinstance(it, StraightLineCode):
            it.runs = runs
            yield it
        elif isinstance(it, For):
            yield from kernels(it.body, runs * it.trips)


def finish(items: list[Item], results: list[str], region: str) -> None:
    """Prune dead lines and kernels, decide what each kernel returns, and name the kernels."""
    prune(items, set(results))
    for n, k in enumerate(kernels(items), 1):
        k.name = f"{region}_kernel_{n}"


def prune(items: list[Item], live: set[str]) -> None:
    """Drop kernels, and lines of them, whose results are not read after them."""
    kept = list[Item]()
    for it in reversed(items):
        if isinstance(it, For):
            live.update(*(words(text) for _, text in it.steps))
            prune(it.body, live)
        elif isinstance(it, StraightLineCode):
            shorten(it, live)
        if not isinstance(it, StraightLineCode) or it.gives:
            live |= used([it])
            kept.append(it)
    items[:] = kept[::-1]


def shorten(kernel: StraightLineCode, live: set[str]) -> None:
    """Keep the lines, parameters and results of a kernel that `live` names need."""
    kernel.gives = {n: None for n in (*(n for n, _ in kernel.lines), *kernel.views) if n in live}
    need, kept = set(kernel.gives), list[tuple[str, str]]()
    for name, text in reversed(kernel.lines):
        if name in need:
            kept.append((name, text))
            need |= words(text)
    kernel.lines = kept[::-1]
    kernel.takes = {n: None for n in kernel.takes if n in need}
    kernel.views = {n: t for n, t in kernel.views.items() if n in need}
