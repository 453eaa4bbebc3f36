"""Compiled programs on disk: found again, told apart, made again where they are damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import recurra as rc
from benchmarks.ppo import recurra_program as ppo
from benchmarks.ppo.workload import Work
from cached_program import STARTS, program
from documents import env
from recurra.backends.jax.disk_cache import options_for, text_of
from recurra.compiler import compilation_cache
from recurra.cost.thresholds import BUDGET_MEMORY_PRICES
from recurra.errors import NotFiniteError
from recurra.runtime import compilation, memory_budget
from small_learner import learner


@pytest.fixture
def folder(program_cache: Path) -> Path:
    return program_cache / compilation_cache.OURS


@wraps(compilation.compile_graph)
def no_passes(*_: Any, **__: Any) -> Any:
    raise AssertionError("the program is compiled again")


def test_a_program_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = program(launch_steps=4)
    want = first.run(seed=3)["norm"]
    regions = [r.name for r in first.compiled.program.regions]
    parts = sorted(p.name.partition("-")[0] for p in folder.glob("*/*"))
    assert parts == sorted(["program", *regions, *["code"] * len(regions)])
    monkeypatch.setattr(compilation, "compile_graph", no_passes)
    from recurra.backends.jax.disk_cache import CachedJax

    monkeypatch.setattr(CachedJax, "lowered", no_passes)
    again = program(launch_steps=4)
    assert again.source == first.source
    assert again.schedule_text == first.schedule_text
    assert again.run(seed=3)["norm"].tolist() == want.tolist()
    assert not np.array_equal(again.run(seed=4)["norm"], want)


def test_a_resumed_run_needs_what_travels(folder: Path) -> None:
    whole, states = program(launch_steps=4), []
    want = whole.run(seed=3, on_state=lambda s: states.append((s.hi, dict(s.variables))))["norm"]
    got = program(launch_steps=4).run(seed=3, resume=states[1])["norm"]
    assert got.tolist() == want[8:].tolist()


def test_regions_of_one_text_are_compiled_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between the calls is twice the same, and also in the program for other bounds."""
    made: list[Any] = []
    compiles = jax.stages.Lowered.compile

    def counted(lowered: Any, *args: Any, **options: Any) -> Any:
        made.append(lowered)
        return compiles(lowered, *args, **options)

    program(launch_steps=4).run()  # what a process compiles once
    for code in folder.glob("*/code"):
        code.unlink()
    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        x = rc.like(rc.f32[()], domain=(i,), name="x")
        x[0] = 0.5
        y = x
        for k in range(3):
            y = rc.call(lambda a, k=k: a + k, rc.f32[()], y.sin() * 2.0)
        x[i + 1] = y
        rc.output(y=y)
    compiled = ctx.compile({I: 4})
    want = compiled.run()["y"]
    assert len(compiled.compiled.program.regions) == 5
    assert len(made) == 4
    assert len(list(folder.glob("*/code"))) == 4
    del made[:]
    np.testing.assert_array_equal(ctx.compile({I: 4}).run()["y"], want)
    assert made == []
    np.testing.assert_array_equal(ctx.compile({I: 3}).run()["y"], want[:3])
    assert len(made) == 1  # the one that has a store


