"""Launches that the next host call does not wait for run beside it, and change no answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import recurra as rc
from actor_critic import BOUNDS, actor_critic
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.runtime import background_launches
from recurra.runtime.background_launches import overlapping, overlapping_regions
from recurra.runtime.host_executor import Execution


class Returns(NumpyBackend):
    """Its launches have ended when they return; here they have a thread."""

    threaded = True


class Threads:
    """Which thread ran each launch."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}

    def around(self, name: str, run: Any) -> Any:
        def launch(*given: Any) -> Any:
            self.seen.setdefault(name, set()).add(threading.current_thread().name)
            return run(*given)

        return launch


def ended(execution: Execution) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What every step showed, and all outputs."""
    steps, made = execution.steps(3), list[dict[str, Any]]()
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return made, end.value
        made.append({**step.outputs, **step.variables})


def taking_turns() -> Execution:
    program = actor_critic("autoreset").compile(BOUNDS, backend="numpy", groups=2)
    return Execution(program.compiled.program, Returns())


@pytest.mark.slow
def test_the_groups_of_rows_act_beside_the_calls_of_others() -> None:
    plain, threads = ended(taking_turns()), Threads()
    names = overlapping_regions(taking_turns().program)
    assert names
    with overlapping(taking_turns().using(launches=threads.around)) as execution:
        steps, outputs = ended(execution)
    main = threading.current_thread().name
    for name, used in threads.seen.items():
        assert (main not in used) == (name in names), name
    assert len(steps) == len(plain[0]) == BOUNDS["I"]
    for mine, wanted in ((steps, plain[0]), ([outputs], [plain[1]])):
        for x, y in zip(mine, wanted, strict=True):
            assert x.keys() == y.keys()
            for name in x:
                np.testing.assert_array_equal(x[name], y[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_jax_gives_the_same_beside_calls_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    program = actor_critic("autoreset").compile(dict(B=4, I=2, T=3), groups=2)
    assert overlapping_regions(program.execution.program)
    made = program.run(seed=3)
    monkeypatch.setattr(background_launches, "overlapping_regions", lambda _: {})
    for name, x in program.run(seed=3).items():
        np.testing.assert_array_equal(made[name], x, err_msg=name)


class Broken(Exception):
    pass


@pytest.mark.slow
def test_what_fails_beside_a_call_is_raised() -> None:
    def failing(name: str, run: Any) -> Any:
        def launch(*given: Any) -> Any:
            if name in overlapping_regions(taking_turns().program):
                raise Broken
            return run(*given)

        return launch

    broken = taking_turns().using(launches=failing)
    with pytest.raises(Broken), overlapping(broken) as execution:
        ended(execution)
    assert not [t for t in threading.enumerate() if t.name.startswith("recurra launches")]


def test_programs_without_such_launches_have_no_thread() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, steps),):
        x = rc.call(np.sqrt, rc.f32, rc.value(t, "f32"))
        rc.output(y=x * 2.0)
    execution = Execution(ctx.compile({steps: 3}, backend="numpy").compiled.program, Returns())
    with overlapping(execution) as same:
        assert same is execution


SCRIPT = """
import jax
{before}
import recurra as rc
ctx = rc.Context(dims="t")
with ctx as (t, T):
    rc.output(y=rc.value(t, "f32") * 2.0)
program = ctx.compile({{T: 3}})
print(program.run()["y"].tolist(), program.backend.threaded)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "ends"), [("", True), ("jax.numpy.ones(3)", False)])
def test_launches_end_at_their_return_if_jax_has_made_nothing(before: str, ends: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[0] == f"[0.0, 2.0, 4.0] {ends}"
