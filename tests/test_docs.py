"""The documents tell the truth: their programs run, and print what stands below them.

Blocks of one file run in order, in one namespace. ```python no-run is only looked at by readers;
```python refused must be refused, and the ```text block below it is what the user is told.
"""

from __future__ import annotations

import inspect
import io
import linecache
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from documents import ROOT, Block, agrees, blocks, fenced, fill, output_of, replaced, table
from recurra import cli, config
from recurra.errors import RecurraError
from recurra.ops.elementwise import Tanh

DOORS = tuple(ROOT / x for x in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))
PAGES = tuple(sorted((ROOT / "docs").rglob("*.md")))
FILES = (DOORS[0], *PAGES)
RUNS = tuple(p for p in FILES if any(b.info.startswith("python") for b in blocks(p.read_text())))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(block: Block, scope: dict[str, Any]) -> str:
    """What a block prints, or how it is refused; its lines count from 1 in `program.py`."""
    lines = block.text.splitlines(keepends=True)
    linecache.cache["program.py"] = (len(block.text), None, lines, "program.py")
    shown = io.StringIO()
    code = compile(block.text, "program.py", "exec")
    with redirect_stdout(shown):
        if block.info == "python refused":
            with pytest.raises(RecurraError) as refused:
                exec(code, scope)
            print(f"{refused.typename}: {refused.value}")
        else:
            exec(code, scope)
    return shown.getvalue()


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_programs_print_what_is_shown(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    every = blocks(text)
    scope: dict[str, Any] = {"__name__": path.stem}
    found: list[tuple[Block, str]] = []
    for k, block in enumerate(every):
        if block.info.split()[:1] != ["python"] or block.info == "python no-run":
            continue
        printed = run(block, scope)
        below = output_of(text, every, k)
        if below is not None:
            found.append((below, "".join(f"{x.rstrip()}\n" for x in printed.splitlines())))
        else:
            assert not printed, f"nothing is shown of what this prints:\n{block.text}"
    agrees(path, replaced(text, found))


def test_a_wrong_output_is_noticed() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n2\n```\n"
    every = blocks(text)
    below = output_of(text, every, 0)
    assert below is not None
    assert replaced(text, [(below, run(every[0], {}))]) == text.replace("2", "1")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_fences_are_of_known_kinds(path: Path) -> None:
    kinds = {"python", "python no-run", "python refused", "text", "sh"}
    assert {b.info for b in blocks(path.read_text())} <= kinds


def test_tables_of_commands() -> None:
    rows = [(f"`recurra {name}`", does) for name, (_, does) in cli.COMMANDS.items()]
    fill(ROOT / "README.md", {"commands": table(("command", "does"), rows)})


def test_variables_and_an_operator() -> None:
    lines = [x for x in (config.__doc__ or "").splitlines() if x.startswith("|")]
    operator = fenced(inspect.getsource(Tanh), "python no-run")
    fill(ROOT / "CONTRIBUTING.md", {"variables": "\n".join(lines), "operator": operator})


def links(path: Path) -> set[tuple[Path, str]]:
    """The files of ours that a page links to, and the headings in them."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)\)", prose)
    return {((path.parent / x).resolve() if x else path, y) for x, y in found if "://" not in x}


def anchors(path: Path) -> set[str]:
    """The names under which headings of a page can be linked to."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-") for x in heads}


@pytest.mark.parametrize("path", [*DOORS, *PAGES], ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path):
        assert target.exists(), f"{name(path)} links to {target}"
        assert not anchor or anchor in anchors(target), f"{name(path)} links to {target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    assert {target for target, _ in links(index)} >= {*PAGES} - {index}


def test_the_way_in_is_short() -> None:
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= 12_000


def test_fenced_text_is_a_block() -> None:
    (block,) = blocks(fenced("a\nb", "text"))
    assert (block.info, block.text) == ("text", "a\nb\n")
