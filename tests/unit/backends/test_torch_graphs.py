"""Loops of the Torch backend that are recorded and played back: all but the GPU's part of it.

A recording is stood in for: it keeps the memory that was there when it was made, reads what is in
it when it is played, and leaves its results where the first ones were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from benchmarks.core.recurra_program import program
from ended_rows import by_backend as rows_by_backend
from random_cases import CASES
from recurra.backends.torch import cuda_graphs as graphs
from recurra.backends.torch.cuda_graphs import RecordedLoop
from recurra.backends.torch.region import TorchBackend


class Recorder:
    """Plays back on a CPU; counts what is recorded and played."""

    def __init__(self) -> None:
        self.recorded: list[RecordedLoop] = []
        self.played = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        graph = _graph_of(run)
        self.recorded.append(graph)
        run()
        first = graph.made[-1]

        def replay() -> None:
            self.played += 1
            run()
            for mine, x in zip(first, graph.made.pop(), strict=True):
                mine.copy_(x)

        return replay


def _graph_of(run: Callable[[], None]) -> RecordedLoop:
    assert run.__closure__ is not None
    return next(
        c.cell_contents for c in run.__closure__ if isinstance(c.cell_contents, RecordedLoop)
    )


def backend(recorder: Recorder) -> TorchBackend:
    made = TorchBackend(fuse=False, graphs=True)
    made.record = recorder
    return made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also loops that save next to nothing."""
    monkeypatch.setattr(graphs, "MIN_GRAPH_LAUNCHES", 1)


def test_learning_is_the_same_and_its_loops_are_played() -> None:
    """REINFORCE, its environment as equations: acting and returns are loops of one address each."""
    recorder = Recorder()
    ours = program(4, 5, 8, gradients=False, via=rc.import_jax, backend=backend(recorder))
    plain = program(4, 5, 8, gradients=False, via=rc.import_jax, backend=TorchBackend(fuse=False))
    got, want = ours.run(seed=2), plain.run(seed=2)
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x)
    assert len(recorder.recorded) == 2
    assert recorder.played == 2 * 7  # of 8 iterations the first runs as it is
    assert "region_2_i_loop_1(" in ours.backend.sources["region_2_i"]
    other = ours.run(seed=3)  # other stores: recorded anew
    assert len(recorder.recorded) == 4
    np.testing.assert_array_equal(other["length"], plain.run(seed=3)["length"])
    np.testing.assert_array_equal(ours.run(seed=2)["length"], want["length"])
    np.testing.assert_array_equal(got["length"], want["length"])  # results are not overwritten


def test_a_cpu_records_nothing() -> None:
    made = TorchBackend()
    assert not made.graphs
    ours = program(4, 5, 8, gradients=False, via=rc.import_jax, backend=made)
    ours.run()
    assert "_loop_" not in "".join(made.sources.values())


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, in itself
def test_what_is_fused_is_compiled_once() -> None:
    """Whether its tensors are those of the first launch, of a later one, or a recording's."""
    made = TorchBackend(fuse=True, graphs=True)
    made.record = recorder = Recorder()
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        rc.output(x=walk(i, t, T)[i, T - 1] * rc.constant(np.arange(2, dtype=np.float32)))
    program = ctx.compile({I: 5, T: 9}, backend=made)
    with torch._dynamo.config.patch(error_on_recompile=True):  # pyright: ignore
        found = [program.run(seed=seed)["x"] for seed in (1, 1, 2)]
    assert made.fused
    assert recorder.played
    for seed, x in zip((1, 1, 2), found, strict=True):
        want = ctx.run({I: 5, T: 9}, seed=seed, backend="numpy")["x"]
        np.testing.assert_allclose(x, want, rtol=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", CASES)
def test_programs_that_went_wrong(case: Any) -> None:
    from program_checks import compiled, oracle

    compiled(case, backend(Recorder()), oracle(case), launch_steps=1, check=False, vectorized=False)


def loop_of(write: Callable[..., Any], bounds: tuple[int, int] = (5, 9)) -> tuple[Recorder, Any]:
    """A program over i and t, written by `write(i, t, I, T)`."""
    recorder = Recorder()
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        end = write(i, t, I, T)
    sizes = {I: bounds[0], T: bounds[1] if end is None else end}
    got = ctx.compile(sizes, backend=backend(recorder)).run()
    for name, x in ctx.compile(sizes, backend="numpy").run().items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, err_msg=name)
    return recorder, got


