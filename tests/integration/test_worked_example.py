"""The whole compiler on one program: equations, schedule, stores and regions as text.

RECURRA_BLESS=1 rewrites the texts; read the difference.
"""

from __future__ import annotations

import os
import re
from functools import cache

import pytest

from documents import ROOT
from recurra.ir.graph_parser import parse
from recurra.runtime.executable import Executable
from reinforce import reinforce

GOLDEN = ROOT / "tests" / "golden"
B, T = 512, 250


@cache
def program(n: int | None = None) -> Executable:
    return reinforce(B, T, 100, n)


def stores(p: Executable) -> str:
    """One line per store, in the order of the plan."""
    plan = p.compiled.program.plan
    rows = [f"{s!s:40} {s.nbytes(plan.sizes):>10,} B" for s in plan.stores.values()]
    total = sum(s.nbytes(plan.sizes) for s in plan.stores.values())
    return "\n".join([*rows, f"{'total':40} {total:>10,} B"])


def equations(p: Executable) -> str:
    """After the last pass; arrays and functions of the program numbered as they appear."""
    text = str(list(p.compiled.stages.graphs.values())[-1])
    text = re.sub(r"fn='(reset|step)_\d+'", r"fn='\1'", text)
    keys = list(dict.fromkeys(re.findall(r"'data-[0-9a-f]+'", text)))
    return re.sub(r"'data-[0-9a-f]+'", lambda m: f"'data{keys.index(m[0])}'", text)


TEXTS = {
    "schedule": lambda p: p.schedule_text,
    "stores": stores,
    "regions": lambda p: "\n".join(map(str, p.compiled.program.regions)),
    "equations": equations,
    "decisions": lambda p: "\n".join(p.compiled.stages.decisions),
}


@pytest.mark.parametrize("stage", TEXTS)
@pytest.mark.parametrize(("name", "n"), [("reinforce", None), ("reinforce_n5", 5)])
def test_texts(name: str, n: int | None, stage: str):
    path = GOLDEN / f"{name}.{stage}.txt"
    text = TEXTS[stage](program(n)) + "\n"
    if os.environ.get("RECURRA_BLESS"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_equations_are_read_back():
    for text in program().equations.values():
        assert str(parse(text)) == text


def test_what_is_donated_fits():
    """Parameters and moments travel and are updated in place; the rest is the stores."""
    p = program()
    plan = p.compiled.program.plan
    (region,) = (r for r in p.compiled.program.regions if r.chunk is not None)
    moments = [plan.graph[v].type.nbytes(plan.sizes) for v in region.carried]
    assert len(moments) == 18
    assert sum(moments) == 3 * 1282 * 4
    assert sum(moments) + sum(s.nbytes(plan.sizes) for s in plan.stores.values()) <= 4.8e6
    assert set(region.carried) == set(region.gives)
