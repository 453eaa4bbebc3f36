"""examples/attention_patterns.py: what every pattern attends to, and what is kept for it."""

from __future__ import annotations

import numpy as np
import pytest

from example_programs import read_example
from recurra.llm import oracle, patterns

MASKS = {
    "causal": "causal",
    "window": "window:64",
    "chunk": "chunk:32",
    "dilated": "dilated:8",
    "sinks": "sinks:4+64",
}


def test_it_attends_to_what_the_masks_say():
    length, rows = 80, 2
    found = read_example("attention_patterns")
    program = found["ctx"].compile({found["B"]: rows, found["T"]: length}, backend="numpy")
    got = program.run(seed=3)
    i, j = np.indices((length, length))
    masks = {n: oracle.mask(patterns.parse(word), i, j) for n, word in MASKS.items()}
    masks["strided"] = masks["dilated"] & masks["window"]
    rng, x = np.random.default_rng(0), got["x"].astype(float)
    for k, name in enumerate(found["PATTERNS"]):
        q, keys, values = (x @ (rng.normal(size=(16, 16)) / 4) for _ in range(3))
        s = np.where(masks[name], np.einsum("btd,bsd->bts", q, keys), -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        want = np.einsum("bts,bsd->btd", e / e.sum(-1, keepdims=True), values)
        np.testing.assert_allclose(got["y"][:, :, k], want, atol=1e-5, err_msg=name)
    slots = {r["store"]: r["slots"] for r in program.store_rows}
    assert [slots[f"k_{n}"] for n in ("window", "chunk", "strided")] == ["t: 64", "t: 32", "t: 57"]
    assert x[:, 1:] == pytest.approx(np.tanh(x[:, :-1] + got["y"][:, :-1].sum(axis=2)), abs=1e-5)
