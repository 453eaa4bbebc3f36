"""Code: a region as data: kernels (straight-line tensor code), loops, effects on stores.

region  = items
item    = Kernel | For | Write | Bind
A kernel is a pure function: what it takes and gives are tensors; stores change only in a Write.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Kernel:
    """Straight-line code without effects: `name = text` line by line."""

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    takes: dict[str, None] = field(default_factory=dict[str, None])  # tensors of the region
    views: dict[str, str] = field(default_factory=dict[str, str])  # parameter -> read, number
    gives: dict[str, None] = field(default_factory=dict[str, None])
    name: str = ""
    runs: int = 1  # per step of the region


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
    """A loop; `starts` before it and `steps` at the end of its body bind what travels.

    With `stop`, it ends before the first step at which that holds.
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


Item = Kernel | Write | Bind | For


def used(items: list[Item]) -> set[str]:
    """Tensors that items read and that are made outside of the kernel that reads them."""
    out: set[str] = set()
    for it in items:
        match it:
            case Kernel():
                out |= set(it.takes).union(*map(words, it.views.values()))
            case Write():
                out.add(it.value)
            case Bind():
                out |= words(it.text)
            case For():
                out = out.union(*(words(x) for _, x in (*it.starts, *it.steps)), used(it.body))
    return out


def kernels(items: list[Item], runs: int = 1) -> list[Kernel]:
    """Every kernel, in the order of the code, with its runs counted."""
    out: list[Kernel] = []
    for it in items:
        if isinstance(it, Kernel):
            it.runs = runs
            out.append(it)
        elif isinstance(it, For):
            out += kernels(it.body, runs * it.trips)
    return out


def finish(items: list[Item], results: list[str], region: str) -> None:
    """What each kernel must give, now that every use is known; dead lines and kernels go."""
    while True:
        wanted = used(items) | set(results)
        for k in kernels(items):
            prune(k, wanted)
        if not (empty := [k for k in kernels(items) if not k.gives]):
            break
        drop(items, empty)
    for n, k in enumerate(kernels(items)):
        k.name = f"{region}_kernel_{n + 1}"


def prune(k: Kernel, wanted: set[str]) -> None:
    """Keeps the lines that `wanted` needs; takes and views are those that are left."""
    k.gives = dict.fromkeys(n for n, _ in k.lines if n in wanted)
    k.gives |= dict.fromkeys(v for v in k.views if v in wanted)
    need, kept = set(k.gives), list[tuple[str, str]]()
    for name, text in reversed(k.lines):
        if name in need:
            kept.append((name, text))
            need |= words(text)
    k.lines = kept[::-1]
    k.takes = {n: None for n in k.takes if n in need}
    k.views = {n: t for n, t in k.views.items() if n in need}


def drop(items: list[Item], dead: list[Kernel]) -> None:
    gone = {id(k) for k in dead}
    items[:] = [it for it in items if id(it) not in gone]
    for it in items:
        if isinstance(it, For):
            drop(it.body, dead)


def words(text: str) -> set[str]:
    """The names in an expression."""
    out, word = set[str](), ""
    for c in text + " ":
        if c.isalnum() or c == "_":
            word += c
        else:
            out.add(word)
            word = ""
    return out
