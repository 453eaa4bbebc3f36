"""PyTorch programs become traces: what is read and written, and what the host waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from recurra.window import WindowError
from recurra.window.gpu import GPUS
from recurra.window.history_checker import conflicts
from recurra.window.task import Task
from recurra.window.torch.lower import lower
from recurra.window.torch.record import RecordedOperator, record_operators
from recurra.window.trace import Trace
from recurra.window.workloads import NAMES, make

GPU = GPUS["rtx3070"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small operators on a busy machine: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recorded(program: Callable[[], object]) -> tuple[list[str], set[tuple[int, int]]]:
    """Names of the operators, and the pairs that must keep their order."""
    found = record_operators(program)
    tasks = [Task(o.name, o.reads, o.writes) for o in found]
    return [o.name for o in found], {(early, late) for early, late, _ in conflicts(tasks)}


def test_reads_follow_writes() -> None:
    a, b = torch.ones(4), torch.ones(4)
    names, pairs = recorded(lambda: (a + b) * (a - b))
    assert names == ["add", "sub", "mul"]
    assert pairs == {(0, 2), (1, 2)}


def test_views_are_no_kernels_and_share_their_memory() -> None:
    a = torch.zeros(4, 4)

    def program() -> None:
        a[0].add_(1.0)  # the first row
        a[1].add_(1.0)  # another one
        a.t()[0].add_(1.0)  # the first column, which crosses both
        a[2:].mul_(2.0)

    names, pairs = recorded(program)
    assert names == ["add_", "add_", "add_", "mul_"]
    assert pairs == {(0, 2), (1, 2), (2, 3)}


def test_what_out_overwrites_waits_for_its_readers() -> None:
    a, out = torch.ones(4), torch.empty(4)

    def program() -> None:
        torch.mul(a, 2.0, out=out)
        _ = out + 1.0
        torch.mul(a, 3.0, out=out)

    names, pairs = recorded(program)
    assert len(names) == 3
    assert pairs == {(0, 1), (0, 2), (1, 2)}


def test_statistics_that_a_schema_hides_are_written() -> None:
    x, mean, var = torch.randn(8, 3), torch.zeros(3), torch.ones(3)
    norm = torch.nn.functional.batch_norm

    def program(training: bool) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                norm(x, mean, var, training=training)
                norm(x, mean, var, training=training)

        return run

    assert recorded(program(True))[1] == {(0, 1)}
    assert recorded(program(False))[1] == set()


def test_the_host_waits_for_items() -> None:
    a = torch.ones(4)
    found = record_operators(lambda: float(a.sum()) + 1)
    assert [o.host for o in found] == [False, True]
    trace = lower("item", found, GPU)
    assert trace.kernels[1].host
    assert trace.upstream == ((), (0,))


def test_memory_that_is_used_again_orders_nothing() -> None:
    a = torch.ones(1024)

    def program() -> None:
        for _ in range(5):
            _ = a + 1.0  # freed at once, and the allocator gives the same memory again

    assert recorded(program)[1] == set()


def operator(name: str, inputs: list[tuple[int, ...]], output: tuple[int, ...]) -> RecordedOperator:
    return RecordedOperator(name, tuple(inputs), (output,), 4, (), (), 1.0, False)


@pytest.mark.parametrize(
    ("op", "ctas"),
    [
        (operator("add", [(4096,), (4096,)], (4096,)), 4),
        (operator("sum", [(4096,)], ()), 4),  # as many as it takes to read
        (operator("mm", [(64, 32), (32, 64)], (64, 64)), 2),
        (operator("convolution", [(1, 8, 32, 32), (16, 8, 3, 3)], (1, 16, 32, 32)), 8),
        (operator("convolution", [(1, 8, 32, 32), (8, 1, 3, 3)], (1, 8, 32, 32)), 8),
    ],
)
def test_blocks_cover_the_result(op: RecordedOperator, ctas: int) -> None:
    assert lower("one", [op], GPU).kernels[0].ctas == ctas


def test_a_block_takes_its_share_of_bytes_and_operations() -> None:
    n = 1024 * GPU.sms  # a block on every multiprocessor
    (kernel,) = lower("one", [operator("add", [(n,), (n,)], (n,))], GPU).kernels
    assert kernel.us == pytest.approx(2.5 + 12 * n / (GPU.gbs * 1e3) + n / (GPU.tflops * 1e6), 1e-3)
    m = 1024
    (kernel,) = lower("one", [operator("mm", [(m, m), (m, m)], (m, m))], GPU).kernels
    each = 2 * m**3 / (GPU.tflops * 1e6 / GPU.sms) + 12 * m**2 / (GPU.gbs * 1e3 / GPU.sms)
    assert kernel.us == pytest.approx(2.5 + each / kernel.ctas, 1e-3)


@pytest.fixture(scope="module", params=NAMES)
def workload(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    name: str = request.param
    return name, lower(name, record_operators(make(name, batch=2).run), GPU)


READ_BY_HOST = {"grasp": 2, "humanoid": 2, "walker": 2, "instanas": 10}


def test_workloads_are_many_small_kernels(workload: tuple[str, Trace]) -> None:
    name, trace = workload
    assert 50 <= len(trace) <= 2000
    assert sum(k.ctas < 200 for k in trace.kernels) > 0.9 * len(trace)
    if name in READ_BY_HOST:
        assert sum(k.host for k in trace.kernels) == READ_BY_HOST[name]
    if name in ("nasnet", "amoebanet", "squeezenet", "randomwire", "condconv"):
        assert not any(k.host for k in trace.kernels)


@pytest.mark.parametrize("name", NAMES)
def test_workloads_are_the_same_for_the_same_seed(name: str) -> None:
    def result(seed: int) -> list[torch.Tensor]:
        found = make(name, batch=1, seed=seed).run()
        return [found] if isinstance(found, torch.Tensor) else found

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = result(0), result(0), result(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(torch.isfinite(a).all() for a in first)
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's draws are changed


def test_routes_depend_on_the_image() -> None:
    paths = {
        tuple(o.name for o in record_operators(make("routing", seed=seed).run)) for seed in range(3)
    }
    assert len(paths) == 3


def test_rotations_keep_lengths() -> None:
    from recurra.window.workloads.physics import rotate

    q = torch.nn.functional.normalize(torch.randn(16, 4, generator=torch.manual_seed(0)))
    v = torch.randn(16, 3)
    torch.testing.assert_close(rotate(q, v).norm(dim=1), v.norm(dim=1))
    quarter = torch.tensor([[0.5**0.5, 0.0, 0.0, 0.5**0.5]])  # around z
    x, y = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    torch.testing.assert_close(rotate(quarter, x), y)


@pytest.mark.parametrize(
    ("call", "says"),
    [(lambda: make("tictactoe"), "no workload"), (lambda: make("ant", batch=-1), "batch of -1")],
)
def test_wrong_workloads(call: type, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        call()
