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
from recurra.ops.elementwise import HyperbolicTangent

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


@pytest.mark.slow
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
    fill(ROOT / "docs" / "commands.md", {"commands": table(("command", "does"), rows)})


PEERS = {  # in the table of PPO: in the README
    "region, batch last, late critic": "the best program by hand, in JAX",
    "PureJaxRL's scheme, no shuffle": "PureJaxRL, rewritten, no shuffle",
    "PureJaxRL's scheme": "PureJaxRL, rewritten",
    "CleanRL's scheme": "CleanRL, rewritten",
    "Stable-Baselines3": "Stable-Baselines3",
    "brax": "brax",
    "rl-games": "rl-games",
    "TorchRL": "TorchRL",
    "Sample Factory": "Sample Factory",
}


def test_the_first_table_of_speed_and_its_plot() -> None:
    """They are those rows of the page on performance."""
    page = (ROOT / "docs" / "performance.md").read_text().partition("1T, ours")[2]
    (ours,) = re.findall(r"^ (\d+) ms", page)
    cells = [[x.strip() for x in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = {c[0]: c[1:] for c in reversed(cells) if len(c) == 4}  # the first of equal names
    shown = [(title, ours, *rows[peer]) for peer, title in PEERS.items()]
    head = ("against", "ours, ms", "theirs, ms", "ratio [95 %]", "checked")
    fill(ROOT / "README.md", {"speed": table(head, shown)})
    ratios = {title: float(ratio.split()[0]) for title, _, _, ratio, _ in shown}
    agrees(ROOT / "docs" / "ppo.svg", bars({"Recurra": 1.0, **ratios}))


def bars(lengths: dict[str, float]) -> str:
    """A picture of horizontal bars, each with its name and its length."""
    rows = [
        f'<text x="240" y="{30 * k + 20}" text-anchor="end">{what}</text>'
        f'<rect x="250" y="{30 * k + 6}" width="{40 * x:.0f}" height="20" fill="#47a"/>'
        f'<text x="{256 + 40 * x:.0f}" y="{30 * k + 20}">{x:g}</text>'
        for k, (what, x) in enumerate(lengths.items())
    ]
    size = f'viewBox="0 0 700 {30 * len(rows)}"'
    style = "<style>text{font:13px system-ui,sans-serif;fill:#444}</style>"
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    body = "\n".join([style, paper, *rows])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


def test_variables_and_an_operator() -> None:
    lines = [x for x in (config.__doc__ or "").splitlines() if x.startswith("|")]
    operator = fenced(inspect.getsource(HyperbolicTangent), "python no-run")
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


def test_every_page_leads_on() -> None:
    assert not [name(p) for p in PAGES if not any(to != p for to, _ in links(p))]


def test_pages_are_short() -> None:
    lines = {name(p): p.read_text().count("\n") for p in PAGES}
    generated = ("docs/passes.md", "docs/options.md")
    assert not {p: n for p, n in lines.items() if n > 400 and p not in generated}
    assert (ROOT / "README.md").read_text().count("\n") <= 150
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= 12_000


def test_fenced_text_is_a_block() -> None:
    (block,) = blocks(fenced("a\nb", "text"))
    assert (block.info, block.text) == ("text", "a\nb\n")
