"""What somebody gets who has read docs/language.md once: each mistake and all that it is answered.

`tests/mistakes.txt` holds a title `# what`, a program, `---`, the kind of error and its text.
`RECURRA_BLESS=1` rewrites the answers.
"""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path

import numpy as np
import pytest

import recurra as rc
from documents import ROOT
from recurra import cli
from recurra.analysis import graph_builder
from recurra.errors import RecurraError

FILE = ROOT / "tests" / "integration" / "mistakes.txt"
PARTS = ("\n" + FILE.read_text()).split("\n# ")[1:]
CASES = {title: body.split("---\n") for title, _, body in (p.partition("\n") for p in PARTS)}


def refused(program: str) -> str:
    """The kind of error and its text; lines count from 1 in program.py."""
    text = program.strip("\n") + "\n"
    linecache.cache["program.py"] = (len(text), None, text.splitlines(keepends=True), "program.py")
    active = len(graph_builder._OPEN.builders)
    try:
        with pytest.raises(RecurraError) as e:
            exec(compile(text, "program.py", "exec"), {"rc": rc, "np": np})
    finally:
        del graph_builder._OPEN.builders[active:]
    return f"{e.typename}: {e.value}"


@pytest.mark.parametrize("title", CASES)
def test_the_answer(title: str):
    program, want = CASES[title]
    got = refused(program)
    if os.environ.get("RECURRA_BLESS"):
        CASES[title][1] = got + "\n"
        FILE.write_text("\n".join(f"# {t}\n{p}---\n{a}" for t, (p, a) in CASES.items()))
    assert got.strip() == CASES[title][1].strip()
    assert want or os.environ.get("RECURRA_BLESS")


def test_every_answer_has_a_line_a_fact_and_a_way_out():
    assert len(CASES) >= 45
    for title, (program, answer) in CASES.items():
        lines = answer.strip().splitlines()
        place = re.fullmatch(r"  --> program.py:(\d+)   (.+)", lines[1])
        assert place is not None, title
        assert program.strip("\n").splitlines()[int(place[1]) - 1].strip() == place[2], title
        assert lines[-1].startswith("  hint: "), title
        assert len(lines) >= 4, f"{title}: no fact"


@pytest.mark.parametrize("title", CASES)
def test_the_command_line_exits_with_2(
    title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if len(title) % 8:  # some of them: the way is the same for all
        return
    script = tmp_path / "program.py"
    script.write_text("import numpy as np\nimport recurra as rc\n" + CASES[title][0])
    active = len(graph_builder._OPEN.builders)
    try:
        assert cli.main(["run", str(script)]) == 2
    finally:
        del graph_builder._OPEN.builders[active:]
    assert "Traceback" not in capsys.readouterr().err
