"""The reference against transformers, and its masks against counting."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm_models as models
from recurra.llm import config as configs
from recurra.llm import oracle, patterns
from recurra.llm.config import DecoderConfig, Layer
from recurra.llm.patterns import Causal
from recurra.llm.rope import Rope


def of_folder(folder: Path, tokens: np.ndarray, pad: Any = None) -> np.ndarray:
    return oracle.logits(configs.load(folder), models.tensors(folder), tokens, pad)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", models.KINDS)
def test_logits_of_transformers(kind: str, tmp_path: Path):
    model = models.make(kind, tmp_path)
    tokens = models.tokens(2, 17)
    close(of_folder(tmp_path, tokens), models.logits(model, tokens))


def test_rows_with_places_before_them(tmp_path: Path):
    """Left padding: a row is what it is alone."""
    import torch

    model = models.make("gemma2", tmp_path)
    tokens, pad = models.tokens(3, 12), np.array([0, 4, 9])
    got = of_folder(tmp_path, tokens, pad)
    mask = torch.tensor(np.arange(12) >= pad[:, None]).long()
    places = torch.tensor(np.maximum(np.arange(12) - pad[:, None], 0))
    want = models.logits(model, tokens, attention_mask=mask, position_ids=places)
    for b, n in enumerate(pad):
        close(got[b, n:], want[b, n:])
        close(got[b, n:], of_folder(tmp_path, tokens[b : b + 1, n:])[0])


def test_frequencies_that_grow_with_the_place(tmp_path: Path):
    """`dynamic`: a place turns as in a sequence that ends there, as decoding with a cache does."""
    import torch

    rope = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4}
    model = models.make("llama", tmp_path, rope_parameters=rope, max_position_embeddings=8)
    tokens = models.tokens(1, 14)
    got = of_folder(tmp_path, tokens)
    cache, step = None, []
    with torch.no_grad():
        for n in range(14):
            out = model(torch.tensor(tokens[:, n : n + 1]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            step.append(out.logits[:, 0].double().numpy())
    close(got, np.stack(step, axis=1))


def seen(word: str, i: int, length: int) -> set[int]:
    """What place i sees, counted."""
    name, _, rest = word.partition(":")
    n = [int(x) for x in rest.split("+")] if rest else []
    up = range(i + 1)
    return {
        "causal": lambda: set(up),
        "linear": lambda: set(up),
        "window": lambda: set(list(up)[-n[0] :]),
        "chunk": lambda: {j for j in up if j >= i - i % n[0]},
        "sinks": lambda: set(list(up)[: n[0]]) | set(list(up)[-n[1] :]),
        "dilated": lambda: set(range(i, -1, -n[0])),
        "prefix": lambda: set(up) | set(range(min(n[0], length))),
    }[name]()


@pytest.mark.parametrize(
    "word",
    ["causal", "window:4", "chunk:4", "sinks:2+3", "sinks:3+1", "dilated:3", "prefix:4", "linear"],
)
def test_masks(word: str):
    pattern, length, before = patterns.parse(word), 11, 2
    got = oracle.of_places(pattern, np.arange(length + before) - before)
    for i, j in product(range(length), range(length)):
        assert got[i + before, j + before] == (j in seen(word, i, length)), (i, j)
    assert not got[before:, :before].any()
    np.testing.assert_array_equal(got[:before], np.eye(length + before, dtype=bool)[:before])


def one_head(**more: Any) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
    """One layer that adds attention to the embedding and no more: its MLP gives nothing."""
    d, n = 4, "model.layers.0."
    layer = Layer(Causal(), Rope(1e4, 8))
    c = DecoderConfig("llama", 8, d, 2, 1, 1, d, (layer,), 8, 0.0, True, score_scale=0.5, **more)
    draw = np.random.default_rng(3).standard_normal
    square = ("q", "k", "v", "o")
    t = {n + f"self_attn.{x}_proj.weight": draw((d, d)) for x in square}
    t |= {n + f"mlp.{x}_proj.weight": np.zeros((2, d)) for x in ("gate", "up")}
    t |= {n + "mlp.down_proj.weight": np.zeros((d, 2)), n + "self_attn.sinks": np.array([0.7])}
    t |= {n + f"{x}_layernorm.weight": np.ones(d) for x in ("input", "post_attention")}
    return c, t | {"model.embed_tokens.weight": draw((8, d)), "model.norm.weight": np.ones(d)}


def test_a_sink_logit_takes_weight_and_gives_none():
    """At place 0 the weight is eˢ / (eˢ + e^0.7), with s = q·k / 2: by hand."""
    c, t = one_head(sink_logits=True)
    got = oracle.logits(c, t, np.array([[5]]))[0, 0]
    x = t["model.embed_tokens.weight"][5]
    h = x / np.sqrt((x**2).mean())
    q, k, v, o = (t[f"model.layers.0.self_attn.{n}_proj.weight"] for n in "qkvo")
    e = np.exp((q @ h) @ (k @ h) / 2)
    y = x + o @ (v @ h) * e / (e + np.exp(0.7))
    y = y / np.sqrt((y**2).mean())
    np.testing.assert_allclose(got, t["model.embed_tokens.weight"] @ y, rtol=1e-12)


def test_linear_attention_is_a_recurrence():
    """S = Σ φ(k) vᵀ and z = Σ φ(k) carry all of the past: the weights are φ(q)·φ(k)."""
    c, t = one_head()
    c = replace(
        c, layers=(Layer(patterns.LinearAttention(), Rope(1e30, 8)),)
    )  # turns next to nothing
    tokens = np.array([[1, 5, 2, 7]])
    q, k, v, o = (t[f"model.layers.0.self_attn.{n}_proj.weight"] for n in "qkvo")
    s, z, want = np.zeros((4, 4)), np.zeros(4), []

    def phi(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x + 1, np.exp(x))

    def turn(x: np.ndarray, at: int) -> np.ndarray:
        return np.array([x[0] * np.cos(at) - x[2] * np.sin(at), x[1],
                         x[2] * np.cos(at) + x[0] * np.sin(at), x[3]])  # fmt: skip

    for at, token in enumerate(tokens[0]):
        x = t["model.embed_tokens.weight"][token]
        h = x / np.sqrt((x**2).mean())
        key = phi(turn(k @ h, at))
        s, z = s + np.outer(key, v @ h), z + key
        query = phi(turn(q @ h, at))
        y = x + o @ (query @ s) / (query @ z)
        want.append(t["model.embed_tokens.weight"] @ (y / np.sqrt((y**2).mean())))
    np.testing.assert_allclose(oracle.logits(c, t, tokens)[0], want, rtol=1e-10)
