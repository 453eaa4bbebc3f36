"""Offloaded stores: the same answers to the last bit, few points in memory, failures told."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from documents import env
from numpy_memory import counted
from offloaded_learner import IMAGE, SMALL, learner
from program_checks import compiled, oracle, same
from random_cases import QUICK
from random_programs import Case, programs
from recurra.backends.jax.region import JaxBackend
from recurra.backends.registry import backend_of
from recurra.checkpoint import checkpoint
from recurra.compiler.pass_manager import PassManager
from recurra.errors import RecurraError
from recurra.runtime.offload.paged_buffer import Mover, Paged
from recurra.runtime.offload.tiers import Disk, HostTier
from recurra.storage.offload import Offload
from recurra.support.filesystem import file_system


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_to_the_last_bit(backend: str) -> None:
    want = learner(backend).run(seed=1)["loss"]
    for offload in (SMALL, Offload("host", least=0, room=2), Offload("disk", least=0, room=12)):
        p = learner(backend, offload=offload)
        np.testing.assert_allclose(p.run(seed=1)["loss"], want, rtol=1e-5)
        assert p.run(seed=1)["loss"].tobytes() == p.run(seed=1)["loss"].tobytes()
        assert p.execution.mover is not None
        moved = {m.store for m in p.execution.mover.moves if m.out}
        assert "o" in moved
        assert "o_store[t]" in p.source
        assert "o_store.empty(t)" in p.source
        assert "o_store[-t_back]" in p.source


def test_no_more_points_are_there_than_said() -> None:
    p, all_ = learner(offload=SMALL), learner()
    assert all_.memory.nbytes - p.memory.nbytes > 5 * 4 * int(np.prod(IMAGE))
    p.run()
    with counted() as count:
        p.run()
    assert count.peak <= 1.05 * p.memory.nbytes


@pytest.mark.slow
@QUICK
@given(programs(), st.sampled_from(["host", "disk"]), st.integers(2, 4))
def test_random_programs(case: Case, tier: Any, room: int) -> None:
    want, backend = oracle(case), backend_of("numpy")
    moved = compiled(case, backend, want, offload=Offload(tier, least=0, room=room))
    same(case, moved, compiled(case, backend, want), "not offloaded")


# ---- a store, beside a list


class Slowest:
    """Where a point is written or read only when it is waited for, and never twice at once."""

    def __init__(self) -> None:
        self.inner, self.busy = HostTier(backend_of("numpy")), False

    def put(self, k: int, x: np.ndarray) -> None:
        assert not self.busy
        self.busy = True
        self.inner.put(k, x)
        self.busy = False

    def get(self, k: int) -> np.ndarray:
        assert not self.busy
        return self.inner.get(k)

    def rows(self, k: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        assert not self.busy
        self.inner.rows(k, rows, to, out)

    def close(self) -> None:
        self.inner.close()


MOVES = st.lists(
    st.tuples(st.sampled_from(["fill", "read", "change", "up", "down", "some"]), st.integers(0, 7)),
    max_size=40,
)


@settings(QUICK, max_examples=200)
@given(MOVES, st.integers(2, 5))
def test_any_order_of_moves(moves: list[tuple[str, int]], room: int) -> None:
    """`fill` writes without reading, `change` adds to what is there; `up`, `down` read many, `some`
    single numbers of points here and there."""
    mover, want = Mover(), [0.0] * 8
    s = Paged("x", 8, room, (3,), np.dtype("f8"), Slowest(), backend_of("numpy"), mover)
    for now, (what, k) in enumerate(moves, 1):
        if what == "fill":
            x = s.empty(k)
            x[:] = want[k] = float(now)
            s[k] = x
        elif what == "change":
            x = s.writable(k)
            x += 1.0
            want[k] += 1.0
            s[k] = x
        elif what == "some":
            points = np.random.default_rng(now).integers(0, 8, k)
            found = s.rows(points, np.arange(k) % 3, 1)
            assert found.tolist() == [want[j] for j in points]
        else:
            ways = {"read": [k], "up": range(k, 8), "down": range(k, -1, -1)}
            for j in ways[what]:
                assert (s[j] == want[j]).all()
        assert len(s.here) + len(s.ahead) <= room
    assert [s[k][0] for k in range(8)] == want
    mover.close()


# ---- what goes wrong


def test_jax_never_takes_the_memory_of_an_array_of_numpy() -> None:
    """Also where it lies as JAX would have it: it is written to when the copy is there."""
    backend, n = JaxBackend(), 4096
    for _ in range(20):
        room = np.empty(n + 64, np.uint8)
        at = -room.ctypes.data % 64
        x = room[at : at + n]
        x[:] = 1
        made = backend.array(x)
        x[:] = 2
        assert (np.asarray(made) == 1).all()


@pytest.mark.slow
def test_pinned_memory_of_the_host() -> None:
    """As where the device has memory of its own; on a CPU, XLA's pinned memory is apart as well."""
    backend: Any = JaxBackend(pinned=True)
    x = backend.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    there = HostTier(backend)
    there.put(5, x)
    assert there.points[5].sharding.memory_kind == "pinned_host"
    out = np.zeros((2, 4), np.float32)
    there.rows(5, np.array([2, 0]), np.array([1, 0]), out)
    x.delete()  # as a launch does that it is donated to
    assert there.get(5).sharding.memory_kind == "device"
    np.testing.assert_array_equal(there.get(5), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(out, [[0, 1, 2, 3], [8, 9, 10, 11]])
    p = learner("jax", offload=Offload("host", least=0))
    want = p.run(seed=1)["loss"]
    p.execution.backend = backend
    assert p.run(seed=1)["loss"].tobytes() == want.tobytes()


def test_what_cannot_be_swapped_stays_and_says_so() -> None:
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, iterations), (t, T)):
        w = rc.like(rc.f32, domain=(i,))
        w[0] = 0.5
        x = rc.like(rc.f32[64], domain=(b, i, t), name="x")
        x[b, i, 0] = w.broadcast_to((64,))
        x[b, i, t + 1] = (x * 1.01).tanh()
        y = x[b, i, t : rc.min(t + 3, T)].mean(axis=0) * x[b, i, T - 1 - t]
        w[i + 1] = w + 0.01 * y[0:B, i, 0:T].mean()
        rc.output(y=w)
    bounds = {B: 4, iterations: 2, T: 20}
    p = ctx.compile(bounds, backend="numpy", offload=SMALL)
    told = [x for x in p.compiled.stages.decisions if x.startswith("x: ")]
    assert told
    assert "stay" in told[0]
    q = ctx.compile(bounds, backend="numpy")
    np.testing.assert_array_equal(p.run()["y"], q.run()["y"])


