"""Every text case of tests/passes: the text it becomes, the round trip, and the oracle's answer.

A case is a title line `# why`, equations, `---`, and the equations that the pass makes of them.
A line `options tile_points=4` before the equations gives the pass options of `compile`, and a line
`sizes B=4 T=6` the bounds at which the oracle compares, in place of three usual ones.
`RECURRA_BLESS=1` rewrites the expected halves; a wrong rewrite still fails by the oracle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from documents import TESTS
from recurra.compiler import pipeline
from recurra.compiler.options import read_options
from recurra.compiler.pass_manager import PassManager
from recurra.config import Config
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.user_objects import HostFunction
from recurra.ir.verify import verify
from reinforce import context

FOLDER = TESTS / "passes"
SIZES = (
    {"B": 2, "I": 2, "T": 6, "S": 4, "E": 1, "N": 12},
    {"B": 4, "I": 3, "T": 4, "S": 4, "E": 1, "N": 16},
    dict.fromkeys("BITSEN", 1),
)
HOSTED = (HostFunction("env.step", parts=HostFunction("env.step of some rows")),)
SETTINGS = ("options", "sizes")


@dataclass(frozen=True)
class Case:
    """One title with its before and after, and the settings under which it holds."""

    title: str
    settings: Mapping[str, tuple[str, ...]]
    before: str
    after: str

    def __str__(self) -> str:
        told = "".join(f"{k} {' '.join(words)}\n" for k, words in self.settings.items())
        return f"# {self.title}\n{told}{self.before}\n---\n{self.after}\n"

    @property
    def sizes(self) -> list[Mapping[str, int]]:
        """The bounds at which it is evaluated."""
        if "sizes" in self.settings:
            pairs = (word.split("=") for word in self.settings["sizes"])
            return [{name: int(n) for name, n in pairs}]
        dims = parse(self.before).dims
        return [x for x in SIZES if all(symbols(r.hi) <= set(x) for r in dims)]

    def apply(self, name: str, sizes: Mapping[str, int]) -> Graph:
        """The graph after the pass, compared with the oracle."""
        words = self.settings.get("options", ())
        return applied([name], parse(self.before, HOSTED), sizes, words)


def cases(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    out: list[Case] = []
    for part in ("\n" + path.read_text()).split("\n# ")[1:]:
        title, _, body = part.partition("\n")
        before, _, after = (x.strip() for x in body.partition("---"))
        settings: dict[str, tuple[str, ...]] = {}
        while before.split(" ", 1)[0] in SETTINGS:
            line, _, before = before.partition("\n")
            word, *settings_of = line.split()
            settings[word] = tuple(settings_of)
        out.append(Case(title.strip(), settings, before, after))
    return out


PASSES = {step.name: step for step in pipeline.PASSES}


def applied(
    names: Iterable[str], graph: Graph, sizes: Mapping[str, int], options: Iterable[str] = ()
) -> Graph:
    """The graph after passes by themselves, each of which keeps the oracle's answer."""
    stages = PassManager(
        pipeline.compile_context(sizes, *read_options(options)), Config(check=True)
    )
    stages.begin(verify(graph))
    assert stages.answers is not None, f"too many points to evaluate at {sizes}"
    for name in names:
        stages.cx.free = None
        graph = stages.run_one(PASSES[name], graph)
    return graph


FILES = sorted(FOLDER.glob("*.txt"))
CASES = [(path, k) for path in FILES for k in range(len(cases(path)))]


@pytest.mark.parametrize(("path", "k"), CASES, ids=[f"{p.stem}-{k}" for p, k in CASES])
def test_case(path: Path, k: int) -> None:
    every = cases(path)
    case, name = every[k], path.stem
    after = case.apply(name, case.sizes[0])
    if os.environ.get("RECURRA_BLESS"):
        every[k] = replace(case, after=str(after))
        path.write_text("\n".join(map(str, every)))
    else:
        assert str(after) == case.after, case.title
    assert parse(str(after)) == after
    for sizes in case.sizes[1:]:
        case.apply(name, sizes)


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_has_a_case_that_it_changes(name: str) -> None:
    every = cases(FOLDER / f"{name}.txt")
    assert any(parse(c.before) != parse(c.after) for c in every)


def test_every_file_is_of_a_pass() -> None:
    assert {path.stem for path in FILES} == set(PASSES)


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_titles_are_told_apart(path: Path) -> None:
    titles = [c.title for c in cases(path)]
    assert titles
    assert len(set(titles)) == len(titles)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [tuple(PASSES), ("rematerialize", "tile", "canonicalize"), ("rematerialize", "pad")]
)
def test_passes_by_name_keep_the_answer(order: tuple[str, ...]) -> None:
    """A policy-gradient loop: learning needs what acting made, and a tile fits."""
    ctx, bounds = context(shown=("d_W1",))
    sizes = dict(zip(map(str, bounds), (2, 2, 4), strict=True))
    after = applied(order, ctx.graph, sizes)
    assert ("tz" in str(after)) == ("tile" in order)
    assert ("_again" in str(after)) == ("rematerialize" in order)
