"""Mappings run for real: the bits of the unmapped run, whatever the plan and the disk."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.mapping.execute import rows_of
from recurra import cli
from recurra.errors import RecurraError
from recurra.mapping import engine_choice
from recurra.mapping.execute import ram
from recurra.mapping.execute.compare import compare
from recurra.mapping.execute.copier import Transfer
from recurra.mapping.execute.cost_measurement import Gauge, fast_blocks
from recurra.mapping.execute.device import Device
from recurra.mapping.execute.jax_workloads import from_jax, workload_of
from recurra.mapping.execute.memories import PAGE, Memory, SlowMemory
from recurra.mapping.execute.prepared_workload import PreparedWorkload, execute
from recurra.mapping.execute.ram import HUGE, DiskFile, Ram, pages
from recurra.mapping.execute.workload import SMALLEST, Operation, TensorSpec, Workload, run_unmapped
from recurra.mapping.execute.workload_problem import problem_of
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import InvalidSolution
from recurra.storage.mapping_problem import Placement, Problem, ProblemError, Solution, nothing

PYTHON = engine_choice.engine("python")
N = SMALLEST // 4  # numbers of the smallest tensor that is placed


class Prices:
    """Bytes are time: `size / rate` for a copy, ten units for an instruction."""

    def __init__(self, rate: int = SMALLEST // 4) -> None:
        self.rate = rate

    def computing(self, step: int) -> int:
        return 10 + step % 3

    def moving(self, nbytes: int, *, out: bool) -> int:
        return nbytes // self.rate + out

    def copying(self, nbytes: int, *, out: bool) -> int:
        return nbytes // self.rate + out


def mix(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Numbers that tell every operand and output apart, and hardly ever repeat."""
    for j, y in enumerate(map(np.asarray, outputs)):
        total = np.full(y.size, 0.1 * (j + 1), np.float32)
        for k, x in enumerate(map(np.asarray, operands)):
            total += np.resize(x.ravel(), y.size) * np.float32(0.3 + 0.01 * k)
        y[...] = np.sin(total).reshape(y.shape)


def random_workload(random: Random, steps: int = 14) -> Workload:
    """Small and large tensors, some written over others, some results."""
    tensors = [TensorSpec((random.choice([3, N, N + 1, 2 * N]),)) for _ in range(3)]
    given = {k: np.arange(x.shape[0], dtype=np.float32) + k for k, x in enumerate(tensors)}
    alive, operations = list(given), list[Operation]()
    for t in range(steps):
        reads = tuple(random.sample(alive, min(len(alive), random.randint(1, 3))))
        over = reads[0] if random.random() < 0.3 else None
        shape = tensors[over].shape if over is not None else (random.choice([5, N, N + 7, 2 * N]),)
        tensors.append(TensorSpec(shape))
        new = len(tensors) - 1
        pairs = () if over is None else ((over, new),)
        operations.append(Operation(f"mix{t}", reads, (new,), mix, pairs))
        alive = [k for k in [*alive, new] if k != over]
    results = tuple(random.sample(alive, min(len(alive), 2)))
    return Workload("random", tuple(tensors), tuple(operations), given, results)


def random_answer(problem: Problem, random: Random) -> Solution:
    """A game at random, or storages placed in any order."""
    f = flat(problem)
    if random.random() < 0.5:
        game = PYTHON.game(f)
        game.reset()
        game.play_random(np.array([random.randrange(6) for _ in range(101)]))
        return game.solution()
    arranger = PYTHON.arranger(f)
    order = list(range(len(problem.storages)))
    random.shuffle(order)
    arranger.arrange(np.array(order))
    return arranger.current()


prompt = Transfer.move


def late(self: Transfer, slow: SlowMemory, done: int) -> int:
    time.sleep(0.002)
    return prompt(self, slow, done)