def test_small_stores_go_where_there_are_no_large_ones() -> None:
    p = learner(offload="disk")
    assert [s.name for s in p.compiled.plan.stores.values() if s.nbytes(p.sizes) >= 4096] == ["o"]
    assert {s.name for s in p.compiled.program.plan.stores.values() if s.room} == {"o"}
    assert p.memory.nbytes < learner().memory.nbytes
    large = learner(picture=(3, 32, 32), memory_price=1.0, tile_rows=512, offload="disk")
    kept = {s.name: s for s in large.compiled.program.plan.stores.values()}
    assert {n for n, s in kept.items() if s.room} == {"o"}
    assert any(s.nbytes(large.sizes) >= 4096 for n, s in kept.items() if n != "o" and s.kept)


def test_a_program_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no store is large, and small ones are tried."""
    begun = list[int]()
    begin = PassManager.begin
    monkeypatch.setattr(
        PassManager, "begin", lambda self, graph: (begun.append(1), begin(self, graph))[1]
    )
    for offload in ("disk", Offload(stores=("none",))):
        begun.clear()
        p = learner(offload=offload)
        assert len(begun) == 1
        assert (p.compiled.program.offload is not None) == (offload == "disk")


def test_where_nothing_can_be_swapped_it_is_said_why() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32[64], domain=(t,), name="x")
        x[0] = rc.ones(64)
        x[t + 1] = x * 0.5
        y = rc.like(rc.f32[2], domain=(b, t), name="y")
        y[b, 0] = rc.ones(2)
        y[b, t + 1] = y * x[T - 1 - t].mean()
        rc.output(y=y, last=x[T - 1])
    bounds = {B: 3, T: 20}
    p = ctx.compile(bounds, backend="numpy", offload="host")
    assert p.compiled.program.offload is None
    assert p.compiled.stages.decisions[-1] == (
        "offload: nothing goes to the host: x, 5,120 B, is over t alone; y, 480 B, is an output; "
        "last, 256 B, is an output"
    )
    named = ctx.compile(bounds, backend="numpy", offload=Offload(stores=("z",)))
    assert named.compiled.stages.decisions[-1] == "offload: nothing goes to the disk: z is no store"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: Offload("tape"), "nothing can be offloaded to 'tape'"),  # pyright: ignore[reportArgumentType]
        (lambda: Offload(room=1), "1 points of a store cannot be in memory at once"),
        (lambda: Offload(folder="/nowhere"), "there is no folder /nowhere to offload to"),
        (lambda: Offload(least="much"), "'much' is no amount of memory"),
        (lambda: learner(offload="tape"), "nothing can be offloaded to 'tape'"),
        (lambda: learner("jax", offload="disk", workers=2), "of several workers"),
        (lambda: learner(offload=SMALL).run(window=2), "through a window"),
    ],
)
def test_mistakes(wrong: Callable[[], Any], match: str) -> None:
    with pytest.raises(RecurraError, match=match):
        wrong()


def test_memory_is_no_disk() -> None:
    assert file_system(Path("/dev/shm")) == "tmpfs"
    with pytest.raises(RecurraError, match="/dev/shm is memory, not a disk"):
        learner(offload=Offload("disk", "/dev/shm", least=0)).run()


def test_a_folder_that_cannot_be_written_to() -> None:
    with pytest.raises(RecurraError, match="o cannot be offloaded to /proc") as told:
        learner(offload=Offload("disk", "/proc", least=0)).run()
    assert "hint: name another folder" in str(told.value)


@pytest.mark.slow
def test_a_disk_without_room_is_known_before_the_first_step(tmp_path: Path) -> None:
    text = f"""
