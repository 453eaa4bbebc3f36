"""Generated code: every schedule of every contraction, on every encoder, to the last bit.

Inputs are small integers, so that no order of summation rounds; the memory around the output is
compared as well.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from nest_interpreter import executions
from random_nests import address, answers, random_nest, random_problem
from recurra.errors import BackendError, ScheduleError
from recurra.nest import catalogue, target
from recurra.nest.actions import PAPER, Actions
from recurra.nest.codegen import generate
from recurra.nest.default_schedule import standard
from recurra.nest.einsum import from_sizes
from recurra.nest.executable_memory import LoadedKernel, encode
from recurra.nest.llvm import LlvmKernel, host
from recurra.nest.loops import scheduled, untiled
from recurra.nest.problem import NestProblem
from recurra.nest.target import AVX2, AVX512, TARGETS, VectorTarget

HERE = pytest.mark.parametrize("on", target.runnable(), ids=str)


def check(
    on: VectorTarget, seed: int, make: type[LoadedKernel | LlvmKernel] = LoadedKernel
) -> bool:
    """Is the answer of a random pair right? Raises ScheduleError if its code is too long."""
    r = Random(seed)
    p = random_problem(r, points=6000)
    nest = random_nest(r, p, r.choice([PAPER, Actions(), Actions(write_loops=True)]))
    kernel = make(generate(nest, on))
    got, want = answers(r, nest, kernel.call)
    return bool((got == want).all())


def wrong(
    on: VectorTarget, seeds: range, make: type[LoadedKernel | LlvmKernel] = LoadedKernel
) -> list[int]:
    found: list[int] = []
    refused = 0
    for seed in seeds:
        try:
            if not check(on, seed, make):
                found.append(seed)
        except ScheduleError:
            refused += 1
    assert refused <= len(seeds) // 50
    return found


@pytest.mark.slow
@HERE
def test_random_pairs(on: VectorTarget) -> None:
    assert wrong(on, range(500)) == []


@HERE
def test_the_standard_schedule_of_anything(on: VectorTarget) -> None:
    """No problem is refused where nobody has chosen a schedule."""
    for seed in range(3000, 3150):
        r = Random(seed)
        nest = standard(random_problem(r, points=6000), on)
        got, want = answers(r, nest, LoadedKernel(generate(nest, on)).call)
        assert (got == want).all(), seed


@pytest.mark.fuzz
@HERE
@pytest.mark.parametrize("part", range(10))
def test_many_random_pairs(on: VectorTarget, part: int) -> None:
    start = 10_000 + 1000 * part
    assert wrong(on, range(start, start + 1000)) == []


@pytest.mark.slow
@pytest.mark.parametrize("on", [AVX512, AVX2], ids=str)
def test_llvm_runs_the_same_programs(on: VectorTarget) -> None:
    """Another compiler of the same programs: also lanes that this machine may not have."""
    assert wrong(on, range(60), LlvmKernel) == []


def test_llvm_for_this_machine() -> None:
    assert wrong(host(), range(60, 120), LlvmKernel) == []


NEON = VectorTarget("llvm", 16, 32, True, frozenset())


def test_llvm_with_four_lanes() -> None:
    assert wrong(NEON, range(120, 160), LlvmKernel) == []


CASES = [
    (catalogue.matmul(33, 20, 70, post="relu"), "n/32 m/6 k m n"),
    (catalogue.matmul(33, 20, 70, post="relu"), "k/8 n/32 m/6 k m n"),  # sums through memory
    (catalogue.matmul(33, 20, 70), "m n k"),  # lanes of a reduction
    (catalogue.matmul(33, 20, 70, dtype="f64"), "n/16 m/6 k m n"),
    (catalogue.matmul(5, 7, 600), "m k n"),  # longer than all registers
    (catalogue.matmul(64, 64, 64), "m/24 n/24 k/24 m/8 k n m"),
    (catalogue.matvec(40, 50), "m k"),
    (catalogue.matvec(40, 50), "k m"),
    (catalogue.vecmat(40, 50), "n/16 k n"),
    (catalogue.convolution(2, 6, 7, 5, 20), "n h w r s c k"),
    (catalogue.convolution(1, 6, 7, 5, 20, stride=2), "n h k/16 r s c w k"),
    (catalogue.convolution(1, 6, 17, 5, 3), "n h k r s c w"),  # lanes along the width: gathers
    (catalogue.depthwise(1, 6, 7, 19), "n h w r s c"),
    (catalogue.max_pooling(5, 6, 20), "h w i j c"),
    (catalogue.max_pooling(5, 6, 20, window=3), "h c w i j"),
    (catalogue.reduction(9, 100), "r c"),
    (catalogue.reduction(9, 100), "c r"),
    (catalogue.transposition(33, 40), "r c"),
    (catalogue.transposition(33, 40), "c/8 r c"),
    (catalogue.broadcast(9, 40), "r c"),
    (catalogue.broadcast(9, 40), "c r"),
    (catalogue.concatenation(5, 9, 20)[0], "r c"),
    (catalogue.concatenation(5, 9, 20)[1], "r c"),
    (from_sizes("mk,kn,n->mn", (9, 8, 40)), "m n k"),
    (from_sizes("ab,bc,cd,de,ef,fa->ad", (3, 4, 5, 6, 3, 4)), "a b c e f d"),  # seven pointers
    (from_sizes("ab->", (9, 40), initial=True), "a b"),
    (from_sizes("ab->", (9, 40), combine="max", post="abs"), "b a"),
    (from_sizes("a,b->ab", (1, 1)), "a b"),
    (catalogue.matmul(33, 20, 70, dtype="bf16"), "n/32 m/6 k m n"),
    (catalogue.matmul(33, 20, 70, dtype="bf16", post="relu"), "k/8 n/32 m/6 k m n"),
    (catalogue.matmul(33, 20, 70, dtype="bf16"), "m n k"),  # lanes of B are apart
    (catalogue.max_pooling(5, 6, 20, dtype="bf16"), "h w i j c"),
    (catalogue.transposition(33, 40, dtype="bf16"), "r c"),
    (catalogue.reduction(9, 100, dtype="bf16"), "r c"),
]


@HERE
@pytest.mark.parametrize(("p", "order"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_cases(on: VectorTarget, p: NestProblem, order: str) -> None:
    nest = scheduled(p, order)
    got, want = answers(Random(1), nest, LoadedKernel(generate(nest, on)).call)
    np.testing.assert_array_equal(got, want)


@HERE
def test_more_loops_than_counters(on: VectorTarget) -> None:
    p = from_sizes("abcd,abcd,abcd->", (16, 16, 16, 16))
    words = " ".join(f"{i}/{k}" for k in (8, 4, 2) for i in "abcd")
    nest = scheduled(p, f"{words} a b c d")
    program = generate(nest, on)
    assert b"\x48\xff\x8c\x24" in encode(program)  # dec qword [rsp + ..]
    got, want = answers(Random(1), nest, LoadedKernel(program).call)
    np.testing.assert_array_equal(got, want)


def run(p: NestProblem, order: str, on: VectorTarget, *inputs: np.ndarray) -> np.ndarray:
    out = np.full(p.output.shape, 7, inputs[0].dtype)
    kernel = LoadedKernel(generate(scheduled(p, order), on))
    kernel.call(*map(address, inputs), address(out))
    return out


@HERE
@pytest.mark.parametrize("order", ["r c", "c r", "c/16 r c", "c/4 r c"])
def test_a_maximum_keeps_nan(on: VectorTarget, order: str) -> None:
    x = np.arange(9 * 37, dtype=np.float32).reshape(9, 37) - 400
    for row, column in enumerate((0, 5, 16, 31, 36)):
        x[row, column] = np.nan
    x[5] = -np.inf
    p = from_sizes("rc->r", (9, 37), combine="max")
    np.testing.assert_array_equal(run(p, order, on, x), x.max(axis=1))


@HERE
def test_relu_keeps_nan(on: VectorTarget) -> None:
    x = np.array([np.nan, -1, 2, -np.inf, np.inf] * 5, np.float32)
    p = from_sizes("a->a", (25,), post="relu")
    np.testing.assert_array_equal(run(p, "a", on, x), np.maximum(x, 0))


@HERE
def test_lanes_outside_a_tail_stay_out(on: VectorTarget) -> None:
    """0 · inf in a lane that does not count would be NaN in the sum."""
    x, y = np.ones((4, 21), np.float32), np.full(4, np.inf, np.float32)
    p = from_sizes("mk,m->m", (4, 21))
    assert (run(p, "m k", on, x, y) == np.inf).all()


@HERE
def test_rounding_is_that_of_a_sum(on: VectorTarget) -> None:
    """|error| ≤ n · ε · Σ |terms|, whatever the order."""
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((100, 100)).astype(np.float32) for _ in "ab")
    p = catalogue.matmul(100, 100, 100)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 100 * np.finfo(np.float32).eps * (np.abs(a).astype(np.float64) @ np.abs(b))
    for order in ("m k n", "n/32 m/6 k m n", "k/16 m n k", "m n k"):
        assert (np.abs(run(p, order, on, a, b) - exact) <= bound).all()


def test_programs_print() -> None:
    program = generate(scheduled(catalogue.matmul(4, 100, 16), "m/2 k m n"), AVX512)
    assert str(program).splitlines()[:9] == [
        "avx512 f32 x 16, 3 tensors",
        "repeat 2",
        "  zero 0",
        "  zero 1",
        "  repeat 9",
        "    splat 2 0 0",
        "    load 3 1 0 0",
        "    fma 0 2 3 0",
        "    splat 4 0 400",
    ]


def test_work_and_loads() -> None:
    """Registers are reused: a tile of 6 x 4 vectors loads 4 + 6 operands for 24 multiply-adds."""
    program = generate(scheduled(catalogue.matmul(96, 64, 128), "n/64 m/6 k m n"), AVX512)
    assert executions(program, "fma") == 96 * 64 * 128 // 16
    assert executions(program, "load") == 96 // 6 * 64 * 128 // 16
    assert executions(program, "splat") == 96 * 64 * 2
    assert executions(program, "store") == 96 * 128 // 16
    assert all(0 <= x < 32 for i in program.code if i[0] == "fma" for x in i[1:4])


def test_too_much_code_is_refused() -> None:
    p = catalogue.matmul(255, 255, 255)
    with pytest.raises(ScheduleError) as refused:
        generate(scheduled(p, "m/100 k/100 n/100 m/30 k/30 n/30 m/7 k/7 n/7 m k n"), AVX512)
    assert str(refused.value).startswith(
        "this nest makes too much code\n  more than 6000 instructions"
    )


def test_encoding_needs_no_such_machine() -> None:
    nest = untiled(catalogue.matmul(8, 8, 8))
    for on in TARGETS.values():
        assert encode(generate(nest, on)).count(b"\xc5\xf8\x77")  # vzeroupper


def test_nothing_runs_that_the_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "features", lambda: frozenset({"avx2", "fma"}))
    assert target.runnable() == (AVX2,)
    program = generate(untiled(catalogue.matmul(8, 8, 8)), AVX512)
    with pytest.raises(BackendError) as refused:
        LoadedKernel(program)
    assert str(refused.value) == (
        "this machine does not run avx512\n"
        "  its processor lacks avx512bw, avx512dq, avx512f, avx512vl\n"
        "  hint: it runs avx2"
    )
    with pytest.raises(BackendError, match="there is no target 'sse'"):
        target.host_target("sse")
