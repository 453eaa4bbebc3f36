"""A decoder as equations over (b, l, t), from tokens to logits, one position after the other.

    x[b, 0, t] = emb[tok];   x[b, l + 1, t] = layer(x)[b, l, t];   logits = norm(x[b, L, t]) @ embᵀ

Layers are a dim l, whose weights are tensors over l, or, if `unrolled`, separate equations. A dim
compiles in constant time. It may have several patterns if these are periodic, as every other or
every sixth layer: each of them has a store of its own length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.llm.attention import CachedPast, Scores, attend
from recurra.llm.config import DecoderConfig, Layer
from recurra.llm.patterns import Pattern
from recurra.llm.rope import Rope
from recurra.llm.weights import Weights, is_global, weight_types

if TYPE_CHECKING:
    from recurra import Tensor

GELU = (2 / np.pi) ** 0.5


@dataclass
class Model:
    """The equations of a decoder, whose weights are inputs: `arrays` are their values.

    Args:
        dims: (b, l, t), or (b, t) if layers are unrolled.
        place: t, or less in rows that begin later (`ragged`).
        dtype: of weights; with bf16, keys and values are stored in 16 bits, too.
        end: the bound of t if all tokens are known, so that positions may read later ones.
        prompt: the length of each row's prompt, whose positions come at once.
        before: the model of the positions t < before.end, over a dim of their own.
    """

    config: DecoderConfig
    dims: tuple[Any, ...]
    place: Tensor
    ragged: bool = False
    dtype: str = "f32"
    end: Any = None
    prompt: Tensor | None = None
    before: Model | None = None
    inputs: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    past: dict[str, Tensor] = field(default_factory=dict)  # keys and values, by their stores' names

    def after(self, config: DecoderConfig, dims: tuple[Any, ...], place: Tensor) -> Model:
        """The same model over later positions, which read the past of this one."""
        out = Model(config, dims, place, self.ragged, self.dtype, None, self.prompt, self)
        out.inputs, out.weights = self.inputs, self.weights
        return out

    @property
    def unrolled(self) -> bool:
        return len(self.dims) == 2

    def logits(self, tok: Tensor) -> Tensor:
        """The logits [V] of the next token, over (b, t)."""
        c = self.config
        emb, norm = self.weight("emb"), self.weight("norm").cast("f32")
        x = emb.take(tok).cast("f32") * c.embedding_scale
        if self.dtype == "i8":
            x = x * self.weight("emb_scale").take(tok)
        x = rms_norm(self.stack(x), norm, c)
        head = "emb" if c.tied else "head"
        y = rc.einsum("d,vd->v", x, self.weight(head).cast("f32"))
        if self.dtype == "i8":
            y = y * self.weight(f"{head}_scale")
        return soft_cap(y, c.logit_cap)

    def stack(self, tensor: Tensor) -> Tensor:
        """The output of the last layer, over (b, t)."""
        c = self.config
        if self.unrolled:
            for at, layer in enumerate(c.layers):
                tensor = self.layer(tensor, layer, at)
            return tensor
        b, l, t = self.dims  # noqa: E741
        h = rc.like(rc.f32[c.hidden_size], domain=self.dims, name="x")
        h[b, 0, t] = tensor
        y = self.layer(h, c.layers[0], None)
        h[b, l + 1, t] = y
        return y[b, len(c.layers) - 1, t]

    def layer(self, tensor: Tensor, layer: Layer, at: int | None) -> Tensor:
        """x [D] → x [D]: attention, then the MLP, each with a residual connection."""
        c = self.config
        names = [n for n in weight_types(c, self.dtype) if not is_global(n)]
        weight = {n: self.weight(n, at).cast("f32") for n in names}
        h = rms_norm(tensor, weight["ln1"], c)
        a = self.attention(h, weight, layer.pattern, self.angles(layer.rope, at), at)
        tensor = tensor + (rms_norm(a, weight["ln1_post"], c) if c.sandwich else a)
        y = self.mlp(rms_norm(tensor, weight["ln2"], c), weight)
        return tensor + (rms_norm(y, weight["ln2_post"], c) if c.sandwich else y)

    def attention(
        self,
        hidden: Tensor,
        weight: Mapping[str, Tensor],
        pattern: Pattern,
        angles: tuple[Tensor, Tensor],
        at: int | None,
    ) -> Tensor:
        c = self.config
        heads, kv, size = c.heads, c.kv_heads, c.head_dim
        qkv = linear(hidden, weight, "qkv")
        ends = [0, heads * size, (heads + kv) * size, (heads + 2 * kv) * size]
        q, k, v = (
            qkv.cut(ends[n], ends[n + 1]).reshape(count, size)
            for n, count in enumerate((heads, kv, kv))
        )
        if c.heads_normed:
            q, k = rms_norm(q, weight["q_norm"], c), rms_norm(k, weight["k_norm"], c)
        q, k = rotate(q, *angles).reshape(kv, heads // kv, size), rotate(k, *angles)
        sinks = weight["sinks"].reshape(kv, heads // kv) if c.sink_logits else None
        k, v = self.named(k, "k", at), self.named(v, "v", at)
        scores = Scores(c.score_scale, c.score_cap, sinks)
        past = CachedPast(self.dims, self.place, self.ragged, self.end)
        if at is None and period(c.layers) > 1:
            y = self.attend_by_layer(scores, past, q, k, v)
        else:
            y = attend(pattern, scores, past, q, k, v)
        return linear(y.reshape(heads * size), weight, "o")

    def attend_by_layer(
        self, scores: Scores, past: CachedPast, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attention by the pattern of each layer l, which depends on l % n only."""
        l, n = self.dims[1], period(self.config.layers)  # noqa: E741
        y = rc.like(queries.type, domain=self.dims)
        for pattern in dict.fromkeys(layer.pattern for layer in self.config.layers[:n]):
            phases = [m for m in range(n) if self.config.layers[m].pattern == pattern]
            when = reduce(or_, [l % n == m for m in phases])
            y[(*self.dims, when)] = attend(pattern, scores, past, queries, keys, values)
        return y

    def named(self, tensor: Tensor, name: str, at: int | None) -> Tensor:
        """The tensor under the name of its store, k_3, in the precision of the weights."""
        store = name if at is None else f"{name}_{at}"
        tensor = tensor.cast("bf16") if self.dtype == "bf16" else tensor
        out = rc.like(tensor.type, domain=self.dims, name=store)
        if self.before is not None:
            early = self.before.past[store]
            out[(*self.dims, self.dims[-1] < self.before.end)] = early[self.dims]
        out[self.dims] = tensor
        self.past[store] = out
        return out

    def mlp(self, hidden: Tensor, weight: Mapping[str, Tensor]) -> Tensor:
        gate_up, width = linear(hidden, weight, "gate_up"), self.config.intermediate_size
        gate, up = gate_up.cut(0, width), gate_up.cut(width, 2 * width)
        return linear(activation(gate, self.config.activation) * up, weight, "down")

    def angles(self, rope: Rope, at: int | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines [HD / 2] at a place."""
        place, ropes = self.place.cast("f32"), [layer.rope for layer in self.config.layers]
        if at is not None or len(set(ropes)) == 1:
            angle = place * self.frequencies(rope)
            return angle.cos() * rope.scale, angle.sin() * rope.scale
        angle = place * rc.stack([self.frequencies(r) for r in ropes]).index(self.dims[1])
        scale = rc.constant(np.array([r.scale for r in ropes]), "f32").index(self.dims[1])
        return angle.cos() * scale, angle.sin() * scale

    def frequencies(self, rope: Rope) -> Tensor:
        """Radians per position [HD / 2]; for `dynamic`, those of a text that ends here."""
        size = self.config.head_dim
        if rope.type != "dynamic":
            return rc.constant(rope.frequencies(size), "f32")
        end = self.place.cast("f32") + 1.0
        end = end if self.prompt is None else rc.maximum(end, self.prompt.cast("f32"))
        return dynamic_frequencies(rope, size, end)

    def weight(self, name: str, at: int | None = None) -> Tensor:
        """An input for a weight of all layers together, of layer `at`, or of each point of l."""
        dtype, shape = weight_types(self.config, self.dtype)[name]
        if is_global(name):
            domain, own, key = (), shape, name
        elif self.unrolled:
            domain, own, key = (), shape[1:], f"{name}_{at}"
        else:
            domain, own, key = (self.dims[1],), shape[1:], name
        if key not in self.weights:
            self.inputs[key] = (name, at)
            self.weights[key] = rc.input(rc.Type(dtype, own), domain, name=key)
        return self.weights[key]

    def arrays(self, weights: Weights) -> dict[str, np.ndarray]:
        """The arrays of the program's weight inputs: views, not copies."""
        return {
            key: weights.arrays[name] if at is None else weights.arrays[name][at]
            for key, (name, at) in self.inputs.items()
        }


def period(layers: Sequence[Layer]) -> int:
    """The number of layers after which their patterns repeat: 1, 2, .., at most all of them."""
    patterns = [layer.pattern for layer in layers]
    counts = range(1, len(patterns) + 1)
    return next(n for n in counts if all(p == patterns[k % n] for k, p in enumerate(patterns)))


def rms_norm(tensor: Tensor, weight: Tensor, config: DecoderConfig) -> Tensor:
    """x / √(mean of x² + eps) · w over the last axis; in Gemma, · (1 + w)."""
    mean = tensor.square().mean(axis=-1)
    root = (mean + config.eps).sqrt()
    if len(tensor.shape) > 1:
        root = root.reshape(*tensor.shape[:-1], 1)
    return tensor / root * (weight + 1.0 if config.one_plus else weight)


def linear(tensor: Tensor, weight: Mapping[str, Tensor], name: str) -> Tensor:
    y = tensor @ weight[name]
    if f"{name}_scale" in weight:
        y = y * weight[f"{name}_scale"]
    return y + weight[f"{name}_bias"] if f"{name}_bias" in weight else y


def rotate(tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (d, d + HD / 2) of x [heads, HD] by their angles."""
    half: Any = tensor.shape[-1] // 2
    a, b = tensor.cut(0, half, axis=1), tensor.cut(half, 2 * half, axis=1)
    return rc.concat([a * cos - b * sin, b * cos + a * sin], axis=1)


def dynamic_frequencies(rope: Rope, size: int, end: Tensor) -> Tensor:
    """Frequencies that fall once a row exceeds the model's training length (dynamic NTK)."""
    stretch = rc.maximum(end, float(rope.length)) * (rope.factor / rope.length)
    log = (stretch - (rope.factor - 1.0)).log() * (size / (size - 2)) + float(np.log(rope.theta))
    return (log * rc.constant(-np.arange(0, size, 2) / size, "f32")).exp()


def activation(tensor: Tensor, name: str) -> Tensor:
    """silu, or gelu by tanh (Hendrycks and Gimpel, 2016)."""
    if name == "silu":
        return tensor * tensor.sigmoid()
    inner = (tensor + tensor.square() * tensor * 0.044715) * GELU
    return tensor * inner.tanh() * 0.5 + tensor * 0.5


def soft_cap(tensor: Tensor, cap: float | None) -> Tensor:
    return tensor if cap is None else (tensor / cap).tanh() * cap
