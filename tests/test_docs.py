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

FILES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RUNS = tuple(p for p in FILES if any(b.info.startswith("python") for b in blocks(p.read_text())))


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


@pytest.mark.parametrize("path", RUNS, ids=[p.stem for p in RUNS])
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


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
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


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert (path.parent / target).exists(), f"{name} links to {target}"


def test_fenced_text_is_a_block() -> None:
    (block,) = blocks(fenced("a\nb", "text"))
    assert (block.info, block.text) == ("text", "a\nb\n")
