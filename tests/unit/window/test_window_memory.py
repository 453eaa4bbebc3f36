"""Memory of a block of PyTorch: no more than the program holds in order, and given back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from built import FOLDER, build_stress
from process_memory import numbers
from recurra.window.torch.concurrent import concurrent

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]
POLICIES = ("always", "learn")

MEASURE = """
import ctypes, os, sys, threading, torch
from pathlib import Path
from process_memory import forget_peak, peak, resident
from recurra import window
import recurra.window.torch.concurrent  # once for all, as what the next line imports
torch.cat([torch.empty(2, device="meta")] * 2)
torch.set_num_threads(1)
torch.set_grad_enabled(False)

def chain(n, steps):
    x, w = torch.randn(n, n), torch.randn(n, n) / n**0.5
    for _ in range(steps):
        x = x @ w
        for _ in range(6): x = x * 1.01 + 0.1

def read():
    x = torch.randn(1024, 1024)
    for _ in range(100): (x * 2.0 + 1.0)[0, :3].tolist()

def requests():
    x = torch.randn(1024, 1024)
    for _ in range(40):
        torch.stack([(x * k).relu() for k in range(1, 5)]).sum(0).numpy().max()

def train():
    w = [torch.randn(256, 256) / 16 for _ in range(6)]
    for _ in range(6):
        h = [torch.randn(4096, 256)]
        for u in w: h.append(torch.tanh(h[-1] @ u))
        d = (h[-1] - 0.5) / 4096
        for k in reversed(range(6)):
            d = d * (1 - h[k + 1] ** 2)
            d, w[k] = d @ w[k].t(), w[k] - 0.01 * h[k].t() @ d

def branches():
    x = torch.randn(1024, 1024)
    for _ in range(15):
        x = sum(torch.exp(-torch.tanh(x * k) - 1) for k in range(1, 5)) / 4

def grow(n):
    x = torch.zeros(1, 4096)
    for k in range(n):
        x = torch.cat([x, torch.full((64, 4096), float(k))])
        (x * 2).sum(0)

def inside(policy, program):
    if policy == "eager": return eval(program)
    with window.concurrent(policy=policy, folder=Path(sys.argv[1])): eval(program)

def peaks(policy, program):
    if policy == "eager": ctypes.CDLL(None).mallopt(-3, 100_000)  # the heap gives back at once
    inside(policy, "torch.randn(8, 8) @ torch.randn(8, 8), grow(20)")  # all is there
    forget_peak()
    before = peak()
    inside(policy, program)
    return peak() - before, resident() - before

def freed(policy):
    def block(): return window.concurrent(2, policy=policy, folder=Path(sys.argv[1]))
    with block(): torch.ones(8) * 2
    before = resident()
    with block():
        x = torch.ones(2**20)
        made = [x * k for k in range(200)]
    held = resident() - before
    assert all(int(y[-1]) == k for k, y in enumerate(made))
    freeing = threading.Thread(target=made.clear)
    freeing.start()
    freeing.join()
    return held, resident() - before

for line in sys.argv[2:]:
    if not os.fork():
        print(*(n / 2**20 for n in eval(line)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
PROGRAMS = (
    "chain(512, 30)",
    "chain(1500, 4)",
    "read()",
    "requests()",
    "train()",
    "branches()",
    "grow(60)",
)


@pytest.fixture(scope="module")
def megabytes() -> dict[str, tuple[float, float]]:
    """Of every measurement, in a process of its own that has nothing but its libraries: the peak
    above what it began with, or what is held, and what is left of that."""
    runs = [f"peaks({p!r}, {x!r})" for p in ("eager", *POLICIES) for x in PROGRAMS]
    runs += [f"freed({p!r})" for p in POLICIES]
    found = iter(numbers(MEASURE, str(FOLDER), *runs))
    return dict(zip(runs, zip(found, found, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_peak_is_that_of_eager(program: str, megabytes: dict[str, tuple[float, float]]) -> None:
    """Of eager on a heap that gives back at once, which is what is held. If all that can be is
    deferred, results in flight come on top, and what they read: a tenth of the process each. One
    that is larger than that runs by itself."""
    exactly, _ = megabytes[f"peaks('eager', {program!r})"]
    in_flight = {"learn": 0, "always": 50}
    for policy in POLICIES:
        peak, left = megabytes[f"peaks({policy!r}, {program!r})"]
        assert peak < 1.2 * exactly + 1 + in_flight[policy], policy
        assert left < 40 + in_flight[policy], policy  # a tenth of the process is kept


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_freed_after_the_block_in_any_thread(
    policy: str, megabytes: dict[str, tuple[float, float]]
) -> None:
    held, left = megabytes[f"freed({policy!r})"]
    assert held > 700
    assert left < 200  # a tenth of the process


def test_results_grow_after_the_block() -> None:
    with concurrent(2, policy="always"):
        for _ in range(3):
            x = torch.ones(100_000) * 2
    x.resize_(3_000_000)[100_000:] = 5
    assert x.sum() == 2 * 100_000 + 5 * 2_900_000
    assert x.untyped_storage().nbytes() == 12_000_000
    x.share_memory_()  # moves it
    assert x.is_shared()
    assert x.sum() == 2 * 100_000 + 5 * 2_900_000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, if it was imported before
def test_a_child_has_and_frees_what_was_made_before(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with concurrent(2, policy="always"):
        for _ in range(3):
            made = [torch.full((200_000,), float(k)) + 1 for k in range(20)]
        if not (child := os.fork()):
            sums = [float(y.sum()) for y in made]
            made.clear()
            with concurrent(2, policy="always"):
                again = [torch.full((200_000,), float(k)) + 1 for k in range(20)]
                sums += [float(y.sum()) for y in again]
            said.write_text(repr(sums))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert said.read_text() == repr([200_000.0 * (k + 1) for k in range(20)] * 2)
    assert all(float(y.sum()) == 200_000 * (k + 1) for k, y in enumerate(made))


def test_large_results_are_deferred_on() -> None:
    """Memory that we gave is nobody else's."""
    with concurrent(2, policy="always") as block:
        x = torch.ones(2**18)
        for _ in range(20):
            x = torch.sin(x * 2)
    assert block.counts["deferred"] >= 38  # the first of each kind is looked at


def test_a_profiler_counts_its_bytes() -> None:
    with (
        concurrent(2, policy="always"),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen,
    ):
        for _ in range(4):
            x = torch.ones(2**18)
            del x
    (row,) = (one for one in seen.key_averages() if one.key == "aten::ones")
    assert row.count == 4
    found = [one for one in seen.events() if one.name == "[memory]"]
    assert sum(one.cpu_memory_usage for one in found if one.cpu_memory_usage < 0) == -4 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_mappings_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    program = build_stress(tmp_path, kind, "stress_mappings")
    done = subprocess.run([str(program), "20000", "7"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "20000 steps\n"
