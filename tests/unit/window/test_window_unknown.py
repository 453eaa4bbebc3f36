"""Operators that are not PyTorch's own may touch anything: they are called as ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

from built import FOLDER
from documents import ROOT, env
from random_torch import bits
from recurra.window.torch.concurrent import concurrent

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]
POLICIES = ("always", "learn")
scoped: Any = torch.library._scoped_library  # pyright: ignore[reportPrivateUsage]
BIG = torch.randn(300, 300, generator=torch.Generator().manual_seed(0)) / 17


@pytest.fixture
def library() -> Any:
    with scoped("windowtests", "FRAGMENT") as found:
        yield found


def slow() -> torch.Tensor:
    return torch.tanh(torch.mm(torch.tanh(torch.mm(BIG, BIG)), BIG))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_schema_does_not_say(library: Any, policy: Any) -> None:
    """As of collectives: they write tensors that their schema only reads."""
    library.define("add_one(Tensor[] xs) -> Tensor[]")
    library.impl("add_one", lambda xs: [x.add_(1) for x in xs], "CompositeExplicitAutograd")

    def program() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for _ in range(20):
            x = torch.full((300, 300), 1.0) * 1.0
            before = slow() * 0 + x
            torch.ops.windowtests.add_one([x])
            found += [before[:1], (x + slow() * 0)[:1]]
        return found

    expected = program()
    with concurrent(2, policy=policy):
        found = program()
    assert bits(found) == bits(expected)


def test_one_that_is_defined_again(library: Any) -> None:
    """What was known of the one before is not believed of it."""

    def program() -> list[float]:
        out, found = torch.zeros(300, 300), list[torch.Tensor]()
        for _ in range(4):
            torch.ops.windowtests.again(slow(), out)
            found.append(out * 1.0)
        return [float(t[0, 0]) for t in found]

    with scoped("windowtests", "FRAGMENT") as first:
        first.define("again(Tensor x, Tensor out) -> Tensor")
        first.impl("again", lambda x, out: x + 1, "CompositeExplicitAutograd")
        with concurrent(2, policy="always"):
            assert program() == [0.0] * 4
    library.define("again(Tensor x, Tensor(a!) out) -> Tensor")
    library.impl("again", lambda x, out: x + out.add_(1), "CompositeExplicitAutograd")
    with concurrent(2, policy="always"):
        assert program() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("policy", POLICIES)
def test_those_written_in_python(policy: Any) -> None:
    """They look at values, raise their own exceptions, and run in order, in the caller."""
    order: list[tuple[int, bool]] = []
    me = threading.get_ident()

    @torch.library.custom_op("windowtests::checked", mutates_args=())
    def checked(x: torch.Tensor, k: int) -> torch.Tensor:
        order.append((k, threading.get_ident() == me))
        if x.numpy()[0, 0] < -1:
            raise ValueError(f"negative input {k}")
        return torch.tensor(np.sin(x.numpy()))

    def program() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in range(30):
            try:
                found.append(checked(slow() * 0 + (-2 if k % 7 == 6 else k), k) + 1)
            except ValueError as error:
                assert str(error) == f"negative input {k}"  # noqa: PT017
        return found

    expected = program()
    order.clear()
    with concurrent(2, policy=policy):
        found = program()
    assert bits(found) == bits(expected)
    assert order == [(k, True) for k in range(30)]


def test_shapes_that_depend_on_data() -> None:
    @torch.library.custom_op("windowtests::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.nonzero(x > 0).flatten().clone()

    def program() -> list[torch.Tensor]:
        return [positive(torch.roll(BIG[k] * 1.0, k)) * 2 for k in range(20)]

    expected = program()
    with concurrent(2, policy="always"):
        found = program()
    assert bits(found) == bits(expected)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_in_python_for_pytorchs_own_operators() -> None:
    """What such a kernel touches is not known, though its operator is."""
    seen: list[bool] = []
    me = threading.get_ident()

    def sine(x: torch.Tensor) -> torch.Tensor:
        seen.append(threading.get_ident() == me)
        return torch.tensor(np.sin(x.numpy()))

    def program() -> list[torch.Tensor]:
        return [torch.sin(slow() + k) * 2 for k in range(6)]

    with concurrent(2, policy="always"):
        program()
    with scoped("aten", "IMPL") as library:
        library.impl("sin", sine, "CPU", allow_override=True)
        expected = program()
        with concurrent(2, policy="always") as block:
            found = program()
        assert bits(found) == bits(expected)
        assert seen == [True] * 12
    with concurrent(2, policy="always") as after:
        program()
    assert block.counts["deferred"] == after.counts["deferred"] - 6


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("met", [0, 3])
def test_kernels_in_python_that_are_registered_inside_a_block(met: int) -> None:
    """What was called before has the kernel that it had; what comes later runs in the caller."""
    threads: list[int] = []

    def sine(x: torch.Tensor) -> torch.Tensor:
        threads.append(threading.get_ident())
        return torch.tensor(np.sin(x.numpy()) + 1)

    def program(library: Any) -> list[torch.Tensor]:
        before = [torch.sin(slow() + k) for k in range(met)]
        library.impl("sin", sine, "CPU", allow_override=True)
        return [*before, *(torch.sin(slow() + k) * 2 for k in range(6))]

    with scoped("aten", "IMPL") as library:
        expected = program(library)
    with scoped("aten", "IMPL") as library, concurrent(2, policy="always"):
        found = program(library)
    assert bits(found) == bits(expected)
    assert threads == [threading.get_ident()] * 12


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_in_python_that_other_operators_call() -> None:
    """They are a part of those, wherever these run, and do not wait for themselves."""

    def chosen(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        return torch.tensor(np.take(x.numpy(), index.numpy(), dim))

    def program() -> list[torch.Tensor]:
        return [torch.nn.functional.embedding(which * 1, slow() + k) * 2 for k in range(6)]

    which = torch.arange(200)
    with scoped("aten", "IMPL") as library:
        library.impl("index_select", chosen, "CPU", allow_override=True)
        expected = program()
        with concurrent(2, policy="always") as block:
            found = program()
    assert bits(found) == bits(expected)
    assert block.counts["deferred"] > 20


COLLECTIVE = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from pathlib import Path
from recurra import window
rank, store, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
big = torch.randn(200, 200)
def program():
    out = []
    for k in range(60):
        x = torch.full((200, 200), 1.0) * 1.0
        y = (big @ x) * 0 + x
        dist.all_reduce(x)
        out.append((y, x, big @ x * 0 + x))
    return [tuple(float(t[0, 0]) for t in one) for one in out]
def wrapped():
    # C++ that looks at results between operators; tensors of a class with __torch_dispatch__.
    x = torch.tanh(big @ big)[:4, :5]
    with torch.enable_grad():
        layer = torch.nn.Linear(5, 3)
        for p in layer.parameters():
            torch.nn.init.constant_(p, 0.1)
        torch.nn.parallel.DistributedDataParallel(layer)(x).square().sum().backward()
    with torch.inference_mode():
        whole = DTensor.from_local(torch.tanh(big @ big)[:4, :5], mesh, [Replicate()])
        split = distribute_tensor(torch.tanh(big @ big)[:4, :5], mesh, [Shard(0)])
        made = torch.nn.functional.linear(whole, split).full_tensor()
    return layer.weight.grad.tolist(), made.tolist()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,))
with torch.no_grad():
    for policy in ("always", "learn"):
        big = torch.randn(200, 200) / 14
        expected = wrapped()
        for _ in range(2):
            with window.concurrent(policy=policy, folder=folder):
                assert [wrapped(), wrapped()] == [expected] * 2, policy
        big = torch.randn(200, 200)
        expected = program()
        with window.concurrent(policy=policy, folder=folder):
            found = program()
        assert found == expected == [(1.0, 2.0, 2.0)] * 60, (policy, found)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_collectives(tmp_path: Any) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", COLLECTIVE, str(k), str(tmp_path / "at"), str(FOLDER)],
            env=env(),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    told = [worker.communicate(timeout=100)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
