"""Tables of latencies, by a clock that the disk moves on: two moves cost less than twice one."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from mapping.test_execute import N, files_end_at, mix, random_answer, random_workload, same
from recurra import cli
from recurra.errors import RecurraError
from recurra.mapping.execute import cost_measurement, prepared_workload, table_measurement
from recurra.mapping.execute.compare import compare
from recurra.mapping.execute.cost_measurement import Gauge
from recurra.mapping.execute.latency_tables import Subsets, Tables
from recurra.mapping.execute.memories import Bytes, SlowMemory
from recurra.mapping.execute.noise_shrinkage import shrink_by_noise, shrunk_medians
from recurra.mapping.execute.prepared_workload import execute
from recurra.mapping.execute.ram import Ram
from recurra.mapping.execute.table_measurement import RUNS, measure_tables
from recurra.mapping.execute.workload import Compute, Operation, TensorSpec, Workload, run_unmapped
from recurra.mapping.execute.workload_problem import problem_of, uses
from recurra.mapping.simulate import simulate
from recurra.mapping.solvers import solver_of
from recurra.storage.mapping_problem import Latency, Placement, Problem, Roofline, Solution, nothing
from recurra.storage.mapping_problem_text import problem_from_json, problem_to_json

TICK = 2.0**-14  # of a second: sums are exact
FIRST, NEXT = 8, 2  # ticks of a move, after a rest and after another move


class Clock:
    """It goes on where somebody computes, or moves."""

    def __init__(self) -> None:
        self.ticks = 0
        self.moves, self.computes = 1, 1  # how many times as long
        self.here = threading.local()

    def __call__(self) -> float:
        self.here.moved = False
        return self.ticks * TICK

    def move(self) -> None:
        self.ticks += self.moves * (NEXT if getattr(self.here, "moved", False) else FIRST)
        self.here.moved = True

    def computing(self, ticks: int) -> Compute:
        def compute(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            self.ticks += self.computes * ticks
            mix(operands, outputs)

        return compute


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found, read, write = Clock(), SlowMemory.read, SlowMemory.write

    def reading(self: SlowMemory, into: Bytes, at: int) -> None:
        read(self, into, at)
        found.move()

    def writing(self: SlowMemory, of: Bytes, at: int) -> None:
        write(self, of, at)
        found.move()

    monkeypatch.setattr(SlowMemory, "read", reading)
    monkeypatch.setattr(SlowMemory, "write", writing)
    for module in (cost_measurement, prepared_workload, table_measurement):
        monkeypatch.setattr(module, "perf_counter", found)
    return found


def measured(work: Workload, folder: Path, rounds: int = 1) -> Tables:
    with Gauge(work, Ram(folder)) as gauge:
        return measure_tables(gauge, rounds)


def costs_of(tables: Tables) -> list[Latency]:
    return [x.cost() for x in tables.steps if x is not None]


def moving(count: int) -> int:
    """Ticks."""
    return FIRST + NEXT * (count - 1) if count else 0


def latency(work: Workload, t: int, inside: Sequence[bool], ticks: int) -> int:
    """Picoseconds of an instruction that computes for some ticks."""
    here = list(zip(uses(work, t), inside, strict=True))
    moved = [sum(not x and out == wanted for (_, out), x in here) for wanted in (False, True)]
    return round((ticks + sum(map(moving, moved))) * TICK * 1e12)


def every(count: int) -> list[tuple[bool, ...]]:
    return list(itertools.product((False, True), repeat=count))


def three(clock: Clock) -> Workload:
    """Of two and three buffers, and of one that is too small for anything to be decided."""
    shape = (TensorSpec((N,)),)
    steps = (
        Operation("two", (0,), (3,), clock.computing(16)),
        Operation("three", (3, 0), (4,), clock.computing(32)),
        Operation("twice", (4, 4), (5,), clock.computing(4)),
    )
    first = {0: np.arange(N, dtype=np.float32), 1: np.ones(3, np.float32), 2: np.ones(3)}
    tensors = (*shape, TensorSpec((3,)), TensorSpec((3,), np.float64), *shape * 2, TensorSpec((7,)))
    return Workload("three", tensors, steps, first, (4, 5))


def test_tables_are_what_the_clock_says(clock: Clock, tmp_path: Path) -> None:
    work, told = three(clock), list[int]()
    with Gauge(work, Ram(tmp_path)) as gauge:
        tables = measure_tables(gauge, 2, told.append)
        problem = problem_of(work, 1 << 20, gauge.measured(), tables)
    assert told == list(range(1, 2 * RUNS + 1))
    assert tables.samples == 2 * RUNS // 8
    assert str(tables) == (
        "tables of 3 instructions: 14 subsets of buffers, each measured 4 times at least"
    )
    for t, ticks in enumerate((16, 32, 4)):
        cost, buffers = problem.instructions[t].cost, problem.uses[t]
        assert isinstance(cost, Latency)
        assert problem.instructions[t].supply == latency(work, t, [True] * len(buffers), ticks)
        for inside in every(len(buffers)):
            assert cost.latency(inside) == latency(work, t, inside, ticks)
        none = latency(work, t, [False] * len(buffers), ticks)
        for k, i in enumerate(buffers):  # appendix A: L({}) - L({b})
            alone = latency(work, t, [k == j for j in range(len(buffers))], ticks)
            assert problem.buffers[i].benefit == none - alone
    reads = [i for i in problem.uses[1] if not problem.buffers[i].is_output]
    gains = [problem.buffers[i].benefit for i in reads]
    assert gains == [round(NEXT * TICK * 1e12)] * 2  # alone each saves the cheaper move
    both = [i in reads for i in range(len(problem.buffers))]
    assert problem.reward(both) == round(moving(2) * TICK * 1e12) > sum(gains)


def test_the_largest_eight_vary(clock: Clock, tmp_path: Path) -> None:
    sizes = [3 * N, N, 5 * N, 4 * N, 2 * N, 9 * N, 7 * N, 6 * N, 8 * N, N]
    tensors = tuple(TensorSpec((n,)) for n in (*sizes, 10 * N))
    first = {k: np.full(n, k, np.float32) for k, n in enumerate(sizes)}
    one = Operation("one", tuple(first), (10,), clock.computing(64))
    work = Workload("many", tensors, (one,), first, (10,))
    tables = measured(work, tmp_path)
    (table,) = costs_of(tables)
    varied = [0, 2, 3, 5, 6, 7, 8, 10]  # not 1 and 9, the smallest, nor 4, the next
    assert (list(table.varied), tables.samples) == (varied, 1)
    for inside in every(8):
        whole = [False] * 11
        for k, x in zip(varied, inside, strict=True):
            whole[k] = x
        assert table.latency(whole) == latency(work, 0, whole, 64)
        for k in (1, 4, 9):  # do not count
            whole[k] = True
        assert table.latency(whole) == latency(
            work, 0, [k in varied and x for k, x in enumerate(whole)], 64
        )


def test_or_what_has_more_has_no_table(clock: Clock, tmp_path: Path) -> None:
    first = {k: np.full(N, k, np.float32) for k in range(9)}
    steps = (
        Operation("nine", tuple(range(8)), (9,), clock.computing(64)),
        Operation("eight", tuple(range(7)), (10,), clock.computing(8)),
    )
    work = Workload("wide", (TensorSpec((N,)),) * 11, steps, first, (9, 10))
    with Gauge(work, Ram(tmp_path)) as gauge:
        tables = measure_tables(gauge, 1, wide="sums")
        problem = problem_of(work, 1 << 20, gauge.measured(), tables)
    assert tables.steps[0] is None
    assert str(tables).startswith("tables of 1 instructions: 256 subsets")
    assert isinstance(problem.instructions[0].cost, Roofline)
    none = problem.latency(0, [False] * 9)
    assert none - problem.latency(0, [True] * 9) == sum(b.benefit for b in problem.buffers[:9])
    for inside in ([False] * 8, [True] * 8, [True] * 4 + [False] * 4):
        assert problem.latency(1, inside) == latency(work, 1, inside, 8)


def in_place(clock: Clock) -> Workload:
    """Tensor 3 is written over 0, 4 over 3; 2 is read, too."""
    same_size = TensorSpec((N,))
    steps = (
        Operation("over", (0, 2), (3,), clock.computing(16), ((0, 3),)),
        Operation("again", (3,), (4,), clock.computing(8), ((3, 4),)),
    )
    first = {0: np.ones(N, np.float32), 2: np.arange(N, dtype=np.float32)}
    return Workload("in place", (same_size, TensorSpec((1,)), *[same_size] * 3), steps, first, (4,))


def test_what_shares_a_place_is_in_fast_memory_together(clock: Clock, tmp_path: Path) -> None:
    work = in_place(clock)
    tables = measured(work, tmp_path)
    assert [x and x.units for x in tables.steps] == [((0, 2), (1,)), ((0, 1),)]
    assert "6 subsets of buffers" in str(tables)
    assert "; 6 more cannot be, and lie between" in str(tables)
    table, _ = costs_of(tables)
    for pair, other in every(2):
        at = {k: x for k, x in zip((0, 2, 1), (pair, pair, other), strict=True)}
        inside = [at[k] for k in range(3)]
        assert table.latency(inside) == latency(work, 0, inside, 16)
        for one in ((True, other, False), (False, other, True)):  # which cannot be
            whole = [latency(work, 0, [x, other, x], 16) for x in (False, True)]
            assert abs(table.latency(one) - sum(whole) / 2) <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_instructions_compute_on_true_values(seed: int, tmp_path: Path) -> None:
    """Whatever is in fast memory, and however often one is repeated that writes in place."""
    wanted: dict[str, list[bytes]] = {}

    def checked(x: Operation) -> Operation:
        def compute(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            x.compute(operands, outputs)
            found = [y.tobytes() for y in outputs]
            assert found == wanted.setdefault(x.name, found)

        return replace(x, compute=compute)

    plain = random_workload(Random(seed), 20)
    wide = Operation("wide", tuple(sorted(plain.results)), (len(plain.tensors),), mix)
    pairs = [(k, k + 1) for k in range(len(plain.tensors), len(plain.tensors) + 3)]
    rest = tuple(
        Operation(f"over{k}", (old, *plain.results), (new,), mix, ((old, new),))
        for k, (old, new) in enumerate(pairs)
    )
    work = Workload(
        "checked",
        (*plain.tensors, *[TensorSpec((2 * N,))] * 4),
        tuple(map(checked, (*plain.operations, wide, *rest))),
        plain.inputs,
        (pairs[-1][1],),
    )
    right = run_unmapped(work)
    with pytest.MonkeyPatch.context() as patch, Gauge(work, Ram(tmp_path)) as gauge:
        patch.setattr(table_measurement, "RUNS", 2)  # of more subsets than that, several in one run
        tables = measure_tables(gauge, 2)
        problem = problem_of(work, 4 << 18, gauge.measured(), tables)
    assert work.shared
    assert tables.samples >= 1
    answers = [random_answer(problem, Random(k)) for k in range(2)]
    answers.append(solver_of("default")(problem, 0.2))
    assert problem_from_json(problem_to_json(problem)) == problem
    for answer in answers:
        assert same(execute(work, problem, answer, Ram(tmp_path))[0], right)


def test_where_moves_do_not_add_up_tables_tell_what_is_measured(
    clock: Clock, tmp_path: Path
) -> None:
    work, stays = three(clock), Placement(0, 0, 1, copied=False)

    def answers(problem: Problem) -> dict[str, Solution]:
        here: list[Placement | None] = [None] * len(problem.buffers)
        made, read = problem.uses[0][1], problem.uses[1][0]
        here[made], here[read] = Placement(0, 0, 1, copied=False), stays
        kind = "tables" if isinstance(problem.instructions[0].cost, Latency) else "sums"
        asked.append(kind)
        return {"none": nothing(problem), "one": Solution(tuple(here))}

    asked: list[str] = []
    done = compare(
        work,
        1 << 18,
        answers,
        rounds=3,
        memory=Ram(tmp_path),
        tabulate=lambda g: measure_tables(g, 1),
    )
    assert asked == ["tables", "sums"]
    assert list(done.comparisons) == ["none", "one"]  # answers that are there are not run twice
    assert str(done.tables).startswith("tables of 3 instructions: 14 subsets")
    for name, x in done.comparisons.items():
        np.testing.assert_allclose(x.measured, x.simulated, rtol=1e-9)
        assert x.ratio == pytest.approx(1, abs=1e-9)
        sums = x.without_tables
        assert sums is not None
        if name == "none":
            assert sums[1] == pytest.approx(1, abs=1e-9)
        else:
            assert abs(sums[1] - 1) > 0.01
        assert f"(by sums {sums[0]:,.1f} ms, ratio {sums[1]:.3f})" in str(x)


def test_tables_are_scaled_as_prices_are(clock: Clock, tmp_path: Path) -> None:
    """A machine that becomes slower does so for simulated steps as well."""

    def answers(problem: Problem) -> dict[str, Solution]:
        if not isinstance(problem.instructions[0].cost, Latency):  # asked last
            clock.moves, clock.computes = 2, 3
        return {"none": nothing(problem)}

    done = compare(
        three(clock),
        1 << 18,
        answers,
        rounds=2,
        memory=Ram(tmp_path),
        tabulate=lambda gauge: measure_tables(gauge, 1),
    )
    x = done.comparisons["none"]
    np.testing.assert_allclose(x.measured, x.simulated, rtol=1e-9)
    before = simulate(done.problem, x.answer).latency / 1e9
    moved = sum(map(moving, (1, 1, 2, 1, 1))) * TICK * 1e3
    assert x.medians[0] == pytest.approx(3 * before - moved, rel=1e-9)


def test_a_machine_whose_disk_takes_no_time(clock: Clock, tmp_path: Path) -> None:
    """Or less than chance adds."""
    clock.moves = 0
    done = compare(
        three(clock),
        1 << 18,
        lambda problem: {"none": nothing(problem)},
        rounds=1,
        memory=Ram(tmp_path),
        tabulate=lambda gauge: measure_tables(gauge, 1),
    )
    x = done.comparisons["none"]
    np.testing.assert_allclose(x.measured, x.simulated, rtol=1e-9)
    assert str(done.prices) == "3.2 ms of computing, and no more with everything in slow memory"


def test_a_subset_between_two() -> None:
    one = Subsets(((1, 3), (0,)), (6.0, 2.0, 3.0, 0.0), (1.0,) * 4)
    cost = one.cost()
    assert cost.varied == (1, 3, 0)
    assert cost.latency([False] * 4) == 7 * 10**12
    assert cost.latency([False, True, True, True]) == 3 * 10**12
    assert cost.latency([True, False, True, False]) == 4 * 10**12
    assert cost.latency([False, False, False, True]) == 5 * 10**12  # half of the way to 3
    assert cost.latency([True, True, False, False]) == 2.5 * 10**12


def test_runs_that_disagree_count_by_their_medians(clock: Clock, tmp_path: Path) -> None:
    """And instructions sum up to what runs took."""
    calls = 0

    def odd(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        nonlocal calls
        calls += 1
        clock.ticks += 1000 if calls % 16 == 0 else 10

    tensors = (TensorSpec((3,)), TensorSpec((N,)), TensorSpec((3,)))
    last = Operation("last", (1,), (2,), clock.computing(6))
    steps, first = (Operation("odd", (), (0,), odd), last), {1: np.zeros(N, np.float32)}
    work = Workload("odd", tensors, steps, first, (0, 2))
    tables = measured(work, tmp_path)
    computed = [x and x.computed for x in tables.steps]
    assert computed == [(10 * TICK,), (6 * TICK,) * 2]
    assert tables.samples == RUNS // 2


LEFT = np.array([1.0, -1.0, -1.0, 1.0])  # what no sum over two units explains, of square 4


def test_what_is_chance_does_not_count() -> None:
    expected = np.array([10.0, 7.0, 8.0, 5.0])
    slower = np.array([3.0, 1.0, 1.0, -1.0])  # a sum, of square 12
    for noise, some, rest in ((1.0, 0.75, 0.75), (2.0, 0.5, 0.5), (3.5, 0.125, 0.125)):
        found = shrink_by_noise(expected + slower + LEFT, expected, noise)
        np.testing.assert_allclose(found, expected + some * slower + rest * LEFT)
    np.testing.assert_allclose(shrink_by_noise(expected + LEFT, expected, 9.0), expected)
    np.testing.assert_allclose(shrink_by_noise(slower, expected, 0.0), slower)
    found = shrink_by_noise(expected + 2 * slower + LEFT, expected, 4.0)  # squares 48 and 4
    np.testing.assert_allclose(found, expected + 0.75 * 2 * slower)
    assert min(shrink_by_noise(LEFT, 0.5 * LEFT, 0.1)) == 0


def test_errors_come_from_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.zeros((4, 2))
    around = np.sqrt(6 / np.pi) * np.array([1.0, 0.0, -1.0])  # the median's error: 1
    medians = 10 + 3 * LEFT  # of squares 400 and 36
    samples = [np.stack([[x] * 3, x + around], axis=1) for x in medians]
    found = shrunk_medians(samples, expected)
    np.testing.assert_allclose(found[:, 0], medians)
    np.testing.assert_allclose(found[:, 1], 10 * (1 - 3 / 400) + 3 * LEFT * (1 - 1 / 36))
    np.testing.assert_allclose(shrunk_medians([x[1:2] for x in samples], expected)[:, 1], medians)
    monkeypatch.setattr("recurra.mapping.execute.noise_shrinkage.MEDIAN", 0.0)
    odd = np.array([[1.0, 2.0], [1.5, 3.0], [100.0, 1.0]])
    np.testing.assert_allclose(shrunk_medians([odd, odd + 1], expected[:2]), [[1.5, 2], [2.5, 3]])


def test_what_is_expected_are_sums(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With errors that explain everything, tables are the gauge's prices."""

    def hopeless(samples: Sequence[Any], summed: Any) -> Any:
        return summed

    monkeypatch.setattr(table_measurement, "shrunk_medians", hopeless)
    work = three(clock)
    with Gauge(work, Ram(tmp_path)) as gauge:
        tables = measure_tables(gauge, 1)
        prices = gauge.measured()
    problem, other = (problem_of(work, 1 << 20, prices, x) for x in (tables, None))
    ratios = [
        problem.latency(t, inside) / other.latency(t, inside)
        for t in range(3)
        for inside in every(len(problem.uses[t]))
    ]
    assert all(abs(x - 1) < 1e-6 for x in ratios)


