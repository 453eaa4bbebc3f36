"""Whatever is in flight, a process comes to its end, and its results are those of eager mode."""

from __future__ import annotations

import subprocess
import sys

import pytest

from built import FOLDER
from documents import ROOT, env

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_built")]
PRELUDE = f"""
import warnings
from pathlib import Path
import torch
from random_torch import bits, inputs, run
from recurra import window
warnings.simplefilter("ignore")
torch.set_grad_enabled(False)
W = torch.randn(500, 500) / 25
def block(**options):
    return window.concurrent(policy="always", folder=Path({str(FOLDER)!r}), **options)
def compare(program, **options):
    expected = program()
    for _ in range(4):
        with block(**options):
            found = program()
        assert bits(found) == bits(expected)
    print("equal")
"""
PROGRAMS = {
    "a block that is open tells what it has done until now": """
def program():
    for _ in range(3):
        y = W @ W
    return [y]
compare(program)
with block() as first:
    assert first.counts["deferred"] == first.counts["checked"] == 0, first.counts
    program()
    assert first.counts["deferred"] == 3, first.counts
    assert "deferred: 3" in str(first)
    with block() as inner:
        assert inner.counts == {"in a block that was open": 1}
assert first.counts["deferred"] == 3
try:
    with block() as other:
        program()
        raise KeyError
except KeyError:
    assert first.counts["deferred"] == 3 and other.counts == {}
""",
    "tensors without elements ask for the memory that they lie in": """
torch.set_num_threads(1)
def program():
    found = []
    for _ in range(6):
        y = W @ W @ W
        y[:0].add_(1)
        none = torch.zeros(0, 3) + y[:0, :3]
        found += [torch.cat([y[:0], y[:1]]) * 1, y[500:].mul_(2), none.mul_(2)]
    return found
compare(program, threads=3)
""",
    "a parallel operator consists of others, on threads of its own": """
torch.set_num_threads(2)
torch.backends.mkldnn.enabled = False
x, weight = torch.randn(8, 3, 64, 64), torch.randn(3, 3, 5, 5)
def program():
    return [torch.nn.functional.conv_transpose2d(x * (k + 1.0), weight) for k in range(6)]
compare(program, threads=2)
""",
    "results in flight take all that they may": """
torch.set_num_threads(1)
def program():
    x = (LARGE @ LARGE)[:16] * 1.0
    for _ in range(900):
        x = x + 1.0
    return [x]
LARGE = torch.randn(1800, 1800)
compare(program, threads=2)
""",
    "children of a fork, while other threads call operators, begin blocks of their own": """
import os, signal, threading
torch.set_num_threads(1)
stop = False
def work():
    x = torch.ones(4)
    while not stop:
        x.add(1)
        x.data_ptr()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
try:
    with block(threads=2):
        for _ in range(100):
            y = W @ W
            child = os.fork()
            if not child:
                signal.alarm(10)
                with block(threads=2):
                    y = y @ W
                os._exit(0 if y.isfinite().all() else 1)
            assert os.waitpid(child, 0)[1] == 0
finally:
    stop = True
    for thread in threads: thread.join()
print("equal")
""",
    "random programs": """
torch.set_num_threads(1)
start = inputs()
for seed in range(340):
    expected = bits(run(seed, start))
    with block(threads=1 + seed % 4, slots=1 + seed % 64):
        found = run(seed, start)
    assert bits(found) == expected, seed
print("equal")
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_ends(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + PROGRAMS[name]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=env(),
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "equal\n", "")
