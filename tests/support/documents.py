"""Markdown as data: fenced blocks, and sections between markers that tests fill.

<!-- generated: NAME -->        what a test computes; `RECURRA_BLESS=1` writes it
<!-- end -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_SECTION = re.compile(r"(<!-- generated: (\S+) -->\n)((?:.*\n)*?)(<!-- end -->)")


@dataclass(frozen=True)
class Block:
    """A fenced block: what follows the opening fence, its text, and where the text stands."""

    info: str
    text: str
    start: int
    stop: int


def blocks(text: str) -> list[Block]:
    """Every fenced block, in order."""
    return [Block(m[1].strip(), m[2], m.start(2), m.end(2)) for m in _FENCE.finditer(text)]


def output_of(text: str, every: list[Block], k: int) -> Block | None:
    """The ```text block directly below block `k`: what it prints."""
    if k + 1 == len(every) or every[k + 1].info != "text":
        return None
    between = text[every[k].stop : every[k + 1].start]
    return every[k + 1] if between.split() == ["```", "```text"] else None


def replaced(text: str, new: list[tuple[Block, str]]) -> str:
    """`text` with other contents of some blocks."""
    for block, content in sorted(new, key=lambda p: -p[0].start):
        text = text[: block.start] + content + text[block.stop :]
    return text


def env(**more: str) -> dict[str, str]:
    """The environment of a process that finds `recurra`, also uninstalled, and these modules."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{SUPPORT}", **more}


def blessing() -> bool:
    """Are expected texts to be written, not compared?"""
    return bool(os.environ.get("RECURRA_BLESS"))


def agrees(path: Path, want: str) -> None:
    """`path` holds `want`, or is made to."""
    if blessing():
        path.write_text(want)
    assert path.read_text() == want, f"{path.name} is out of date: make bless"


def sections(path: Path) -> dict[str, str]:
    """What stands between the markers, by name."""
    return {m[2]: m[3] for m in _SECTION.finditer(path.read_text())}


def fill(path: Path, contents: Mapping[str, str]) -> None:
    """Compares the marked sections of a file with what they must be, all of them."""
    assert set(sections(path)) == set(contents)
    new = _SECTION.sub(lambda m: f"{m[1]}{contents[m[2]]}\n{m[4]}", path.read_text())
    agrees(path, new)


def fenced(text: str, info: str = "") -> str:
    return f"```{info}\n{text.rstrip()}\n```"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


__all__ = [
    "ROOT",
    "SUPPORT",
    "TESTS",
    "Block",
    "agrees",
    "blessing",
    "blocks",
    "env",
    "fenced",
    "fill",
    "output_of",
    "replaced",
    "sections",
    "table",
]
