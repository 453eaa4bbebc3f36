"""Stores in one block of memory: the same answers to the last bit, in fewer bytes, safely."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from arena_owners import OwnedBackend
from backend_memory import on_torch
from example_programs import PEAK_SIZES, scope
from numpy_memory import counted
from offloaded_learner import SMALL, learner
from program_checks import compiled, oracle
from random_cases import CASES, QUICK
from random_programs import Case, programs
from recurra.backends.registry import backend_of
from recurra.compiler.options import CompileOptions
from recurra.compiler.pipeline import compile_graph
from recurra.errors import PlanError, RecurraError
from recurra.mapping.validate import validate as mapping_validate
from recurra.rl.recipes import Reinforce
from recurra.rl.train import train
from recurra.runtime.executable import Executable
from recurra.storage.arena import Arena
from recurra.storage.arena_offsets import ALIGNMENT
from recurra.storage.arena_solvers import exactly, from_csv, to_csv
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, nothing, packing
from recurra.storage.mapping_problem_text import problem_from_csv
from recurra.storage.verifier import validate
from recurra.support.byte_units import parse

SOLVERS = ("greedy", "exact")


def phases(width: int = 8, points: int = 6, **options: Any) -> Executable:
    """Forwards, backwards, forwards again: what the first keeps is not needed by the last."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(0.9), domain=(i,), name="w")
        x = rc.like(rc.f32[width], domain=(i, t))
        x[i, 0] = 1.0
        x[i, t + 1] = (w[i] * x).tanh()
        y = rc.like(rc.f32[width], domain=(i, t))
        y[i, T - 1] = x[i, T - 1]
        y[i, t - 1] = (y * x[i, t - 1]).sin()
        z = rc.like(rc.f32[width], domain=(i, t))
        z[i, 0] = y[i, 0]
        z[i, t + 1] = (z + y[i, T - 1 - t]).tanh()
        u = rc.like(rc.f32[width], domain=(i, t))
        u[i, T - 1] = z[i, T - 1]
        u[i, t - 1] = (u * z[i, t - 1]).sin()
        w[i + 1] = w + 0.001 * u[i, 0].sum()
        rc.log(loss=u[i, 0].sum())
    return ctx.compile({I: 3, T: points}, **options)


def arena_of(p: Executable) -> Arena:
    arena = p.compiled.program.plan.arena
    assert arena is not None
    return arena


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("placement", [*SOLVERS, "mapping"])
def test_to_the_last_bit(backend: str, placement: str) -> None:
    want = phases(backend=backend).run()["loss"]
    p = phases(backend=backend, placement=placement)
    for _ in range(2):  # the block of the second run is another one
        assert p.run()["loss"].tobytes() == want.tobytes()
    arena = arena_of(p)
    assert arena.nbytes < arena.unshared_bytes
    assert arena.nbytes == arena.load
    assert arena.by == placement
    assert validate(p.compiled.plan, arena) == []
    assert p.arena() is arena
    assert "none is smaller, 0.0% lost to fragmentation" in str(p.memory)
    offsets = {row["store"]: row["offset"] for row in p.store_rows if "offset" in row}
    assert offsets.pop("sum") == ""  # outputs stay apart
    assert all(at % ALIGNMENT == 0 for at in offsets.values())


def examined(case: Case, **options: Any) -> None:
    want, owned = oracle(case), OwnedBackend()
    alone = compiled(case, backend_of("numpy"), want, **options)
    for placement in SOLVERS:
        compiled(case, owned, alone, exact=True, placement=placement, **options)
        assert not owned.wrong, owned.wrong[0]
        asked = CompileOptions.from_keywords({**options, "placement": placement})
        made = compile_graph(case.graph, case.sizes, asked)
        assert validate(made.plan, made.program.plan.arena) == []


@settings(QUICK, max_examples=15)
@given(programs(), st.booleans())
def test_random_programs(case: Case, axes: bool) -> None:
    examined(case, vectorized=axes, launch_steps=2)


@pytest.mark.parametrize("case", CASES[::5])
def test_a_program_that_went_wrong(case: Case) -> None:
    examined(case)


