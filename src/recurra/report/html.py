"""HTML fragments of texts and tables, for the report's page and for `_repr_html_` in notebooks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

COLORED = 24_000  # longer texts stay plain, since color triples their size

_KEYWORDS = (
    "and|as|break|class|continue|def|del|elif|else|except|False|finally|for|from|if|import|in|is|"
    "lambda|launch|log|merge|None|not|or|pass|raise|range|region|return|reversed|True|try|"
    "while|with|yield"
)

# One tokenizer for equations, schedules and programs, so that they look alike.
_TOKEN = re.compile(
    r"(?P<c>\#[^\n]*)"
    r"|(?P<s>[rbf]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|\"[^\"\n]*\"))"
    rf"|(?P<k>\b(?:{_KEYWORDS})\b)"
    r"|(?P<t>\b(?:bf16|[fiu](?:8|16|32|64)|bool)\b(?:\[[^\]\n]*\])?)"
    r"|(?P<f>\b[A-Za-z_]\w*(?=\())"
    r"|(?P<d>(?m:^)[^\W\d][\w.{}]*(?=(?:\[[^\]\n]*\])?\s*(?::\s*\w+(?:\[[^\]\n]*\])?)?\s*=(?!=)))"
    r"|(?P<x>\b[^\W\d]\w*)"  # a word, so that no rule above matches inside it
    r"|(?P<n>(?<![\w.])\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)",
    re.DOTALL,
)


class Drawing(str):
    """An HTML fragment that a table cell contains unescaped."""


def table_html(rows: Sequence[Row], total: Row | None = None) -> str:
    """Return a table with its style; columns are the keys of rows, numbers are right-aligned."""
    return _styled(table(rows, total))


def code_html(text: str) -> str:
    """Return colored equations, a schedule or a program, with the style."""
    return _styled(code(text))


def folds_html(title: str, folds: Mapping[str, str]) -> str:
    """Return named fragments below a title, of which the first is open."""
    parts = "".join(
        f"<details{'' if k else ' open'}><summary>{escape(name)}</summary>{body}</details>"
        for k, (name, body) in enumerate(folds.items())
    )
    return _styled(f"<b>{escape(title)}</b>{parts}")


def sparkline(values: Sequence[float]) -> Drawing:
    """Draw a small curve of the finite values, in the color of the surrounding text."""
    known = [(k, y) for k, y in enumerate(values) if y - y == 0]
    if len(known) < 2:
        return Drawing()
    low, high = min(y for _, y in known), max(y for _, y in known)
    wide, tall = known[-1][0] - known[0][0], (high - low) or 1.0
    points = " ".join(
        f"{118 * (k - known[0][0]) / wide + 1:.1f},{23 - 22 * (y - low) / tall:.1f}"
        for k, y in known[:: max(1, len(known) // 120)]
    )
    return Drawing(
        '<svg viewBox="0 0 120 24" width="120" height="24" role="img" aria-label="curve">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )


def table(rows: Sequence[Row], total: Row | None = None, bar: str = "") -> str:
    """Return a table without style; `total` is its foot, column `bar` is drawn as a meter."""
    if not rows:
        return '<p class="none">none</p>'
    columns = list(dict.fromkeys(key for row in rows for key in row))
    right = {c for c in columns if all(_is_number(row.get(c, 0)) for row in rows)}
    most = max(row.get(bar, 0) for row in rows) if bar in right else 0

    def line(tag: str, row: Row, meter: str = "") -> str:
        cells = "".join(_cell(tag, row.get(c), c in right) for c in columns)
        return f"<tr>{cells}{meter}</tr>"

    empty = "<td></td>" if most else ""
    head = line("th", {c: c for c in columns}, empty)
    body = "\n".join(line("td", r, _meter(r.get(bar, 0) / most) if most else "") for r in rows)
    foot = f"<tfoot>{line('td', total, empty)}</tfoot>" if total else ""
    return (
        f'<div class="wide"><table><thead>{head}</thead>\n<tbody>{body}</tbody>{foot}</table></div>'
    )


def code(text: str) -> str:
    """Return colored text without style."""
    text = text.strip("\n")
    return f'<pre class="code">{colored(text) if len(text) <= COLORED else escape(text)}</pre>'


def colored(text: str) -> str:
    """Escape text, with `<i class=…>` around comments, strings, keywords, types, ops, numbers."""
    parts: list[str] = []
    at = 0
    for match in _TOKEN.finditer(text):
        parts.append(escape(text[at : match.start()]))
        kind, token = match.lastgroup, escape(match.group())
        parts.append(token if kind == "x" else f'<i class="{kind}">{token}</i>')
        at = match.end()
    return "".join(parts) + escape(text[at:])


def number(value: object) -> str:
    """15384 → 15 384; 0.123456 → 0.1235; anything else as text."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}".replace(",", "\u202f") if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.1f}" if 100 <= abs(value) < 1e6 else f"{value:.4g}"


def size(count: float) -> str:
    """2048000 → 1.95 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g}\u00a0{unit}" if count < 1000 else f"{count:.0f}\u00a0{unit}"
        count /= 1024
    return f"{count:,.4g}\u00a0TiB"


@cache
def style() -> str:
    """Return the style sheet of fragments."""
    return Path(__file__).with_name("fragment.css").read_text(encoding="utf-8")


def _styled(fragment: str) -> str:
    return f'<div class="rc"><style>{style()}</style>{fragment}</div>'


def _cell(tag: str, value: object, right: bool) -> str:
    kind = ' class="num"' if right else ""
    text = value if isinstance(value, Drawing) else escape(number(value))
    return f"<{tag}{kind}>{text}</{tag}>"


def _meter(share: float) -> str:
    return f'<td class="meter"><span style="width:{100 * share:.1f}%"></span></td>'


def _is_number(value: object) -> bool:
    value = _plain(value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> object:
    """Convert NumPy scalars to Python's."""
    return value.item() if getattr(value, "shape", None) == () else value
