"""The oracle of decoders: a whole sequence at once, dense masks, f64, in plain NumPy.

It uses the tensors of the files directly, and shares no code with `weights` and `model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import singledispatch

import numpy as np

from recurra.llm.config import DecoderConfig
from recurra.llm.patterns import (
    Causal,
    Chunk,
    Dilated,
    LinearAttention,
    Pattern,
    Prefix,
    Sinks,
    SlidingWindow,
)
from recurra.llm.rope import Rope

Array = np.ndarray
Tensors = Mapping[str, Array]


def logits(
    config: DecoderConfig, tensors: Tensors, tokens: Array, pad: Array | None = None, given: int = 0
) -> Array:
    """The logits, f64 [B, T, V], of tokens [B, T]; row b begins at position pad[b], and its first
    `given` tokens come at once."""
    t = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
    rows, length = tokens.shape
    place = np.arange(length)[None, :] - (np.zeros(rows, int) if pad is None else pad)[:, None]
    x = t["model.embed_tokens.weight"][tokens] * config.embedding_scale
    for layer in range(len(config.layers)):
        x = transformer_block(config, t, layer, x, place, given)
    x = norm(config, x, t["model.norm.weight"])
    out = x @ t["model.embed_tokens.weight" if config.tied else "lm_head.weight"].T
    return cap(out, config.logit_cap)


def transformer_block(
    config: DecoderConfig, tensors: Tensors, layer: int, array: Array, place: Array, given: int = 0
) -> Array:
    """One layer, of x [B, T, D] at places [B, T]."""
    prefix = f"model.layers.{layer}."

    def normed(x: Array, name: str) -> Array:
        return norm(config, x, tensors[f"{prefix}{name}_layernorm.weight"])

    a = attend(config, tensors, layer, normed(array, "input"), place, given)
    array = array + (normed(a, "post_attention") if config.sandwich else a)
    before = normed(array, "pre_feedforward" if config.sandwich else "post_attention")
    y = mlp(config, tensors, f"{prefix}mlp.", before)
    return array + (normed(y, "post_feedforward") if config.sandwich else y)


def linear(tensors: Tensors, name: str, array: Array) -> Array:
    return array @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)


def norm(config: DecoderConfig, array: Array, weights: Array) -> Array:
    root = np.sqrt((array**2).mean(-1, keepdims=True) + config.eps)
    return array / root * (weights + 1 if config.one_plus else weights)


def cap(array: Array, limit: float | None) -> Array:
    return array if limit is None else limit * np.tanh(array / limit)


def mlp(config: DecoderConfig, tensors: Tensors, name: str, array: Array) -> Array:
    gate = linear(tensors, f"{name}gate_proj", array)
    if config.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    return linear(tensors, f"{name}down_proj", gate * linear(tensors, f"{name}up_proj", array))


def attend(
    config: DecoderConfig, tensors: Tensors, layer: int, array: Array, place: Array, given: int
) -> Array:
    name, rows, length = f"model.layers.{layer}.self_attn.", *array.shape[:2]

    def heads(which: str, count: int) -> Array:
        y = linear(tensors, f"{name}{which}_proj", array)
        y = y.reshape(rows, length, count, config.head_dim)
        if not config.heads_normed or which == "v":
            return y
        return norm(config, y, tensors[f"{name}{which}_norm.weight"])

    kind, group = config.layers[layer], config.heads // config.kv_heads
    q = rotate(heads("q", config.heads), place, kind.rope, given)
    k = rotate(heads("k", config.kv_heads), place, kind.rope, given)
    k, v = (np.repeat(y, group, axis=2) for y in (k, heads("v", config.kv_heads)))
    seen = np.stack([of_places(kind.pattern, row) for row in place])[:, None]
    if isinstance(kind.pattern, LinearAttention):
        phi = [np.where(y > 0, y + 1, np.exp(np.minimum(y, 0))) for y in (q, k)]
        e = np.einsum("bthd,bshd->bhts", *phi) * seen
    else:
        s = cap(np.einsum("bthd,bshd->bhts", q, k) * config.score_scale, config.score_cap)
        s = np.where(seen, s, -1e300)
        if config.sink_logits:
            sinks = np.broadcast_to(tensors[f"{name}sinks"][None, :, None, None], (*s.shape[:3], 1))
            s = np.concatenate([s, sinks], axis=-1)
        e = np.exp(s - s.max(-1, keepdims=True))
    p = (e / e.sum(-1, keepdims=True))[..., :length]
    y = np.einsum("bhts,bshd->bthd", p, v).reshape(rows, length, config.heads * config.head_dim)
    return linear(tensors, f"{name}o_proj", y)


def of_places(pattern: Pattern, place: Array) -> Array:
    """The mask, bool [T, T], of the places of a row; a place before the row sees itself."""
    i, j = place[:, None], place[None, :]
    return ((j >= 0) & (i >= 0) & mask(pattern, i, j)) | ((i == j) & (i < 0))


@singledispatch
def mask(pattern: Pattern, row: Array, column: Array) -> Array:
    """Tell whether place `row` attends to place `column`."""
    raise TypeError(pattern)


@mask.register(Causal)
@mask.register(LinearAttention)
def _(pattern: Causal, row: Array, column: Array) -> Array:
    return column <= row


@mask.register
def _(pattern: SlidingWindow, row: Array, column: Array) -> Array:
    return (column <= row) & (row - column < pattern.width)


@mask.register
def _(pattern: Chunk, row: Array, column: Array) -> Array:
    return (column <= row) & (row // pattern.size == column // pattern.size)


@mask.register
def _(pattern: Sinks, row: Array, column: Array) -> Array:
    return (column <= row) & ((column < pattern.count) | (row - column < pattern.width))


@mask.register
def _(pattern: Dilated, row: Array, column: Array) -> Array:
    return (column <= row) & ((row - column) % pattern.step == 0)


@mask.register
def _(pattern: Prefix, row: Array, column: Array) -> Array:
    return (column <= row) | (column < pattern.length)


def rotate(array: Array, place: Array, rope: Rope, given: int = 0) -> Array:
    """Rotate elements d and d + HD/2 of x [B, T, heads, HD] by place · frequency d."""
    half, last = array.shape[-1] // 2, np.maximum(place, max(given - 1, 0))
    angle = place[..., None, None] * frequencies(rope, array.shape[-1], last)
    cos, sin = np.cos(angle) * yarn_scale(rope), np.sin(angle) * yarn_scale(rope)
    a, b = array[..., :half], array[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def yarn_scale(rope: Rope) -> float:
    """The attention factor of YaRN, which scales rotated vectors; 1 for other types."""
    if rope.type != "yarn" or rope.attention_factor is not None:
        return rope.attention_factor or 1.0
    grows = math.log(rope.factor) / 10 if rope.factor > 1 else 0.0
    if not (rope.mscale and rope.mscale_all_dim):
        return 1 + grows
    return (1 + rope.mscale * grows) / (1 + rope.mscale_all_dim * grows)


def frequencies(rope: Rope, size: int, place: Array) -> Array:
    """Frequencies [.., 1, HD/2] at places [..], as in transformers; only `dynamic` uses places."""
    exponent = np.arange(0, size, 2) / size
    theta = np.full((*place.shape, 1, 1), rope.theta)
    if rope.type == "dynamic":
        length = np.maximum(place + 1, rope.length)[..., None, None]
        stretch = rope.factor * length / rope.length - (rope.factor - 1)
        theta = theta * stretch ** (size / (size - 2))
    f = 1 / theta**exponent
    if rope.type == "linear":
        return f / rope.factor
    if rope.type == "llama3":
        wave = 2 * math.pi / f
        low, high = rope.length / rope.low_freq_factor, rope.length / rope.high_freq_factor
        width = rope.high_freq_factor - rope.low_freq_factor
        smooth = (rope.length / wave - rope.low_freq_factor) / width
        mixed = (1 - smooth) * f / rope.factor + smooth * f
        return np.where(wave > low, f / rope.factor, np.where(wave < high, f, mixed))
    if rope.type == "yarn":
        ramp = yarn_ramp(rope, size)
        return f / rope.factor * ramp + f * (1 - ramp)
    return f


def yarn_ramp(rope: Rope, size: int) -> Array:
    """The ramp [HD/2]: 0 for axes with more than beta_fast turns, 1 for less than beta_slow."""
    fast, slow = (
        size * math.log(rope.length / (2 * math.pi * turns)) / (2 * math.log(rope.theta))
        for turns in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        fast, slow = float(math.floor(fast)), float(math.ceil(slow))
    fast, slow = max(fast, 0.0), min(slow, size - 1.0)
    slow = slow + 0.001 if fast == slow else slow
    return np.minimum(np.maximum((np.arange(size // 2) - fast) / (slow - fast), 0), 1)
