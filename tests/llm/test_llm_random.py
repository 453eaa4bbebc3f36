"""Random decoders: any family, patterns, frequencies, lengths of rows, against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llm import models
from llm.test_llm_model import FAMILIES, PAD, ROWS, case, close, tokens
from recurra.llm import oracle, patterns
from recurra.llm.generate import with_patterns
from recurra.llm.weights import Weights

ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
]


def any_pattern(rng: np.random.Generator, ragged: bool) -> str:
    a, b = (int(n) for n in rng.integers(1, 9, 2))
    words = ["causal", f"window:{a}", f"dilated:{a}", "linear"]
    return str(rng.choice(words if ragged else [*words, f"chunk:{a}", f"sinks:{a}+{b}"]))


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    name, count, ragged = str(rng.choice(FAMILIES)), int(rng.integers(1, 4)), rng.random() < 0.5
    more: dict[str, Any] = {"max_position_embeddings": 8}
    if name != "gemma-3":
        more |= {"rope_scaling": None, "rope_parameters": ROPES[rng.integers(len(ROPES))]}
    c, named, w = models.in_memory(name, count, **more)
    mix = [any_pattern(rng, ragged) for _ in range(count)]
    if unrolled := rng.random() < 0.7:
        c = with_patterns(c, [patterns.parse(word) for word in mix])
    else:
        c = with_patterns(c, [patterns.parse(mix[0])] * count)
    if rng.random() < 0.3 and patterns.Linear() not in {layer.pattern for layer in c.layers}:
        c = replace(c, sink_logits=True)
        for k in range(count):
            sinks = rng.standard_normal(c.heads).astype(np.float32)
            named[f"model.layers.{k}.self_attn.sinks"] = sinks
        w = models.packed(c, named)
    length = int(rng.integers(PAD.max() + 1, 15))
    got = case(Weights(c, w.arrays), unrolled, ragged, length=length).run("numpy")
    want = oracle.logits(c, named, tokens(c, length), PAD if ragged else np.zeros(ROWS, int))
    close(got, want, ragged)


@pytest.mark.parametrize("seed", range(4))
def test_random_decoders(seed: int):
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 300))
def test_random_decoders_long(seed: int):
    check(seed)
