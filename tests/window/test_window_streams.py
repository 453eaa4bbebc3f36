"""Kernels go to streams in an order that memory allows, whatever fails; the driver is a stub."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built import FOLDER
from random_tasks import random_program

from recurra.window import KernelError, Segment, Task, WindowError
from recurra.window.happened import conflicts, events, violations
from recurra.window.native.build import STREAMS, build, build_stress
from recurra.window.streams import GpuKernel, Launch, Streams, cuda, stub
from test_style import env

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    build(FOLDER, STREAMS)


def issue(
    program: Sequence[Task], slots: int, streams: int, *, fail_at: int | None = None, seed: int = 0
) -> tuple[Any, Streams, KernelError | None]:
    """All of it, or as much as the driver takes; kernels take a random time."""
    driver, rng, failed = stub(FOLDER), random.Random(seed), None
    if fail_at is not None:
        driver.fail_at = fail_at
    issuer = Streams(driver, slots, streams, folder=FOLDER)
    try:
        for task in program:
            issuer.launch(task, GpuKernel(us=rng.choice((0.1, 3.0, 40.0))))
        issuer.settle()
    except KernelError as error:
        failed = error
    settle(issuer)
    return driver, issuer, failed


def settle(issuer: Streams) -> KernelError | None:
    """The thread that issues has nothing to do from here on."""
    try:
        issuer.settle()
    except KernelError as error:
        return error
    return None


def broken(program: Sequence[Task], driver: Any) -> tuple[str, ...]:
    """What went wrong among those that ran, which are the first of the program. Workspaces are
    memory that is written, and that no barrier knows of."""
    happened = events(driver.spans)
    spaces = [Task("k") for _ in driver.ran]
    for ran in driver.ran:
        if size := ran.kernel.workspace:
            spaces[ran.ticket] = Task("k", writes=(Segment(ran.kernel.parameters[-1], size),))
    found = violations(program[: len(driver.ran)], happened) + violations(spaces, happened)
    return (*found, *driver.misuses)


@pytest.mark.parametrize("seed", range(300))
def test_random_programs_keep_the_order_of_memory(seed: int) -> None:
    rng = random.Random(seed)
    program = random_program(seed, rng.randint(1, 60), wide=seed % 5 == 0)
    slots, streams = rng.randint(1, 64), rng.randint(1, 8)
    driver, issuer, failed = issue(program, slots, streams, seed=seed)
    assert failed is None
    assert len(driver.spans) == len(program)
    assert not broken(program, driver)
    assert driver.streams <= streams
    assert driver.events <= slots  # used again
    assert not issuer.held()


def test_the_checker_sees_a_missing_wait() -> None:
    """Kernels on two streams without events between them: what the tests above look for."""
    a = Segment(0, 8)
    program = [Task("w", writes=(a,)), Task("r", reads=(a,))]
    assert violations(program, events([(0, 0.0, 5.0), (1, 1.0, 2.0)]))


def let_go_in_time(driver: Any, issuer: Streams) -> bool:
    """No memory was let go of while a kernel runs."""
    ended = {ticket for ticket, _, end in driver.spans if end <= driver.now}
    return {ticket for ticket, _, _ in driver.spans} - set(issuer.held()) <= ended


@pytest.mark.parametrize("seed", range(8))
def test_a_fault_at_every_call(seed: int) -> None:
    program = random_program(seed, 25)
    driver, whole, _ = issue(program, 4, 3, seed=seed)
    calls = driver.calls  # before the streams are given back
    assert not whole.held()
    assert calls > 75
    for at in range(calls):
        driver, issuer, failed = issue(program, 4, 3, fail_at=at, seed=seed)
        assert failed is not None
        assert "gives 700" in str(failed)
        assert not broken(program, driver), f"call {at}"
        assert let_go_in_time(driver, issuer), f"call {at}"
        before = len(driver.spans)
        with pytest.raises(KernelError, match="gives 700"):
            issuer.launch(Task("more"), GpuKernel())
        assert len(driver.spans) == before


def test_chains_stay_on_their_streams() -> None:
    places = [Segment(8 * k, 8) for k in range(4)]
    program = [Task("k", (places[k % 4],), (places[k % 4],)) for k in range(60)]
    driver, issuer, _ = issue(program, 64, 8)
    assert not issuer.held()
    assert driver.streams == 4
    assert "stream_wait" not in driver.counts  # no events between streams


def test_independent_kernels_run_side_by_side_without_the_host() -> None:
    program = [Task("k", writes=(Segment(8 * k, 8),)) for k in range(4)]
    driver = stub(FOLDER)
    issuer = Streams(driver, 32, 4, folder=FOLDER)
    for task in program:
        issuer.launch(task, GpuKernel(us=100.0))
    issuer.settle()
    starts, ends = zip(*[(start, end) for _, start, end in driver.spans], strict=True)
    assert max(starts) < 20  # the host did not wait
    assert max(starts) < min(ends)
    assert not conflicts(program)


# segments


def segments(seed: int, known: int = 3, count: int = 14) -> list[list[Launch]]:
    """A few segments that come again and again with other parameters, and some that do not."""
    rng = random.Random(seed)

    def fresh() -> list[Launch]:
        tasks = random_program(rng.randrange(10**9), rng.randint(1, 12))
        return [
            Launch(
                task,
                GpuKernel(
                    rng.randrange(1, 4),
                    parameters=(rng.randrange(5),),
                    workspace=rng.choice((0, 0, rng.randrange(1, 3000))),
                    us=rng.choice((0.1, 3.0, 40.0)),
                ),
            )
            for task in tasks
        ]

    again = [fresh() for _ in range(known)]
    return [
        [replace(x, kernel=replace(x.kernel, parameters=(rng.randrange(3),))) for x in chosen]
        for chosen in (rng.choice(again) if rng.random() < 0.85 else fresh() for _ in range(count))
    ]


def send(parts: Iterable[Sequence[Launch]], issuer: Streams) -> KernelError | None:
    try:
        for part in parts:
            issuer.segment(part)
    except KernelError:
        pass
    return settle(issuer)


def flat(parts: Iterable[Sequence[Launch]]) -> list[Launch]:
    return [launch for part in parts for launch in part]


def same_kernels(parts: Iterable[Sequence[Launch]], driver: Any) -> bool:
    """Each ran as it was launched this time, not as its graph was made or launched before."""
    program = flat(parts)
    return all(
        (ran.kernel.function, *ran.kernel.parameters[:1])
        == (program[ran.ticket].kernel.function, *program[ran.ticket].kernel.parameters)
        for ran in driver.ran
    )


@pytest.mark.parametrize("seed", range(300))
def test_graphs_keep_the_order_of_memory(seed: int) -> None:
    rng = random.Random(seed)
    parts = segments(seed)
    most = rng.choice((0, 1, 2, 8))
    driver = stub(FOLDER)
    issuer = Streams(driver, rng.randint(1, 64), rng.randint(1, 8), graphs=most, folder=FOLDER)
    assert send(parts, issuer) is None
    program = [launch.task for launch in flat(parts)]
    assert len(driver.ran) == len(program)
    assert not broken(program, driver)
    assert same_kernels(parts, driver)
    assert driver.graphs <= most
    assert issuer.graphs["kept"] <= most
    launched = sum(issuer.graphs[name] for name in ("built", "reused", "updated"))
    assert driver.counts.get("runnable_launch", 0) == launched
    assert not issuer.held()
    issuer.close()
    assert not driver.misuses
    assert (driver.graphs, driver.blocks, driver.streams, driver.events) == (0, 0, 0, 0)


CHAIN = [
    Launch(Task("k", (Segment(8 * k, 8),), (Segment(8 * k + 8, 8),)), GpuKernel(1, parameters=(k,)))
    for k in range(10)
]


def test_a_segment_is_built_when_it_comes_again_and_then_one_call() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    other = [replace(x, kernel=replace(x.kernel, parameters=(77,))) for x in CHAIN]
    moved = [replace(x, task=Task("k", (Segment(0, 8),), (Segment(0, 8),))) for x in CHAIN]
    calls: list[int] = []
    for part in (CHAIN, CHAIN, CHAIN, other, other, moved):
        issuer.segment(part)
        issuer.settle()
        calls.append(driver.calls - driver.counts["event_query"])
    assert issuer.graphs["first seen"] == 1  # the same edges, elsewhere, are the same segment
    assert issuer.graphs["built"] == 1
    assert issuer.graphs["reused"] == 2
    assert issuer.graphs["updated"] == 2
    assert driver.counts["runnable_set"] == 20 - 1 + 1 - 2 + 2
    assert calls[2] - calls[1] == 2  # the launch and its event
    assert "reused 2" in str(issuer)


def test_other_edges_are_another_segment() -> None:
    issuer = Streams(stub(FOLDER), folder=FOLDER)
    free = [replace(x, task=Task("k", writes=x.task.writes)) for x in CHAIN]
    for part in (CHAIN, free, CHAIN, free):
        issuer.segment(part)
    issuer.settle()
    assert issuer.graphs["first seen"] == issuer.graphs["built"] == 2


def test_long_segments_are_several_graphs() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    part = (CHAIN * 20)[:150]
    for _ in range(3):
        issuer.segment(part)
    issuer.settle()
    assert driver.counts["runnable_launch"] == 2 * 3
    assert not broken([x.task for x in part] * 3, driver)


@pytest.mark.parametrize("call", ["graph_create", "graph_add", "instantiate", "runnable_set"])
def test_what_the_driver_refuses_goes_to_streams_and_is_said(call: str) -> None:
    driver = stub(FOLDER)
    driver.refuses = call
    issuer = Streams(driver, folder=FOLDER)
    parts = [
        [replace(x, kernel=replace(x.kernel, parameters=(k,))) for x in CHAIN] for k in range(4)
    ]
    assert send(parts, issuer) is None
    assert issuer.graphs["refused"] >= 2
    assert driver.counts[call] == 1  # it is not tried again
    assert f"the driver refuses: {call.replace('_', ' ')} gives 801" in str(issuer)
    assert same_kernels(parts, driver)
    assert not broken([x.task for x in CHAIN] * 4, driver)


@pytest.mark.parametrize("seed", range(3))
def test_a_fault_at_every_call_with_graphs(seed: int) -> None:
    """While a graph is made it is a refusal; else nothing more is issued."""
    parts = segments(seed, known=2, count=7)
    program = [launch.task for launch in flat(parts)]

    def through(fail_at: int | None) -> tuple[Any, Streams, KernelError | None]:
        driver = stub(FOLDER)
        driver.fail_at = 2**60 if fail_at is None else fail_at
        issuer = Streams(driver, 4, 3, graphs=2, folder=FOLDER)
        return driver, issuer, send(parts, issuer)

    driver, whole, _ = through(None)
    assert driver.counts["runnable_launch"]
    refused = failures = 0
    for at in range(driver.calls):
        driver, issuer, failed = through(at)
        assert not broken(program, driver), f"call {at}"
        assert same_kernels(parts, driver)
        assert let_go_in_time(driver, issuer), f"call {at}"
        if failed is None:
            assert len(driver.ran) == len(program)
            assert "gives 700" in str(issuer)
            refused += 1
        else:
            assert "gives 700" in str(failed)
            failures += 1
        issuer.stop()
        assert not driver.misuses
    assert refused > 5
    assert failures > 20
    assert not whole.held()


# workspaces


def test_a_stream_has_one_workspace_that_grows() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, 64, 2, graphs=0, folder=FOLDER)
    places = [Segment(8 * k, 8) for k in range(2)]
    for bytes_ in (100, 100, 60, 1000, 100):
        for place in places:
            issuer.launch(Task("k", (place,), (place,)), GpuKernel(workspace=bytes_, us=50.0))
    issuer.settle()
    assert driver.counts["allocate"] == 4
    assert driver.counts["release"] == 2  # the small ones, when nobody had them any more
    assert len({ran.kernel.parameters[-1] for ran in driver.ran}) == 4
    assert not driver.misuses
    issuer.close()
    assert driver.blocks == 0


def test_nodes_of_a_graph_share_a_workspace_only_one_after_the_other() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    part = [
        Launch(Task("k", (s,), (s,)), GpuKernel(workspace=256, us=50.0))
        for s in [Segment(8 * (k % 3), 8) for k in range(12)]
    ]
    for _ in range(3):
        issuer.segment(part)
    issuer.settle()
    assert len({ran.kernel.parameters[-1] for ran in driver.ran if ran.ticket >= 12}) == 3
    assert not broken([x.task for x in part] * 3, driver)


# memory, threads, the end


class Buffer:
    pass


@pytest.mark.parametrize("graphs", [0, 4])
def test_memory_lives_as_long_as_its_kernel(graphs: int) -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, 32, 4, graphs=graphs, folder=FOLDER)
    for _ in range(3):  # the third is a graph, if there are any
        buffers = [Buffer() for _ in range(2)]
        gone = [weakref.ref(b) for b in buffers]
        task = Task("k", writes=(Segment(0, 8),))
        issuer.segment([Launch(task, GpuKernel(us=10.0), keep=b) for b in buffers])
        buffers.clear()
        issuer.retire()
        assert all(one() is not None for one in gone)
        issuer.settle()
        assert all(one() is None for one in gone)


def test_what_is_done_is_let_go_of_without_being_asked() -> None:
    issuer = Streams(stub(FOLDER), 4, 2, queue=8, folder=FOLDER)
    buffers = [Buffer() for _ in range(3000)]
    gone = [weakref.ref(b) for b in buffers]
    for k in range(3000):
        issuer.launch(Task("k", writes=(Segment(0, 8),)), GpuKernel(), keep=buffers.pop())
        assert k < 1000 or sum(one() is not None for one in gone) < 3000
    issuer.settle()


def test_several_callers() -> None:
    """Program order is that of tickets."""
    driver = stub(FOLDER)
    issuer = Streams(driver, 16, 4, queue=10, folder=FOLDER)
    told: dict[int, Task] = {}

    def call(seed: int) -> None:
        for part in segments(seed):
            told.update(zip(issuer.segment(part), (x.task for x in part), strict=True))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    issuer.settle()
    assert sorted(told) == list(range(len(driver.ran)))
    assert not broken([told[k] for k in range(len(told))], driver)


@pytest.mark.parametrize("kind", ["thread", "address"])
def test_the_issuing_thread_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    program = build_stress(tmp_path, kind, "stress_streams")
    command = [str(program), "150", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "150 programs\n"


def test_after_the_end() -> None:
    driver = stub(FOLDER)
    with Streams(driver, folder=FOLDER) as issuer:
        issuer.launch(Task("k"), GpuKernel(us=30.0))
    assert driver.spans[0][2] <= driver.now  # it was waited for
    assert (driver.streams, driver.events) == (0, 0)
    with pytest.raises(WindowError, match="kernel k is launched on streams that are closed"):
        issuer.launch(Task("k"), GpuKernel())
    issuer.settle()
    issuer.close()


def test_a_block_that_ends_tells_of_a_failure() -> None:
    driver = stub(FOLDER)
    driver.fail_at = 0
    issuer = Streams(driver, folder=FOLDER)
    with pytest.raises(KernelError, match="enter of kernel 0 gives 700"), issuer:
        issuer.launch(Task("k"), GpuKernel())
    assert issuer.held() == ()


IN_FLIGHT = """
import os, sys
from pathlib import Path
from recurra.window import Segment, Task, WindowError
from recurra.window.streams import GpuKernel, Streams, stub
folder = Path(sys.argv[1])
driver = stub(folder)
issuer = Streams(driver, 8, 2, folder=folder)
for k in range(50):
    task = Task("k", writes=(Segment(8 * (k % 5), 8),))
    issuer.launch(task, GpuKernel(us=30.0), keep=bytearray(8))