def called(other: bool, **options: Any) -> Any:
    """A function of JAX that calls one of Python."""

    def host(x: Any) -> Any:
        return np.asarray(x) * (3 if other else 2)

    def on_host(x: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        x = rc.like(rc.f32[2], domain=(i,), name="x")
        x[0] = rc.constant(np.ones(2, np.float32))
        x[i + 1] = rc.jax_fn(on_host, "on_host")(x)
        rc.output(x=x)
    return ctx.compile({I: 3}, **options)


def test_code_that_calls_this_process_is_not_kept(folder: Path) -> None:
    """Its text says nothing of what it calls."""
    for single in (True, False):
        for other, last in ((False, 4.0), (True, 9.0)) * 2:
            assert called(other, single_launch=single).run()["x"][2].tolist() == [last, last]
        regions = called(other, single_launch=single).compiled.program.regions
        assert len(list(folder.glob("*/code"))) == (0 if single else len(regions) - 1)


def test_what_runs_once_is_compiled_in_less_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not so a loop, nor the whole of a program without loops, which may be run again and again."""

    def options(compiled: Any) -> dict[str, dict[str, int]]:
        c = compiled.compiled
        return {r.name: options_for(c.plan, r) for r in c.program.regions}

    looped = program(launch_steps=4)
    assert options(looped) == {"region_1": {"xla_backend_optimization_level": 2}, "region_2_i": {}}
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert options(looped)["region_1"] == {}
    monkeypatch.delenv("XLA_FLAGS")
    ctx = rc.Context(dims="b")
    with ctx as ((b, B),):
        rc.output(y=rc.uniform((b,)).sin())
    assert options(ctx.compile({B: 3})) == {"region_1": {}}


def test_arguments_that_are_not_used_tell_regions_apart() -> None:
    number = jax.ShapeDtypeStruct((), np.float32)
    lowered = [jax.jit(f).lower(number, number) for f in (lambda a, b: a + 1, lambda a, b: b + 1)]
    texts = [x.as_text().partition("\n")[2] for x in lowered]
    assert texts[0] == texts[1]
    assert text_of(lowered[0]) != text_of(lowered[1])
    several = jax.ShapeDtypeStruct((3,), np.float32)
    other = jax.jit(lambda a, b: b + 1).lower(several, number)
    assert other.as_text().partition("\n")[2] == texts[1]
    assert text_of(other) != text_of(lowered[1])


@pytest.mark.slow
@pytest.mark.parametrize("first", ["run", "islands"])
def test_a_program_may_be_cut_into_regions_in_two_ways(folder: Path, first: str) -> None:
    """Their regions have the same names."""
    x = {"x": np.linspace(0, 1, 8, dtype="f4").reshape(4, 2)}
    want = learner("numpy").run(inputs=x)["loss"]
    for how in (first, "run", "islands", "run"):
        program = learner("jax")
        if how == "islands":
            assert program.islands(inputs=x, steps=2)
        else:
            np.testing.assert_allclose(program.run(inputs=x)["loss"], want, rtol=1e-5)


GIVEN = """
import jax
import numpy as np
import recurra as rc
ctx = rc.Context(dims="t")
with ctx as ((t, T),):
    y = rc.input(rc.f32, (t,), name="x") * 2.0
    rc.output(y=y)
compiled = ctx.compile({T: 3})
x = np.arange(3, dtype=np.float32)
for device in (*reversed(jax.devices()), *jax.devices()):
    print(compiled.run(inputs={"x": jax.device_put(x, device)})["y"].tolist())
"""


def test_what_a_program_takes_is_not_what_runs_it(folder: Path) -> None:
    """The one region of a program is compiled on its own to tell of its memory."""
    assert program().memory.nbytes > 0
    assert program().run(seed=3)["norm"].shape == (12,)


@pytest.mark.slow
def test_code_is_loaded_for_one_of_several_devices(tmp_path: Path) -> None:
    """Inputs may lie on another one."""
    devices = "--xla_force_host_platform_device_count=2"
    theirs = env(RECURRA_CACHE=str(tmp_path), XLA_FLAGS=devices)
    code = [sys.executable, "-c", STARTS + GIVEN]
    found = [subprocess.check_output(code, text=True, env=theirs).splitlines() for _ in range(2)]
    assert found[0] == found[1]
    assert found[0][-4:] == ["[0.0, 2.0, 4.0]"] * 4


OTHERS: dict[str, dict[str, Any]] = {
    "other data": {"by": 0.25},
    "another constant of a function": {"scale": 2.0},
    "another option": {"launch_steps": 3},
}


def test_a_program_of_the_outside_world_is_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its regions are given what host functions return: several arrays at once."""

    def hosted() -> Any:
        ctx = rc.Context(dims="b i t")
        with ctx as ((b, B), (i, I), (t, T)):
            env = rc.rl.env.make("CartPole-v1")
            o = rc.like(env.observation_space, domain=(b, i, t))
            o[b, i, 0] = env.reset(domain=(b, i))
            pi = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()(o)
            o[b, i, t + 1], r, _ = env.step(pi.sample())
            rc.log(r=(r * o[b, i, t].sum())[0:B, i, 0:T].mean())
        return ctx.compile({B: 2, I: 3, T: 5})

    want = hosted().run(seed=1)["r"]
    assert list(folder.glob("*/region*"))
    monkeypatch.setattr(compilation, "compile_graph", no_passes)
    np.testing.assert_array_equal(hosted().run(seed=1)["r"], want)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_programs_that_differ_are_told_apart(folder: Path, other: dict[str, Any]) -> None:
    program()
    program(**other)
    assert len(list(folder.glob("*/program"))) == 2


@pytest.mark.parametrize("part", ["program", "region", "code"])
def test_what_is_damaged_is_made_again(
    folder: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    want = program().run(seed=3)["norm"]
    for path in folder.glob(f"*/{part}*"):
        path.write_bytes(path.read_bytes()[:-9])
    assert program().run(seed=3)["norm"].tolist() == want.tolist()
    told = capsys.readouterr().err
    assert told.count("is damaged; it is made again") == len(list(folder.glob(f"*/{part}*")))
    assert program().run(seed=3)["norm"].tolist() == want.tolist()
    assert capsys.readouterr().err == ""


def test_passes_that_are_looked_at_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program()
    for variable, value in (("RECURRA_CHECK", "1"), ("RECURRA_FUEL", "1000000")):
        with monkeypatch.context() as m:
            m.setenv(variable, value)
            m.setattr(compilation, "compile_graph", no_passes)
            with pytest.raises(AssertionError, match="compiled again"):
                program()


LINES = """
import numpy as np
import recurra as rc
ctx = rc.Context(dims="i")
with ctx as ((i, I),):
    x = rc.constant(np.arange(3.0, dtype=np.float32)).log()
    y = rc.like(rc.f32[3], domain=(i,), name="y")
    y[0] = x
    y[i + 1] = y * 2.0
    rc.output(y=y)
compiled = ctx.compile({I: 3}, check="nan")
"""


def test_lines_are_those_of_today(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is found though lines above it are new, and an error shows the line of now."""
    lines: list[int] = []
    for above in ("", "\n" * 7):
        scope: dict[str, Any] = {}
        exec(compile(above + LINES, "user.py", "exec"), scope)
        with pytest.raises(NotFiniteError) as error:
            scope["compiled"].run()
        assert error.value.loc is not None
        lines.append(error.value.loc.line)
        monkeypatch.setattr(compilation, "compile_graph", no_passes)
    assert lines == [6, 13]


TEXTS = """
import json
import ppo_program
p = ppo_program.program(3, 2, 2, 3, 4)
print(json.dumps({**p.equations, "schedule": p.schedule_text, "host": p.source}))
"""


@pytest.mark.slow
def test_a_program_compiles_to_the_same_texts_in_every_process() -> None:
    """Whatever the order of sets: else it would not be found again, and runs not resumed."""
    found: list[Any] = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", TEXTS]
        out = subprocess.check_output(command, text=True, env=env(PYTHONHASHSEED=seed))
        found.append(json.loads(out))
    assert found[0] == found[1]


@pytest.mark.slow
def test_code_that_jax_has_kept_is_left_to_jax(tmp_path: Path) -> None:
    """XLA cannot write what it has read: a third start would miss functions."""
    theirs = env(
        JAX_COMPILATION_CACHE_DIR=str(tmp_path),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    found: list[str] = []
    for folder in ("first", "other", "other"):
        here = {"RECURRA_CACHE": str(tmp_path / folder)}
        code = [sys.executable, "-c", STARTS]
        found.append(subprocess.check_output(code, text=True, env=theirs | here))
    assert found[0] == found[1] == found[2]
    kept = {
        k: sorted(p.name for p in (tmp_path / k / compilation_cache.OURS).glob("*/*"))
        for k in ("first", "other")
    }
    assert kept["other"] == ["program"]
    assert len(kept["first"]) > 1


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_how_a_program_was_made_to_fit_is_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that recomputes, the only one that is tried."""
    way: dict[str, object] = {"memory_price": BUDGET_MEMORY_PRICES[-1]}
    monkeypatch.setattr(memory_budget, "recompute_candidates", lambda _: [way])
    monkeypatch.setattr(memory_budget, "offload_candidates", lambda *_: [])
    work = Work(B=64, T=50)
    most = ppo.program(work, 2, single_launch=False).memory.nbytes  # what is tried first
    first = ppo.program(work, 2, memory=most * 3 // 4)
    told = first.compiled.stages.decisions[-1]
    assert "by " in told
    monkeypatch.setattr(memory_budget, "choose_candidate", no_passes)
    monkeypatch.setattr(compilation, "compile_graph", no_passes)
    again = ppo.program(work, 2, memory=most * 3 // 4)
    assert again.source == first.source
    assert again.compiled.stages.decisions[-1] == told
    assert again.memory.nbytes <= most * 3 // 4
    with pytest.raises(AssertionError, match="compiled again"):
        ppo.program(work, 2, memory=most * 2 // 3)
