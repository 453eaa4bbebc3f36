"""Profiles of GPUs as torch.profiler writes them: what was launched, and what follows what."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from recurra.cli import main
from recurra.window import WindowError
from recurra.window.gpu import GPUS
from recurra.window.kineto import read_profile

DEVICE = {
    "id": 0, "name": "NVIDIA H100", "numSms": 132, "warpSize": 32, "regsPerMultiprocessor": 65536,
    "maxThreadsPerMultiprocessor": 2048, "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip


class Profile:
    """Events, in the order in which the host makes calls."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now, self.number = 0.0, 0

    def call(self, name: str) -> int:
        self.now, self.number = self.now + 5, self.number + 1
        args = {"correlation": self.number}
        self.event("cuda_runtime", name, self.now, 4, args)
        return self.number

    def event(self, cat: str, name: str, ts: float, dur: float, args: dict[str, Any]) -> None:
        one = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}
        self.events.insert(0, one)  # files have no order to rely on

    def kernel(self, name: str, stream: int = 7, dur: float = 12.0, **args: Any) -> None:
        given = {
            "device": 0, "stream": stream, "correlation": self.call("cudaLaunchKernel"),
            "grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 40,
            "shared memory": 1024,
        }  # fmt: skip
        self.event("kernel", name, self.now + 900 - stream, dur, {**given, **args})

    def wait(self, stream: int, on: int, recorded: int) -> None:
        args = {
            "stream": stream, "correlation": self.call("cudaStreamWaitEvent"), "device": 0,
            "wait_on_stream": on, "wait_on_cuda_event_record_corr_id": recorded,
        }  # fmt: skip
        self.event("cuda_sync", "Stream Wait Event", self.now, 0, args)

    def bytes(self, **more: Any) -> bytes:
        metadata = {"ph": "M", "name": "process_name", "args": {"name": "python"}}
        whole = {"traceEvents": [metadata, *self.events], "deviceProperties": [DEVICE], **more}
        return json.dumps(whole).encode()


def two_streams() -> Profile:
    """a b on one stream, c d on another, where d waits for a; then the host waits."""
    p = Profile()
    p.kernel("void at::native::a<4, float>(int, float)")
    recorded = p.call("cudaEventRecord")
    p.kernel("b", grid=[132 * 16, 1, 2])
    p.kernel("c", stream=20)
    p.wait(20, 7, recorded)
    p.kernel("ampere sgemm_128x64 #1 = d", stream=20)
    p.call("cudaStreamSynchronize")
    p.event(
        "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 2000, 3.0,
        {"device": 0, "stream": 7, "correlation": p.call("cudaMemcpyAsync"), "bytes": 8},
    )  # fmt: skip
    return p


def test_kernels_are_what_was_launched() -> None:
    trace = read_profile(two_streams().bytes(), GPUS["rtx3070"], "run")
    names = [k.name for k in trace.kernels]
    assert names == ["at::native::a", "b", "c", "ampere_sgemm_128x64_1_d", "Memcpy_DtoH"]
    a, b, *_, copy = trace.kernels
    assert (a.ctas, a.threads, a.registers, a.shared, a.us) == (8, 128, 40, 1024, 12.0)
    # registers for 12 blocks of 128 threads on each of 132: 4224 blocks are three waves
    assert (b.ctas, b.us) == (4224, 4.0)
    assert (copy.ctas, copy.threads, copy.us) == (1, 32, 3.0)
    assert [k.host for k in trace.kernels] == [False, False, False, True, False]


def test_order_is_that_of_streams_and_events() -> None:
    trace = read_profile(two_streams().bytes(), GPUS["rtx3070"], "run")
    assert trace.upstream == ((), (0,), (), (0, 2), (1,))


def test_a_wait_for_who_knows_what_is_for_everything() -> None:
    p = Profile()
    p.kernel("a")
    p.kernel("b", stream=20)
    p.wait(30, -1, -1)
    p.kernel("c", stream=30)
    assert read_profile(p.bytes(), GPUS["h100"], "run").upstream == ((), (), (0, 1))


def test_a_graph_is_one_call() -> None:
    """Its kernels have one correlation, and run in the order of their starts."""
    p = Profile()
    number = p.call("cudaGraphLaunch")
    for k in (2, 0, 1):
        args = {"device": 0, "stream": 7, "correlation": number, "grid": [1], "block": [32]}
        p.event("kernel", f"k{k}", 100.0 + k, 5.0, args)
    trace = read_profile(p.bytes(), GPUS["h100"], "run")
    assert [k.name for k in trace.kernels] == ["k0", "k1", "k2"]


def test_without_properties_the_gpu_is_the_one_that_was_asked_for() -> None:
    p = Profile()
    p.kernel("b", grid=[46 * 12 * 3, 1, 1])
    for gpu, us in (("rtx3070", 4.0), ("h100", 6.0)):
        (b,) = read_profile(p.bytes(deviceProperties=[]), GPUS[gpu], "run").kernels
        assert b.us == us


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_bytes(two_streams().bytes())
    (tmp_path / "run.pt.json.gz").write_bytes(gzip.compress(two_streams().bytes()))
    assert main(["window", "profile", str(tmp_path / "run.json"), "--gpu", "h100"]) == 0
    assert "run on h100: 5 kernels, 1 results read by the host" in capsys.readouterr().out
    words = ["window", "simulate", str(tmp_path / "run.pt.json.gz"), "--policies", "serial,acs-hw"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trace"], told["kernels"]) == ("run.pt", 5)
    assert told["rows"][1]["us"] < told["rows"][0]["us"]


def other_gpu() -> bytes:
    p = two_streams()
    p.kernel("e", device=1)
    return p.bytes()


def without_duration() -> bytes:
    p = two_streams()
    p.events = [{k: v for k, v in e.items() if k != "dur"} for e in p.events]
    return p.bytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "run is no JSON"),
        (b"\x1f\x8bxx", "run is no JSON"),
        (b"3", "it has no list of traceEvents"),
        (b'{"traceEvents": {}}', "it has no list of traceEvents"),
        (b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]', "no GPU\n  1 events of cpu_op"),
        (other_gpu(), r"the GPUs \[0, 1\]"),
        (without_duration(), "KeyError: 'dur'"),
    ],
)
def test_what_is_no_profile(data: bytes, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        read_profile(data, GPUS["rtx3070"], "run")
