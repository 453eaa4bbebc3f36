"""dnn[cond].checkpoint(path): recorded for compile, by the names that the program ends up with."""

from __future__ import annotations

from pathlib import Path

import pytest

import recurra as rc
from example_programs import FOLDER, read_example
from recurra.errors import RecurraError
from recurra.ir.expr import TRUE


def test_condition_path_and_names():
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        dnn = rc.nn.Linear(2, 3, (i,))
        dnn[(i + 1) % 5 == 0].checkpoint(Path("runs") / "demo")
        dnn.checkpoint("all")
        kernel = dnn.weight
        rc.output(y=kernel.sum())
    some, every = ctx.builder.effects
    assert str(some.when) == "(i+1)%5 == 0"
    assert some.path == "runs/demo"
    assert some.params == (("weight", "W"), ("bias", "b"))
    assert every.when == TRUE
    assert "test_effects.py" in str(some.loc)
    del t, T, I


def test_mistakes():
    with rc.Context(num_dims=2) as ((i, _), (t, _)):
        dnn = rc.nn.Linear(2, 3, (i,))
        with pytest.raises(RecurraError, match="a module is indexed with 'best'"):
            dnn["best"]
        with pytest.raises(RecurraError, match="W is indexed with 2 expressions"):
            dnn[i, t]
        with pytest.raises(RecurraError, match="the condition t == 0 mentions t\n"):
            dnn[t == 0]


def test_the_example_is_short_and_has_its_effects():
    source = (FOLDER / "reinforce.py").read_text()
    assert len(source.splitlines()) <= 45
    ctx = read_example("reinforce")["ctx"]
    (effect,) = ctx.builder.effects
    assert effect.path == "runs/demo"
    assert set(ctx.builder.logs) == {"mean_return"}
    assert {name for _, name in effect.params} <= set(ctx.graph.nodes)
