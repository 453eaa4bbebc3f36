"""Kernels go to streams in an order that memory allows, whatever fails; the driver is a stub."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from built import FOLDER
from random_tasks import random_program

from recurra.window import KernelError, Segment, Task, WindowError
from recurra.window.happened import conflicts, events, violations
from recurra.window.native.build import STREAMS, build
from recurra.window.streams import GpuKernel, Streams, cuda, stub

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
    return driver, issuer, failed


def broken(program: Sequence[Task], driver: Any) -> tuple[str, ...]:
    """What went wrong among those that ran, which are the first of the program."""
    ran = len(driver.spans)
    return violations(program[:ran], events(driver.spans))


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
        ended = {ticket for ticket, _, end in driver.spans if end <= driver.now}
        gone = {ticket for ticket, _, _ in driver.spans} - set(issuer.held())
        assert gone <= ended, f"call {at}: memory was let go of while a kernel ran"
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
    assert driver.waits == 0  # no events between streams


def test_independent_kernels_run_side_by_side_without_the_host() -> None:
    program = [Task("k", writes=(Segment(8 * k, 8),)) for k in range(4)]
    driver = stub(FOLDER)
    issuer = Streams(driver, 32, 4, folder=FOLDER)
    for task in program:
        issuer.launch(task, GpuKernel(us=100.0))
    assert driver.now < 20  # the host did not wait
    starts, ends = zip(*[(start, end) for _, start, end in driver.spans], strict=True)
    assert max(starts) < min(ends)
    assert not conflicts(program)


def test_memory_lives_as_long_as_its_kernel() -> None:
    class Buffer:
        pass

    driver = stub(FOLDER)
    issuer = Streams(driver, 32, 4, folder=FOLDER)
    buffer = Buffer()
    gone = weakref.ref(buffer)
    issuer.launch(Task("k", writes=(Segment(0, 8),)), GpuKernel(us=10.0), keep=buffer)
    del buffer
    issuer.retire()
    assert gone() is not None
    issuer.settle()
    assert gone() is None


def test_what_cannot_be() -> None:
    with pytest.raises(WindowError, match="0 streams"):
        Streams(stub(FOLDER), 4, 0, folder=FOLDER)
    with pytest.raises(WindowError, match="1 to 64"):
        Streams(stub(FOLDER), 65, folder=FOLDER)


@pytest.mark.skipif(
    any(Path(p).exists() for p in ("/dev/nvidia0", "/dev/nvidiactl")), reason="a GPU is here"
)
def test_without_a_gpu_that_is_said() -> None:
    with pytest.raises(WindowError, match="no GPU"):
        cuda(FOLDER)
