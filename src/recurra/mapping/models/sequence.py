"""WaveNet, an encoder-decoder transformer, and decoding with a key-value cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.mapping.models.training import Model, Tree, adam, cross_entropy, shapes


def wavenet(batch: int = 32, length: int = 512, width: int = 128, layers: int = 20) -> Model:
    """Logits of dilated, gated, causal convolutions with skip connections."""
    layer = {"filter": (2, width, width), "gate": (2, width, width)}
    layer |= {"residual": (width, width), "skip": (width, width)}
    ends = {"first": (1, width), "last": [(width, width), (width, 256)]}
    parameters = shapes({**ends, "layers": [layer] * layers})

    def causal(array: Array, kernel: Array, dilation: int) -> Array:
        array = jnp.pad(array, ((0, 0), (dilation, 0), (0, 0)))
        numbers = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            array, kernel, (1,), "VALID", rhs_dilation=(dilation,), dimension_numbers=numbers
        )

    def logits(weights: Tree, array: Array) -> Array:
        array, skipped = array @ weights["first"], 0.0
        for k, q in enumerate(weights["layers"]):
            d = 2 ** (k % 10)
            gated = jnp.tanh(causal(array, q["filter"], d)) * jax.nn.sigmoid(
                causal(array, q["gate"], d)
            )
            skipped, array = skipped + gated @ q["skip"], array + gated @ q["residual"]
        before, last = weights["last"]
        return jax.nn.relu(jax.nn.relu(skipped) @ before) @ last

    return logits, (parameters, shapes((batch, length, 1))), ()


def normalized(array: Array, gain: Array) -> Array:
    mean, variance = array.mean(-1, keepdims=True), array.var(-1, keepdims=True)
    return (array - mean) * lax.rsqrt(variance + 1e-5) * gain


def attention_layer(
    weights: Tree, array: Array, memory: Array, heads: int, mask: Array | None = None
) -> Array:
    """Attend with queries of one array [B, T, D] over keys and values of another [B, S, D]."""
    b, t, d = array.shape
    q, k, v = (
        (z @ w).reshape(b, z.shape[1], heads, d // heads)
        for z, w in ((array, weights["q"]), (memory, weights["k"]), (memory, weights["v"]))
    )
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (d // heads) ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(b, t, d) @ weights["o"]


def transformer_block(width: int, attentions: int = 1) -> Tree:
    """Return the sizes of attentions, of the gains of norms, and of two dense layers."""
    return {
        "attention": [{k: (width, width) for k in "qkvo"}] * attentions,
        "norms": [(width,)] * (attentions + 1),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }


def _transformer(words: int, width: int, layers: int) -> Tree:
    encoder, decoder = ([transformer_block(width, n)] * layers for n in (1, 2))
    return shapes({"words": (words, width), "encoder": encoder, "decoder": decoder})


def _translated(weights: Tree, source: Array, target: Array) -> Array:
    """Logits [B, T, words]."""
    length, width = target.shape[1], weights["words"].shape[1]
    heads = width // 64

    def forward(block: Tree, array: Array) -> Array:
        return (
            array + jax.nn.relu(normalized(array, block["norms"][-1]) @ block["up"]) @ block["down"]
        )

    x, y = weights["words"][source], weights["words"][target]
    for q in weights["encoder"]:
        z = normalized(x, q["norms"][0])
        x = forward(q, x + attention_layer(q["attention"][0], z, z, heads))
    mask = jnp.tril(jnp.ones((length, length), bool))
    for q in weights["decoder"]:
        z = normalized(y, q["norms"][0])
        y = y + attention_layer(q["attention"][0], z, z, heads, mask)
        y = y + attention_layer(q["attention"][1], normalized(y, q["norms"][1]), x, heads)
        y = forward(q, y)
    return y @ weights["words"].T


def transformer_inference(
    batch: int = 32, length: int = 64, width: int = 512, layers: int = 6, words: int = 8192
) -> Model:
    """Logits of the encoder-decoder transformer, base size."""
    tokens = shapes((batch, length), jnp.int32)
    return _translated, (_transformer(words, width, layers), tokens, tokens), ()


def transformer_training(
    batch: int = 16, length: int = 64, width: int = 512, layers: int = 6, words: int = 8192
) -> Model:
    """A training step (Adam) of the encoder-decoder transformer."""
    parameters = _transformer(words, width, layers)

    def loss(weights: Tree, source: Array, target: Array) -> Array:
        return cross_entropy(_translated(weights, source, target), target)

    tokens = shapes((batch, length), jnp.int32)
    return adam(loss, parameters, tokens, tokens)


def gpt_decode(
    batch: int = 8, length: int = 1024, width: int = 768, layers: int = 12, words: int = 32000
) -> Model:
    """The next token of a GPT, with a key-value cache that is updated in place."""
    heads = width // 64
    blocks = [transformer_block(width)] * layers
    parameters = shapes({"words": (words, width), "blocks": blocks})
    caches = [shapes((2, batch, length, width))] * layers

    def decode(
        weights: Tree, caches: list[Array], token: Array, position: Array
    ) -> tuple[Array, list[Array]]:
        x, new_caches = weights["words"][token], list[Array]()
        for q, cache in zip(weights["blocks"], caches, strict=True):
            a, y = q["attention"][0], normalized(x, q["norms"][0])
            now = jnp.stack([y @ a["k"], y @ a["v"]])[:, :, None]
            cache = lax.dynamic_update_slice(cache, now, (0, 0, position, 0))
            new_caches.append(cache)
            keys, values = cache.reshape(2, batch, length, heads, 64)
            scores = jnp.einsum("bhd,bthd->bht", (y @ a["q"]).reshape(batch, heads, 64), keys)
            part = jax.nn.softmax(jnp.where(jnp.arange(length) <= position, scores / 8, -1e9))
            mixed = jnp.einsum("bht,bthd->bhd", part, values).reshape(batch, width)
            x = x + mixed @ a["o"]
            x = x + jax.nn.gelu(normalized(x, q["norms"][1]) @ q["up"]) @ q["down"]
        return jnp.argmax(x @ weights["words"].T, axis=-1), new_caches

    tokens = shapes((batch,), jnp.int32)
    return decode, (parameters, caches, tokens, shapes((), jnp.int32)), (1,)
