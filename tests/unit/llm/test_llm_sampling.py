"""What follows, by a program and by counting; what is kept, by transformers."""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llm_models as models
import recurra as rc
from recurra.errors import RecurraError
from recurra.llm.sampling import Sampling, SamplingInputs, SamplingStages, choose

SIZE, ROWS = 9, 4
EDGE = 1e-4  # how near to a border sums in 32 bits may go to the other side


@cache
def program(kind: SamplingStages, backend: str, count: int) -> Any:
    """(executable, settings) of rows of given logits, draws and tokens that were there."""
    ctx = rc.Context(dims="b")
    with ctx as ((b, B),):
        logits = rc.input(rc.f32[SIZE], (b,), name="logits")
        u = rc.input(rc.f32, (b,), name="u")
        seen = rc.input(rc.boolean[SIZE], (b,), name="seen")
        how = SamplingInputs(kind, b)
        token = choose(logits, how, u if kind.drawn else None, seen if kind.penalized else None)
        rc.output(token=token)
    return ctx.compile({B: count}, backend=backend), how


def run(rows: list[Sampling], logits: Any, u: Any, seen: Any, backend: str = "numpy") -> np.ndarray:
    kind = SamplingStages()
    for row in rows:
        kind |= row.kind
    made, how = program(kind, backend, len(rows))
    inputs = {"logits": logits, "u": u, "seen": seen}
    wanted = {"logits", *(["u"] if kind.drawn else []), *(["seen"] if kind.penalized else [])}
    return made.run(inputs={n: inputs[n] for n in wanted} | how.arrays(rows))["token"]


def kept(how: Sampling, logits: np.ndarray, seen: np.ndarray) -> tuple[list[int], list[float]]:
    """Tokens that may be drawn, the most likely first, and their weights; near a border, none."""
    x = [float(v) for v in logits]
    for k in np.flatnonzero(seen):
        x[k] = x[k] / how.repetition_penalty if x[k] > 0 else x[k] * how.repetition_penalty
    x = [v / how.temperature for v in x]
    order = sorted(range(SIZE), key=lambda k: (-x[k], k))
    gaps = [x[a] - x[b] for a, b in pairwise(order)]
    assume(all(gap == 0 or gap > EDGE for gap in gaps))
    order = order[: how.top_k or None]
    e = [np.exp(x[k] - x[order[0]]) for k in order]
    p = [v / sum(e) for v in e]
    out: list[tuple[int, float]] = []
    mass = 0.0
    for k, v in zip(order, p, strict=True):
        assume(abs(mass - how.top_p) > EDGE)
        if mass < how.top_p:
            assume(how.min_p in (0, 1) or abs(v - how.min_p * p[0]) > EDGE)
            if v >= how.min_p * p[0]:
                out.append((k, v))
        mass += v
    return [k for k, _ in out], [v for _, v in out]


def expected(how: Sampling, logits: np.ndarray, u: float, seen: np.ndarray) -> int:
    if not how.temperature:
        x = logits.astype(float)
        low = np.where(x > 0, x / how.repetition_penalty, x * how.repetition_penalty)
        x = np.where(seen, low, x)
        assume(np.sort(x)[-1] - np.sort(x)[-2] > EDGE)
        return int(x.argmax())
    tokens, weights = kept(how, logits, seen)
    if not how.kind.filtered:  # in the order of the vocabulary, whatever the other rows have
        tokens, weights = zip(*sorted(zip(tokens, weights, strict=True)), strict=True)
    target, sum_ = u * sum(weights), 0.0
    for k, v in zip(tokens, weights, strict=True):
        sum_ += v
        assume(abs(sum_ - target) > EDGE)
        if sum_ > target:
            return k
    raise AssertionError("u is below 1")


ways = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, SIZE, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


@settings(max_examples=150)
@given(rows=st.lists(ways, min_size=ROWS, max_size=ROWS), seed=st.integers(0, 10**6))
def test_rows_of_any_settings(rows: list[Sampling], seed: int):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((ROWS, SIZE))).astype(np.float32)
    u = np.where(rng.random(ROWS) < 0.5, rng.random(ROWS), 0.9995).astype(np.float32)
    seen = rng.random((ROWS, SIZE)) < 0.3
    want = [expected(*x) for x in zip(rows, logits, u, seen, strict=True)]
    assert run(rows, logits, u, seen).tolist() == want


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_the_coldest_draw_is_the_most_likely(backend: Any):
    """Logits that are divided by next to nothing are no longer numbers."""
    cold = [0.0, 1e-46, 1e-45, 1e-40, 1e-38, 1e-37, 1e-30, 1e-10]
    rows = [Sampling(temperature=t) for t in cold] + [
        Sampling(temperature=t, top_k=5, top_p=0.9, min_p=0.01) for t in cold
    ]
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((len(rows), SIZE))).astype(np.float32)
    u = rng.random(len(rows)).astype(np.float32)
    seen = np.zeros((len(rows), SIZE), bool)
    want = logits.argmax(1).tolist()
    assert run(rows, logits, u, seen, backend=backend).tolist() == want


def test_a_penalty_of_next_to_nothing_still_draws():
    """Every token that was there is then as likely as another, and no other is."""
    rows = [Sampling(repetition_penalty=1e-45, temperature=1.0)] * 20
    rng = np.random.default_rng(0)
    logits = 1 + rng.random((20, SIZE)).astype(np.float32)
    seen = np.arange(SIZE) < np.full((20, 1), 2)
    drawn = run(rows, logits, rng.random(20).astype(np.float32), seen)
    assert set(drawn.tolist()) == {0, 1}