def walk(i: Any, t: Any, T: Any) -> Any:
    w, x = rc.like(rc.f32[2], domain=(i,)), rc.like(rc.f32[2], domain=(i, t))
    w[0] = 0.0
    w[i + 1] = w * 0.5 + x[i, T - 1]
    x[i, 0] = w
    x[i, t + 1] = (x * 0.5 + rc.uniform((i, t), (2,))).tanh()
    return x


@pytest.mark.usefixtures("small")
def test_draws_of_the_outer_step_are_read_at_every_play() -> None:
    """The number i is in tensors that the loop takes, not in what was recorded."""

    def write(i: Any, t: Any, I: Any, T: Any) -> None:
        rc.output(last=walk(i, t, T)[i, T - 1])

    recorder, got = loop_of(write)
    assert (len(recorder.recorded), recorder.played) == (1, 4)
    assert len({tuple(x) for x in got["last"]}) == 5


@pytest.mark.usefixtures("small")
def test_what_stands_at_another_place_each_time_is_not_recorded() -> None:
    """The store of all x is written at [i, t]."""

    def write(i: Any, t: Any, I: Any, T: Any) -> None:
        rc.output(x=walk(i, t, T))

    recorder, _ = loop_of(write)
    assert not recorder.recorded


@pytest.mark.usefixtures("small")
def test_a_choice_by_the_outer_step_is_not_recorded() -> None:
    """In the first step of the first iteration x is another."""

    def write(i: Any, t: Any, I: Any, T: Any) -> None:
        x = rc.like(rc.f32, domain=(i, t))
        x[0, 0] = 1.0
        x[i + 1, 0] = x[i, T - 1]
        x[i, t + 1] = x * 0.5
        rc.output(last=x[i, T - 1])

    recorder, _ = loop_of(write)
    assert not recorder.recorded


@pytest.mark.usefixtures("small")
def test_loops_that_the_data_end_are_not_recorded() -> None:
    def write(i: Any, t: Any, I: Any, T: Any) -> Any:
        x = rc.like(rc.f32, domain=(i, t))
        x[0, 0] = 0.0
        x[i + 1, 0] = x[i, T - 1] * 0.1
        x[i, t + 1] = x + rc.uniform((i, t)) + 0.1
        rc.output(n=rc.value(T), total=x[i, 0:T].sum())
        return rc.until(x > 2.0, max=9)

    recorder, _ = loop_of(write)
    assert not recorder.recorded


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [1, 5, 13])
def test_rows_that_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    init = TorchBackend.__init__

    def with_graphs(self: TorchBackend, *args: Any, **kwargs: Any) -> None:
        init(self, fuse=False, graphs=True)
        self.record = Recorder()

    monkeypatch.setattr(TorchBackend, "__init__", with_graphs)
    rows_by_backend(seed, "torch", 3)


def test_a_recording_keeps_its_memory() -> None:
    """Inputs are copied to where they were; results are copies; stores must lie where they lay."""
    recorder, store = Recorder(), torch.zeros(3)

    def run(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s[0].copy_(x)
        return (x + s[1],)

    graph = RecordedLoop(run, 1, 1, recorder)
    (first,) = graph(torch.tensor(1.0), store)
    store[1] = 5.0
    (second,) = graph(torch.tensor(2.0), store)
    (third,) = graph(torch.tensor(3.0), store)
    assert [float(x) for x in (first, second, third)] == [1.0, 7.0, 8.0]
    assert float(store[0]) == 3.0
    assert (len(recorder.recorded), recorder.played) == (1, 2)
    (fourth,) = graph(torch.tensor(4.0), torch.zeros(3))
    assert (float(fourth), len(recorder.recorded)) == (4.0, 2)


def test_recording_leaves_stores_as_they_were() -> None:
    """To record runs the loop; what it adds up is added up once."""
    recorder, store = Recorder(), torch.zeros(2)

    def run(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s[0].copy_(s[0] + x)
        return ()

    graph = RecordedLoop(run, 1, 1, recorder)
    for k in (1.0, 2.0, 3.0):
        graph(torch.tensor(k), store)
    assert float(store[0]) == 6.0
