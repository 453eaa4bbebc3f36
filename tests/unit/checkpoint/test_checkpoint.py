"""Checkpoints: bit-identical round trips, and nothing saved is lost by kills or full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError
from recurra.ir.graph import Graph
from recurra.support import safetensors_file

META = {"graph_hash": "abc", "counters": {"i": 3}}


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "dnn/0/W": rng.normal(size=(3, 4)).astype("f4"),
        "dnn/0/W.T": rng.normal(size=(3, 4)).T,
        "every second": np.arange(10)[::2],
        "scalar": np.asarray(2.5),
        "empty": np.zeros((0, 3), "i4"),
        "mask": np.array([True, False]),
        "key": np.array([1, 2**32 - 1], "u4"),
        "z é": np.array([1 + 2j], "c8"),
        "big endian": np.arange(3, dtype=">f8"),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].shape == b[k].shape and a[k].dtype.name == b[k].dtype.name and (a[k] == b[k]).all()
        for k in a
    )


def test_round_trip(tmp_path: Path):
    path = checkpoint.save(tmp_path, arrays(), META)
    found = checkpoint.load(tmp_path)
    assert same(arrays(), found.arrays)
    assert (found.path, found.meta, found.warning) == (path, META, "")
    assert all(a.flags.writeable for a in found.arrays.values())


def test_other_programs_read_it(tmp_path: Path):
    from safetensors.numpy import load_file

    assert same(arrays(), load_file(checkpoint.save(tmp_path, arrays(), META)))


def test_a_file_by_itself_has_words_and_a_checksum(tmp_path: Path):
    path, words = tmp_path / "one.safetensors", {"format": "pt", "why": 'a "word", ü'}
    safetensors_file.write(path, arrays(), words)
    found, beside = safetensors_file.read(path)
    assert same(arrays(), found)
    assert {k: beside[k] for k in words} == words
    assert safetensors_file.is_whole(path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert not safetensors_file.is_whole(path)


def test_bfloat16_in_a_fresh_process(tmp_path: Path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    checkpoint.save(tmp_path, {"h": np.arange(3).astype(ml_dtypes.bfloat16)}, META)
    code = "import sys; from recurra.checkpoint import checkpoint as c\n"
    code += "print(c.load(sys.argv[1]).arrays['h'])"
    text = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True)
    assert text == "[0 1 2]\n"


def test_numbers_rotate(tmp_path: Path):
    for k in range(5):
        checkpoint.save(tmp_path, arrays(k), {"counters": {"i": k}}, keep=2)
    assert [p.stem for p in checkpoint.saved(tmp_path)] == ["00000004", "00000005"]
    assert checkpoint.load(tmp_path).meta["counters"] == {"i": 4}
    assert same(arrays(3), checkpoint.load(checkpoint.saved(tmp_path)[0]).arrays)


def test_no_array_at_all(tmp_path: Path):
    checkpoint.save(tmp_path, {}, {})
    assert checkpoint.load(tmp_path).arrays == {}


def test_numpy_counters_are_numbers(tmp_path: Path):
    checkpoint.save(tmp_path, {}, {"counters": {"i": np.int64(7)}, "lr": np.float32(0.5)})
    assert checkpoint.load(tmp_path).meta == {"counters": {"i": 7}, "lr": 0.5}


@pytest.mark.parametrize(
    ("bad", "meta", "says"),
    [
        ({"x": np.array(["text"])}, {}, "array 'x' cannot be saved"),
        ({"x": np.zeros(1, "c16")}, {}, "its dtype is complex128"),
        ({"x": np.array([{}])}, {}, "its dtype is object"),
        ({"__metadata__": np.zeros(1)}, {}, "keeps this name for itself"),
        ({}, {"counters": {3: 1}}, "has the key 3"),
        ({}, {"theta": np.zeros(2)}, "put arrays into `arrays`"),
    ],
)
def test_refusals(tmp_path: Path, bad: dict[str, Any], meta: dict[str, Any], says: str):
    with pytest.raises(RecurraError, match=says):
        checkpoint.save(tmp_path, bad, meta)
    assert checkpoint.saved(tmp_path) == []


def test_keep_must_keep(tmp_path: Path):
    with pytest.raises(RecurraError, match="keep=0"):
        checkpoint.save(tmp_path, {}, {}, keep=0)


def test_another_program_is_refused(tmp_path: Path):
    checkpoint.save(tmp_path, {}, META)
    assert checkpoint.load(tmp_path, graph_hash="abc").meta == META
    with pytest.raises(RecurraError, match="saved by graph abc, this one is abd"):
        checkpoint.load(tmp_path, graph_hash="abd")


@pytest.mark.parametrize(
    ("empty", "says"), [("", "no checkpoint in"), ("missing", "stopped before it had saved one")]
)
def test_nothing_there(tmp_path: Path, empty: str, says: str):
    with pytest.raises(RecurraError, match=says):
        checkpoint.load(tmp_path / empty)


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "empty":
            data = bytearray()
        case "short header":
            data = data[:40]
        case "short":
            data = data[:-1]
        case "longer":
            data += b"\0"
        case "bit in the data":
            data[-3] ^= 16
        case "bit in the meta":
            data[data.index(b"counters")] ^= 1
        case _:
            data = bytearray(len(data))
    path.write_bytes(data)


DAMAGE = ["empty", "short header", "short", "longer", "bit in the data", "bit in the meta", "zero"]


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_newest_falls_back_aloud(tmp_path: Path, how: str):
    checkpoint.save(tmp_path, arrays(1), META)
    newest = checkpoint.save(tmp_path, arrays(2), META)
    damaged(newest, how)
    said: list[str] = []
    found = checkpoint.load(tmp_path, warn=said.append)
    assert same(arrays(1), found.arrays)
    assert said == [found.warning]
    assert str(newest) in found.warning
    assert "went back to 00000001.safetensors" in found.warning
    with pytest.raises(RecurraError):
        checkpoint.load(newest)
    damaged(found.path, how)
    with pytest.raises(RecurraError, match="is whole"):
        checkpoint.load(tmp_path)


def test_every_truncation_is_noticed(tmp_path: Path):
    path = checkpoint.save(tmp_path, {"x": np.arange(4.0)}, META)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(RecurraError):
            checkpoint.load(path)


def test_every_flipped_bit_is_noticed(tmp_path: Path):
    path = checkpoint.save(tmp_path, {"x": np.arange(4.0)}, META)
    data = path.read_bytes()
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(RecurraError):
            checkpoint.load(path)


def test_warning_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    checkpoint.save(tmp_path, {}, META)
    damaged(checkpoint.save(tmp_path, {}, META), "short")
    checkpoint.load(tmp_path)
    assert "cannot be read" in capsys.readouterr().err


def test_number_is_never_reused_after_damage(tmp_path: Path):
    checkpoint.save(tmp_path, arrays(1), META)
    damaged(checkpoint.save(tmp_path, arrays(2), META), "zero")
    assert checkpoint.save(tmp_path, arrays(3), META).stem == "00000003"


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    checkpoint.save(tmp_path, arrays(1), META)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RecurraError, match=r"No space left on device.*1 earlier"):
            checkpoint.save(tmp_path, arrays(2), META, keep=1)
    assert same(arrays(1), checkpoint.load(tmp_path).arrays)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "00000001.safetensors"]


FILLER = """
import resource, signal, sys
import numpy as np
from recurra.errors import RecurraError
from recurra.ir.graph import Graph
from recurra.checkpoint import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
checkpoint.save(sys.argv[1], {"x": np.ones(1000)}, {})
try:
    checkpoint.save(sys.argv[1], {"x": np.ones(100_000)}, {}, keep=1)