def test_rounds_on_a_slower_machine_count_alike(clock: Clock, tmp_path: Path) -> None:
    """The second and third of three rounds take two and four times as long."""

    def slower(done: int) -> None:
        if done in (RUNS, 2 * RUNS):
            clock.moves *= 2
            clock.computes *= 2

    work = three(clock)
    with Gauge(work, Ram(tmp_path)) as gauge:
        tables = measure_tables(gauge, 3, slower)
        usual = gauge.measured()  # of rounds that took 1, 2, 4, 4
    assert usual.instructions == tuple(3 * x * TICK for x in (16, 32, 4))
    (table, *_) = costs_of(tables)
    for inside in every(2):
        assert table.latency(inside) == pytest.approx(3 * latency(work, 0, inside, 16), rel=0.02)


# What may go wrong


def test_a_disk_without_room_leaves_nothing(clock: Clock, tmp_path: Path) -> None:
    work = three(clock)
    with files_end_at(1 << 16), pytest.raises(RecurraError, match="did not hold the slow memory"):
        measured(work, tmp_path)
    with Gauge(work, Ram(tmp_path)) as gauge:
        with files_end_at(1 << 16), pytest.raises(RecurraError, match="File too large"):
            measure_tables(gauge, 1)
        assert measure_tables(gauge, 1).samples == RUNS // 8  # there is room again
    assert gauge.slow.file < 0
    assert list(tmp_path.iterdir()) == []
    with Gauge(work, Ram(tmp_path)) as gauge, pytest.raises(RecurraError, match="not in 0"):
        measure_tables(gauge, 0)