@settings(QUICK, max_examples=6)
@given(programs(), st.booleans())
def test_random_programs_on_torch(case: Case, axes: bool) -> None:
    want, torch = oracle(case), backend_of("torch")
    alone = compiled(case, torch, want, vectorized=axes, launch_steps=2)
    compiled(case, torch, alone, exact=True, vectorized=axes, launch_steps=2, placement="greedy")


Stage = tuple[int, str, bool, list[tuple[int, str]]]  # rows, type, backwards?, what is read and how
READS = ("here", "mirrored", "window", "ahead", "all")
STAGES = st.lists(
    st.tuples(
        st.sampled_from([3, 8, 40]),
        st.sampled_from(["f32", "f64", "u8"]),
        st.booleans(),
        st.lists(st.tuples(st.integers(1, 2), st.sampled_from(READS)), min_size=1, max_size=2),
    ),
    min_size=4,
    max_size=7,
)


def chain(stages: list[Stage], ended: bool) -> tuple[rc.Context, dict[Any, Any]]:
    """One recurrence after the other, each of which reads some of those before: what is kept of one
    is soon of no use. With `ended`, rows end where the data say so."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(0.3), domain=(i,), name="w")
        made: list[Any] = []
        done = rc.uniform((i, t)) < 0.2
        for k, (rows, kind, backwards, wanted) in enumerate(stages):
            x = rc.like(getattr(rc, kind)[rows], domain=(i, t), name=f"x{k}")
            at, then, now = (T - 1, t - 1, t) if backwards else (0, t + 1, t)
            seen: Any = rc.value(t).cast("f32") * 0.1
            for back, how in wanted:
                if back > len(made):
                    continue
                seen = seen + _seen(made[-back], how, i, t, T).cast("f32").mean()
            x[i, at] = (w + 0.5).cast(kind).broadcast_to((rows,))
            x[i, then] = ((x[i, now].cast("f32") * 0.5 + seen + w).sin() * 40.0).abs().cast(kind)
            made.append(x)
        loss = made[-1][i, 0:T].cast("f32").sum() * 1e-3  # of all: what nobody asks for is not made
        w[i + 1] = (w + loss).tanh()
        rc.log(loss=loss)
    return ctx, {I: 3, T: rc.until(done, max=7) if ended else 5}


def _seen(x: Any, how: str, i: Any, t: Any, T: Any) -> Any:
    match how:
        case "mirrored":
            return x[i, T - 1 - t]
        case "window":
            return x[i, rc.max(t - 2, 0) : t + 1].mean(axis=0)
        case "ahead":
            return x[i, rc.min(t + 2, T - 1)]
        case "all":
            return x[i, 0:T].mean(axis=0)
        case _:
            return x[i, t]


@pytest.mark.slow
def test_chains() -> None:
    """Bytes do change hands in most of them: else this would say nothing."""
    shared: list[int] = []

    @settings(QUICK, max_examples=12)
    @given(STAGES)
    def check(stages: list[Stage]) -> None:
        ctx, bounds = chain(stages, ended=False)
        want, owned = ctx.compile(bounds, backend="numpy"), OwnedBackend()
        for placement in SOLVERS:
            p = ctx.compile(bounds, backend=owned, placement=placement)
            assert p.run(seed=2)["loss"].tobytes() == want.run(seed=2)["loss"].tobytes()
            assert not owned.wrong, owned.wrong[0]
            assert validate(p.compiled.plan, arena_of(p)) == []
            shared.append(owned.machine.shared)

    check()
    assert sum(n > 0 for n in shared) > len(shared) // 2


@pytest.mark.slow
@pytest.mark.usefixtures("kept_environments")
@pytest.mark.parametrize("name", sorted(PEAK_SIZES))
def test_numpy_allocates_what_is_predicted(name: str) -> None:
    of = scope(name)
    bounds = {of[k]: n for k, n in PEAK_SIZES[name].items()}
    bounds |= {of["T"]: of["converged"]} if name == "newton" else {}
    alone = of["ctx"].compile(bounds, backend="numpy", single_launch=False)
    p = of["ctx"].compile(bounds, backend="numpy", placement="exact")
    got = p.run(seed=0)
    for key, want in alone.run(seed=0).items():
        assert np.asarray(got[key]).tobytes() == np.asarray(want).tobytes()
    with counted() as count:
        p.run(seed=1)
    assert p.memory.nbytes == pytest.approx(count.peak, rel=0.05)
    assert p.memory.nbytes <= 1.01 * alone.memory.nbytes + ALIGNMENT


def test_torch_allocates_what_is_predicted() -> None:
    alone, p = (phases(64, 400, backend="torch", **x) for x in ({}, {"placement": "greedy"}))
    p.run(seed=0)
    assert p.memory.nbytes == pytest.approx(on_torch(p), rel=0.05)
    assert p.memory.nbytes < 0.7 * alone.memory.nbytes
    twice = phases(64, 800, backend="torch", placement="greedy").memory.nbytes
    assert twice == pytest.approx(2 * p.memory.nbytes, rel=0.01)
    with pytest.raises(RecurraError, match="the peak for T=800 is not known"):
        p.memory.of(T=800)


def remembering(**options: Any) -> Executable:
    """Later steps of i read the last x, beside stores that one step fills and forgets."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        x = rc.like(rc.f32[16], domain=(i,))
        y = rc.like(rc.f32[16], domain=(i, t))
        y[i, 0] = x[i] * 0.5
        y[i, t + 1] = (1.1 * y).tanh()
        z = rc.like(rc.f32[16], domain=(i, t))
        z[i, T - 1] = y[i, T - 1]
        z[i, t - 1] = (z * y[i, t - 1]).sin()
        u = rc.like(rc.f32[16], domain=(i, t))
        u[i, 0] = z[i, 0]
        u[i, t + 1] = (u + z[i, T - 1 - t]).tanh()
        v = rc.like(rc.f32[16], domain=(i, t))
        v[i, T - 1] = u[i, T - 1]
        v[i, t - 1] = (v + u[i, t - 1]).sin()
        x[0] = rc.constant(np.linspace(0, 1, 16, dtype=np.float32))
        x[i + 1] = (x[rc.max(i - 3, 0) : i + 1].mean(axis=0) + v[i, 0]).tanh()
        rc.log(loss=x.sum())
    return ctx.compile({I: 9, T: 5}, launch_steps=1, **options)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_run_that_is_gone_on_with(backend: str) -> None:
    """What later steps read goes to its place in the block."""
    want = remembering(backend=backend).run()["loss"]
    p, seen = remembering(backend=backend, placement="exact"), list[tuple[int, Any]]()
    assert arena_of(p).nbytes < arena_of(p).unshared_bytes
    p.run(on_state=lambda s: seen.append((s.hi, dict(s.variables))))
    for time, state in seen[2:7:2]:
        assert "x[]" in state
        assert p.run(resume=(time, state))["loss"].tobytes() == want[time:].tobytes()