@settings(max_examples=60)
@given(how=ways.filter(lambda w: w.temperature > 0), seed=st.integers(0, 10**6))
def test_what_is_kept_is_what_transformers_keeps(how: Sampling, seed: int):
    import torch

    rng = np.random.default_rng(seed)
    logits, seen = 3 * rng.standard_normal(SIZE), rng.random(SIZE) < 0.3
    assume(seen.any())
    tf, scores = models.transformers(), torch.tensor(logits)[None]
    ids = torch.tensor(np.flatnonzero(seen))[None]
    scores = tf.RepetitionPenaltyLogitsProcessor(how.repetition_penalty)(ids, scores)
    scores = tf.TemperatureLogitsWarper(how.temperature)(ids, scores)
    if how.top_k:
        scores = tf.TopKLogitsWarper(how.top_k)(ids, scores)
    scores = tf.TopPLogitsWarper(how.top_p)(ids, scores)
    scores = tf.MinPLogitsWarper(how.min_p)(ids, scores)
    p = scores.softmax(-1)[0].numpy()
    tokens, weights = kept(how, logits, seen)
    assert sorted(tokens) == np.flatnonzero(p).tolist()
    np.testing.assert_allclose(np.array(weights) / sum(weights), p[tokens], atol=1e-6)


def test_the_largest_draw_is_still_one_that_weighs():
    logits = np.full((ROWS, SIZE), -1e4, np.float32)
    logits[:, 3] = logits[:, 5] = 0.0
    none = np.zeros((ROWS, SIZE), bool)
    u = np.array([0.0, 0.4999, 0.5001, 1 - 2.0**-23], np.float32)
    for more in ({}, {"top_p": 0.999}):
        how = Sampling(temperature=1.0, **more)
        assert run([how] * ROWS, logits, u, none).tolist() == [3, 3, 5, 5]


def test_draws_have_the_frequencies_of_their_weights():
    """Of 4000 draws, by row and by position; each count within 4 standard deviations."""
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5], np.float32)
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        temperature = rc.constant(2.0)
        p = rc.constant(logits)
        u = rc.uniform((b, t))
        how = SamplingInputs(SamplingStages(True, True), b)
        rc.output(token=choose(p + u * 0.0, how, u, None), temperature=temperature)
    given = how.arrays([Sampling(temperature=2.0, top_k=4)] * 80)
    found = ctx.compile({B: 80, T: 50}, backend="numpy").run(3, inputs=given)["token"]
    counts = np.bincount(found.ravel(), minlength=5)
    e = np.exp(logits / 2) * (logits > -1)
    n, want = found.size, e / e.sum()
    assert counts[3] == 0
    assert (np.abs(counts - n * want) <= 4 * np.sqrt(n * want * (1 - want)) + 1e-9).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0, and must be 0 or more"),
        ({"top_k": -3}, "top_k is -3, and must be whole, from 0 to 2147483647"),
        ({"top_k": 1.5}, "top_k is 1.5, and must be whole, from 0 to 2147483647"),
        ({"top_k": 2**31}, "top_k is 2147483648, and must be whole"),
        ({"temperature": 1e300}, "must be 0 or more, also in 32 bits"),
        ({"top_p": 1e-300}, "must be above 0, at most 1, also in 32 bits"),
        ({"repetition_penalty": 1e-300}, "must be above 0, also in 32 bits"),
        ({"temperature": "hot"}, "temperature is 'hot', and must be 0 or more"),
        ({"temperature": float("inf")}, "temperature is inf, and must be 0 or more, and finite"),
        ({"top_p": 0.0}, "top_p is 0.0, and must be above 0, at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5, and must be above 0, at most 1"),
        ({"min_p": 2.0}, "min_p is 2.0, and must be from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, and must be above 0"),
    ],
)
def test_settings_that_mean_nothing(wrong: dict[str, Any], message: str):
    with pytest.raises(RecurraError, match=message):
        Sampling(**wrong)


def test_a_program_has_what_its_rows_ask_for():
    assert astuple(Sampling().kind) == (False, False, False)
    assert astuple(Sampling(top_k=3).kind) == (False, False, False)  # nothing is drawn
    assert astuple(Sampling(temperature=1.0, min_p=0.1).kind) == (True, True, False)
    assert astuple(Sampling().kind | Sampling(1.2, 0.7).kind) == (True, False, True)


def test_sums_that_fall_do_not_draw_what_was_taken_out():
    """A parallel sum of weights may be less at its end than before it: XLA's is."""
    size, rows = 5000, 200
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, size)).astype(np.float32)
    most = rng.integers(1, size, rows)
    ctx = rc.Context(dims="b")
    with ctx as ((b, B),):
        how = SamplingInputs(SamplingStages(True, True), b)
        u = rc.value(b) * 0.0 + (1 - 2.0**-23)
        rc.output(token=choose(rc.input(rc.f32[size], (b,), name="logits"), how, u, None))
    given = how.arrays([Sampling(temperature=1.0, top_k=int(k)) for k in most])
    token = ctx.compile({B: rows}).run(inputs={"logits": logits, **given})["token"]
    rank = (logits > logits[np.arange(rows), token][:, None]).sum(axis=1)
    assert (rank < most).all()
