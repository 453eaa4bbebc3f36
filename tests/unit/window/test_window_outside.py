"""What else looks at tensors: NumPy, storages, autograd, other threads, the compiler, profilers."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from built import FOLDER
from documents import ROOT, env
from random_torch import bits, expect_bits_of_eager
from recurra.window.torch.concurrent import concurrent

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]
POLICIES = ("always", "learn")
BIG = torch.randn(400, 400, generator=torch.Generator().manual_seed(0)) / 20


def in_flight() -> torch.Tensor:
    """Not computed yet, after work of some milliseconds."""
    x = BIG
    for _ in range(4):
        x = torch.tanh(x @ BIG)
    return x


# autograd: what was saved, and is written in place, is not what it was


@pytest.mark.parametrize("policy", POLICIES)
def test_what_autograd_has_saved_is_known_to_be_written(policy: Any) -> None:
    w = torch.randn(64, 64, requires_grad=True)
    with torch.enable_grad():
        h = torch.exp(w)
    with concurrent(policy=policy):
        for _ in range(3):
            h.mul_(0.5)
    assert h._version == 3
    with torch.enable_grad(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_tensors_of_inference_mode_are_not_written_outside_of_it() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    with concurrent(2, policy="always"):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                x.add_(1)


# memory that others see is settled at once


def numpy_of(x: torch.Tensor) -> Any:
    return x.numpy()


def storage_of(x: torch.Tensor) -> Any:
    return Floats(x.untyped_storage())


def dlpack_of(x: torch.Tensor) -> Any:
    return np.from_dlpack(x)


class Floats:
    """The numbers in a storage, looked at through its object."""

    def __init__(self, storage: Any):
        self._storage = storage

    def __getitem__(self, at: tuple[int, int]) -> float:
        start = 4 * (400 * at[0] + at[1])
        return float(np.frombuffer(bytes(self._storage[start + k] for k in range(4)), "f4")[0])


@pytest.mark.parametrize("seen", [numpy_of, storage_of])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_given_away_before_the_block_is_there_at_once(
    seen: Callable[[torch.Tensor], Any], policy: Any
) -> None:
    x = torch.zeros(400, 400)
    numbers = seen(x)
    with concurrent(2, policy=policy):
        found: list[float] = []
        for _ in range(6):
            y = in_flight()
            x.add_(1)
            x[:10].add_(y[:10] * 0)
            found.append(float(numbers[0, 0]))
    assert found == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_numpy_writes_is_read_before_and_after(policy: Any) -> None:
    x = torch.zeros(400, 400)
    numbers = x.numpy()
    with concurrent(2, policy=policy):
        found: list[torch.Tensor] = []
        for k in range(6):
            numbers[:] = k
            found.append((x + in_flight() * 0)[0, 0])
    assert [float(t) for t in found] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seen", [numpy_of, dlpack_of])
def test_what_is_given_away_inside(seen: Callable[[torch.Tensor], Any]) -> None:
    with concurrent(2, policy="always"):
        for _ in range(3):
            x = in_flight() * 0
            numbers = seen(x)
            for k in range(4):
                x.add_(in_flight() * 0 + 1)
                assert numbers[0, 0] == k + 1


@pytest.mark.parametrize("history", [False, True])
def test_what_is_written_silently_is_written_after_it_was_read(history: bool) -> None:
    """The learned statistics, also where the operator waits only because of its other arguments."""

    def program() -> list[torch.Tensor]:
        mean, var, found = torch.zeros(400), torch.ones(400), list[torch.Tensor]()
        x = BIG.clone().requires_grad_(history)
        x.detach().numpy()
        for _ in range(8):
            found.append(mean + in_flight()[0] * 0)
            with torch.set_grad_enabled(history):
                torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
        return found

    expect_bits_of_eager(program)


BOUND = {
    "numpy": torch.Tensor.numpy,
    "tolist": torch.Tensor.tolist,
    "to_dlpack": lambda x, give=torch.utils.dlpack.to_dlpack: torch.from_dlpack(give(x)),
    "data_ptr": lambda x, address=torch.Tensor.data_ptr: np.ctypeslib.as_array(
        ctypes.cast(address(x), ctypes.POINTER(ctypes.c_float)), x.shape
    ),
}


@pytest.mark.parametrize("name", BOUND)
def test_readers_that_were_looked_up_before_the_block(name: str) -> None:
    expected, numbers = in_flight().numpy().copy(), BIG.numpy().copy()
    x = BIG.clone()
    with concurrent(2, policy="always"):
        for _ in range(4):
            y = in_flight()
            assert np.array_equal(BOUND[name](y), expected)
            y.add_(in_flight() * 0 + 1)
            assert np.array_equal(BOUND[name](y), expected + 1)
            x.add_(in_flight() * 0 + 1)
            numbers = numbers + 1
            assert np.array_equal(BOUND[name](x), numbers)
            x = x.clone()  # which nobody else sees


def test_who_is_told_of_functions_is_told_of_those_that_there_are() -> None:
    """A class that knows functions of PyTorch from before the block knows them inside."""

    class Masked(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in known:
                return known[func]
            return super().__torch_function__(func, types, args, kwargs or {})

    known = {torch.Tensor.numpy: "numbers", torch.Tensor.tolist: "a list"}
    with concurrent(2, policy="always"):
        x = in_flight().as_subclass(Masked)
        assert (x.numpy(), x.tolist()) == ("numbers", "a list")


def test_what_has_no_value_says_so_for_ever() -> None:
    """Whoever looks at it, without us too, and after the block."""
    table = torch.ones(4, 3)
    bound = torch.Tensor.numpy
    found: list[torch.Tensor] = []

    def block() -> None:
        with concurrent(2, policy="always"):
            for rows in ([1, 2], [1, 9]):
                found.append(torch.index_select(table, 0, torch.tensor(rows)))

    with pytest.raises(IndexError):
        block()
    for read in (bound, lambda x: x + 1, lambda x: x.tolist()):
        with pytest.raises(RuntimeError, match=r"operator aten::index_select failed"):
            read(found[1])


# other threads


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_tensors_in_a_pool_of_threads(policy: Any, threads: int) -> None:
    """Operators there wait for what is in flight, also those that write."""
    with ThreadPoolExecutor(2) as pool:

        def program() -> list[torch.Tensor]:
            found: list[torch.Tensor] = []
            for _ in range(12):
                x, y = in_flight(), torch.zeros(400, 400)
                z = y + x * 0
                pool.submit(lambda x=x, y=y: y.add_(x)).result()
                found += [z[:1] * 1, y[:1] * 1, *pool.map(lambda t: t[:1] * 2, [x, y, in_flight()])]
            return found

        expected = program()
        with concurrent(threads, policy=policy):
            found = program()
    assert bits(found) == bits(expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tasks_of_torchscript() -> None:
    @torch.jit.script
    def both(x: torch.Tensor) -> torch.Tensor:
        rest = [x]
        total = torch.stack(rest).sum(0)  # of the list as it is now
        rest.append(x * 2)
        one, other = torch.jit.fork(torch.relu, x), torch.jit.fork(torch.neg, x)
        return torch.jit.wait(one) + torch.jit.wait(other) + total + torch.stack(rest).sum(0)

    def program() -> list[torch.Tensor]:
        return [both(in_flight() + k) for k in range(6)]

    expect_bits_of_eager(program)


def test_readers_of_other_threads_while_blocks_begin_and_end() -> None:
    """Blocks of other numbers of threads have other workers."""
    stop = threading.Event()

    def read() -> None:
        mine = torch.empty(8)
        while not stop.is_set():
            mine.numpy()
            mine.data_ptr()
            mine.tolist()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    expected = in_flight()
    for k in range(40):
        with concurrent(2 + k % 2, policy="always"):
            found = in_flight()
        assert torch.equal(found, expected)
    stop.set()
    for reader in readers:
        reader.join()


def test_a_thread_that_opens_a_block_may_be_joined_in_one() -> None:
    found: list[torch.Tensor] = []

    def other() -> None:
        with torch.no_grad(), concurrent(3, policy="always") as block:
            found.append(in_flight())
        assert block.counts == {"in a block that was open": 1}

    with concurrent(2, policy="always"):
        y = in_flight()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert torch.equal(found[0], y)


# the compiler, transforms, profilers

COMPILED = """
import sys, torch
from pathlib import Path
from recurra import window
torch.set_num_threads(1)
assert "torch._dynamo" not in sys.modules
def f(x): return torch.sin(x) * 2 + torch.cos(x)
x = torch.randn(100, 100)
with torch.no_grad():
    expected = [f(x + k) + 1 for k in range(300)]
    with window.concurrent(policy=sys.argv[1], folder=Path(sys.argv[2])):
        g = torch.compile(f)
        found = [g(x + k) + 1 for k in range(300)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.compiler.config is not None
    assert torch.allclose(torch.compile(f, backend="eager")(x), f(x))  # compiled again
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_functions_that_are_compiled_inside_first(policy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, policy, str(FOLDER)],
        env=env(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_gradients_of_functions() -> None:
    def program() -> list[torch.Tensor]:
        x = in_flight()
        y = torch.func.grad(lambda a: (a * a).sum())(x)
        value, pull = torch.func.vjp(torch.sin, y)
        return [y * 2, value + 1, pull(x)[0] * 2]

    expect_bits_of_eager(program)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_profilers_count_calls(policy: Any, inside: bool) -> None:
    """Each of them once, whoever runs it."""

    def program() -> None:
        for _ in range(20):
            y = (BIG @ BIG).relu()
        y.sum().item()

    def profiled(run: Callable[[], None]) -> dict[str, int]:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            run()
        events: Any = seen.key_averages()
        return {e.key: e.count for e in events if e.key in ("aten::mm", "aten::relu")}

    def in_a_block() -> None:
        with concurrent(2, policy=policy):
            program()

    program()
    if inside:
        with concurrent(2, policy=policy):
            program()
            found = profiled(program)
    else:
        found = profiled(in_a_block)
    assert found == {"aten::mm": 20, "aten::relu": 20}


# memory


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_read_is_not_kept(policy: Any) -> None:
    """Not until the block ends, nor longer than the program keeps it."""
    with concurrent(2, policy=policy):
        alive: list[Any] = []
        for _ in range(20):
            x = BIG * 2.0 + 1.0
            x[0, :3].tolist()
            str(x[0, 0])
            alive.append(weakref.ref(x.numpy().base))
        del x
        gc.collect()
        torch.ones(3).add(1)
        assert sum(a() is not None for a in alive) == 0
