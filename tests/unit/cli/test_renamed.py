"""Names that have changed keep working for one release, and say what they are called now."""

from __future__ import annotations

from pathlib import Path

import pytest

import recurra as rc
from recurra import cli
from recurra.cli.commands import RENAMED_PASSES
from recurra.compiler.pipeline import PASSES

RENAMED = {
    "nn.initialise": "nn.initializers",
    "nest.Problem": "nest.NestProblem",
    "optim.Optimiser": "optim.Optimizer",
    "rl.Policy": "rl.SavedPolicy",
    "rl.normalise": "rl.normalize",
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_are_the_new_ones(old: str, new: str) -> None:
    module, _, name = old.partition(".")
    _, _, now = new.partition(".")
    with pytest.warns(DeprecationWarning, match=rf"recurra\.{old} is called recurra\.{new} now"):
        found = getattr(getattr(rc, module), name)
    assert found is getattr(getattr(rc, module), now)
    assert name not in getattr(rc, module).__all__


def test_old_names_of_passes_run_the_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {step.name for step in PASSES}
    assert set(RENAMED_PASSES.values()) <= names
    assert not set(RENAMED_PASSES) & names
    graph = tmp_path / "graph.txt"
    graph.write_text("dims t<T\na[t<T]: f32[] = const(value=1.0, shape=())\nreturn a\n")
    assert cli.main(["opt", str(graph), "-p", "simplify", "--sizes", "T=3"]) == 0
    old = capsys.readouterr()
    assert cli.main(["opt", str(graph), "-p", "canonicalize", "--sizes", "T=3"]) == 0
    assert old.out == capsys.readouterr().out
    assert "the pass simplify is called canonicalize now" in old.err
