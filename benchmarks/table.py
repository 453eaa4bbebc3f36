"""Tables in Markdown, for people to read."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The lines below their head, in columns of one width each."""
    widths = [max(len(line[k]) for line in (head, *lines)) for k in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)) + " |"
        for line in (head, rule, *lines)
    )
