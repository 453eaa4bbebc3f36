"""Kernels in whatever thread and process: small stacks, many at once, children of a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.nest.codegen import BUFFERS, generate
from recurra.nest.loops import scheduled
from recurra.nest.target import runnable
from recurra.nest.threads import Team

STACK = 128 * 1024  # bytes: a quarter of what the largest packs take
BACKENDS: list[Any] = [*map(str, runnable()), "llvm"]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run the work in so many threads with small stacks, at once; raise what the first raises."""
    failed: list[BaseException] = []

    def caught(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            failed.append(error)

    before = threading.stack_size(STACK)
    try:
        threads = [threading.Thread(target=caught, args=(k,)) for k in range(count)]
        for thread in threads:
            thread.start()
    finally:
        threading.stack_size(before)
    for thread in threads:
        thread.join()
    for error in failed:
        raise error


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "order", ["n/256 [B] m/5 k m n", "[A] n/64 [B] m/5 k m n", "k/9 [B] m n k"]
)
def test_small_stacks(backend: Any, order: str) -> None:
    """Half a megabyte of packs in threads with an eighth of a megabyte of stack, four at once."""
    n = 512 if order.startswith("n/256") else 160
    r = np.random.default_rng(0)
    a, b = (r.integers(-4, 5, (n, n)).astype(np.float32) for _ in "ab")
    multiply = rc.nest.compile("mk,kn->mn", a, b, schedule=order, backend=backend)
    if n == 512:
        assert sum(generate(multiply.nest, multiply.target).buffers) == BUFFERS
    want = a @ b

    def work(k: int) -> None:
        for _ in range(3):
            np.testing.assert_array_equal(multiply(a + np.float32(k), b), want + k * b.sum(axis=0))

    in_threads(4, work)


def test_the_scratch_area_is_freed() -> None:
    """A thousand calls with packs of half a megabyte leave no memory behind."""
    resource = pytest.importorskip("resource")
    a = np.ones((8, 256), np.float32)
    b = np.ones((256, 512), np.float32)
    multiply = rc.nest.compile("mk,kn->mn", a, b, schedule="[B] m k n")
    assert sum(generate(multiply.nest, multiply.target).buffers) == BUFFERS
    multiply(a, b)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        multiply(a, b)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB, of 500,000


FORK = """
import os, sys
import numpy as np
import recurra as rc

x = np.ones((96, 96), np.float32)
multiply = rc.nest.compile("mk,kn->mn", x, x, threads=2)

def child(depth):
    pid = os.fork()
    if pid:
        assert (multiply(x, x) == 96).all()
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        return
    assert (multiply(x, x) == 96).all()
    if depth:
        child(depth - 1)
    sys.exit(0)

if sys.argv[1] == "used":
    multiply(x, x)
for _ in range(5):
    child(2)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["used", "new"])
def test_children_of_a_fork_have_threads_of_their_own(before: str) -> None:
    """Children, their children, and the parent afterwards: none waits for threads that are gone."""
    package = {"PYTHONPATH": str(Path(rc.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, before],
        env={**os.environ, **package},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_an_interrupt_waits_for_all_threads() -> None:
    """Whoever is told of it may free the arrays that they write."""
    begun, may_end, ended = threading.Event(), threading.Event(), list[int]()

    class Kernel:
        def __init__(self, nest: Any) -> None:
            self._is_first = nest.problem.extents["m"] == 3

        def __call__(self, *addresses: int) -> None:
            if self._is_first:
                begun.wait(10)
                threading.Timer(0.2, may_end.set).start()
                raise KeyboardInterrupt
            begun.set()
            may_end.wait(10)
            ended.append(addresses[0])

    nest = scheduled(rc.nest.contraction("mk,kn->mn", dict(m=5, k=2, n=2)), "parallel m/3 m k n")
    with pytest.raises(KeyboardInterrupt):
        Team(nest, 2, Kernel).call(0, 0, 0)
    assert ended == [24]


@pytest.mark.parametrize("failing", [3, 2])  # the caller's part, and another thread's
def test_what_a_thread_raises_is_raised(failing: int) -> None:
    class Kernel:
        def __init__(self, nest: Any) -> None:
            self._rows = nest.problem.extents["m"]

        def __call__(self, *addresses: int) -> None:
            if self._rows == failing:
                raise ValueError(str(failing))

    nest = scheduled(rc.nest.contraction("mk,kn->mn", dict(m=5, k=2, n=2)), "parallel m/3 m k n")
    with pytest.raises(ValueError, match=str(failing)):
        Team(nest, 2, Kernel).call(0, 0, 0)
