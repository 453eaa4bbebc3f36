"""Random decoders: any family, patterns, frequencies, lengths of rows, against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llm_models as models
from llm.test_llm_model import FAMILIES, PAD, ROWS, case, close, tokens
from recurra.llm import oracle, patterns
from recurra.llm.config import DecoderConfig
from recurra.llm.generate import with_patterns
from recurra.llm.patterns import Prefix
from recurra.llm.program import Form, write
from recurra.llm.sampling import Sampling
from recurra.llm.weights import Weights

ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
]


def any_pattern(rng: np.random.Generator) -> str:
    a, b = (int(n) for n in rng.integers(1, 9, 2))
    words = ["causal", f"window:{a}", f"dilated:{a}", "linear", f"chunk:{a}", f"sinks:{a}+{b}"]
    return str(rng.choice([*words, f"prefix:{a}"]))


def any_model(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], Weights, bool]:
    """Its tensors, ours, and whether its layers are unrolled."""
    name, count = str(rng.choice(FAMILIES)), int(rng.integers(1, 5))
    more: dict[str, Any] = {"max_position_embeddings": 8}
    if name != "gemma-3":
        more |= {"rope_scaling": None, "rope_parameters": ROPES[rng.integers(len(ROPES))]}
    c, named, w = models.in_memory(name, count, **more)
    mix = [any_pattern(rng) for _ in range(count)]
    if unrolled := rng.random() < 0.7:
        c = with_patterns(c, [patterns.parse(word) for word in mix])
    else:
        n = int(rng.integers(1, count // 2 + 1)) if count > 1 else 1  # in turns
        c = with_patterns(c, [patterns.parse(mix[k % n]) for k in range(count)])
    if rng.random() < 0.3 and patterns.LinearAttention() not in {
        layer.pattern for layer in c.layers
    }:
        c = replace(c, sink_logits=True)
        for k in range(count):
            sinks = rng.standard_normal(c.heads).astype(np.float32)
            named[f"model.layers.{k}.self_attn.sinks"] = sinks
        w = models.packed(c, named)
    return named, Weights(c, w.arrays), unrolled


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ragged = bool(rng.random() < 0.5)
    named, w, unrolled = any_model(rng)
    length = int(rng.integers(PAD.max() + 1, 15))
    prefix = any(isinstance(layer.pattern, Prefix) for layer in w.config.layers)
    given = prefix or bool(rng.random() < 0.3)
    got = case(w, unrolled, ragged, length=length, given=given).run("numpy")
    want = oracle.logits(
        w.config, named, tokens(w.config, length), PAD if ragged else np.zeros(ROWS, int)
    )
    close(got, want, ragged)


def check_generation(seed: int) -> None:
    """Every token that follows is the most likely one by the reference, up to the row's end."""
    rng = np.random.default_rng(seed)
    ragged = bool(rng.random() < 0.5)
    named, w, unrolled = any_model(rng)
    c, longest, new = w.config, int(rng.integers(1, 8)), int(rng.integers(1, 8))
    lengths = [longest, *(int(n) for n in rng.integers(1, longest + 1, 2))]
    rows = [rng.integers(0, c.vocab_size, n if ragged else longest).tolist() for n in lengths]
    eos = tuple(int(x) for x in rng.integers(0, c.vocab_size, rng.integers(0, 8)))
    form = Form(ROWS, longest, longest + new - 1, ragged=ragged, unrolled=unrolled, eos=eos)
    form = replace(form, until=bool(eos) and rng.random() < 0.5, chunk=int(rng.integers(1, 5)))
    program = write(c, form, backend="numpy")
    pieces = program.launches(0, program.inputs(w, rows, [Sampling()] * ROWS))
    found = np.concatenate([made["next"] for _, made in pieces], axis=1)[:, longest - 1 :]
    for row, follows in zip(rows, found.tolist(), strict=True):
        ends = [k for k, token in enumerate(follows) if token in eos]
        follows = follows[: ends[0] + 1] if ends else follows
        assert len(follows) == new or ends
        whole = np.array([row + follows])
        logits = oracle.logits(of_prompt(c, len(row)), named, whole, given=len(row))
        logits = logits[0, len(row) - 1 : -1]
        chosen = logits[np.arange(len(follows)), follows]
        assert (chosen >= logits.max(-1) - 1e-4 * np.abs(logits).max()).all()


def of_prompt(c: DecoderConfig, length: int) -> DecoderConfig:
    """A prefix is no longer than the prompt: what is made later is not seen earlier."""
    mix = [layer.pattern for layer in c.layers]
    short = [Prefix(min(x.length, length)) if isinstance(x, Prefix) else x for x in mix]
    return with_patterns(c, short)


@pytest.mark.parametrize("seed", range(1, 3))
def test_random_decoders(seed: int):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_random_generation(seed: int):
    check_generation(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 300))
def test_random_generation_long(seed: int):
    check_generation(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 300))
def test_random_decoders_long(seed: int):
    check(seed)
