"""The simulator obeys memory and the GPU's limits, and adds up its costs as they are written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_tasks import programs, random_program
from recurra.window import Segment, Task, WindowError
from recurra.window.gpu import GPUS, Gpu, Residency, need
from recurra.window.hardware import HardwareWindow
from recurra.window.history_checker import conflicts, events, violations
from recurra.window.policies import POLICIES, assign_streams
from recurra.window.profile import parallelism, profile_trace
from recurra.window.simulate import persistent_blocks, simulate
from recurra.window.simulated_gpu import LaunchCosts, SimulatedGpu
from recurra.window.synthetic import Chains
from recurra.window.timeline import TimelineRun, lanes_of
from recurra.window.trace import Kernel, Trace, dependences, parse

SMALL = Gpu("small", sms=3, ghz=1.0, warps=16, ctas=4, registers=32768, shared=32768)


def random_trace(seed: int, length: int) -> Trace:
    """Kernels of all sizes on a small memory, now and then read by the host."""
    rng = random.Random(seed)
    return Trace(
        "random",
        tuple(
            Kernel(
                "k",
                ctas=rng.choice([1, 2, 7, 40]),
                threads=rng.choice([32, 100, 256]),
                registers=rng.choice([16, 33, 64]),
                shared=rng.choice([0, 0, 9000, 32768]),
                us=rng.choice([0.5, 3.0, 20.0]),
                reads=task.reads,
                writes=task.writes,
                host=rng.random() < 0.1,
            )
            for task in random_program(seed, length)
        ),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_breaks_an_order(policy: str) -> None:
    for seed in range(12):
        trace = random_trace(seed, 30)
        slots = random.Random(seed).choice([1, 2, 5, 32])
        machine = SimulatedGpu(SMALL, slots=slots, scheduled=slots + seed % 3, streams=1 + seed % 4)
        run = simulate(trace, policy, machine)
        log = events((s.kernel, s.start, s.stop) for s in run.spans)
        limit = slots if policy.startswith("acs") else None
        assert not violations(trace.tasks, log, slots=limit)


@pytest.mark.parametrize("policy", POLICIES)
def test_work_is_neither_lost_nor_invented(policy: str) -> None:
    """Active warps over time add up to the work of all blocks, and never exceed the GPU's."""
    trace, machine = random_trace(5, 25), SimulatedGpu(SMALL)
    run = simulate(trace, policy, machine)
    kernels = trace.kernels
    us = [k.us for k in kernels]
    if policy == "persistent":
        us = [k.us for k in persistent_blocks(kernels, machine)]
    work = sum(k.ctas * k.warps * t for k, t in zip(kernels, us, strict=True))
    assert run.occupancy * run.us * run.slots == pytest.approx(work)
    assert max(warps for _, warps in run.warps) <= SMALL.sms * SMALL.warps
    assert run.us >= max(s.stop - s.start for s in run.spans)


def line(*kernels: Kernel) -> Trace:
    return Trace("line", kernels)


X, Y, Z = Segment(0, 8), Segment(8, 8), Segment(16, 8)
PAIR = line(Kernel("a", us=10, writes=(X,)), Kernel("b", us=10, reads=(X,), writes=(Y,)))
FREE = line(Kernel("a", us=10, writes=(X,)), Kernel("b", us=10, writes=(Y,)))
ROUND = LaunchCosts(launch=5, dispatch=2, sync=10, check=1, driver=1.0, packet=2, event=1, signal=3)
ROUND = replace(ROUND, node=20, graph=8, described=4, barrier=1.5, child=6, fetch=1)


