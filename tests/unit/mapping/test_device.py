"""Mapped programs on devices of PyTorch's: what JAX computes there, and who waits for what.

There may be no GPU: then `cpu` is the only device, with streams that are none, and what a stream
puts off is checked on a device made up, whose copies happen when somebody waits for them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from mapping.test_execute import Prices, same
from recurra import cli
from recurra.errors import RecurraError
from recurra.mapping.execute.compare import compare
from recurra.mapping.execute.copier import Copier, Transfer
from recurra.mapping.execute.device import Device, PinnedMemory
from recurra.mapping.execute.jax_workloads import from_jax
from recurra.mapping.execute.memories import PAGE
from recurra.mapping.execute.prepared_workload import execute
from recurra.mapping.execute.ram import Ram, pages
from recurra.mapping.execute.table_measurement import measure_tables
from recurra.mapping.execute.workload import Operation, TensorSpec, Workload, run_unmapped
from recurra.mapping.execute.workload_problem import problem_of
from recurra.mapping.solvers import solver_of
from recurra.storage.mapping_problem import nothing

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def program(x: jax.Array, a: jax.Array, k: jax.Array) -> tuple[jax.Array, ...]:
    """Numbers, truth values, whole numbers, half precision."""
    y = jnp.tanh(x @ a)
    some = (y > 0) & (k > 3)
    return jnp.where(some, y @ a, 0.5), some, (y @ a.T).astype(jnp.bfloat16), (k * 3)[:2]


def kinds() -> Workload:
    x, k = (jax.ShapeDtypeStruct((256, 256), t) for t in (jnp.float32, jnp.int32))
    return from_jax(program, x, x, k, name="kinds")


@pytest.mark.parametrize("name", DEVICES)
def test_jax_computes_on_rooms_of_a_device(name: str) -> None:
    work = kinds()
    problem = problem_of(work, 1 << 19, Prices())
    answer = solver_of("greedy")(problem, 0.2)
    assert any(p is not None and p.copied for p in answer.placements)
    assert same(execute(work, problem, answer, Device(name))[0], run_unmapped(work))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_prices_are_measured_there(name: str) -> None:
    """And results compared; nothing may be gained where both memories are RAM."""
    done = compare(
        kinds(),
        1 << 19,
        lambda problem: {"slow": nothing(problem)},
        rounds=1,
        memory=Device(name),
        tabulate=lambda gauge: measure_tables(gauge, 1),
    )
    assert "RAM" in done.slow
    assert done.prices.longer >= 0
    assert sum(done.prices.instructions) > 0
    assert done.tables is not None


class Later:
    """PyTorch's library of a device whose copies wait until somebody does: streams, events."""

    def __init__(self, device: Device) -> None:
        self.device, self.put_off = device, list[tuple[torch.Tensor, torch.Tensor]]()
        self.at: list[str] = []

    def Stream(self) -> str:
        return "copies"

    @contextmanager
    def stream(self, stream: str) -> Generator[None]:
        self.at.append(stream)
        yield
        self.at.pop()

    def Event(self) -> Later:
        return self

    def record(self, stream: str) -> None:
        assert self.at == [stream]

    def synchronize(self) -> None:
        copy = torch.Tensor.copy_
        for to, of in self.put_off:
            copy(to, of)
        self.put_off.clear()


class Lazy(torch.Tensor):
    """Copies between these are put off."""

    library: Later

    def copy_(self, of: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        assert non_blocking
        assert self.library.at
        plain = torch.Tensor
        self.library.put_off.append((self.as_subclass(plain), of.as_subclass(plain)))
        return self


def test_who_moves_waits_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cpu")
    library = Later(device)
    device.library = library
    slow: Any = PinnedMemory(device, 3 * PAGE)
    monkeypatch.setattr(Lazy, "library", library, raising=False)
    monkeypatch.setattr(PinnedMemory, "piece", PAGE)
    room = torch.arange(2 * PAGE).to(torch.uint8).as_subclass(Lazy)
    slow.block = slow.block.as_subclass(Lazy)
    slow.write(room, PAGE)
    assert slow.block[PAGE:].tolist() == room.tolist()
    other = torch.zeros(2 * PAGE, dtype=torch.uint8).as_subclass(Lazy)
    with Copier(slow) as copier:
        copier.add([Transfer(3, 0, other, PAGE, out=False)])
        copier.wait(4)
        assert other.tolist() == room.tolist()
    assert not library.put_off


def test_numbers_go_there_and_come_back() -> None:
    device = Device("cpu")
    room = device.allocate(5)
    assert len(room) == PAGE
    given = np.arange(5, dtype=np.uint8)
    given.flags.writeable = False
    device.put(given, room)
    kept = device.get(room)
    room[0] = 9
    assert kept[:6].tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "there is no device 'gpu' for PyTorch here"),
        ("cuda:99", "there is no device 'cuda:99' for PyTorch here"),
        ("meta", "PyTorch has 'meta' here, and JAX, which computes, has not"),
    ],
)
def test_a_device_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(RecurraError, match=message):
        Device(name)


def test_a_device_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cpu")

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(RecurraError, match="cpu has no 8,192 B") as caught:
        device.allocate(5000)
    assert "CUDA out of memory." in str(caught.value)
    with pytest.raises(RecurraError, match="8,192 B of RAM cannot be pinned"):
        device.slow(5000)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twice.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    x = jax.ShapeDtypeStruct((160, 160), jnp.float32)\n"
        "    return (lambda a, b: jnp.tanh(a @ b) @ b), (x, x)\n"
    )
    words = ["map", "run", f"{tmp_path}/twice.py:make", "--fast-size", "256KiB", "--rounds", "1"]
    words += ["--solver", "greedy", "--seconds", "0.1", "--device"]
    assert cli.main([*words, "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "results are those of the unmapped run, to the last bit" in shown
    assert "of RAM, and so is the fast one" in shown
    assert cli.main([*words, "cpu", "--folder", str(tmp_path)]) == 2
    assert "slow memory is RAM or a file, not both" in capsys.readouterr().err
    assert cli.main([*words, "cuda:99"]) == 2
    assert "there is no device 'cuda:99'" in capsys.readouterr().err


def test_given_values_are_of_the_kind_and_the_shape_that_is_said(tmp_path: Path) -> None:
    tensor = TensorSpec((256, 256))
    doubled = Operation("double", (0,), (1,), lambda x, out: np.add(x[0], x[0], out[0]), ((0, 1),))
    work = Workload("doubled", (tensor, tensor), (doubled,), {0: np.float64(3)}, (1,))
    (oracle,) = run_unmapped(work)
    assert (oracle.dtype, oracle.shape, oracle[0, 0]) == (np.float32, (256, 256), 6)
    problem = problem_of(work, 1 << 20, Prices())
    assert same(execute(work, problem, nothing(problem), Ram(tmp_path))[0], (oracle,))


def test_memory_that_is_not_there_is_refused() -> None:
    for room in (pages, Device("cpu").allocate):
        for nbytes in (1 << 55, 1 << 62):
            with pytest.raises(RecurraError, match=f"{nbytes:,} B|no {nbytes:,} B"):
                room(nbytes)