except RecurraError as error:
    print(error)
"""


def test_write_that_runs_out_of_room(tmp_path: Path):
    text = subprocess.check_output([sys.executable, "-c", FILLER, str(tmp_path)], text=True)
    assert "could not be saved" in text
    assert checkpoint.load(tmp_path).arrays["x"].shape == (1000,)
    assert not list(tmp_path.glob(".part*"))


SAVER = """
import itertools, sys, time
import numpy as np
from recurra.checkpoint import checkpoint
from recurra.support import atomic_write as atomic

def slowly(chunks):  # most kills shall fall into the writing
    for chunk in chunks:
        for at in range(0, len(chunk), 100_000):
            yield chunk[at : at + 100_000]
            time.sleep(0.0005)

create = atomic.create
atomic.create = lambda path, chunks: create(path, slowly(chunks))
start, keep = int(sys.argv[2]), int(sys.argv[3])
for i in itertools.count(start):
    x = np.full(200_000, i, np.int64)
    checkpoint.save(sys.argv[1], {"a/x": x, "y": x[:7]}, {"counters": {"i": i}}, keep=keep)
    print(i, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 3])
def test_kills_lose_nothing_that_was_reported(tmp_path: Path, keep: int):
    """Ten kills at random moments (twenty in all): the newest reported one is there and whole."""
    rng, reported = random.Random(keep), -1
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(reported + 1), str(keep)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        reported = int(child.stdout.readline())
        time.sleep(rng.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        reported = max([reported, *map(int, child.stdout.read().split("\n")[:-1])])
        child.stdout.close()
        child.wait()
        found = checkpoint.load(tmp_path, warn=pytest.fail)
        i = found.meta["counters"]["i"]
        assert i in (reported, reported + 1)  # + 1: saved, but killed before it could say so
        assert (found.arrays["a/x"] == i).all()
        assert len(found.arrays["a/x"]) == 200_000
        assert len(checkpoint.saved(tmp_path)) <= keep + 1
        assert len(list(tmp_path.glob(".part*"))) <= 1
        reported = i


def test_two_writers_do_not_lose_each_other(tmp_path: Path):
    code = SAVER.replace("itertools.count(start)", "range(start, start + 8)")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), start, "16"], stdout=subprocess.DEVNULL
        )
        for start in ("0", "100")
    ]
    assert [child.wait() for child in children] == [0, 0]
    seen = {checkpoint.load(p).meta["counters"]["i"] for p in checkpoint.saved(tmp_path)}
    assert seen == {*range(8), *range(100, 108)}


def test_a_program_that_is_traced_again_is_the_same_program():
    """Its functions and data are other objects, under the same names."""

    def graph(twice: bool = False) -> Graph:
        ctx = rc.Context(num_dims=1)
        with ctx as ((t, T),):
            f, g = (rc.jax_fn(lambda x, k=k: x + k, name="step") for k in (1.0, 2.0))
            x = rc.like(rc.f32[2], domain=(t,))
            x[0] = np.array([1.0, 2.0])
            x[t + 1] = g(g(x)) if twice else g(f(x))
            rc.output(x=x)
        return ctx.graph

    assert graph().fingerprint() == graph().fingerprint()
    assert graph().fingerprint() != graph(twice=True).fingerprint()
