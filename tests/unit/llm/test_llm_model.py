"""Decoders as equations: logits of every position against the dense reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import llm_models as models
import recurra as rc
from recurra.errors import RecurraError
from recurra.llm import oracle, patterns, weights
from recurra.llm.config import DecoderConfig
from recurra.llm.generate import with_patterns
from recurra.llm.model import Model, period
from recurra.llm.program import Form, write
from recurra.llm.weights import Weights
from recurra.reference import interpreter

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


def tokens(c: DecoderConfig, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, c.vocab_size, (ROWS, length)).astype(np.int32)


def case(
    w: Weights,
    unrolled: bool = True,
    ragged: bool = False,
    dtype: str = "f32",
    length: int = LENGTH,
    given: bool = False,
) -> Case:
    """Logits of `tokens`; `given`: as of a prompt that is all there, read at once, and masked."""
    c = w.config
    ctx = rc.Context(dims="b t" if unrolled else "b l t")
    with ctx as pairs:
        dims = tuple(d for d, _ in pairs)
        tok = rc.input(rc.i32, (dims[0], dims[-1]), name="tok")
        place = rc.value(dims[-1], "i32")
        if ragged:
            place = place - rc.input(rc.i32, (dims[0],), name="pad")
        model = Model(c, dims, place, ragged, dtype, pairs[-1][1] if given else None)
        rc.output(logits=model.logits(tok))
    inputs = model.arrays(w) | {"tok": tokens(c, length)}
    sizes = [ROWS, len(c.layers), length] if not unrolled else [ROWS, length]
    bounds = {n: size for (_, n), size in zip(pairs, sizes, strict=True)}
    return Case(ctx, bounds, inputs | ({"pad": PAD} if ragged else {}))


def expected(c: DecoderConfig, named: dict[str, Any], ragged: bool = False) -> np.ndarray:
    return oracle.logits(c, named, tokens(c, LENGTH), PAD if ragged else None)


def close(got: np.ndarray, want: np.ndarray, ragged: bool = False, to: float = 1e-5) -> None:
    """In f32; places before a row are not looked at."""
    assert got.shape == want.shape
    for row, first in enumerate(PAD if ragged else [0] * ROWS):
        np.testing.assert_allclose(
            got[row, first:], want[row, first:], atol=to * np.abs(want).max(), err_msg=f"row {row}"
        )


FAMILIES = ["llama-2", "llama-3.2-1b", "mistral", "gemma-2", "gemma-3", "qwen-2", "qwen-3"]


@pytest.mark.parametrize("kind", ["llama, tied, llama3", "mistral", "gemma2", "qwen2", "qwen3"])
def test_logits_of_saved_models_are_those_of_transformers(kind: str, tmp_path: Path):
    """Saved by it, loaded and compiled by us; in f32, with every pattern that the family has."""
    two = {"num_hidden_layers": 2}
    model = models.make(kind, tmp_path, **two | ({"layer_types": None} if "gemma" in kind else {}))
    w = weights.load(tmp_path)
    close(case(w).run("numpy"), models.logits(model, tokens(w.config, LENGTH)))


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str):
    c, named, w = models.in_memory(name)
    close(case(w).run("numpy"), expected(c, named))


@pytest.mark.slow
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


PATTERNS = "causal window:4 chunk:4 sinks:2+3 dilated:3 linear"
EDGES = "window:1 sinks:1+1 dilated:1"


@pytest.mark.slow
@pytest.mark.parametrize("word", [*PATTERNS.split(), *EDGES.split()])
def test_patterns(word: str):
    _, named, w = models.in_memory("llama-3.2-1b")
    c = with_patterns(w.config, patterns.parse_mix(word, 2))
    close(case(Weights(c, w.arrays)).run("numpy"), expected(c, named))


@pytest.mark.slow
@pytest.mark.parametrize("word", [*PATTERNS.split(), "prefix:5", "prefix:1", "prefix:99"])
@pytest.mark.parametrize("ragged", [False, True])
def test_patterns_of_what_is_all_given(word: str, ragged: bool):
    _, named, w = models.in_memory("llama-3.2-1b")
    c = with_patterns(w.config, patterns.parse_mix(word, 2))
    made = case(Weights(c, w.arrays), ragged=ragged, given=True)
    close(made.run("numpy"), expected(c, named, ragged), ragged)


@pytest.mark.slow
@pytest.mark.parametrize("word", [*PATTERNS.split(), "chunk:3", "sinks:1+1", "sinks:6+2"])
def test_patterns_with_rows_of_their_own_length(word: str):
    _, named, w = models.in_memory("qwen-2")
    c = with_patterns(w.config, patterns.parse_mix(word, 2))
    close(case(Weights(c, w.arrays), ragged=True).run("numpy"), expected(c, named, True), True)


@pytest.mark.slow
def test_a_mix_of_patterns_by_jax():
    _, named, w = models.in_memory("qwen-3")
    c = with_patterns(w.config, patterns.parse_mix("sinks:2+3,window:3", 2))
    close(case(Weights(c, w.arrays)).run("jax"), expected(c, named))


def test_a_mix_of_patterns_by_the_interpreter():
    _, named, w = models.in_memory("gemma-2", 2)
    c = with_patterns(w.config, patterns.parse_mix("sinks:2+3,dilated:3", 2))
    made = case(Weights(c, w.arrays))
    graph, name = made.ctx.graph, made.ctx.builder.logs["logits"]
    sizes = {str(n): size for n, size in made.bounds.items()}
    close(interpreter.run(graph, sizes, made.inputs)[name], expected(c, named))


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_16_bits_are_nearer_than_those_of_transformers(kind: str, tmp_path: Path):
    """Weights, keys and values are bf16 in both, our sums f32: within 2 % of the largest logit."""
    model = models.make(kind, tmp_path, num_hidden_layers=2).bfloat16()
    model.save_pretrained(tmp_path)
    w = weights.load(tmp_path, "bf16")
    want = oracle.logits(w.config, models.tensors(tmp_path), tokens(w.config, LENGTH))
    theirs = models.logits(model, tokens(w.config, LENGTH))
    got = case(w, dtype="bf16").run("jax")
    errors = [np.abs(x - want).max() / np.abs(want).max() for x in (got, theirs)]
    assert errors[0] < errors[1] < 0.05
    assert errors[0] < 0.02
    np.testing.assert_allclose(got, theirs, atol=0.05 * np.abs(want).max())


CACHES = ("k_", "v_")


def test_keys_and_values_of_16_bits_take_half():
    c, _, w = models.in_memory("llama-2")
    found = {}
    for dtype in ("f32", "bf16", "i8"):
        program = write(c, Form(2, 4, 32), dtype, "numpy")
        found[dtype] = {s["store"]: s["bytes"] for s in program.stores if s["store"][:2] in CACHES}
    assert set(found["f32"]) == {"k_0", "k_1", "v_0", "v_1"}
    assert found["f32"] == found["i8"] == {n: 2 * 32 * 4 * 8 * 4 for n in found["f32"]}
    assert found["bf16"] == {n: 2 * 32 * 4 * 8 * 2 for n in found["f32"]}


@pytest.mark.parametrize("name", ["llama-2", "gemma-2"])
def test_weights_of_8_bits(name: str):
    """Exact for the weights that they stand for; near for the true ones, also of tiny matrices:

    on average within 2 % of the largest logit, at worst 10 %.
    """
    c, named, w = models.in_memory(name)
    q = models.packed(c, named, "i8")
    got = case(q, dtype="i8").run("numpy")
    close(got, expected(c, {n: meant(x) for n, x in named.items()}))
    want = expected(c, named)
    close(got, want, to=0.1)
    assert ((got - want) ** 2).mean() ** 0.5 < 0.02 * np.abs(want).max()
    assert q.nbytes < 0.4 * w.nbytes


def meant(x: np.ndarray) -> np.ndarray:
    """A tensor of the files by the numbers that 8 bits of it stand for."""
    if x.ndim == 1:
        return x
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    return np.rint(x / scale) * scale


STORES = {  # of k, on 32 positions: slots in time, and bytes of 3 rows of 4 heads of 8 numbers
    "causal": ("t: 32", 32),
    "window:5": ("t: 5 + 5", 10),
    "chunk:4": ("t: 4 + 1", 5),
    "dilated:4": ("t: 35", 35),
}


@pytest.mark.parametrize("word", STORES)
def test_every_pattern_has_its_store(word: str):
    c, _, _ = models.in_memory("llama-2", 1)
    c = with_patterns(c, patterns.parse_mix(word, 1))
    program = write(c, Form(3, 1, 32), backend="numpy")
    (k,) = (s for s in program.stores if s["store"] == "k_0")
    slots, points = STORES[word]
    assert (k["slots"], k["bytes"]) == (slots, points * 3 * 4 * 8 * 4)


def slots(c: DecoderConfig, w: Weights, length: int) -> dict[str, Any]:
    """How long the stores of k are, that a program of `length` positions derives."""
    made = case(Weights(c, w.arrays), length=length)
    rows = made.ctx.compile(made.bounds, backend="numpy").store_rows
    return {r["store"]: r["slots"] for r in rows if str(r["store"]).startswith("k_")}


def test_stores_are_as_long_as_positions_are_waited_for():
    c, _, w = models.in_memory("llama-2", 4)
    c = with_patterns(c, patterns.parse_mix("window:9,chunk:4,linear,causal", 4))
    for length in (16, 32):
        found = slots(c, w, length)
        assert (found["k_0"], found["k_1"]) == ("t: 9 + 9", "t: 4 + 1")
        assert "k_2" not in found  # a state of constant size
        assert int(str(found["k_3"]).split()[-1]) >= length


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "mix", "ragged"),
    [
        (4, "causal,window:5", True),
        (5, "window:3,causal", False),
        (6, "window:3,window:3,chunk:4", False),
        (4, "sinks:2+3,dilated:2", False),
        (4, "linear,causal", True),
    ],
)
def test_layers_of_several_patterns_are_a_dim(layers: int, mix: str, ragged: bool):
    """In rounds, also where the last is not whole."""
    c, named, w = models.in_memory("llama-2", layers)
    c = with_patterns(c, patterns.parse_mix(mix, layers))
    made = case(Weights(c, w.arrays), unrolled=False, ragged=ragged)
    close(made.run("numpy"), expected(c, named, ragged), ragged)


@pytest.mark.slow
def test_layers_of_two_frequencies_are_a_dim():
    """Gemma 3: five windows with frequencies of their own, then one layer of all the past."""
    c, named, w = models.in_memory("gemma-3", 12)
    assert (period(c.layers), len({x.rope for x in c.layers})) == (6, 2)
    close(case(w, unrolled=False).run("numpy"), expected(c, named))


def test_layers_of_two_patterns_keep_what_each_asks_for():
    c, _, w = models.in_memory("llama-2", 4)
    c = with_patterns(c, patterns.parse_mix("causal,window:9", 4))
    ctx = rc.Context(dims="b l t")
    with ctx as (row, layer, (t, T)):
        dims = (row[0], layer[0], t)
        tok = rc.like(rc.i32, (row[0], t), name="tok")
        tok[row[0], 0] = 1
        logits = Model(Weights(c, w.arrays).config, dims, rc.value(t, "i32")).logits(tok)
        tok[row[0], t + 1] = logits.argmax(-1)
        rc.output(tok=tok)
    program = ctx.compile({row[1]: ROWS, layer[1]: len(c.layers), T: 32}, backend="numpy")
    found = {r["store"]: r["slots"] for r in program.store_rows}
    assert (found["k_0"], found["k_1"]) == ("t: 32, lr: 2", "t: 9 + 9, lr: 2")


def test_what_cannot_be_written_is_refused():
    c, _, w = models.in_memory("gemma-2")
    linear = replace(with_patterns(c, [patterns.LinearAttention()] * 2), sink_logits=True)
    with pytest.raises(RecurraError, match="linear attention has no softmax that a sink logit"):
        case(Weights(linear, w.arrays))
    prefix = with_patterns(c, [patterns.Prefix(4)] * 2)
    with pytest.raises(RecurraError, match="a prefix that sees all of itself is more than a past"):
        case(Weights(prefix, w.arrays))
