"""Decoders as equations: logits of every position against the dense reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import recurra as rc
from llm import models
from recurra import interp
from recurra.errors import RecurraError
from recurra.llm import oracle, patterns
from recurra.llm.config import Config
from recurra.llm.generate import with_patterns
from recurra.llm.model import Model
from recurra.llm.weights import Weights

ROWS, LENGTH = 3, 13
PAD = np.array([0, 2, 5], np.int32)


@dataclass
class Case:
    """A program of given tokens, and what it is run with."""

    ctx: rc.Context
    bounds: dict[Any, int]
    inputs: dict[str, np.ndarray]

    def run(self, backend: str) -> np.ndarray:
        program = self.ctx.compile(self.bounds, backend=backend)
        return program.run(inputs=self.inputs)["logits"]


def tokens(c: Config, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, c.vocab_size, (ROWS, length)).astype(np.int32)


def case(
    w: Weights,
    unrolled: bool = True,
    ragged: bool = False,
    dtype: str = "f32",
    length: int = LENGTH,
) -> Case:
    c = w.config
    ctx = rc.Context(dims="b t" if unrolled else "b l t")
    with ctx as pairs:
        dims = tuple(d for d, _ in pairs)
        tok = rc.input(rc.i32, (dims[0], dims[-1]), name="tok")
        place = rc.value(dims[-1], "i32")
        if ragged:
            place = place - rc.input(rc.i32, (dims[0],), name="pad")
        model = Model(c, dims, place, ragged, dtype, pairs[-1][1])
        rc.output(logits=model.logits(tok))
    inputs = model.arrays(w) | {"tok": tokens(c, length)}
    sizes = [ROWS, len(c.layers), length] if not unrolled else [ROWS, length]
    bounds = {n: size for (_, n), size in zip(pairs, sizes, strict=True)}
    return Case(ctx, bounds, inputs | ({"pad": PAD} if ragged else {}))


def expected(c: Config, named: dict[str, Any], ragged: bool = False) -> np.ndarray:
    return oracle.logits(c, named, tokens(c, LENGTH), PAD if ragged else None)


def close(got: np.ndarray, want: np.ndarray, ragged: bool = False, to: float = 1e-5) -> None:
    """In f32; places before a row are not looked at."""
    assert got.shape == want.shape
    for row, first in enumerate(PAD if ragged else [0] * ROWS):
        np.testing.assert_allclose(
            got[row, first:], want[row, first:], atol=to * np.abs(want).max(), err_msg=f"row {row}"
        )


FAMILIES = ["llama-2", "llama-3.2-1b", "mistral", "gemma-2", "gemma-3", "qwen-2", "qwen-3"]


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str):
    c, named, w = models.in_memory(name)
    close(case(w).run("numpy"), expected(c, named))


@pytest.mark.parametrize(
    ("name", "backend"), [("llama-3.2-1b", "numpy"), ("mistral", "numpy"), ("qwen-3", "jax")]
)
def test_layers_are_a_dim(name: str, backend: str):
    c, named, w = models.in_memory(name, 3)
    close(case(w, False, ragged=True).run(backend), expected(c, named, True), True)


def test_layers_with_their_own_angles_are_a_dim():
    """Gemma 3 turns layers of a window by other frequencies; here all of them see all."""
    c, named, w = models.in_memory("gemma-3", 3, sliding_window_pattern=2)
    assert len({layer.rope for layer in c.layers}) == 2
    w = Weights(with_patterns(c, [patterns.Causal()] * 3), w.arrays)
    close(case(w, False).run("numpy"), expected(w.config, named))


PATTERNS = "causal window:4 chunk:4 sinks:2+3 dilated:3 prefix:5 linear"
EDGES = "window:1 sinks:1+1 dilated:1 prefix:1 prefix:99"


@pytest.mark.parametrize("word", [*PATTERNS.split(), *EDGES.split()])
def test_patterns(word: str):
    _, named, w = models.in_memory("llama-3.2-1b")
    c = with_patterns(w.config, patterns.parse_mix(word, 2))
    close(case(Weights(c, w.arrays)).run("numpy"), expected(c, named))


@pytest.mark.parametrize("word", [*PATTERNS.split(), "chunk:3", "sinks:1+1", "sinks:6+2"])
def test_patterns_with_rows_of_their_own_length(word: str):
    _, named, w = models.in_memory("qwen-2")
    c = with_patterns(w.config, patterns.parse_mix(word, 2))
    close(case(Weights(c, w.arrays), ragged=True).run("numpy"), expected(c, named, True), True)


def test_a_mix_of_patterns_by_jax():
    _, named, w = models.in_memory("qwen-3")
    c = with_patterns(w.config, patterns.parse_mix("sinks:2+3,window:3", 2))
    close(case(Weights(c, w.arrays)).run("jax"), expected(c, named))


def test_a_mix_of_patterns_by_the_interpreter():
    _, named, w = models.in_memory("gemma-2", 2)
    c = with_patterns(w.config, patterns.parse_mix("sinks:2+3,dilated:3", 2))
    made = case(Weights(c, w.arrays))
    graph, name = made.ctx.graph, made.ctx.tracer.logs["logits"]
    sizes = {str(n): size for n, size in made.bounds.items()}
    close(interp.run(graph, sizes, made.inputs)[name], expected(c, named))


@pytest.mark.parametrize("word", ["causal", "window:4"])
def test_learned_sink_logits(word: str):
    c, named, w = models.in_memory("llama-2")
    c = replace(with_patterns(c, patterns.parse_mix(word, 2)), sink_logits=True)
    sinks = np.random.default_rng(2).standard_normal((2, c.heads)).astype(np.float32)
    named |= {f"model.layers.{k}.self_attn.sinks": sinks[k] for k in range(2)}
    close(case(models.packed(c, named), ragged=True).run("numpy"), expected(c, named, True), True)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 3.0},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5},
    ],
)
def test_stretched_positions(rope: dict[str, Any]):
    more = {"rope_scaling": None, "rope_parameters": rope, "max_position_embeddings": 8}
    c, named, w = models.in_memory("llama-3.2-1b", 1, **more)
    close(case(w).run("numpy"), expected(c, named))


def test_weights_of_16_bits():
    """Rounded once, when they are loaded; sums are in 32 bits."""
    c, named, _ = models.in_memory("gemma-2")
    named = {n: x.astype(ml_dtypes.bfloat16) for n, x in named.items()}
    w = models.packed(c, named, "bf16")
    close(case(w, dtype="bf16").run("numpy"), expected(c, named), to=2e-2)


def slots(c: Config, w: Weights, length: int) -> dict[str, Any]:
    """How long the stores of k are, that a program of `length` positions derives."""
    made = case(Weights(c, w.arrays), length=length)
    rows = made.ctx.compile(made.bounds, backend="numpy").store_rows
    return {r["store"]: r["slots"] for r in rows if str(r["store"]).startswith("k_")}


def test_stores_are_as_long_as_positions_are_waited_for():
    c, _, w = models.in_memory("llama-2", 4)
    c = with_patterns(c, patterns.parse_mix("window:5,chunk:4,linear,causal", 4))
    for length in (16, 32):
        found = slots(c, w, length)
        assert (found["k_0"], found["k_1"]) == ("t: 5 + 5", "t: 4 + 1")
        assert "k_2" not in found  # a state of constant size
        assert int(str(found["k_3"]).split()[-1]) >= length


def test_what_cannot_be_written_is_refused():
    c, _, w = models.in_memory("gemma-2")
    linear = replace(with_patterns(c, [patterns.Linear()] * 2), sink_logits=True)
    with pytest.raises(RecurraError, match="linear attention has no softmax that a sink logit"):
        case(Weights(linear, w.arrays))
    with pytest.raises(RecurraError, match="layers attend in 2 ways, and are one dim"):
        case(w, unrolled=False)