import resource
from pathlib import Path
from offloaded_learner import learner
from recurra.storage.offload import Offload
p = learner(folder=Path({str(tmp_path)!r}), offload=Offload("disk", {str(tmp_path)!r}, least=0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
seen = []
try:
    p.run(on_step=lambda first, metrics: seen.append(first))
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], len(seen))
"""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, env=env())
    assert done.stdout == f"RecurraError o cannot be offloaded to {tmp_path} 0\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pwrite", "preadv", "fdatasync"])
def test_a_disk_that_fails_ends_the_run_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What was saved before is there, and a resumed run gives what the whole one gives."""
    offload = Offload("disk", str(tmp_path), least=0, stores=("o",))
    whole_ = learner(folder=tmp_path / "whole", offload=offload).run(seed=2)["loss"]
    p, calls, real = learner(folder=tmp_path / "run", offload=offload), 0, getattr(os, call)
    monkeypatch.setattr("recurra.runtime.offload.tiers.MAX_UNWRITTEN_BYTES", 1)

    def fails(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 30:
            raise OSError(28 if call == "pwrite" else 5, "No space left on device")
        return real(*given)

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(RecurraError, match="No space left on device") as told:
        p.run(seed=2)
    assert "go" in str(told.value)
    monkeypatch.undo()
    saved = checkpoint.saved(tmp_path / "run" / "checkpoints")
    assert saved
    rest = p.run(resume=tmp_path / "run")["loss"]
    assert rest.tobytes() == whole_[-len(rest) :].tobytes()
    assert 0 < len(rest) < len(whole_)


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    disk, x = Disk("x", 4, 80, str(tmp_path)), np.arange(10.0)
    disk.write(2, x)
    back = np.empty(10)
    disk.read(2, back)
    np.testing.assert_array_equal(back, x)
    os.ftruncate(disk.file.fileno(), 200)
    with pytest.raises(RecurraError, match="40 of 80 bytes are there"):
        disk.read(2, back)
    disk.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_recorded_run_says_what_is_moved_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner().run(folder=tmp_path / "kept")
    assert "offload" not in capsys.readouterr().out
    offload = Offload("disk", str(tmp_path), least=0, stores=("o",))
    learner(offload=offload).run(folder=tmp_path / "moved")
    assert f"offload: o, 9,216 bytes in all, to the disk of {tmp_path}\n" in capsys.readouterr().out


def test_the_thread_ends_with_the_run() -> None:
    p = learner(offload=SMALL)
    steps = p.execution.steps(0)
    next(steps)
    steps.close()
    assert p.execution.mover is not None
    with pytest.raises(RuntimeError, match="after shutdown"):
        p.execution.mover.move("o", 0, True, lambda: None)


def test_the_thread_ends_with_an_error_that_is_kept() -> None:
    """An error holds the frames that it went through, and these the run."""
    p = learner(offload=SMALL, launch_steps=1)

    def fails(*_: Any) -> None:
        raise KeyError

    with pytest.raises(KeyError) as kept:
        p.run(on_step=fails)
    assert kept.tb is not None
    assert p.execution.mover is not None
    assert not p.execution.mover.closing.alive


LEFT = """
import numpy as np
from offloaded_learner import SMALL, learner
steps = learner(offload=SMALL, chunk=1).execution.steps(0)
next(steps)
"""
WAITING = """
store = steps.gi_frame.f_locals["run"].mover.stores[0]
store.take_early("call", lambda: (np.arange(2), np.zeros(2)), lambda: np.arange(2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [LEFT, LEFT + WAITING], ids=["idle", "waiting for samples"])
def test_a_run_that_is_never_ended_ends_with_the_process(code: str) -> None:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=env(), capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr == ""
