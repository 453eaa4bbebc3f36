"""A resumed run is the run itself, to the last bit, or says aloud why it is not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import recurra as rc
from compiled_once import forget
from documents import SUPPORT, env
from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError
from recurra.report.runs import RunFolder
from recurra.rl import state_serialization
from recurra.runtime.checkpointing import Unsaved
from recurra.runtime.executable import Executable
from walks import Walk, registered

Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True, scope="module")
def walks() -> Iterator[None]:
    with registered():
        gymnasium.register("Locked-v0", Locked)
        yield
        del gymnasium.registry["Locked-v0"]


class Locked(Walk):
    """Holds something that cannot be looked into."""

    def __init__(self):
        self.lock = threading.Lock()


def learner(
    folder: Path, env: Callable[[], Any], backend: str = "numpy", iterations: int = 9
) -> Any:
    """A policy that learns, by an environment that the program makes; saved every third time."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        e = env()
        dnn = rc.nn.DNNBuilder(domain=(i,)).from_env(e, hidden=[3]).build()
        o = rc.like(e.observation_space, domain=(b, i, t))
        o[b, i, 0] = e.reset(domain=(b, i))
        pi = dnn(o)
        o[b, i, t + 1], r, d = e.step(pi.sample())
        loss = (-e.last.live.cast("f32") * r * pi.log_prob(pi.sample()))[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.Adam(dnn.params, lr=1e-2).step()
        dnn[i % 3 == 0].checkpoint(folder)
        rc.log(loss=loss, seen=o[0:B, i, 0:T].sum())
    return ctx.compile({B: 3, I: iterations, T: 7}, backend=backend)


def resumed(program: Executable, folder: Path) -> tuple[Arrays, Arrays]:
    """The whole run, and the same from the last checkpoint on."""
    whole = program.run(seed=3)
    forget(program)
    return whole, program.run(resume=folder)


MODES = [
    lambda mode=mode: rc.rl.env.make(
        "Walk-v0", episodes="autoreset", vector_kwargs={"autoreset_mode": mode}
    )
    for mode in AutoresetMode
]
OTHERS = [
    lambda: rc.rl.env.make("Walk-v0"),
    lambda: rc.rl.env.make("Walks-NEXT_STEP-v0", episodes="autoreset"),
    lambda: rc.rl.env.make("Walks-SAME_STEP-v0", episodes="autoreset"),
    lambda: rc.rl.env.make("CartPole-v1", episodes="autoreset", max_episode_steps=9),
    lambda: rc.rl.env.make("CliffWalking-v1", episodes="autoreset"),
    lambda: rc.rl.env.make("Acrobot-v1", episodes="autoreset", max_episode_steps=9),
]


@pytest.mark.slow
@pytest.mark.parametrize("env", MODES + OTHERS)
def test_to_the_last_bit(tmp_path: Path, env: Any, capsys: pytest.CaptureFixture[str]):
    whole, rest = resumed(learner(tmp_path, env), tmp_path)
    assert [p.stem for p in checkpoint.saved(tmp_path / "checkpoints")] == ["00000003", "00000006"]
    for name, values in whole.items():
        assert rest[name].tobytes() == values[6:].tobytes(), name
    assert len(np.unique(whole["loss"])) == 9
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")  # both runs are of one program
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_to_the_last_bit_compiled(tmp_path: Path, backend: str):
    whole, rest = resumed(learner(tmp_path, MODES[0], backend), tmp_path)
    for name, values in whole.items():
        assert rest[name].tobytes() == values[6:].tobytes(), name


def test_what_cannot_be_restored_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    env = lambda: rc.rl.env.make("Locked-v0", episodes="autoreset")  # noqa: E731
    program = learner(tmp_path, env)
    whole = program.run(seed=3)
    said = capsys.readouterr().err
    assert said.count("the state of Locked-v0(episodes='autoreset')") == 1
    assert ".lock cannot be saved\n  it is a _thread.lock, whose insides" in said
    consequence = "starts new episodes there: metrics will not be those of a run that was not"
    assert consequence in said
    forget(program)
    rest = program.run(resume=tmp_path)
    assert consequence in capsys.readouterr().err
    assert (rest["seen"] != whole["seen"][6:]).any()


def test_stores_live_on(tmp_path: Path):
    """What is read several iterations later is in no variable."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="w")
        x = rc.like(rc.f32[()], domain=(i,), name="x")
        old = rc.like(rc.f32[()], domain=(i,), name="old")
        old[i < 4] = 1.0
        old[i] = x[i - 4]
        x[i] = old * 0.5 + rc.uniform((i, t))[i, 0:T].mean() + w
        loss = (w - x[rc.max(i - 2, 0)].detach()).square()
        loss.backward()
        rc.optim.Adam([w], lr=0.1).step()
        rc.log(loss=loss)
    for backend in ("numpy", "jax", "torch"):
        program = ctx.compile({I: 20, T: 4}, backend=backend, launch_steps=3)
        whole, steps = with_states(program)
        assert len(steps) == 7
        for hi, variables in steps.items():
            got = program.run(resume=(hi, variables))["loss"]
            assert got.tobytes() == whole[len(whole) - len(got) :].tobytes()


def with_states(program: Executable) -> tuple[np.ndarray, dict[int, Arrays]]:
    """The loss of a run, and what lives on after each launch."""
    steps: dict[int, Arrays] = {}

    def keep(s: Any) -> None:
        steps[s.hi] = {k: np.array(v) for k, v in s.variables.items()}

    return program.run(on_state=keep)["loss"], steps


def test_frozen_parameters_are_saved(tmp_path: Path):
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        fixed = rc.nn.Linear(2, 3, (i,))
        moving = rc.nn.Linear(3, 1, (i,))
        both = rc.nn.Sequential(fixed, moving)
        y = moving(fixed(rc.constant([1.0, 2.0])).detach()).sum()
        y.backward()
        rc.optim.SGD(moving.params, lr=0.1).step()
        both[i % 2 == 1].checkpoint(tmp_path)
        rc.log(y=y)
        rc.output(w=fixed.weight, v=moving.weight)
    found = ctx.run({I: 6}, seed=4)
    saved = checkpoint.load(tmp_path / "checkpoints")
    assert saved.meta["counters"] == {"i": 5}
    assert saved.path.name == "00000005.safetensors"
    assert {k for k in saved.arrays if k.startswith("layers")} == {
        f"layers.{k}.{name}" for k in (0, 1) for name in ("weight", "bias")
    }
    np.testing.assert_allclose(saved.arrays["layers.0.weight"], found["w"][5], rtol=1e-6)
    np.testing.assert_array_equal(saved.arrays["layers.1.weight"], found["v"][5])


def test_metrics_go_on_in_their_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program = learner(tmp_path, MODES[0])
    program.run(seed=3, folder=tmp_path)
    before = RunFolder(tmp_path).rows()
    forget(program)
    program.run(folder=tmp_path, resume=tmp_path)
    after = RunFolder(tmp_path).rows()
    assert [untimed(r) for r in before] == [untimed(r) for r in after]
    assert [r["time"] for r in before][:6] == [r["time"] for r in after][:6]
    assert after[-1]["time"] > before[-1]["time"]
    assert RunFolder(tmp_path).read_config()["seed"] == 3


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != "time"}


def test_what_does_not_fit_is_refused_or_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learner(tmp_path, OTHERS[0]).run(seed=3)
    with pytest.raises(RecurraError, match="this checkpoint belongs to another program"):
        learner(tmp_path, MODES[0]).run(resume=tmp_path)
    path = checkpoint.saved(tmp_path / "checkpoints")[-1]
    found = checkpoint.load(path)
    meta = found.meta | {"backend": "jax", "decisions": ["t: tiles of 3"]}
    checkpoint.save(path.parent, found.arrays, meta, number=6)
    program = learner(tmp_path / "b", OTHERS[0])
    program.run(resume=path)
    said = capsys.readouterr().err
    assert "resumed on numpy, saved on jax: metrics will be" in said
    assert "decided otherwise when this was saved (t: tiles of 3)" in said
    arrays = {k: x for k, x in found.arrays.items() if not k.endswith("W1_next")}
    checkpoint.save(path.parent, arrays, found.meta, number=6)
    with pytest.raises(RecurraError, match="only the program carries W1_next; only the file has"):
        program.run(resume=path)


class Counter:
    """A host function with state of its own."""

    def __init__(self):
        self.seen = np.zeros(2, np.int32)

    def count(self, x: np.ndarray) -> np.ndarray:
        self.seen += np.int32(x)
        return self.seen.copy()

    def state_dict(self) -> Any:
        return {"seen": self.seen.copy()}

    def load_state_dict(self, tree: Any) -> None:
        self.seen = np.zeros(2, np.int32) if tree is None else tree["seen"]


def counting(folder: Path, count: Callable[..., Any]) -> Executable:
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        w = rc.nn.Linear(1, 1, (i,))
        y = rc.call(count, rc.i32[2], rc.value(i, "i32"))
        loss = w(y.cut(0, 1).cast("f32")).sum()
        loss.backward()
        rc.optim.SGD(w.params, lr=0.01).step()
        w[i % 2 == 0].checkpoint(folder)
        rc.log(y=y.sum(), loss=loss)
    return ctx.compile({I: 7})


def test_host_functions_are_saved_if_they_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    counter = Counter()
    program = counting(tmp_path, counter.count)
    whole = program.run()["y"]
    counter.load_state_dict(None)
    np.testing.assert_array_equal(program.run(resume=tmp_path)["y"], whole[6:])
    assert capsys.readouterr().err == ""
    program = counting(tmp_path / "b", lambda x: np.zeros(2))
    program.run()
    program.run(resume=tmp_path / "b")
    assert "is called on the host: if it holds state, that was not saved" in capsys.readouterr().err


def test_a_parameter_that_nothing_needs_is_told(tmp_path: Path):
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        w = rc.nn.Linear(1, 1, (i,))
        w(rc.constant([1.0])).sum().backward()
        rc.optim.SGD(w.params, lr=0.01).step()
        w.checkpoint(tmp_path)
        rc.log(i=rc.value(i))
    with pytest.raises(RecurraError, match="weight is saved, but not computed\n  --> test_resume"):
        ctx.compile({I: 3})


# ---- the state of environments


class Box:
    def __init__(self, **attributes: Any):
        vars(self).update(attributes)


def test_state_goes_round():
    rng = np.random.default_rng(5)
    shared = np.arange(3.0)
    box = Box(a=shared, b=[shared, (1, 2.5, None)], rng=rng, x=np.float32(3), inf=np.inf, s="x")
    box.me, box.inner, box.table = box, Box(k=True), {1: "one", "two": [2]}
    tree = state_serialization.capture(box, "box")
    want = rng.random(3)
    fresh = Box(inner=Box(k=False), rng=None, gone=1)
    got = state_serialization.restore(fresh, tree, "box")
    assert got is fresh is got.me
    assert got.a is got.b[0]
    np.testing.assert_array_equal(got.a, shared)
    assert (got.b[1], got.table, got.inf, got.s) == (
        (1, 2.5, None),
        {1: "one", "two": [2]},
        np.inf,
        "x",
    )
    assert (type(got.x), got.x, got.inner.k) == (np.float32, 3.0, True)
    assert not hasattr(got, "gone")
    np.testing.assert_array_equal(got.rng.random(3), want)


@pytest.mark.parametrize(
    ("box", "says"),
    [
        (Box(inside=Box(lock=threading.Lock())), "the state of env.inside.lock cannot be saved"),
        (Box(items=[iter([1])]), r"the state of env.items\[0\] cannot be saved"),
        (Box(a=(x := np.arange(4)), b=x[1:3]), "the state of env.b cannot be saved\n.*with env.a"),
        (Box(words=np.array(["a"])), "it is a numpy.ndarray, whose insides"),
    ],
)
def test_state_that_cannot_be_saved(box: Box, says: str):
    with pytest.raises(Unsaved, match=says):
        state_serialization.capture(box, "env")


def test_rows_in_other_processes_are_not_saved():
    from recurra.rl.episodes import AutoresetEpisodes
    from recurra.rl.vector_env import Spec

    host = AutoresetEpisodes(Spec("CartPole-v1", {}, "autoreset"))
    assert host.state_dict() == {"rows": 0}
    host.reset(np.zeros(2), np.int32(2), np.bool_(True), np.int32(0))
    assert host.state_dict()["rows"] == 2
    assert host.rows is not None
    elsewhere = object.__new__(AsyncVectorEnv)  # processes cannot be forked beside JAX
    elsewhere.closed = True
    host.rows.env = SimpleNamespace(unwrapped=elsewhere)
    with pytest.raises(Unsaved, match="its rows live in processes of their own"):
        host.state_dict()


# ---- kills and full disks


class Server:
    """Forks runs of `killed.py`."""

    def __init__(self):
        command = [sys.executable, str(SUPPORT / "killed.py")]
        theirs, pipe = env(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"), subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=theirs)
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, folder: Path, seconds: float | None) -> tuple[list[int], bool]:
        """Runs, and kills after some seconds: what was reported as saved; was it done?"""
        assert self.process.stdin is not None
        self.process.stdin.write(f"start {folder}\n")
        self.process.stdin.flush()
        pid = int(self.read().split()[1])
        if seconds is not None:
            time.sleep(seconds)
            with suppress(ProcessLookupError):  # it was faster
                os.kill(pid, signal.SIGKILL)
        lines = list(iter(self.read, "gone"))
        saved = [int(line.split()[1]) for line in lines if line.startswith("saved")]
        return saved, "done" in lines

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def survive(kills: int, tmp_path: Path) -> int:
    """Runs that are killed at random points and gone on with; how many of the kills hit."""
    rng, server, hits = random.Random(kills), Server(), 0
    try:
        whole = tmp_path / "whole"
        whole.mkdir()
        assert server.run(whole, None)[1]
        want = [untimed(r) for r in RunFolder(whole / "run").rows()]
        for attempt in range(10 * kills):
            folder = tmp_path / f"{attempt}"
            folder.mkdir()
            reported, done = 0, False
            while not done:
                alive = hits < kills
                saved, done = server.run(folder, rng.uniform(0.0, 0.3) if alive else None)
                hits += alive and not done
                reported = max([reported, *saved])
                if reported:
                    newest = checkpoint.load(folder / "run" / "checkpoints", warn=pytest.fail)
                    i = newest.meta["counters"]["i"]
                    assert i in (reported, reported + 3)  # + 3: killed before it could say so
                    reported = i
            assert [untimed(r) for r in RunFolder(folder / "run").rows()] == want
            if hits >= kills:
                break
    finally:
        server.close()
    return hits


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path):
    """Whenever a run is killed, it goes on to the very metrics of one that was not."""
    assert survive(20, tmp_path) == 20


@pytest.mark.fuzz
def test_a_thousand_kills(tmp_path: Path):
    assert survive(1000, tmp_path) == 1000


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_resume import OTHERS, learner
from walks import registered
from recurra.errors import RecurraError
from recurra.support import atomic_write as atomic
with registered():
    program = learner(Path(sys.argv[1]), OTHERS[0])
create, count = atomic.create, 0

def fill(path, chunks):
    global count
    count += str(path).endswith(".safetensors")
    if count == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    create(path, chunks)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
atomic.create = fill
with registered():
    try:
        program.run(seed=3)
    except RecurraError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_one(tmp_path: Path):
    command = [sys.executable, "-c", FULL, str(tmp_path), str(Path(__file__).parent)]
    said = subprocess.check_output(command, text=True, env=env())
    assert said.startswith(f"the checkpoint could not be saved in {tmp_path}/checkpoints\n")
    assert "and 1 earlier ones are untouched" in said
    assert "hint: free some space" in said
    found = checkpoint.load(tmp_path / "checkpoints", warn=pytest.fail)
    assert found.meta["counters"] == {"i": 3}
    assert json.loads(json.dumps(found.meta["hosts"])) == {"Walk-v0()": {}}
