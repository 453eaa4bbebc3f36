"""Code: lines and blocks of Python, and what is done before they are text.

x = np.exp(y)          the second of these is read once: y = np.exp(np.abs(x))
y = np.abs(x)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from recurra.support.source_text import NAME, words

MAX_LINE = 88  # characters of an expression


@dataclass
class Line:
    """`name = text`; without a name, something is done."""

    name: str
    text: str
    is_value: bool = False  # of a statement: it stays until its loop's step ends
    end: Line | None = None  # where that is, if no block ends there
    moves: bool = False  # is it small, and made of nothing but the names in it?


@dataclass
class CodeBlock:
    """A loop, or what runs under a condition."""

    head: str
    body: list[Line | CodeBlock] = field(default_factory=list["Line | CodeBlock"])

    @property
    def does_something(self) -> bool:
        """Does it have more than the places where values end?"""
        return any(isinstance(it, CodeBlock) or it.text for it in self.body)


def text_of(head: str, items: list[Line | CodeBlock], gives: str) -> str:
    """The function: without lines that nobody reads; what is read for the last time is let go."""
    items.append(Line("", f"return {gives}"))
    prune(items, set())
    hoist(items)
    inline(items)
    return "\n".join([head, *(f"    {x}" for x in lines(items, top=True))]) + "\n"


def prune(items: list[Line | CodeBlock], live: set[str]) -> None:
    """Drops lines whose names are not read behind them."""
    kept = list[Line | CodeBlock]()
    for it in reversed(items):
        if isinstance(it, CodeBlock):
            prune(it.body, live)  # what travels from step to step is bound by lines without a name
            if it.does_something:
                kept.append(it)
                live |= words(it.head)
        elif not it.name or it.name in live:
            kept.append(it)
            live |= words(it.text)
    items[:] = kept[::-1]


def hoist(items: list[Line | CodeBlock]) -> None:
    """Puts what is the same in every step of a loop before it."""
    out = list[Line | CodeBlock]()
    for it in items:
        if isinstance(it, CodeBlock):
            hoist(it.body)
            changes = set(assigned([it]))
            stays = list[Line | CodeBlock]()
            for x in it.body:
                if isinstance(x, Line) and x.moves and not words(x.text) & changes:
                    changes.discard(x.name)
                    out.append(Line(x.name, x.text, moves=True))
                else:
                    stays.append(x)
            it.body[:] = stays
        if isinstance(it, Line) or it.does_something:
            out.append(it)
    items[:] = out


def assigned(items: Iterable[Line | CodeBlock]) -> Iterator[str]:
    """The names that are bound in some lines."""
    for it in items:
        if isinstance(it, CodeBlock):
            yield from re.findall(NAME, it.head.partition(" in ")[0])
            yield from assigned(it.body)
        elif it.name:
            yield it.name
        else:
            yield from re.findall(NAME, it.text.partition(" = ")[0])


def inline(items: list[Line | CodeBlock]) -> None:
    """Puts what is read once, by the same block, where it is read, if nothing is done before."""
    for it in items:
        if isinstance(it, CodeBlock):
            inline(it.body)
    uses = Counter(all_words(items))
    waiting: dict[str, str] = {}  # lines that nothing has been done behind
    kept = list[Line | CodeBlock]()
    for it in items:
        if isinstance(it, Line):
            it.text = _joined(it.text, waiting, kept)
            if it.name and not it.is_value and uses[it.name] == 2:  # where it is made and read
                waiting[it.name] = it.text
                continue
        if isinstance(it, CodeBlock) or (it.text and not it.name):
            _settle(waiting, len(waiting), kept)
        kept.append(it)
    _settle(waiting, len(waiting), kept)
    items[:] = kept


def _joined(text: str, waiting: dict[str, str], kept: list[Line | CodeBlock]) -> str:
    """An expression with those that wait for it; where that is too long, they are lines."""
    for w in dict.fromkeys(re.findall(NAME, text)):
        if w in waiting:
            into = _put(text, w, waiting[w])
            if len(into) <= MAX_LINE:
                text = into
                del waiting[w]
            else:
                _settle(waiting, [*waiting].index(w) + 1, kept)
    return text


def _settle(waiting: dict[str, str], count: int, kept: list[Line | CodeBlock]) -> None:
    """The first of those that wait are lines of their own."""
    for name in [*waiting][:count]:
        kept.append(Line(name, waiting.pop(name)))


def _put(text: str, name: str, operand: str) -> str:
    """An expression in the place of a name, in parentheses unless it stands alone there."""
    found = re.search(rf"\b{name}\b", text)
    assert found is not None
    before, after = text[: found.start()], text[found.end() :]
    alone = (not before or before.endswith(("(", "[", ", "))) and after[:1] in ("", ",", ")", "]")
    whole = re.fullmatch(r"[\w.]+(\([^()]*\)|\[[^\[\]]*\])*(\.copy\(\))?", operand)
    return before + (operand if alone or whole else f"({operand})") + after


def all_words(items: Iterable[Line | CodeBlock]) -> Iterator[str]:
    """The names in some lines, as often as they stand there."""
    for it in items:
        yield from re.findall(NAME, it.text if isinstance(it, Line) else it.head)
        if isinstance(it, Line):
            yield it.name
        else:
            yield from all_words(it.body)


def lines(items: Sequence[Line | CodeBlock], top: bool = False) -> Iterator[str]:
    last = {w: k for k, it in enumerate(items) for w in names_of([it])}
    made = [it for it in items if isinstance(it, Line) and it.name]
    gone: dict[int, list[str]] = {}
    places = {id(it): k for k, it in enumerate(items)}
    for x in made:
        at = last[x.name]
        if x.is_value:
            at = len(items) - 1 if x.end is None else max(at, places[id(x.end)])
        if not (top and at == len(items) - 1):
            gone.setdefault(at, []).append(x.name)
    for k, it in enumerate(items):
        if isinstance(it, CodeBlock):
            yield it.head
            yield from (f"    {x}" for x in lines(it.body))
        elif it.text:
            yield f"{it.name} = {it.text}" if it.name else it.text
        if k in gone:
            yield f"del {', '.join(gone[k])}"


def names_of(items: Iterable[Line | CodeBlock]) -> set[str]:
    """All names in some lines."""
    return set(all_words(items))
