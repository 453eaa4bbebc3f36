"""Segments of launches that come again are graphs; the driver is a stub."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from built import FOLDER
from recurra.window import KernelError, Segment, Task
from recurra.window.native.native_build import STREAMS, build
from recurra.window.stream_issuer import GpuKernel, StreamLaunch, Streams, stub
from stub_streams import broken, flat, let_go_in_time, same_kernels, segments, send

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    build(FOLDER, STREAMS)


@pytest.mark.parametrize("seed", range(300))
def test_graphs_keep_the_order_of_memory(seed: int) -> None:
    rng = random.Random(seed)
    parts = segments(seed)
    most = rng.choice((0, 1, 2, 8))
    driver = stub(FOLDER)
    issuer = Streams(driver, rng.randint(1, 64), rng.randint(1, 8), graphs=most, folder=FOLDER)
    assert send(parts, issuer) is None
    program = [launch.task for launch in flat(parts)]
    assert len(driver.ran) == len(program)
    assert not broken(program, driver)
    assert same_kernels(parts, driver)
    assert driver.graphs <= most
    assert issuer.graphs["kept"] <= most
    launched = sum(issuer.graphs[name] for name in ("built", "reused", "updated"))
    assert driver.counts.get("runnable_launch", 0) == launched
    assert not issuer.held()
    issuer.close()
    assert not driver.misuses
    assert (driver.graphs, driver.blocks, driver.streams, driver.events) == (0, 0, 0, 0)


CHAIN = [
    StreamLaunch(
        Task("k", (Segment(8 * k, 8),), (Segment(8 * k + 8, 8),)), GpuKernel(1, parameters=(k,))
    )
    for k in range(10)
]


def test_a_segment_is_built_when_it_comes_again_and_then_one_call() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    other = [replace(x, kernel=replace(x.kernel, parameters=(77,))) for x in CHAIN]
    moved = [replace(x, task=Task("k", (Segment(0, 8),), (Segment(0, 8),))) for x in CHAIN]
    calls: list[int] = []
    for part in (CHAIN, CHAIN, CHAIN, other, other, moved):
        issuer.segment(part)
        issuer.settle()
        calls.append(driver.calls - driver.counts["event_query"])
    assert issuer.graphs["first seen"] == 1  # the same edges, elsewhere, are the same segment
    assert issuer.graphs["built"] == 1
    assert issuer.graphs["reused"] == 2
    assert issuer.graphs["updated"] == 2
    assert driver.counts["runnable_set"] == 20 - 1 + 1 - 2 + 2
    assert calls[2] - calls[1] == 2  # the launch and its event
    assert "reused 2" in str(issuer)


def test_other_edges_are_another_segment() -> None:
    issuer = Streams(stub(FOLDER), folder=FOLDER)
    free = [replace(x, task=Task("k", writes=x.task.writes)) for x in CHAIN]
    for part in (CHAIN, free, CHAIN, free):
        issuer.segment(part)
    issuer.settle()
    assert issuer.graphs["first seen"] == issuer.graphs["built"] == 2


def test_long_segments_are_several_graphs() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    part = (CHAIN * 20)[:150]
    for _ in range(3):
        issuer.segment(part)
    issuer.settle()
    assert driver.counts["runnable_launch"] == 2 * 3
    assert not broken([x.task for x in part] * 3, driver)


@pytest.mark.parametrize("call", ["graph_create", "graph_add", "instantiate", "runnable_set"])
def test_what_the_driver_refuses_goes_to_streams_and_is_said(call: str) -> None:
    driver = stub(FOLDER)
    driver.refuses = call
    issuer = Streams(driver, folder=FOLDER)
    parts = [
        [replace(x, kernel=replace(x.kernel, parameters=(k,))) for x in CHAIN] for k in range(4)
    ]
    assert send(parts, issuer) is None
    assert issuer.graphs["refused"] >= 2
    assert driver.counts[call] == 1  # it is not tried again
    assert f"the driver refuses: {call.replace('_', ' ')} gives 801" in str(issuer)
    assert same_kernels(parts, driver)
    assert not broken([x.task for x in CHAIN] * 4, driver)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_at_every_call_with_graphs(seed: int) -> None:
    """While a graph is made it is a refusal; else nothing more is issued."""
    parts = segments(seed, known=2, count=7)
    program = [launch.task for launch in flat(parts)]

    def through(fail_at: int | None) -> tuple[Any, Streams, KernelError | None]:
        driver = stub(FOLDER)
        driver.fail_at = 2**60 if fail_at is None else fail_at
        issuer = Streams(driver, 4, 3, graphs=2, folder=FOLDER)
        return driver, issuer, send(parts, issuer)

    driver, whole, _ = through(None)
    assert driver.counts["runnable_launch"]
    refused = failures = 0
    for at in range(driver.calls):
        driver, issuer, failed = through(at)
        assert not broken(program, driver), f"call {at}"
        assert same_kernels(parts, driver)
        assert let_go_in_time(driver, issuer), f"call {at}"
        if failed is None:
            assert len(driver.ran) == len(program)
            assert "gives 700" in str(issuer)
            refused += 1
        else:
            assert "gives 700" in str(failed)
            failures += 1
        issuer.stop()
        assert not driver.misuses
    assert refused > 5
    assert failures > 20
    assert not whole.held()


# workspaces


def test_a_stream_has_one_workspace_that_grows() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, 64, 2, graphs=0, folder=FOLDER)
    places = [Segment(8 * k, 8) for k in range(2)]
    for bytes_ in (100, 100, 60, 1000, 100):
        for place in places:
            issuer.launch(Task("k", (place,), (place,)), GpuKernel(workspace=bytes_, us=50.0))
    issuer.settle()
    assert driver.counts["allocate"] == 4
    assert driver.counts["release"] == 2  # the small ones, when nobody had them any more
    assert len({ran.kernel.parameters[-1] for ran in driver.ran}) == 4
    assert not driver.misuses
    issuer.close()
    assert driver.blocks == 0


def test_nodes_of_a_graph_share_a_workspace_only_one_after_the_other() -> None:
    driver = stub(FOLDER)
    issuer = Streams(driver, folder=FOLDER)
    part = [
        StreamLaunch(Task("k", (s,), (s,)), GpuKernel(workspace=256, us=50.0))
        for s in [Segment(8 * (k % 3), 8) for k in range(12)]
    ]
    for _ in range(3):
        issuer.segment(part)
    issuer.settle()
    assert len({ran.kernel.parameters[-1] for ran in driver.ran if ran.ticket >= 12}) == 3
    assert not broken([x.task for x in part] * 3, driver)


# memory, threads, the end
