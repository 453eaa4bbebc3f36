"""The native window is its Python twin; its threads neither deadlock, race nor leak."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from built import FOLDER, build_stress
from random_tasks import drive, in_order, programs, random_program
from recurra.cli import main
from recurra.support import native_extension
from recurra.support.cxx_toolchain import BuildError
from recurra.support.notices import tell_once
from recurra.window import MEMORY, Executor, Segment, Task, Window, WindowError
from recurra.window.history_checker import violations
from recurra.window.native.native_build import WINDOW, build
from recurra.window.native.native_window import NativeWindow, is_available, load
from recurra.window.python_window import Scheduler

needs_compiler = pytest.mark.needs_compiler
Make = Callable[[int, int], Scheduler]


@pytest.fixture(scope="module")
def native() -> Make:
    build(FOLDER)
    return lambda size, queue: NativeWindow(size, queue, folder=FOLDER)


class Both:
    """Two windows that are driven alike, and must do alike."""

    def __init__(self, one: Scheduler, other: Scheduler):
        self.one, self.other = one, other

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            answer = getattr(self.one, name)(*arguments)
            assert getattr(self.other, name)(*arguments) == answer
            assert self.one.slots() == self.other.slots()
            assert self.one.waiting() == self.other.waiting()
            assert self.one.ready() == self.other.ready()
            return answer

        return call


@needs_compiler
@settings(max_examples=200)
@given(program=programs, size=st.integers(1, 64), seed=st.integers(0, 2**32))
def test_it_is_its_twin(native: Make, program: list[Task], size: int, seed: int) -> None:
    rng = random.Random(seed)
    queue = rng.randint(1, 5)
    both = Both(Window(size, queue), native(size, queue))
    happened, memory = drive(both, program, rng.randrange)  # type: ignore[arg-type]
    assert not violations(program, happened, slots=size)
    assert memory.bytes == in_order(program).bytes


@needs_compiler
def test_tasks_of_many_segments(native: Make) -> None:
    """Rows of segments grow and are given back."""
    for seed in range(20):
        rng = random.Random(seed)
        both = Both(Window(8, 4), native(8, 4))
        drive(both, random_program(seed, 60, wide=True), rng.randrange)  # type: ignore[arg-type]


@needs_compiler
def test_addresses_of_64_bits(native: Make) -> None:
    top = 2**64 - 1
    edge = [Segment(top - 8, 8), Segment(top - 16, 8), Segment(top - 9, 2), MEMORY, Segment(0, 1)]
    for first in edge:
        for second in edge:
            both = Both(Window(2, 1), native(2, 1))
            both.offer(Task("a", writes=(first,)))
            both.offer(Task("b", reads=(second,)))


@needs_compiler
@pytest.mark.parametrize("ticket", [0, 1, 2, -1, 2**70])
def test_it_refuses_like_its_twin(native: Make, ticket: int) -> None:
    told: list[str] = []
    for window in (Window(1, 4), native(1, 4)):
        for _ in range(2):
            window.offer(Task("a", writes=(Segment(0, 8),)))
        window.retire(window.take() or 0)
        with pytest.raises((WindowError, TypeError)) as error:
            window.retire(ticket)
        told.append(str(error.value))
    assert told[0] == told[1]


@needs_compiler
@pytest.mark.parametrize(("size", "queue"), [(0, 1), (65, 1), (4, 0)])
def test_windows_that_cannot_be(native: Make, size: int, queue: int) -> None:
    with pytest.raises(WindowError):
        native(size, queue)


@needs_compiler
@pytest.mark.parametrize("size", [1, 16, 64])
def test_what_is_timed_for_table_2_is_one_answer(native: Make, size: int) -> None:
    native(4, 4)
    clock = load().CheckClock(size, 8, 2, 300)
    ns, bits = clock.columns(2)
    assert ns > 0
    assert 0 < bits < 300 * size
    assert clock.algorithm1(1)[1] == bits


def sanitized(
    kind: str, folder: Path, schedules: int, seed: int
) -> subprocess.CompletedProcess[str]:
    program = build_stress(folder, kind)
    return subprocess.run(
        [str(program), str(schedules), str(seed)], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["thread", "address"])
def test_threads_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    done = sanitized(kind, tmp_path, 1500, 7)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "1500 schedules\n"


@needs_compiler
@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_many_schedules_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    done = sanitized(kind, tmp_path, 100_000, 11)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_compiler_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert native_extension.find(WINDOW) is None
    assert main(["window", "build"]) == 1
    assert "there is no C++ compiler" in capsys.readouterr().err


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is built, nothing can be, and nothing has been loaded or told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delitem(sys.modules, "_recurra_window", raising=False)
    for known in (is_available, tell_once):
        known.cache_clear()
    yield
    is_available.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_a_native_window_is_refused() -> None:
    with pytest.raises(BuildError, match=r"there is no C\+\+ compiler\n.*\n  hint: \w"):
        NativeWindow()
    with pytest.raises(BuildError, match="there is no C\\+\\+ compiler"):
        Executor(2, native=True)


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_window_is_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    """An executor that is asked for neither falls back, aloud, and once."""
    done: list[int] = []
    for _ in range(2):
        with Executor(2, policy="always") as run:
            for k in range(8):
                run.launch(done.append, k)
        assert not run.native
    assert done == [*range(8), *range(8)]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "recurra: the window runs in Python, which is slower: there is no C++ compiler: "
        "there is no no-such-compiler on the path, which CXX names; "
    )


@needs_compiler
def test_what_the_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "--no-such-flag")
    with pytest.raises(BuildError, match="no-such-flag"):
        build(tmp_path)
