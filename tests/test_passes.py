"""Every text case of tests/passes: the text it becomes, the round trip, and the oracle's answer.

A case is a title line `# why`, equations, `---`, and the equations that the pass makes of them.
`RECURRA_BLESS=1` rewrites the expected halves; a wrong rewrite still fails by the oracle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.agreement import as_written
from recurra.compiler import pipeline
from recurra.compiler.options import CompileOptions
from recurra.cost.attention import AttentionKernel
from recurra.cost.target import PLAIN
from recurra.cost.tuning import Tuning
from recurra.interp import run
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph
from recurra.ir.text import parse
from recurra.ir.types import NUMPY_NAME
from recurra.ir.verify import verify
from recurra.ops.source import Input
from reinforce import context

FOLDER = Path(__file__).parent / "passes"
SIZES = (
    {"B": 2, "I": 2, "T": 6, "S": 4, "E": 1, "N": 12},
    {"B": 4, "I": 3, "T": 4, "S": 4, "E": 1, "N": 16},
    dict.fromkeys("BITSEN", 1),
)


@dataclass(frozen=True)
class Case:
    """One title with its before and after."""

    title: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"# {self.title}\n{self.before}\n---\n{self.after}\n"


def cases(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    out: list[Case] = []
    for part in ("\n" + path.read_text()).split("\n# ")[1:]:
        title, _, body = part.partition("\n")
        before, _, after = body.partition("---")
        out.append(Case(title.strip(), before.strip(), after.strip()))
    return out


PASSES = {step.name: step for step in pipeline.PASSES}
KERNEL = AttentionKernel("it", 1.0, 1.0, 1.0, 1.0)
TUNING = {
    "strip": Tuning(strip=4),
    "split": Tuning(given=2, rows=2),
    "attention": Tuning(attention=True, kernel=KERNEL),
}


def apply(name: str, graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph after a pass by itself, if it applies."""
    tuning = TUNING.get(name, Tuning())
    options = CompileOptions(tuning=tuning)
    cx = pipeline.context(sizes, options, tuning.aimed(PLAIN))
    cx.axes = as_written(graph)
    step = PASSES[name]
    return step.run(graph, cx) if step.applies(graph, cx) else graph


def inputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Random values of every input, the same for every graph that has it."""
    out: dict[str, Any] = {}
    for k, n in enumerate(graph.nodes.values()):
        if isinstance(n.op, Input):
            shape = (*(r.size(sizes) for r in n.domain), *n.type.sizes(sizes))  # type: ignore[union-attr]
            x = np.random.default_rng(k).normal(size=shape) * 2
            out[n.name] = (
                x.round().astype(NUMPY_NAME[n.type.dtype]) if n.type.dtype[0] != "f" else x
            )
            out[n.name] = out[n.name].astype(NUMPY_NAME[n.type.dtype])
    return out


def answers(graph: Graph, sizes: Mapping[str, int], given: Mapping[str, Any]) -> list[np.ndarray]:
    """The oracle's outputs by position: a pass may hand an output to an equal equation."""
    with np.errstate(all="ignore"):  # padding may hold 1/0
        found = run(graph, sizes, given, seed=3)
    return [found[o] for o in graph.outputs]


def same_answers(before: Graph, after: Graph, sizes: Mapping[str, int]) -> None:
    given = inputs(before, sizes)
    for name, a, b in zip(
        before.outputs, answers(before, sizes, given), answers(after, sizes, given), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6, err_msg=f"{name} of\n{after}")


FILES = sorted(FOLDER.glob("*.txt"))
CASES = [(path, k) for path in FILES for k in range(len(cases(path)))]


@pytest.mark.parametrize(("path", "k"), CASES, ids=[f"{p.stem}-{k}" for p, k in CASES])
def test_case(path: Path, k: int) -> None:
    every = cases(path)
    case, name = every[k], path.stem
    before = verify(parse(case.before))
    after = verify(apply(name, before, SIZES[0]))
    if os.environ.get("RECURRA_BLESS"):
        every[k] = Case(case.title, case.before, str(after))
        path.write_text("\n".join(map(str, every)))
    else:
        assert str(after) == case.after, case.title
    assert parse(str(after)) == after
    for sizes in SIZES:
        if all(symbols(r.hi) <= set(sizes) for r in before.dims):
            same_answers(before, verify(apply(name, before, sizes)), sizes)


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_titles_are_told_apart(path: Path) -> None:
    titles = [c.title for c in cases(path)]
    assert titles
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("order", [tuple(PASSES), ("keep", "tile", "simplify"), ("keep", "pad")])
def test_passes_by_name_keep_the_answer(order: tuple[str, ...]) -> None:
    """A policy-gradient loop: learning needs what acting made, and a tile fits."""
    ctx, bounds = context(shown=("d_W1",))
    sizes = dict(zip(map(str, bounds), (2, 2, 4), strict=True))
    graph = ctx.graph
    want = run(graph, sizes)
    after = graph
    for name in order:
        after = verify(apply(name, after, sizes))
    found = run(after, sizes)
    for old, new in zip(graph.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(found[new], want[old], rtol=1e-4, atol=1e-6)
    assert ("tz" in str(after)) == ("tile" in order)
    assert ("_again" in str(after)) == ("keep" in order)