def test_with_a_budget() -> None:
    p = phases(8, 600, backend="numpy", placement="greedy", memory="50KiB")
    assert p.compiled.stages.decisions[-1].endswith("as it is")
    assert p.memory.held[0].name == "the arena"
    assert p.memory.nbytes <= parse("50KiB") < phases(8, 600, backend="numpy").memory.nbytes
    with pytest.raises(PlanError, match="the program takes"):
        phases(8, 600, backend="numpy", placement="greedy", memory="500B")


def test_looking_for_nan() -> None:
    """What is left in bytes of another store is no number that anybody made."""
    want = phases(backend="numpy").run()["loss"]
    p = phases(backend="numpy", placement="greedy", check="nan")
    np.testing.assert_allclose(p.run()["loss"], want, rtol=1e-5)


@pytest.mark.parametrize("options", [{"offload": SMALL}, {"host_loops": ("t",)}])
def test_beside_other_ways_to_keep_stores(options: dict[str, Any]) -> None:
    """Points apart lie in the block, offloaded ones do not."""
    placed: dict[str, Any] = {**options, "placement": "greedy"}
    want, p = learner("numpy", **options), learner("numpy", **placed)
    assert p.run(seed=1)["loss"].tobytes() == want.run(seed=1)["loss"].tobytes()
    plan = p.compiled.program.plan
    offloaded = {n for n, s in plan.stores.items() if s.room}
    assert bool(offloaded) == ("offload" in options)
    assert not offloaded & arena_of(p).places.keys()
    apart = {n for n, s in plan.stores.items() if s.per_point}
    assert apart <= offloaded | arena_of(p).places.keys()
    assert apart


