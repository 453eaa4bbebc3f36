"""WaveNet, an LSTM, an encoder-decoder transformer, and decoding with a key-value cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recurra.mapping.models.training import adam, cross_entropy, shapes


def wavenet(
    batch: int = 32, length: int = 512, width: int = 128, layers: int = 20
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Logits of dilated, gated, causal convolutions with skip connections."""
    layer = {"filter": (2, width, width), "gate": (2, width, width)}
    layer |= {"residual": (width, width), "skip": (width, width)}
    ends = {"first": (1, width), "last": [(width, width), (width, 256)]}
    parameters = shapes({**ends, "layers": [layer] * layers})

    def causal(x: Any, kernel: Any, dilation: int) -> Any:
        x = jnp.pad(x, ((0, 0), (dilation, 0), (0, 0)))
        numbers = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            x, kernel, (1,), "VALID", rhs_dilation=(dilation,), dimension_numbers=numbers
        )

    def logits(p: Any, x: Any) -> Any:
        x, skipped = x @ p["first"], 0.0
        for k, q in enumerate(p["layers"]):
            d = 2 ** (k % 10)
            gated = jnp.tanh(causal(x, q["filter"], d)) * jax.nn.sigmoid(causal(x, q["gate"], d))
            skipped, x = skipped + gated @ q["skip"], x + gated @ q["residual"]
        return jax.nn.relu(jax.nn.relu(skipped) @ p["last"][0]) @ p["last"][1]

    return logits, (parameters, shapes((batch, length, 1))), ()


def lstm(
    batch: int = 16, length: int = 64, width: int = 1024, layers: int = 2, scanned: bool = False
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Hidden states of a stacked LSTM, its steps written out or in a loop."""
    parameters = shapes([{"w": (2 * width, 4 * width), "b": (4 * width,)}] * layers)

    def cell(q: Any, h: Any, c: Any, x: Any) -> Any:
        gates = jnp.concatenate([x, h], axis=-1) @ q["w"] + q["b"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def states(p: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            new: list[Any] = []
            for q, (h, c) in zip(p, state, strict=True):
                x, c = cell(q, h, c, x)
                new.append((x, c))
            return new, x

        zero = jnp.zeros((batch, width))
        state: Any = [(zero, zero)] * layers
        if scanned:
            return lax.scan(step, state, xs)[1]
        outputs: list[Any] = []
        for t in range(length):
            state, y = step(state, xs[t])
            outputs.append(y)
        return jnp.stack(outputs)

    return states, (parameters, shapes((length, batch, width))), ()


def _normalised(x: Any, gain: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain


def _attention(p: Any, x: Any, y: Any, heads: int, mask: Any = None) -> Any:
    """Queries of x [B, T, D] over keys and values of y [B, S, D]."""
    b, t, d = x.shape
    q, k, v = (
        (z @ p[w]).reshape(b, z.shape[1], heads, d // heads)
        for z, w in ((x, "q"), (y, "k"), (y, "v"))
    )
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (d // heads) ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(b, t, d) @ p["o"]


def _block(width: int, attentions: int, inner: int) -> Any:
    square = {k: (width, width) for k in "qkvo"}
    norms = [(width,)] * (attentions + 1)
    return {
        "attention": [square] * attentions,
        "norms": norms,
        "up": (width, inner),
        "down": (inner, width),
    }


def transformer_training(
    batch: int = 16, length: int = 64, width: int = 512, layers: int = 6, words: int = 8192
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """A training step (Adam) of the encoder-decoder transformer, base size."""
    heads = width // 64
    parameters = shapes(
        {
            "words": (words, width),
            "encoder": [_block(width, 1, 4 * width)] * layers,
            "decoder": [_block(width, 2, 4 * width)] * layers,
        }
    )

    def forward(q: Any, x: Any) -> Any:
        return x + jax.nn.relu(_normalised(x, q["norms"][-1]) @ q["up"]) @ q["down"]

    def loss(p: Any, source: Any, target: Any) -> Any:
        x, y = p["words"][source], p["words"][target]
        for q in p["encoder"]:
            z = _normalised(x, q["norms"][0])
            x = forward(q, x + _attention(q["attention"][0], z, z, heads))
        mask = jnp.tril(jnp.ones((length, length), bool))
        for q in p["decoder"]:
            z = _normalised(y, q["norms"][0])
            y = y + _attention(q["attention"][0], z, z, heads, mask)
            y = y + _attention(q["attention"][1], _normalised(y, q["norms"][1]), x, heads)
            y = forward(q, y)
        return cross_entropy(y @ p["words"].T, target)

    tokens = shapes((batch, length), jnp.int32)
    state = (parameters, parameters, parameters, shapes(()))
    return adam(loss), (*state, tokens, tokens), (0, 1, 2)


def gpt_decode(
    batch: int = 8, length: int = 1024, width: int = 768, layers: int = 12, words: int = 32000
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """The next token of a GPT, with a key-value cache that is updated in place."""
    heads = width // 64
    block = _block(width, 1, 4 * width)
    parameters = shapes({"words": (words, width), "blocks": [block] * layers})
    caches = [shapes((2, batch, length, width))] * layers

    def decode(p: Any, caches: Any, token: Any, at: Any) -> Any:
        x, kept = p["words"][token], []
        for q, cache in zip(p["blocks"], caches, strict=True):
            a, y = q["attention"][0], _normalised(x, q["norms"][0])
            now = jnp.stack([y @ a["k"], y @ a["v"]])[:, :, None]
            cache = lax.dynamic_update_slice(cache, now, (0, 0, at, 0))
            kept.append(cache)
            keys, values = cache.reshape(2, batch, length, heads, 64)
            scores = jnp.einsum("bhd,bthd->bht", (y @ a["q"]).reshape(batch, heads, 64), keys)
            weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores / 8, -1e9))
            mixed = jnp.einsum("bht,bthd->bhd", weights, values).reshape(batch, width)
            x = x + mixed @ a["o"]
            x = x + jax.nn.gelu(_normalised(x, q["norms"][1]) @ q["up"]) @ q["down"]
        return jnp.argmax(x @ p["words"].T, axis=-1), kept

    tokens = shapes((batch,), jnp.int32)
    return decode, (parameters, caches, tokens, shapes((), jnp.int32)), (1,)