@pytest.mark.parametrize(
    ("policy", "trace", "starts"),
    [
        ("serial", PAIR, (5, 17)),  # launched at 5, 10; 15 + dispatch 2
        ("serial", FREE, (5, 17)),
        ("streams", FREE, (5, 10)),
        ("streams", PAIR, (5, 17)),  # the same stream
        ("acs-sw", PAIR, (1 + 5 + 2, 18 + 10 + 5 + 2)),  # check, launch, dispatch; sync, launch..
        ("acs-sw", FREE, (8, 13)),  # the driver lets one thread launch at a time
        ("acs-hw", PAIR, (3 + 0.032 + 2, 15.032 + 0.031 + 2)),  # packet, N cycles; N - 1 cycles
        ("acs-hw", FREE, (5.032, 8.032)),
        ("graph", PAIR, (40 + 8 + 2, 60 + 2)),
        ("graph", FREE, (50, 50)),
        ("graph-reused", PAIR, (8 + 2, 20 + 2)),
        ("persistent", PAIR, (2, 13)),  # each block fetches its task
        ("atmi", PAIR, (8 + 2, 20 + 2)),  # the barrier packet has been read meanwhile
        ("cdp", PAIR, (5 + 2, 17 + 6)),
        ("cdp", FREE, (7, 12)),
    ],
)
def test_costs_add_up(policy: str, trace: Trace, starts: tuple[float, ...]) -> None:
    machine = SimulatedGpu(replace(SMALL, ghz=1.0), ROUND)
    run = simulate(trace, policy, machine)
    assert [s.start for s in run.spans] == pytest.approx(list(starts), abs=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_host_waits_for_what_it_reads(policy: str) -> None:
    read = replace(FREE.kernels[0], host=True)
    run = simulate(line(read, FREE.kernels[1]), policy, SimulatedGpu(SMALL, ROUND))
    assert run.spans[1].start >= run.spans[0].stop + ROUND.sync


@pytest.mark.parametrize("policy", POLICIES)
def test_a_slow_front_end_bounds_everything(policy: str) -> None:
    machine = SimulatedGpu(SMALL, replace(ROUND, frontend=100.0))
    assert simulate(FREE, policy, machine).spans[-1].start >= 200


def test_two_kernels_share_the_gpu_if_they_fit() -> None:
    half = Kernel("half", ctas=6, threads=256, us=10)  # 2 of 4 blocks, 16 of 16 warps of each
    assert SMALL.per_sm(half) == 2
    one = simulate(line(half), "graph-reused", SimulatedGpu(SMALL, ROUND))
    two = simulate(line(half, half), "graph-reused", SimulatedGpu(SMALL, ROUND))
    assert (one.us, two.us) == (20, 30)  # they do not
    thin = replace(half, threads=128)
    two = simulate(line(thin, thin), "graph-reused", SimulatedGpu(SMALL, ROUND))
    assert two.us == 20


@pytest.mark.parametrize(
    ("kernel", "most"),
    [
        (Kernel("k", threads=32, registers=16), 4),  # blocks
        (Kernel("k", threads=161, registers=16), 2),  # warps: 6 of 16
        (Kernel("k", threads=128, registers=81), 2),  # registers: 88 each
        (Kernel("k", threads=32, shared=11000), 2),  # shared memory
        (Kernel("k", threads=32, shared=32769), 0),
    ],
)
def test_what_limits_residency(kernel: Kernel, most: int) -> None:
    assert SMALL.per_sm(kernel) == most


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.booleans()), max_size=12))
def test_residency_is_exact(steps: list[tuple[int, int, bool]]) -> None:
    """Beside a model with one block at a time: never too many, never fewer than fit."""
    kinds = [Kernel("k", threads=t, registers=r) for t, r in ((32, 16), (128, 64), (256, 33))]
    kinds.append(Kernel("k", threads=64, shared=20000))
    device, here = Residency(SMALL), []
    limits = np.array([SMALL.ctas, SMALL.warps, SMALL.registers, SMALL.shared])
    free = np.repeat(limits[None], SMALL.sms, 0)
    for count, kind, leave in steps:
        if leave and here:
            placed, needs = here.pop(0)
            device.leave(placed, needs)
            free += placed[:, None] * np.array(needs)
        needs = need(kinds[kind])
        placed = device.place(count, needs)
        room = sum(int(min(f // n for f, n in zip(row, needs, strict=True) if n)) for row in free)
        assert placed.sum() == min(count, room)
        free -= placed[:, None] * np.array(needs)
        assert (free >= 0).all()
        here.append((placed, needs))


def test_blocks_spread() -> None:
    placed = Residency(SMALL).place(4, need(Kernel("k", threads=32)))
    assert sorted(placed) == [1, 1, 2]


def reach(upstream: list[set[int]]) -> list[set[int]]:
    """Everything before, through any chain."""
    found: list[set[int]] = []
    for ups in upstream:
        found.append(ups | {x for u in ups for x in found[u]})
    return found


@given(program=programs)
def test_dependences_stand_for_all_conflicts(program: list[Task]) -> None:
    pairs = conflicts(program)
    every = [{e for e, late, _ in pairs if late == k} for k in range(len(program))]
    assert reach([set(u) for u in dependences(program)]) == reach(every)
    assert all(set(u) <= v for u, v in zip(dependences(program), every, strict=True))


def test_the_window_in_hardware() -> None:
    window = HardwareWindow(size=3, scheduled=4)
    assert window.insert(0, set()) == [0]
    assert window.insert(1, {0}) == []
    assert window.insert(2, {0, 1}) == []
    assert not window.accepts(3)  # full
    assert window.retire(0) == [1]
    assert window.insert(3, {0}) == [3]  # 0 is done: the host did not know
    assert window.retire(3) == []
    assert window.insert(4, set()) == [4]
    assert window.retire(4) == []
    assert window.accepts(5)
    assert not window.accepts(6)  # 1 still runs, and 6 is more than 4 after it
    assert window.retire(1) == [2]
    assert window.accepts(6)
    assert not window.accepts(7)


def test_sram_of_the_paper() -> None:
    assert SimulatedGpu(slots=32).sram == 32 * 32 + 8  # 1 KB, and two bits of state each


def test_streams_follow_chains() -> None:
    upstream = ((), (0,), (), (1, 2), (2,))
    place, before = assign_streams(upstream, 2)
    assert place == [0, 0, 1, 0, 1]
    assert before == {1: 0, 3: 1, 4: 2}


TEXT = """\
# two
gemm ctas=64 threads=256 registers=40 shared=1024 us=12.5 reads=0x0+4096 writes=0x1000+64
norm ctas=1 threads=32 registers=32 shared=0 us=0.1 reads=0x1000+64,0x0+8 host
"""


def test_text_is_the_trace() -> None:
    trace = parse(TEXT)
    assert str(trace) == TEXT
    assert trace.name == "two"
    assert trace.upstream == ((), (0,))
    assert trace.kernels[1].host


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_text_round_trips(seed: int) -> None:
    trace = random_trace(seed, 8)
    assert parse(str(trace)) == trace


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "without kernels"),
        ("# only words", "without kernels"),
        ("a ctas=0", "at least 1"),
        ("a ctas=x", "line 1 is no kernel"),
        ("a\nb us=-1", "line 2 is no kernel"),
        ("a us=nan", "runs for some time"),
        ("a reads=5", "no segment"),
        ("a reads=-5+1", "no segment"),
        ("a blocks=5", "'blocks' is none of"),
    ],
)
def test_what_is_no_trace(text: str, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Kernel("a b"), "no name"),
        (lambda: Kernel(""), "no name"),
        (lambda: SimulatedGpu(slots=0), "1 to 64"),
        (lambda: SimulatedGpu(slots=32, scheduled=31), "must be in the list"),
        (lambda: SimulatedGpu(scheduled=256), "8 bits"),
        (lambda: SimulatedGpu(streams=0), "at least one"),
        (lambda: simulate(PAIR, "magic"), "no policy 'magic'"),
        (lambda: simulate(line(Kernel("k", shared=10**6)), "serial"), "bytes of shared memory"),
        (lambda: simulate(line(Kernel("k", threads=2048)), "serial"), "needs 64 warps"),
        (lambda: Chains("c", 0, 1, 1, 1, 0.0), "no program"),
    ],
)
def test_wrong_input_is_told(make: type, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        make()


def test_synthetic_programs_are_what_they_say() -> None:
    chains = Chains("c", chains=4, ctas=50, us=10, block=3, cross=0.0, kernels=400)
    trace = chains.trace()
    assert trace == chains.trace()
    assert len(trace) == 400
    roots = sum(not u for u in trace.upstream)
    assert roots == 4  # nothing crosses: four chains
    assert all(len(u) <= 1 for u in trace.upstream)
    assert 40 < np.median([k.ctas for k in trace.kernels]) < 62
    crossed = replace(chains, cross=1.0).trace()
    assert np.mean([len(u) for u in crossed.upstream]) > 1.5


def test_parallelism_is_work_over_the_longest_chain() -> None:
    gpu = SimulatedGpu(SMALL)
    free = Trace("free", tuple(Kernel(f"k{k}", us=4.0) for k in range(12)))
    assert parallelism(free, gpu, 12) == 12
    assert parallelism(free, gpu, 3) == 3
    assert parallelism(PAIR, gpu, 32) == 1
    wide = line(Kernel("wide", ctas=13, us=4.0), Kernel("b", us=4.0))  # three waves of 6
    assert parallelism(wide, gpu, 2) == 16 / 12


def test_a_profile_counts() -> None:
    trace = parse(TEXT)
    found = profile_trace(trace)
    assert (found.kernels, found.reads, found.ctas) == (2, 1, 32.5)
    assert found.sizes == {1: 1, 50: 1}
    assert found.parallelism["all"] == 1
    serial = simulate(trace, "serial")
    assert found.occupancy == serial.occupancy
    assert found.build == 40 / (40 + serial.us)
    assert "2 kernels, 1 results read by the host" in str(found)
    assert "graph build share" in found._repr_html_()


def shown() -> TimelineRun:
    return simulate(random_trace(3, 20), "acs-hw", SimulatedGpu(SMALL))


def test_timelines_show_every_kernel_once() -> None:
    run = shown()
    told = json.loads(run.chrome())["traceEvents"]
    bars = [e for e in told if e["ph"] == "X"]
    assert len(bars) == 20
    for lane in {e["tid"] for e in bars}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in bars if e["tid"] == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert run.svg().count("<rect") == 20
    assert "occupancy" in str(run)
    assert "<svg" in run._repr_html_()
    assert max(lanes_of(run.spans)) >= 1


def test_energy_is_idle_power_and_more_with_every_warp() -> None:
    full = Kernel("full", ctas=6, threads=256, us=10)
    run = simulate(line(full), "persistent", SimulatedGpu(SMALL, replace(ROUND, packet=0, fetch=0)))
    assert run.occupancy == 1
    assert run.millijoules == pytest.approx(10 * (SMALL.idle + SMALL.busy) / 1000)


def test_gpus_hold_what_the_programs_ask() -> None:
    for gpu in GPUS.values():
        assert gpu.per_sm(Kernel("k", threads=256, registers=64, shared=16384)) >= 2
