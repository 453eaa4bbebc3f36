"""Lines and blocks of generated Python, and their cleanup: pruning, hoisting, inlining.

y = np.abs(x)
z = np.exp(y)          y is read once:  z = np.exp(np.abs(x))
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
    """The assignment `name = text`; without a name, `text` is a statement, such as a store."""

    name: str
    text: str
    is_value: bool = False  # is it a statement's value, alive until its loop's step ends?
    end: Line | None = None  # the end of that step, if no block ends there
    moves: bool = False  # is it small, and a pure function of the names in it?


@dataclass
class CodeBlock:
    """A loop, or the body of a condition."""

    head: str
    body: list[Line | CodeBlock] = field(default_factory=list["Line | CodeBlock"])

    @property
    def does_something(self) -> bool:
        """Does it hold more than marks of the ends of steps?"""
        return any(isinstance(it, CodeBlock) or it.text for it in self.body)


def text_of(head: str, items: list[Line | CodeBlock], gives: str) -> str:
    """The source of a function: dead lines are dropped, variables deleted after their last use."""
    items.append(Line("", f"return {gives}"))
    prune(items, set())
    hoist(items)
    inline(items)
    return "\n".join([head, *(f"    {x}" for x in lines(items, top=True))]) + "\n"


def prune(items: list[Line | CodeBlock], live: set[str]) -> None:
    """Drop lines whose names are not read after them."""
    kept = list[Line | CodeBlock]()
    for it in reversed(items):
        if isinstance(it, CodeBlock):
            prune(it.body, live)  # loop-carried variables are bound by lines without a name
            if it.does_something:
                kept.append(it)
                live |= words(it.head)
        elif not it.name or it.name in live:
            kept.append(it)
            live |= words(it.text)
    items[:] = kept[::-1]


def hoist(items: list[Line | CodeBlock]) -> None:
    """Move loop-invariant lines before their loop."""
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
    """Inline expressions that are read once, in the same block, with no effect in between."""
    for it in items:
        if isinstance(it, CodeBlock):
            inline(it.body)
    uses = Counter(all_words(items))
    pending: dict[str, str] = {}  # lines after which there is no effect yet
    kept = list[Line | CodeBlock]()
    for it in items:
        if isinstance(it, Line):
            it.text = _joined(it.text, pending, kept)
            if it.name and not it.is_value and uses[it.name] == 2:  # assigned and read once
                pending[it.name] = it.text
                continue
        if isinstance(it, CodeBlock) or (it.text and not it.name):
            _settle(pending, len(pending), kept)
        kept.append(it)
    _settle(pending, len(pending), kept)
    items[:] = kept


def _joined(text: str, pending: dict[str, str], kept: list[Line | CodeBlock]) -> str:
    """Substitute pending expressions; those that would make the line too long become lines."""
    for w in dict.fromkeys(re.findall(NAME, text)):
        if w in pending:
            into = _put(text, w, pending[w])
            if len(into) <= MAX_LINE:
                text = into
                del pending[w]
            else:
                _settle(pending, [*pending].index(w) + 1, kept)
    return text


def _settle(pending: dict[str, str], count: int, kept: list[Line | CodeBlock]) -> None:
    """Emit the first `count` pending expressions as lines of their own."""
    for name in [*pending][:count]:
        kept.append(Line(name, pending.pop(name)))


def _put(text: str, name: str, operand: str) -> str:
    """Substitute an expression for a name, in parentheses unless it stands alone there."""
    found = re.search(rf"\b{name}\b", text)
    assert found is not None
    before, after = text[: found.start()], text[found.end() :]
    alone = (not before or before.endswith(("(", "[", ", "))) and after[:1] in ("", ",", ")", "]")
    whole = re.fullmatch(r"[\w.]+(\([^()]*\)|\[[^\[\]]*\])*(\.copy\(\))?", operand)
    return before + (operand if alone or whole else f"({operand})") + after


def all_words(items: Iterable[Line | CodeBlock]) -> Iterator[str]:
    """The names in some lines, with repetitions."""
    for it in items:
        yield from re.findall(NAME, it.text if isinstance(it, Line) else it.head)
        if isinstance(it, Line):
            yield it.name
        else:
            yield from all_words(it.body)


def lines(items: Sequence[Line | CodeBlock], top: bool = False) -> Iterator[str]:
    """Render items as text, with a `del` after the last use of each variable."""
    last = {w: k for k, it in enumerate(items) for w in all_words([it])}
    deleted: dict[int, list[str]] = {}
    places = {id(it): k for k, it in enumerate(items)}
    for x in (it for it in items if isinstance(it, Line) and it.name):
        at = last[x.name]
        if x.is_value:
            at = len(items) - 1 if x.end is None else max(at, places[id(x.end)])
        if not (top and at == len(items) - 1):
            deleted.setdefault(at, []).append(x.name)
    for k, it in enumerate(items):
        if isinstance(it, CodeBlock):
            yield it.head
            yield from (f"    {x}" for x in lines(it.body))
        elif it.text:
            yield f"{it.name} = {it.text}" if it.name else it.text
        if k in deleted:
            yield f"del {', '.join(deleted[k])}"
