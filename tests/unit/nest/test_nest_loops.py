"""Nests: every schedule visits every point once and computes the same; text; legality."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_interpreter import points, run
from random_nests import laid_out, random_nest, random_problem
from recurra.errors import ScheduleError
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.loops import Nest, NestLoop, canonical, parse, scheduled, untiled
from recurra.nest.reference import evaluate

MATMUL = catalogue.matmul(100, 64, 48, post="relu")


@given(st.randoms(use_true_random=False))
def test_every_schedule_computes_the_same(r: Random) -> None:
    p = random_problem(r, points=400)
    nest = random_nest(r, p, r.choice([PAPER, Actions(write_loops=True)]))
    assert parse(str(nest)) == nest
    assert scheduled(p, nest.order).loops == nest.loops
    inputs = [laid_out(t, r)[0] for t in p.inputs]
    out, _ = laid_out(p.output, r)
    want, got = out.copy(), out.copy()
    evaluate(p, inputs, want)
    run(nest, inputs, got)
    np.testing.assert_array_equal(got, want)


@given(st.randoms(use_true_random=False))
def test_every_point_is_visited_once(r: Random) -> None:
    p = random_problem(r, points=400)
    nest = random_nest(r, p, Actions(), steps=20)
    seen = Counter(tuple(sorted(point.items())) for point in points(nest.steps, p.extents))
    space = product(*([(i, x) for x in range(n)] for i, n in sorted(p.sizes)))
    assert seen == Counter(dict.fromkeys(space, 1))


@given(st.randoms(use_true_random=False))
def test_canonical_loops_visit_in_the_same_order(r: Random) -> None:
    p = random_problem(r, points=400)
    nest = random_nest(r, p, Actions(), steps=20)
    short = canonical(nest.steps, p.extents)
    one = {i: 0 for i, n in p.sizes if n == 1}
    shortened = [{**one, **point} for point in points(short, p.extents)]
    assert shortened == list(points(nest.steps, p.extents))


def test_text() -> None:
    nest = scheduled(MATMUL, "m/6 k m n")
    assert str(nest).split("\n\n")[1] == (
        "for m in 16 tail 4:  <<<\n"
        "  for k in 64:\n"
        "    for m in 6:\n"
        "      for n in 48:\n"
        "        T[m,n] += A[m,k] * B[k,n]\n"
        "for m in 100:\n"
        "  for n in 48:\n"
        "    C[m,n] = relu(T[m,n])"
    )
    assert nest.order == "m/6 k m n | m n"


def test_actions() -> None:
    """The sequence of figure 3, in our words."""
    nest = untiled(MATMUL)
    orders: list[str] = []
    for name in ("split_8", "down", "swap_down", "swap_down", "split_4", "up"):
        nest = Actions().apply(nest, name)
        orders.append(f"{nest.order} @{nest.cursor}")
    assert orders == [
        "m/8 m k n | m n @0",
        "m/8 m k n | m n @1",
        "m/8 k m n | m n @2",
        "m/8 k n m | m n @3",
        "m/8 k n m/4 m | m n @3",
        "m/8 k n m/4 m | m n @2",
    ]
    assert nest.compute == (
        NestLoop("m", 12, 4), NestLoop("k", 64), NestLoop("n", 48),
        NestLoop("m", 2), NestLoop("m", 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("order", "cursor", "action", "reason"),
    [
        ("m k n", 0, "up", "the cursor is on the first loop"),
        ("m k n", 4, "down", "the cursor is on the last loop"),
        ("m k n", 2, "swap_down", "there is no loop on that side, in the same nest"),
        ("m k n", 3, "swap_up", "there is no loop on that side, in the same nest"),
        ("m/8 m k n", 0, "swap_down", "both loops are over m: nothing would change"),
        ("k/32 m k n", 0, "split_2", "`for k in 2` has too few trips to take 2 at a time"),
        (
            "m/4 m/2 m k n/8 n/4 n/2 n",
            3,
            "split_4",
            "the nest has 10 loops, as many as it may have",
        ),
    ],
)
def test_illegal_actions(order: str, cursor: int, action: str, reason: str) -> None:
    found = scheduled(MATMUL, order)
    nest = Nest(MATMUL, found.compute, found.write, cursor)
    rules = Actions((2, 4), max_loops=10, write_loops=True)
    assert rules.refusal(nest, action) == reason
    assert not rules.legal(nest)[rules.names.index(action)]
    with pytest.raises(ScheduleError, match=f"{action} is not possible here"):
        rules.apply(nest, action)


def test_the_cursor_stays_in_the_compute_nest() -> None:
    nest = Nest(MATMUL, untiled(MATMUL).compute, untiled(MATMUL).write, 2)
    assert Actions().refusal(nest, "down") == "the cursor is on the last loop"
    assert Actions(write_loops=True).refusal(nest, "down") is None


def test_a_tail_may_be_split_off() -> None:
    p = catalogue.matmul(9, 2, 2)
    nest = Actions().apply(untiled(p), "split_8")
    assert nest.compute[:2] == (NestLoop("m", 1, 1), NestLoop("m", 8))


@pytest.mark.parametrize(
    ("order", "what"),
    [
        ("m k", "the compute nest misses points"),
        ("m/6 k n", "the last loop over m in 'm/6 k n' leaves points to no loop"),
        ("m k n | m", "the write nest misses points"),
        ("m k n z", "not understood: 'z' in 'm k n z'"),
        ("m/4 k m/8 m n", "m/8 takes 8 points of m in a trip"),
        ("m k/0 n", "not understood: 'k/0' in 'm k/0 n'"),
    ],
)
def test_wrong_orders(order: str, what: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        scheduled(MATMUL, order)
    assert refused.value.what == what


def test_wrong_text() -> None:
    text = str(untiled(MATMUL))
    with pytest.raises(ScheduleError, match="not understood as a nest"):
        parse(text.replace("T[m,n] +=", "T[m,n] -="))
    with pytest.raises(ScheduleError, match="the compute nest misses points"):
        parse(text.replace("for k in 64", "for k in 63"))
    with pytest.raises(ScheduleError, match="is no loop"):
        parse(text.replace("for k in 64", "for k in 63 tail 1"))


def test_canonical() -> None:
    extents = {"m": 100, "k": 64, "n": 1}

    def short(order: str) -> tuple[tuple[str, int], ...]:
        return canonical(scheduled(catalogue.matmul(100, 64, 1), order).steps, extents)

    assert short("m/64 m/16 m k n") == (("m", 1), ("k", 1))
    assert short("m/24 m/16 k m n") == (("m", 24), ("m", 16), ("k", 1), ("m", 1))
    assert short("k/8 m n k") == (("k", 8), ("m", 1), ("k", 1))