def test_rows_that_the_data_end() -> None:
    """What is past their end stays finite: such stores share nothing."""
    stages: list[Stage] = [(40, "f32", False, [(1, "here")]), (40, "f32", False, [(1, "here")])]
    ctx, bounds = chain(stages, ended=True)
    want, owned = ctx.compile(bounds, backend="numpy"), OwnedBackend()
    p = ctx.compile(bounds, backend=owned, placement="exact")
    assert p.run(seed=2)["loss"].tobytes() == want.run(seed=2)["loss"].tobytes()
    assert not owned.wrong
    assert owned.machine.shared == 0


# ---- solvers, and minimalloc's format


@pytest.mark.parametrize("top", range(4, 10))
def test_exact_knows_what_fits(top: int) -> None:
    """Seven are alive at once in step 3."""
    rows = [(0, 1, 3), (1, 3, 2), (3, 4, 3), (2, 3, 2), (0, 2, 1)]
    problem = packing("p", [(a, b, 64 * n) for a, b, n in rows], 64 * top)
    if top < 7:
        with pytest.raises(ProblemError, match="every order was tried"):
            exactly(problem)
    else:
        assert mapping_validate(problem, exactly(problem)) == problem.total


def test_offsets_go_out_and_in(tmp_path: Path) -> None:
    p, file = phases(backend="numpy", placement="exact"), tmp_path / "offsets.csv"
    assert len(problem_from_csv(to_csv(arena_of(p)), 1 << 20, "x").buffers) == 3
    file.write_text(to_csv(arena_of(p), offsets=True))
    again = phases(backend="numpy", placement=str(file))
    assert arena_of(again) == replace(arena_of(p), by="offsets.csv")
    assert again.run()["loss"].tobytes() == p.run()["loss"].tobytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: x.replace("x,", "q,"), "x is not the store of this program"),
        (lambda x: x + "q,0,1,64,0\n", "there is no store q"),
        (lambda x: x.replace(",192\n", ",0\n"), "the offsets do not hold"),
        (lambda x: x.replace(",192\n", ",far\n"), "the offset of y is 'far'"),
    ],
)
def test_offsets_that_do_not_hold(change: Any, told: str) -> None:
    arena = arena_of(phases(backend="numpy", placement="exact"))
    with pytest.raises(ProblemError, match=told):
        from_csv(change(to_csv(arena, offsets=True)), arena, "offsets.csv")


def test_a_function_of_ones_own() -> None:
    asked: list[Problem] = []

    def side_by_side(problem: Problem) -> Solution:
        asked.append(problem)
        return nothing(problem)

    p = phases(backend="numpy", placement=side_by_side)
    assert asked
    assert arena_of(p).by == "greedy"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "jax"}, "the backend 'jax' places stores itself"),
        ({"backend": "numpy", "workers": 2}, "stores of several workers cannot lie in one block"),
        ({"backend": "numpy", "placement": "best"}, "there is no placement 'best'"),
        ({"backend": "numpy", "placement": "no.csv"}, "the offsets of no.csv cannot be read"),
    ],
)
def test_what_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RecurraError, match=told):
        phases(8, 6, **{"placement": "greedy", **options})


def test_no_window() -> None:
    with pytest.raises(RecurraError, match="cannot go through a window"):
        phases(backend="numpy", placement="greedy").run(window=2)


def test_train_takes_it(tmp_path: Path) -> None:
    settings = Reinforce(
        iterations=1, rows=4, steps=6, backend="numpy", placement="mapping", out=tmp_path
    )
    run = Path(train(settings)["run"])
    text = json.loads((run / "compiled.json").read_text())["memory"]["text"]
    assert "by mapping" in text
    assert "lost to fragmentation" in text
