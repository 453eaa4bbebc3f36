"""No run leaves a launch in flight, however it is left, and so no process ends by abort."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from documents import env
from recurra.cli import main
from recurra.runtime.executable import Executable


def slow(chunk: int = 1) -> Executable:
    """Four launches, each of which takes a good while; nothing waits for their results."""
    ctx = rc.Context(dims="i k")
    with ctx as ((i, I), (k, K)):
        w = rc.input(rc.f32[300, 300], (), name="w")
        x = rc.like(rc.f32[300, 300], (i, k), name="x")
        x[i, 0] = w
        x[i, k + 1] = (x @ w).tanh()
        y = rc.like(rc.f32[300, 300], (i,), name="y")
        y[i, i == 0] = w
        y[i] = x[i - 1, K - 1] + y[i - 1]
        rc.output(last=y[I - 1])
    return ctx.compile({I: 4, K: 60}, launch_steps=chunk)


W = np.full((300, 300), 0.01, np.float32)


class Left(Exception):
    pass


def fails(error: type[BaseException]) -> Callable[..., None]:
    def called(*_: Any) -> None:
        raise error

    return called


def closed(program: Executable, keep: Callable[[Any], None]) -> None:
    steps = program.execution.steps(0, inputs={"w": W})
    keep(next(steps))
    steps.close()


def left_by(error: type[BaseException]) -> Callable[..., None]:
    def run(program: Executable, keep: Callable[[Any], None]) -> None:
        def state(step: Any) -> None:
            keep(step)
            raise error

        with suppress(error):
            program.run(inputs={"w": W}, on_state=state)

    return run


def finished(program: Executable, keep: Callable[[Any], None]) -> None:
    program.run(inputs={"w": W}, on_state=keep, native=True)


WAYS = {
    "closed": closed,
    "error": left_by(Left),
    "Ctrl-C": left_by(KeyboardInterrupt),
    "finished": finished,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_was_launched_is_there_when_a_run_is_left(way: str):
    seen: list[Any] = []
    program = slow()

    def keep(step: Any) -> None:
        seen[:] = step.variables.arrays.values()

    WAYS[way](program, keep)
    assert seen
    assert all(x.is_ready() for x in seen)


PROCESS = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import recurra as rc
from test_in_flight import W, slow
way = sys.argv[1]
if way == "callback":
    import jax
    ctx = rc.Context(dims="i")
    f = lambda x: jax.pure_callback(lambda x: x + 1, jax.ShapeDtypeStruct((), "float32"), x)
    with ctx as ((i, I),):
        x = rc.like(rc.f32, (i,), name="x")
        x[0] = 0.0
        x[i + 1] = rc.jax_fn(f)(x)
        rc.log(x=x)
    steps = ctx.compile({{I: 4000}}, chunk=2000).execution.steps(0)
else:
    steps = slow().execution.steps(0, inputs={{"w": W.copy()}})
step = next(steps)
if way == "error":
    raise ValueError("left")
if way == "exit":
    sys.exit(3)
del step
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("end", 0), ("error", 1), ("exit", 3), ("callback", 0)])
def test_a_process_ends_with_its_own_code(way: str, code: int):
    """A generator that nobody closes is alive when Python ends."""
    text = PROCESS.format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", text, way], capture_output=True, text=True, env=env(), timeout=120
    )
    assert done.returncode == code, done.stderr
    assert "terminate" not in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_short_commands_end_by_themselves(tmp_path: Path):
    """Of such processes every fourth one ended by abort, once its text was printed."""
    model = tmp_path / "tiny"
    assert main(["llm", "init", "--tiny", str(model)]) == 0
    theirs = env(RECURRA_CACHE=str(tmp_path / "cache"))
    words = ["generate", "--model", str(model), "--prompt", "hello", "--max-new-tokens", "1"]
    command, none = [sys.executable, "-m", "recurra.cli", *words], subprocess.DEVNULL
    codes: list[int] = []
    for count in (1, 2, 2, 2, 1):  # the first one compiles for all
        some = [
            subprocess.Popen(command, env=theirs, stdout=none, stderr=none) for _ in range(count)
        ]
        codes += [p.wait(timeout=120) for p in some]
    assert codes == [0] * 8
