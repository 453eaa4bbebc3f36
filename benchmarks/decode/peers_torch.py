"""Decoders in PyTorch, eager: caches [B, T, KV, HD], cut to what there is at every step.

As Llama's reference code is written, keys and values repeated for the heads of a group, and with
`scaled_dot_product_attention` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from benchmarks.decode.workload import STEPS, Work
from benchmarks.harness import Contestant


class Decoder:
    """One model and its caches; a step is a token of every row."""

    def __init__(self, work: Work, fused: bool):
        self.work, self.fused = work, fused
        turn = ("qkv", "o", "gate_up", "down")
        self.w = {
            name: torch.from_numpy(np.ascontiguousarray(x.swapaxes(-1, -2)) if name in turn else x)
            for name, x in work.weights.items()
        }
        self.cos, self.sin = map(torch.from_numpy, work.turns)

    def begin(self) -> torch.Tensor:
        """Fills the caches with the prompt but for its last token, which it gives."""
        w, last = self.work, self.work.prompt - 1
        shape = (w.B, w.T, w.KV, w.HD)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(w.L)]
        self.t = 0
        tokens = torch.from_numpy(w.tokens).long()
        self.step(tokens[:, :last])
        return tokens[:, last]

    def rms(self, x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.work.config.eps) * weight

    def turned(self, x: Any, lo: int, hi: int) -> Any:
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[lo:hi, None], self.sin[lo:hi, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """q [B, S, H, HD], k and v [B, n, KV, HD] → [B, S, H, HD]"""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return y.transpose(1, 2)
        k, v = (x.repeat_interleave(self.work.groups, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * self.work.HD**-0.5
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2)

    @torch.inference_mode()
    def step(self, tokens: Any) -> Any:
        """The logits [B, V] that follow tokens [B] or [B, S]."""
        w, many = self.work, tokens.ndim == 2
        x = self.w["emb"][tokens if many else tokens[:, None]]
        lo, hi = self.t, self.t + x.shape[1]
        first = max(0, hi - w.window) if w.window and not many else 0
        mask = self.mask(hi) if many else None
        for l in range(w.L):
            y = F.linear(self.rms(x, self.w["ln1"][l]), self.w["qkv"][l])
            q, k, v = y.unflatten(-1, (-1, w.HD)).split((w.H, w.KV, w.KV), 2)
            keys, values = self.caches[l]
            keys[:, lo:hi], values[:, lo:hi] = self.turned(k, lo, hi), v
            o = self.attention(self.turned(q, lo, hi), keys[:, first:hi], values[:, first:hi], mask)
            x = x + F.linear(o.flatten(2), self.w["o"][l])
            gate, up = F.linear(self.rms(x, self.w["ln2"][l]), self.w["gate_up"][l]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.w["down"][l])
        self.t = hi
        return F.linear(self.rms(x[:, -1], self.w["norm"]), self.w["emb"])

    def mask(self, count: int) -> Any:
        place = torch.arange(count)
        gap = place[:, None] - place
        return (gap >= 0) & ((gap < self.work.window) if self.work.window else True)


class Stepping(Protocol):
    """A decoder that makes a token of every row in a step."""

    def begin(self) -> torch.Tensor:
        """Takes the prompt but for its last token, which it gives."""
        ...

    def step(self, tokens: Any) -> Any:
        """The logits [B, V] that follow tokens [B]."""
        ...


def stepping(name: str, make: Callable[[], Stepping]) -> Contestant:
    """Greedy decoding, one step of Python per token."""
    timed, token = make(), None

    def run(index: int) -> None:
        nonlocal token
        token = timed.begin() if token is None else token
        for _ in range(index):
            token = timed.step(token).argmax(-1)

    def answer() -> Mapping[str, NDArray[Any]]:
        own = make()
        at, tokens, logp = own.begin(), list[Any](), list[Any]()
        for _ in range(STEPS):
            found = own.step(at).log_softmax(-1)
            at = found.argmax(-1)
            tokens.append(at.numpy().astype(np.int32))
            logp.append(found.max(-1).values.numpy())
        return {"tokens": np.stack(tokens, 1), "logprob": np.stack(logp, 1)}

    return Contestant(name, run, answer)


def eager(work: Work, fused: bool) -> Contestant:
    """Llama's reference code, or with a fused attention."""
    name = "Torch + SDPA" if fused else "Torch eager"
    return stepping(name, lambda: Decoder(work, fused))
