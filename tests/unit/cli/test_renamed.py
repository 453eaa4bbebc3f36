"""Names that have changed keep working for one release, and say what they are called now."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import recurra as rc
from recurra import cli
from recurra.cli.commands import RENAMED_PASSES
from recurra.compiler.options import RENAMED as RENAMED_OPTIONS
from recurra.compiler.options import CompileOptions, read_options
from recurra.compiler.pipeline import PASSES
from recurra.cost.tuning_knobs import Tuning
from recurra.frontend.context import compiling

RENAMED = {
    "Swap": "Offload",
    "nn.initialise": "nn.initializers",
    "nest.Problem": "nest.NestProblem",
    "nest.improved": "nest.improve_nest",
    "nest.tuned": "nest.tune_nest",
    "optim.Optimiser": "optim.Optimizer",
    "rl.episodic": "rl.episode_returns",
    "rl.Policy": "rl.SavedPolicy",
    "rl.normalise": "rl.normalize",
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_are_the_new_ones(old: str, new: str) -> None:
    package, _, name = old.rpartition(".")
    module = getattr(rc, package) if package else rc
    with pytest.warns(DeprecationWarning, match=rf"recurra\.{old} is called recurra\.{new} now"):
        found = getattr(module, name)
    assert found is getattr(module, new.rpartition(".")[2])
    assert name not in module.__all__


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("nest.agents.policy", "shipped", "bundled_policy"),
        ("mapping.execute.workload", "unmapped", "run_unmapped"),
        ("nest.observation", "graph", "state_graph"),
        ("llm.init", "init", "init_model"),
    ],
)
def test_old_names_of_functions_are_the_new_ones(module: str, old: str, new: str) -> None:
    within = importlib.import_module(f"recurra.{module}")
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is called .*\.{new} now"):
        assert getattr(within, old) is getattr(within, new)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = within.nothing


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("window.kernel", "window.trace", "parse"),
        ("window.streams", "window.stream_issuer", "Streams"),
        ("nest.state", "nest.observation", "vector"),
        ("nest.door", "nest.compiler_hook", "contraction"),
    ],
)
def test_modules_are_imported_by_their_old_names(old: str, new: str, name: str) -> None:
    within = importlib.import_module(f"recurra.{old}")
    with pytest.warns(DeprecationWarning, match=rf"{old} is called recurra\.{new} now") as told:
        found = getattr(within, name)
    assert told[0].filename == __file__
    assert found is getattr(importlib.import_module(f"recurra.{new}"), name)
    assert callable(rc.window.kernel)  # the decorator, and no module


def test_old_names_of_options_are_the_new_ones() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32, (t,))
        x[0] = 1.0
        x[t + 1] = x * 2.0
        rc.output(x=x)
    old: dict[str, Any] = {"swap": "host"}
    with pytest.warns(DeprecationWarning, match="the option swap is called offload now") as told:
        program = ctx.compile({T: 3}, backend="numpy", **old)
    assert told[0].filename == __file__  # Python shows those of a user's own script
    assert any("offload: " in line for line in program.compiled.stages.decisions)
    with pytest.warns(DeprecationWarning, match="the option swap is called offload now"):
        around = compiling(**old)
    with around:
        program = ctx.compile({T: 3}, backend="numpy")
    assert any("offload: " in line for line in program.compiled.stages.decisions)
    with pytest.warns(DeprecationWarning, match="the option swap is called offload now"):
        options, _ = read_options(["swap=disk"])
    assert options.offload == "disk"
    known = {f.name for f in (*fields(CompileOptions), *fields(Tuning))}
    assert set(RENAMED_OPTIONS.values()) <= known
    assert not set(RENAMED_OPTIONS) & known


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
    words = ["opt", str(graph), "-p", "canonicalize", "--sizes", "T=3", "--options", "held=2.0"]
    assert cli.main(words) == 0
    assert "the option held is called memory_price now" in capsys.readouterr().err
