"""What decoders are measured at: a model of random weights, a prompt, and how much follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.llm import config as configs
from recurra.llm import patterns
from recurra.llm.config import DecoderConfig
from recurra.llm.generate import with_patterns
from recurra.llm.presets import preset
from recurra.llm.weights import shapes

SEED = 7
LAUNCH = 16  # tokens between two looks of the host; every count of the suite is a multiple
STEPS = 32  # tokens whose answers are compared
Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Work:
    """B rows of a prompt of T / 2 tokens, or `start`, of at most T, through the layers of a Llama.

    `window`: positions that a layer attends to (0: all of the past). Sizes: width D, heads H of
    which KV have keys and values, of HD elements, F in the MLP, V tokens.
    """

    B: int
    T: int
    window: int = 0
    L: int = 4
    D: int = 512
    H: int = 8
    KV: int = 2
    HD: int = 64
    F: int = 1536
    V: int = 4096
    start: int = 0  # tokens of the prompt, if not half of T

    def __str__(self) -> str:
        return f"T={self.T} B={self.B} {f'window {self.window}' if self.window else 'causal'}"

    @property
    def prompt(self) -> int:
        """Tokens that are given."""
        return self.start or self.T // 2

    @property
    def groups(self) -> int:
        return self.H // self.KV

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def given(self) -> dict[str, Any]:
        """What config.json says of the model, but for the window."""
        return preset("llama-3.2-1b") | {
            "num_hidden_layers": self.L,
            "hidden_size": self.D,
            "num_attention_heads": self.H,
            "num_key_value_heads": self.KV,
            "head_dim": self.HD,
            "intermediate_size": self.F,
            "vocab_size": self.V,
            "max_position_embeddings": max(self.T, 16),
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
        }

    @cached_property
    def config(self) -> DecoderConfig:
        pattern = patterns.parse(f"window:{self.window}" if self.window else "causal")
        return with_patterns(configs.from_dict(self.given), [pattern] * self.L)

    @cached_property
    def weights(self) -> Arrays:
        """Every tensor by name, the layers in front; matrices are [in, out] and packed."""
        r = np.random.default_rng(SEED)
        out: dict[str, NDArray[np.float32]] = {}
        for name, shape in shapes(self.config).items():
            x = r.standard_normal(shape).astype(np.float32)
            norm = name.startswith(("ln", "norm"))
            scale = 0.1 if norm or name == "emb" else shape[-2] ** -0.5
            out[name] = x * np.float32(scale) + np.float32(1.0 if norm else 0.0)
        return out

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """[B, T]; what is past the prompt is not read."""
        r = np.random.default_rng(SEED + 1)
        return r.integers(3, self.V, (self.B, self.T)).astype(np.int32)

    @cached_property
    def turns(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [T, HD / 2] of every position."""
        angle = np.outer(np.arange(self.T), self.config.layers[0].rope.frequencies(self.HD))
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