def same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    return [x.tobytes() for x in found] == [x.tobytes() for x in wanted]


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(0, 2**32).map(Random))
def test_any_mapping_gives_the_bits_of_the_unmapped_run(tmp_path: Path, random: Random) -> None:
    """Also if copies are late: instructions wait for them."""
    every_mapping(random, Ram(tmp_path))


@pytest.mark.slow
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32).map(Random))
def test_so_it_does_on_a_device(random: Random) -> None:
    """`cpu` stands for those with streams."""
    every_mapping(random, Device("cpu"))


def every_mapping(random: Random, memory: Memory) -> None:
    work = random_workload(random)
    size = random.randint(0, 8) * SMALLEST
    problem = problem_of(work, size, Prices(random.choice([SMALLEST // 4, SMALLEST, 8 * SMALLEST])))
    wanted = run_unmapped(work)
    for answer in (nothing(problem), random_answer(problem, random)):
        with PreparedWorkload(work, problem, answer, memory) as execution:
            assert len(execution.arena) == size
            for poison in (0xFF, 0x7F):  # what lies in fast memory from before counts for nothing
                execution.arena[:] = execution.bounce[:] = poison
                with pytest.MonkeyPatch.context() as patch:
                    if poison == 0x7F:
                        patch.setattr(Transfer, "move", late)
                    execution.run()
                assert same(execution.results(), wanted)


def doubling(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    np.add(operands[0], operands[0], out=outputs[0])


@pytest.fixture
def chain() -> Workload:
    """Four tensors in a row, each twice the one before; the first and the last are wanted."""
    steps = tuple(Operation(f"double{k}", (k,), (k + 1,), doubling) for k in range(4))
    first = np.arange(N, dtype=np.float32)
    return Workload("chain", (TensorSpec((N,)),) * 5, steps, {0: first}, (1, 4))


class Instant(Prices):
    """Copies that take one step."""

    def copying(self, nbytes: int, *, out: bool) -> int:
        return 5


def leaving(chain: Workload) -> tuple[Problem, Solution]:
    """The first result is read where it is made, and leaves beside what reads it."""
    problem = problem_of(chain, 2 * SMALLEST, Instant())
    placements: list[Placement | None] = [None] * len(problem.buffers)
    placements[1] = Placement(0, 0, 1, copied=True)  # tensor 1 goes out in step 1
    placements[2] = Placement(0, 1, 1, copied=False)
    return problem, Solution(tuple(placements))


def test_only_what_is_outside_waits_for_the_disk(chain: Workload, tmp_path: Path) -> None:
    problem, answer = leaving(chain)
    with PreparedWorkload(chain, problem, answer, Ram(tmp_path)) as execution:
        execution.slow.log = {}
        execution.run()
        moved = {k: len(v) for k, v in execution.slow.log.items()}
        # 0, 2, 3 are read and 2, 3, 4 written by instructions, 1 is written by the copy engine
        assert moved == {(SMALLEST, False): 3, (SMALLEST, True): 4}
        assert same(execution.results(), run_unmapped(chain))
        assert execution.arena[:SMALLEST].tobytes() == run_unmapped(chain)[0].tobytes()


def test_a_function_of_jax_runs_piece_by_piece(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    def loss(p: Any, x: Any) -> Any:
        h = jax.nn.relu(x @ p["a"])
        for _ in range(2):
            h = jnp.tanh(h @ p["b"]) + h
        return jnp.mean((h @ p["a"].T - x) ** 2)

    def step(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, x)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value

    random = np.random.default_rng(0)
    p = {
        k: random.normal(size=s).astype(np.float32)
        for k, s in (("a", (160, 128)), ("b", (128, 128)))
    }
    x = random.normal(size=(192, 160)).astype(np.float32)
    work = from_jax(step, p, x)
    names = [operation.name for operation in work.operations]
    assert names.count("dot_general") == 11
    assert len(names) < 30  # what is between contractions is fused
    wanted = run_unmapped(work)
    expected = jax.tree.leaves(jax.jit(step)(p, x))
    for found, right in zip(wanted, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-6)
    problem = problem_of(work, 6 * SMALLEST, Prices(SMALLEST))
    answers = [random_answer(problem, Random(seed)) for seed in range(6)]
    assert any(p and p.copied for answer in answers for p in answer.placements)
    for answer in answers:
        assert same(execute(work, problem, answer, Ram(tmp_path))[0], wanted)


@pytest.mark.slow
def test_models_of_the_library_are_workloads() -> None:
    work = workload_of("ppo_step")
    assert "ppo_step: " in str(work)
    problem = problem_of(work, 8 << 20, Prices())
    assert problem.steps == len(work.operations) > 50
    assert all(np.isfinite(x).all() for x in run_unmapped(work))
    with pytest.raises(ProblemError, match="there is no program 'lenet'"):
        workload_of("lenet")


def test_prices_are_measured_and_steps_compared(chain: Workload, tmp_path: Path) -> None:
    with Gauge(chain, Ram(tmp_path)) as gauge:
        once = gauge.round()
        assert len(once.instructions) == 4
        assert all(x > 0 for x in (*once.instructions, *once.copies.values()))
        assert set(once.moves) == {(SMALLEST, False), (SMALLEST, True)}
        assert once.drag >= 0
    done = compare(
        chain, 2 * SMALLEST, lambda p: {"none": nothing(p)}, rounds=2, memory=Ram(tmp_path)
    )
    (found,) = done.comparisons.values()
    assert done.steady <= 2
    assert found.share == 0
    assert found.measured.shape == found.simulated.shape == (2,)
    assert min(found.measured) > 0 < found.ratio
    assert "ms simulated" in str(found)


def test_the_bench_tells_measured_beside_simulated(chain: Workload, tmp_path: Path) -> None:
    def answers(problem: Problem) -> dict[str, Solution]:
        return {"default": random_answer(problem, Random(0)), "everything slow": nothing(problem)}

    rows = rows_of("chain", compare(chain, 4 * SMALLEST, answers, rounds=1, memory=Ram(tmp_path)))
    assert [(row.case, row.peer) for row in rows] == [
        ("chain default", "simulated"),
        ("chain everything slow", "simulated"),
        ("chain", "everything slow"),
    ]
    assert all(row.checked == "exact" and row.ours > 0 and row.limit for row in rows)


def test_a_result_with_other_bits_is_no_row(chain: Workload, tmp_path: Path) -> None:
    calls = 0

    def changing(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        nonlocal calls
        calls += 1
        outputs[0][...] = calls

    steps = (*chain.operations[:3], Operation("last", (3,), (4,), changing))
    work = Workload("chain", chain.tensors, steps, chain.inputs, chain.results)
    with pytest.raises(RecurraError, match="chain, none: result 1 is not that of the unmapped"):
        compare(work, SMALLEST, lambda p: {"none": nothing(p)}, rounds=1, memory=Ram(tmp_path))


# What a disk may do


def stopped(run: Callable[[], object], message: str) -> None:
    """It ends, with that error, and the copy engine with it."""
    caught: list[BaseException] = []

    def tried() -> None:
        try:
            run()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=tried, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    assert caught, "nothing was raised"
    assert isinstance(caught[0], RecurraError), caught[0]
    assert message in str(caught[0])
    assert not [x for x in threading.enumerate() if x.name == "copies"]


@contextmanager
def files_end_at(nbytes: int) -> Generator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_too_small(chain: Workload, tmp_path: Path) -> None:
    problem, answer = leaving(chain)
    with files_end_at(2 * SMALLEST), pytest.raises(RecurraError, match="File too large"):
        execute(chain, problem, answer, Ram(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecurraError, match="did not hold the slow memory") as caught:
        execute(chain, problem, answer, Ram(tmp_path / "nowhere"))
    assert "No such file or directory" in str(caught.value)
    assert "Ram(folder) names another disk" in str(caught.value)


def test_a_disk_that_is_full_while_a_copy_leaves(tmp_path: Path) -> None:
    steps = (Operation("first", (0,), (2,), doubling), Operation("second", (2,), (1,), doubling))
    first = np.arange(N, dtype=np.float32)
    work = Workload("two", (TensorSpec((N,)),) * 3, steps, {0: first}, (1, 2))
    problem = problem_of(work, SMALLEST, Instant())
    stays, leaves = Placement(0, 1, 1, copied=False), Placement(0, 0, 1, copied=True)
    with PreparedWorkload(
        work, problem, Solution((None, leaves, stays, None)), Ram(tmp_path)
    ) as execution:
        at = execution.slow_addresses[2]
        with files_end_at(at):  # only tensor 2, which the copy engine writes, lies behind it
            stopped(execution.run, f"the disk did not have bytes {at}..{at + SMALLEST} written")
        execution.run()
        assert same(execution.results(), run_unmapped(work))


def test_a_file_that_is_cut(chain: Workload, tmp_path: Path) -> None:
    problem, answer = leaving(chain)
    with PreparedWorkload(chain, problem, answer, Ram(tmp_path)) as execution:
        os.ftruncate(execution.slow.file, SMALLEST // 2)
        stopped(execution.run, f"it ends at byte {SMALLEST // 2}")


def test_a_file_that_is_gone(chain: Workload, tmp_path: Path) -> None:
    problem, answer = leaving(chain)
    folder = tmp_path / "disk"
    folder.mkdir()
    with PreparedWorkload(chain, problem, answer, Ram(folder)) as execution:
        assert list(folder.iterdir()) == []  # nothing is left of a run that is killed
        folder.rmdir()
        execution.run()
        assert same(execution.results(), run_unmapped(chain))
        os.close(execution.slow.file)
        stopped(execution.run, "Bad file descriptor")
        execution.slow.file = -1


def test_reads_and_writes_may_be_short(
    chain: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda f, b, at: read(f, [b[0][: 3 * PAGE]], at))
    monkeypatch.setattr(os, "pwritev", lambda f, b, at: write(f, [b[0][: 5 * PAGE]], at))
    problem, answer = leaving(chain)
    assert same(execute(chain, problem, answer, Ram(tmp_path))[0], run_unmapped(chain))


def test_an_engine_that_fails(
    chain: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Transfer, slow: SlowMemory, done: int) -> int:
        raise RecurraError("the engine is broken")

    problem, answer = leaving(chain)
    monkeypatch.setattr(Transfer, "move", broken)
    with PreparedWorkload(chain, problem, answer, Ram(tmp_path)) as execution:
        stopped(execution.run, "the engine is broken")


def test_an_instruction_that_fails(chain: Workload, tmp_path: Path) -> None:
    def failing(operands: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        raise ValueError("no number")

    steps = (*chain.operations[:3], Operation("last", (3,), (4,), failing))
    work = Workload("chain", chain.tensors, steps, chain.inputs, chain.results)
    problem, answer = leaving(work)
    with PreparedWorkload(work, problem, answer, Ram(tmp_path)) as execution:
        stopped(execution.run, "its instruction last failed\n  ValueError: no number")


def test_a_file_system_without_direct_io(
    chain: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.open

    def without(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", without)
    problem, answer = leaving(chain)
    with PreparedWorkload(chain, problem, answer, Ram(tmp_path)) as execution:
        assert "without direct I/O (Invalid argument): RAM may hide the disk" in str(execution.slow)
        execution.run()
        assert same(execution.results(), run_unmapped(chain))


def test_a_disk_that_is_ram_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nnone {tmp_path} tmpfs rw 0 0\n")
    assert ram.file_system(tmp_path / "in", mounts) == "tmpfs"
    assert ram.file_system(Path("/"), mounts) == "ext4"
    assert ram.file_system(Path("/"), tmp_path / "none") == ""
    monkeypatch.setattr(ram, "file_system", lambda folder: "tmpfs")
    disk = DiskFile(tmp_path, PAGE)
    disk.close()
    assert "without direct I/O (tmpfs is RAM): RAM may hide the disk" in str(disk)


def test_what_cannot_be_run_is_refused(chain: Workload, tmp_path: Path) -> None:
    problem, _ = leaving(chain)
    placements: list[Placement | None] = [None] * len(problem.buffers)
    placements[0] = Placement(0, 0, 0, copied=False)
    with pytest.raises(InvalidSolution, match="residency"):
        execute(chain, problem, Solution(tuple(placements)), Ram(tmp_path))
    placements[:3] = None, Placement(100, 0, 1, copied=True), Placement(100, 1, 1, copied=False)
    with pytest.raises(ProblemError, match="buffer 1 lies at address 100"):
        execute(chain, problem, Solution(tuple(placements)), Ram(tmp_path))


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Operation("x", (3,), (2,), mix), "reads tensor 3, which is not there"),
        (Operation("x", (0,), (1,), mix), "writes tensor 1, which another instruction makes"),
        (Operation("x", (0,), (2,), mix, ((1, 2),)), "does not read 1 and write 2"),
        (Operation("x", (0,), (2,), mix, ((0, 2),)), "writes 2 over 0, which is of another size"),
    ],
)
def test_wrong_workloads(operation: Operation, message: str) -> None:
    tensors = (TensorSpec((3,)), TensorSpec((3,)), TensorSpec((4,)), TensorSpec((4,)))
    steps = (Operation("first", (0,), (1,), mix), operation)
    with pytest.raises(ProblemError, match=message):
        Workload("wrong", tensors, steps, {0: np.zeros(3)}, ())


def test_pages_begin_at_pages() -> None:
    assert pages(1).ctypes.data % PAGE == 0
    assert len(pages(PAGE + 1)) == 2 * PAGE


def test_large_memory_begins_at_huge_pages() -> None:
    for nbytes in (HUGE, HUGE + 1, 3 * HUGE - PAGE):
        room = pages(nbytes)
        assert room.ctypes.data % HUGE == 0
        assert len(room) == -(-nbytes // PAGE) * PAGE
        assert not room.any()
    kept = [pages(HUGE + PAGE) for _ in range(3)]
    for k, room in enumerate(kept):
        room[:] = k + 1
    assert [set(room.tolist()) for room in kept] == [{1}, {2}, {3}]


def test_what_is_timed_in_fast_is_of_one_block() -> None:
    work = workload_of("ppo_step")
    values = fast_blocks(work)
    ends = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in values]
    places = {k: ends[k] for k, first in enumerate(work.storage) if k == first}
    assert all(ends[k] == places[first] for k, first in enumerate(work.storage))
    order = sorted(places.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(order))
    assert order[-1][1] - order[0][0] < sum(x.nbytes + PAGE for x in values)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twice.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    x = jax.ShapeDtypeStruct((160, 160), jnp.float32)\n"
        "    return (lambda a, b: jnp.tanh(a @ b) @ b), (x, x)\n"
    )
    words = ["map", "run", f"{tmp_path}/twice.py:make", "--fast-size", "256KiB", "--rounds", "1"]
    words += ["--solver", "greedy", "--seconds", "0.1", "--folder", str(tmp_path)]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "results are those of the unmapped run, to the last bit" in shown
    assert "everything slow: 0 of " in shown
    assert cli.main([*words, "--rounds", "0"]) == 2
    assert "a step is run once at least, not 0 times" in capsys.readouterr().err
    assert cli.main(["map", "run", "lenet", "--fast-size", "1MiB"]) == 2
    assert "there is no program 'lenet'" in capsys.readouterr().err
