"""Kernels go to streams in an order that memory allows, whatever fails; the driver is a stub."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from built import FOLDER, build_stress
from documents import env
from random_tasks import random_program
from recurra.window import KernelError, Segment, Task, WindowError
from recurra.window.history_checker import conflicts, events, violations
from recurra.window.native.native_build import STREAMS, build
from recurra.window.stream_issuer import GpuKernel, StreamLaunch, Streams, cuda, stub
from stub_streams import broken, issue, let_go_in_time, segments

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    build(FOLDER, STREAMS)


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


@pytest.mark.slow
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
        issuer.segment([StreamLaunch(task, GpuKernel(us=10.0), keep=b) for b in buffers])
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


@pytest.mark.slow
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
from recurra.window.stream_issuer import GpuKernel, Streams, stub
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
