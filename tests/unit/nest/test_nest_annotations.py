"""Annotations: what is packed and what threads share changes no answer, and has a text form."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import recurra as rc
from nest_interpreter import executions
from random_nests import answers, random_nest, random_problem
from recurra.errors import ScheduleError
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.codegen import generate
from recurra.nest.compiled import kernel
from recurra.nest.einsum import from_sizes
from recurra.nest.executable_memory import LoadedKernel
from recurra.nest.llvm import LlvmKernel, host
from recurra.nest.loops import Nest, Pack, parse, scheduled, untiled
from recurra.nest.measure import Evaluator, code_key
from recurra.nest.packing import packings
from recurra.nest.packing import search_packings as packed_by
from recurra.nest.target import AVX2, AVX512, VectorTarget, runnable
from recurra.nest.threads import parallelize, parts

HERE = pytest.mark.parametrize("on", runnable(), ids=str)


def packed(r: Random, nest: Nest) -> Nest:
    """With each input packed at some level, or not at all."""
    packs = [
        Pack(t.name, r.randrange(len(nest.compute)))
        for t in nest.problem.inputs
        if r.random() < 0.7
    ]
    return replace(nest, packs=tuple(sorted(packs, key=lambda x: x.level)))


def random_packed(seed: int) -> tuple[Random, Nest]:
    r = Random(seed)
    return r, packed(r, random_nest(r, random_problem(r, points=6000), Actions()))


def wrong(on: VectorTarget, seeds: range, make: Any) -> list[int]:
    found, refused = list[int](), 0
    for seed in seeds:
        r, nest = random_packed(seed)
        try:
            program = generate(nest, on)
        except ScheduleError:
            refused += 1
            continue
        got, want = answers(r, nest, make(program).call)
        if not (got == want).all():
            found.append(seed)
    assert refused <= len(seeds) // 20
    return found


@HERE
def test_packing_changes_no_answer(on: VectorTarget) -> None:
    assert wrong(on, range(300), LoadedKernel) == []


def test_packing_by_llvm() -> None:
    assert wrong(host(), range(40), LlvmKernel) == []


@pytest.mark.fuzz
@HERE
def test_much_packing(on: VectorTarget) -> None:
    assert wrong(on, range(1000, 6000), LoadedKernel) == []


def test_text() -> None:
    for seed in range(100):
        r, nest = random_packed(seed)
        nest = replace(nest, cursor=r.randrange(len(nest.loops)))
        assert parse(str(nest)) == nest
        assert scheduled(nest.problem, nest.order) == replace(nest, cursor=0)
    nest = scheduled(catalogue.matmul(100, 64, 128), "parallel n/64 [B] m/6 k m n")
    assert parse(str(nest)) == nest
    assert nest.order == "parallel n/64 [B] m/6 k m n | m n"
    assert str(nest).split("\n\n")[1].splitlines()[:3] == [
        "parallel for n in 2:  <<<",
        "  pack B[k,n]",
        "  for m in 16 tail 4:",
    ]


def test_a_buffer_is_as_large_as_what_is_packed() -> None:
    p = catalogue.matmul(100, 64, 128)
    program = generate(scheduled(p, "n/64 [B] m/6 k m n"), AVX512)
    assert program.buffers == (64 * 64 * 4,)
    assert str(program).splitlines()[0].endswith("3 tensors, a buffer of 16384 bytes")
    assert executions(program, "store") == (100 * 128 + 64 * 128) // 16


def test_rows_of_a_buffer_begin_where_vectors_do() -> None:
    program = generate(scheduled(catalogue.matmul(10, 8, 50), "[B] m k n"), AVX512)
    assert program.buffers == (8 * 64 * 4,)
    assert AVX512.bytes == 64


def test_bf16_is_packed_as_f32() -> None:
    p = catalogue.matmul(40, 64, 64, dtype="bf16")
    plain, packed = (generate(scheduled(p, f"{b} m/4 k m n"), AVX512) for b in ("", "[B]"))
    assert packed.buffers == (64 * 64 * 4,)
    assert executions(packed, "load16") * 10 == executions(plain, "load16")


def test_loops_around_a_pack_stay() -> None:
    """n/16 n is n, but not where something happens in between."""
    p = catalogue.matmul(10, 8, 64)
    assert code_key(scheduled(p, "n/16 n m k")) == code_key(scheduled(p, "n m k"))
    keys = [code_key(scheduled(p, f"n/16 {b} n m k")) for b in ("[B]", "[A]")]
    assert keys == ["n/16 n/1 m/1 k/1 [B]1 | m/1 n/1", "n/16 n/1 m/1 k/1 [A]1 | m/1 n/1"]


@pytest.mark.parametrize(
    ("order", "what"),
    [
        ("[X] m k n", "X cannot be packed"),
        ("[C] m k n", "C cannot be packed"),
        ("[A] m [A] k n", "an input is packed twice"),
        ("m k n [A]", "inputs are packed before some loop, outer ones first"),
        ("parallel k m n", "threads cannot share the loop over k"),
        ("parallel m/40 k m n", "threads cannot share `for m in 1`"),
    ],
)
def test_annotations_that_do_not_fit(order: str, what: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        scheduled(catalogue.matmul(40, 8, 8), order)
    assert refused.value.what == what


def test_what_is_packed_fits_on_the_stack() -> None:
    nest = scheduled(catalogue.matmul(4, 1024, 512), "[B] m k n")
    with pytest.raises(ScheduleError, match="what is packed is too large"):
        generate(nest, AVX512)
    assert Evaluator(nest.problem, runnable()[0])(nest) == 0.0


def test_pointers_are_few() -> None:
    p = from_sizes("ab,ab,ab,ab,ab,ab->ab", (3, 4))
    with pytest.raises(ScheduleError, match="too many tensors and buffers\n  8, there are 7"):
        generate(scheduled(p, "[A] a b"), AVX2)


def test_annotations_come_last() -> None:
    nest = scheduled(catalogue.matmul(40, 8, 8), "parallel m k n")
    assert not any(Actions().legal(nest))
    with pytest.raises(ScheduleError, match="annotations come last"):
        Actions().apply(nest, "down")


def test_inputs_are_packed_while_that_is_faster() -> None:
    nest = scheduled(catalogue.matmul(40, 8, 64), "n/16 m k n")
    worth = {"n/16 [B] m k n": 2.0, "[A] n/16 [B] m k n": 3.0}
    found = packed_by(nest, lambda x: worth.get(x.order.split(" | ")[0], 1.0))
    assert found.order == "[A] n/16 [B] m k n | m n"
    assert packed_by(nest, lambda x: 1.0) == nest
    assert len(list(packings(nest))) == 8


# Threads


@pytest.mark.slow
@HERE
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_answer(on: VectorTarget, threads: int) -> None:
    checked = 0
    for seed in range(120):
        r = Random(seed)
        nest = random_nest(r, random_problem(r, points=6000), Actions())
        nest = parallelize(packed(r, nest) if seed % 2 else nest, max(2, threads))
        if nest is None:
            continue
        try:
            loaded = kernel(nest, on, threads)
        except ScheduleError:
            continue
        got, want = answers(r, nest, loaded.call)
        assert (got == want).all(), seed
        checked += 1
    assert checked > 60


def test_parts_cover_an_index_once() -> None:
    nest = scheduled(catalogue.matmul(100, 8, 8), "parallel m/8 k m n")
    for threads in (1, 2, 3, 5, 13, 99):
        found = parts(nest, threads)
        assert len(found) <= threads
        ends = [x.start + x.nest.problem.extents["m"] for x in found]
        assert [x.start for x in found] == [0, *ends[:-1]]
        assert ends[-1] == 100
        assert all(x.start % 8 == 0 for x in found)


@pytest.mark.parametrize(
    ("order", "threads", "want"),
    [
        ("m/6 k m n", 2, "parallel m/6 k m n | m n"),
        ("n/64 m/6 k m n", 2, "parallel m/54 n/64 m/6 k m n | m n"),  # one trip over n
        ("k m n", 2, "parallel m/50 k m n | m n"),  # sums are not shared
        ("n/16 [B] m k n", 4, "parallel n/16 [B] m k n | m n"),
    ],
)
def test_what_is_shared(order: str, threads: int, want: str) -> None:
    nest = parallelize(scheduled(catalogue.matmul(100, 8, 64), order), threads)
    assert nest is not None
    assert nest.order == want


def test_nothing_to_share() -> None:
    assert parallelize(untiled(catalogue.matmul(1, 8, 1)), 2) is None


def test_compiled_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in ((70, 30), (30, 64)))
    multiply = rc.nest.compile("mk,kn->mn", a, b, threads=2)
    np.testing.assert_array_equal(multiply(a, b), a @ b)
    assert "parallel" in repr(multiply)
    with pytest.raises(ScheduleError, match="2 threads have nothing to share"):
        rc.nest.compile("mk,kn->mn", a, b, schedule="k m n", threads=2)
    with pytest.raises(ScheduleError, match="2 threads have nothing to share"):
        rc.nest.compile("ab->", a, threads=2)
    with pytest.raises(ScheduleError, match="a nest needs a thread"):
        rc.nest.compile("mk,kn->mn", a, b, threads=0)
    monkeypatch.setenv("RECURRA_CHECK", "1")
    checked = rc.nest.compile("mk,kn->mn", a, b, schedule="parallel m/40 k m n", threads=2)
    np.testing.assert_array_equal(checked(a, b), a @ b)
