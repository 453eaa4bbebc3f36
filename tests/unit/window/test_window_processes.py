"""What gives tensors to other processes in C++ waits for what is in flight, with either policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from built import FOLDER
from documents import ROOT, env

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.slow,
]
BEGIN = """
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torch.distributed.rpc.api as api
from pathlib import Path
from recurra import window
folder, rank = Path(sys.argv[1]), int(sys.argv[3])
child = os.fork()  # all is imported once
policy = "learn" if child else "always"
at = f"file://{sys.argv[2]}-{policy}"
torch.set_num_threads(1)
x = torch.randn(400, 400) / 20
def late(k):
    return torch.tanh(x @ x) * 0 + k
def in_place(k):
    return torch.zeros(400, 400).add_(late(k))
def block():
    return window.concurrent(policy=policy, folder=folder)
"""
CALLS = """
@torch.jit.script
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1
@torch.jit.script
def sends(x: torch.Tensor, k: int) -> torch.Tensor:
    y = torch.zeros(400, 400)
    y.add_(torch.tanh(x @ x) * 0 + k)
    return rpc.rpc_sync("w0", add_one, (y,))
def first(t):
    return t[:1, :1] + 1
ways = [
    lambda y: rpc.rpc_sync("w0", torch.add, args=(y, 1)),
    lambda y: rpc.rpc_sync("w0", first, args=(y,)),
    lambda y: rpc.rpc_sync("w0", add_one, args=(y,)),
    lambda y: rpc.rpc_async("w0", torch.add, args=(y, 1)).wait(),
    lambda y: rpc.remote("w0", torch.add, args=(y, 1)).to_here(),
    lambda y: rpc.remote("w0", first, args=(y,)).to_here(),
    lambda y: rpc.RRef(y).rpc_sync().add(1),
]
before = api._invoke_rpc_builtin, torch._C.ScriptFunction.__call__
wrong = set()
with torch.no_grad():
    with block():  # and what is there from now on
        options = rpc.TensorPipeRpcBackendOptions(init_method=at)
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
        found = [ways[0](in_place(k))[0, 0].item() for k in range(5)]
    if found != [1, 2, 3, 4, 5]:
        wrong.add(("begun inside", *found))
    for _ in range(6):
        for number, way in enumerate(ways):
            for make in (late, in_place):
                with block():
                    found = [way(make(k))[0, 0].item() for k in range(5)]
                if found != [1, 2, 3, 4, 5]:
                    wrong.add((number, make.__name__, *found))
        with block():
            found = [sends(x, k)[0, 0].item() for k in range(5)]
        if found != [1, 2, 3, 4, 5]:
            wrong.add(("scripted", *found))
assert not wrong, (policy, wrong)
assert before == (api._invoke_rpc_builtin, torch._C.ScriptFunction.__call__)
rpc.shutdown()
"""
BACKEND = """
dist.init_process_group("gloo", init_method=at, rank=rank, world_size=2)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
def exchange(make, k):
    sent, found = make(k), torch.zeros(400, 400)
    for sender in range(2):
        if rank == sender:
            backend.send([sent], 1 - rank, 0).wait()
        else:
            backend.recv([found], 1 - rank, 0).wait()
    return found[0, 0].item()
wrong = []
with torch.no_grad():
    for make in (late, in_place):
        for _ in range(6):
            with block():
                found = [exchange(make, k) for k in range(5)]
            if found != [0, 1, 2, 3, 4]:
                wrong.append((make.__name__, *found))
assert not wrong, (policy, wrong)
del backend
dist.barrier()
dist.destroy_process_group()
"""
END = """
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def start(program: str, script: Path, *arguments: object) -> subprocess.Popen[str]:
    script.write_text(BEGIN + program + END)  # TorchScript looks for the source of its functions
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), *map(str, arguments)],
        env=env(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_calls_of_rpc(tmp_path: Path) -> None:
    worker = start(CALLS, tmp_path / "calls.py", FOLDER, tmp_path / "at", 0)
    told = worker.communicate(timeout=100)[1]
    assert worker.returncode == 0, told


def test_collectives_of_a_backend_itself(tmp_path: Path) -> None:
    workers = [start(BACKEND, tmp_path / f"{k}.py", FOLDER, tmp_path / "at", k) for k in range(2)]
    told = [worker.communicate(timeout=100)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
