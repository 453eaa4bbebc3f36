"""WaveNet, an encoder-decoder transformer, and decoding with a key-value cache."""

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


def normalized(x: Any, gain: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain


def attention(p: Any, x: Any, y: Any, heads: int, mask: Any = None) -> Any:
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


def _transformer(words: int, width: int, layers: int) -> Any:
    return shapes(
        {
            "words": (words, width),
            "encoder": [_block(width, 1, 4 * width)] * layers,
            "decoder": [_block(width, 2, 4 * width)] * layers,
        }
    )


def _translated(p: Any, source: Any, target: Any) -> Any:
    """Logits [B, T, words]."""
    length, width = target.shape[1], p["words"].shape[1]
    heads = width // 64

    def forward(q: Any, x: Any) -> Any:
        return x + jax.nn.relu(normalized(x, q["norms"][-1]) @ q["up"]) @ q["down"]

    x, y = p["words"][source], p["words"][target]
    for q in p["encoder"]:
        z = normalized(x, q["norms"][0])
        x = forward(q, x + attention(q["attention"][0], z, z, heads))
    mask = jnp.tril(jnp.ones((length, length), bool))
    for q in p["decoder"]:
        z = normalized(y, q["norms"][0])
        y = y + attention(q["attention"][0], z, z, heads, mask)
        y = y + attention(q["attention"][1], normalized(y, q["norms"][1]), x, heads)
        y = forward(q, y)
    return y @ p["words"].T


def transformer_inference(
    batch: int = 32, length: int = 64, width: int = 512, layers: int = 6, words: int = 8192
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Logits of the encoder-decoder transformer, base size."""
    tokens = shapes((batch, length), jnp.int32)
    return _translated, (_transformer(words, width, layers), tokens, tokens), ()


def transformer_training(
    batch: int = 16, length: int = 64, width: int = 512, layers: int = 6, words: int = 8192
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """A training step (Adam) of it."""
    parameters = _transformer(words, width, layers)

    def loss(p: Any, source: Any, target: Any) -> Any:
        return cross_entropy(_translated(p, source, target), target)

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
            a, y = q["attention"][0], normalized(x, q["norms"][0])
            now = jnp.stack([y @ a["k"], y @ a["v"]])[:, :, None]
            cache = lax.dynamic_update_slice(cache, now, (0, 0, at, 0))
            kept.append(cache)
            keys, values = cache.reshape(2, batch, length, heads, 64)
            scores = jnp.einsum("bhd,bthd->bht", (y @ a["q"]).reshape(batch, heads, 64), keys)
            weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores / 8, -1e9))
            mixed = jnp.einsum("bht,bthd->bhd", weights, values).reshape(batch, width)
            x = x + mixed @ a["o"]
            x = x + jax.nn.gelu(normalized(x, q["norms"][1]) @ q["up"]) @ q["down"]
        return jnp.argmax(x @ p["words"].T, axis=-1), kept

    tokens = shapes((batch,), jnp.int32)
    return decode, (parameters, caches, tokens, shapes((), jnp.int32)), (1,)
