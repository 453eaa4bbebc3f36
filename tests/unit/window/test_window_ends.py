"""Whatever is in flight, a process comes to its end, and its results are those of eager mode."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from built import FOLDER
from documents import ROOT, env

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_built")]
BEGIN = f"""
import gc, json, os, signal, sys, warnings
from pathlib import Path
import torch
threads = torch.get_num_threads()
torch.set_num_threads(1)  # a fork has no other threads
from random_torch import bits, inputs, run
from recurra import window
warnings.simplefilter("ignore")
torch.set_grad_enabled(False)
torch.cat([torch.empty(2, device="meta")] * 2)  # imports what takes a second and a half
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
# Each program in a fork of a process that has imported what takes seconds, and done nothing else.
FORKS = """
gc.freeze()  # what was imported need not be gone through at each end
codes = []
for k, program in enumerate(json.load(sys.stdin)):
    if child := os.fork():
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    for number in (1, 2):
        os.dup2(os.open(f"{sys.argv[1]}/{k}.{number}", os.O_CREAT | os.O_WRONLY), number)
    signal.alarm(100)
    torch.set_num_threads(threads)
    W = torch.randn(500, 500) / 25
    exec(program)
    sys.exit()
print(json.dumps(codes))
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
        for _ in range(60):
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


@pytest.fixture(scope="module")
def ended(
    pytorch_built: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str, str]]:
    """Of every program: its exit code, and what it printed."""
    told = tmp_path_factory.mktemp("told")
    out = subprocess.check_output(
        [sys.executable, "-c", BEGIN + FORKS, str(told)],
        input=json.dumps([*PROGRAMS.values()]),
        text=True,
        timeout=700,
        env=env(),
        cwd=ROOT,
    )
    return {
        name: (code, (told / f"{k}.1").read_text(), (told / f"{k}.2").read_text())
        for k, (name, code) in enumerate(zip(PROGRAMS, json.loads(out), strict=True))
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_ends(name: str, ended: dict[str, tuple[int, str, str]]) -> None:
    assert ended[name] == (0, "equal\n", "")