"""


def child(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IN_FLIGHT + code, str(FOLDER)],
        capture_output=True, text=True, check=False, env=env(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_the_end_of_the_interpreter_with_work_in_flight() -> None:
    assert child("import atexit; print('fine')") == "fine\n"


def test_a_failure_that_nobody_heard_of_is_told_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_FLIGHT.replace("issuer =", "driver.fail_at = 60\nissuer ="),
         str(FOLDER)],
        capture_output=True, text=True, check=False, env=env(), timeout=60,
    )  # fmt: skip
    assert "gives 700" in done.stderr


FORK = """
pid = os.fork()
if not pid:
    try:
        issuer.launch(Task("k"), GpuKernel())
    except WindowError as error:
        print(error)
    issuer.settle(), issuer.close()
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
assert len(driver.ran) == 50 and driver.spans[-1][2] <= driver.now
issuer.launch(Task("k"), GpuKernel())
issuer.settle()
print(len(driver.ran))
"""


def test_a_fork_waits_and_the_child_says_that_it_has_no_gpu() -> None:
    told = child(FORK)
    assert "kernel k is launched on streams that are forked" in told
    assert told.endswith("51\n")


def test_what_cannot_be() -> None:
    with pytest.raises(WindowError, match="0 streams"):
        Streams(stub(FOLDER), 4, 0, folder=FOLDER)
    with pytest.raises(WindowError, match="1 to 64"):
        Streams(stub(FOLDER), 65, folder=FOLDER)
    with pytest.raises(WindowError, match="0 launches in the queue"):
        Streams(stub(FOLDER), queue=0, folder=FOLDER)
    with pytest.raises(WindowError, match="-1 graphs"):
        Streams(stub(FOLDER), graphs=-1, folder=FOLDER)
    assert Streams(stub(FOLDER), folder=FOLDER).segment([]) == range(0)


@pytest.mark.skipif(
    any(Path(p).exists() for p in ("/dev/nvidia0", "/dev/nvidiactl")), reason="a GPU is here"
)
def test_without_a_gpu_that_is_said() -> None:
    with pytest.raises(WindowError, match="no GPU"):
        cuda(FOLDER)