def test_who_interrupts_it_leaves_nothing(clock: Clock, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    gauge = Gauge(three(clock), Ram(tmp_path))
    with pytest.raises(KeyboardInterrupt), gauge:
        measure_tables(gauge, 1, stop)
    assert gauge.slow.file < 0
    assert list(tmp_path.iterdir()) == []
    assert not [x for x in threading.enumerate() if x.name == "copies"]


def test_an_instruction_that_fails_is_named(clock: Clock, tmp_path: Path) -> None:
    calls = 0

    def failing(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise ValueError("no number")

    work = three(clock)
    steps = (*work.operations[:2], Operation("last", (4,), (5,), failing))
    work = Workload("three", work.tensors, steps, work.inputs, (4,))
    with pytest.raises(RecurraError, match="three: its instruction last failed"):
        measured(work, tmp_path, rounds=3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twice.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    x = jax.ShapeDtypeStruct((160, 160), jnp.float32)\n"
        "    return (lambda a, b: jnp.tanh(a @ b) @ b), (x, x)\n"
    )
    words = ["map", "run", f"{tmp_path}/twice.py:make", "--fast-size", "256KiB", "--rounds", "1"]
    words += ["--solver", "greedy", "--seconds", "0.1", "--folder", str(tmp_path)]
    words += ["--costs", "tables", "--samples", "1"]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert "each measured 2 times at least" in told.out
    assert "(by sums " in told.out
    assert "measuring tables 16/16" in told.err
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["answers"]
    assert {"everything slow", "greedy"} <= set(found)
    assert all(len(x["by_sums"]) == 2 for x in found.values())
    assert cli.main([*words, "--samples", "0"]) == 2
    assert "one round of measuring at least, not 0" in capsys.readouterr().err
