"""Tiny models in folders, as transformers itself saves them, and their tensors."""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from recurra.llm import config as configs
from recurra.llm.config import DecoderConfig
from recurra.llm.init import random_weights
from recurra.llm.presets import preset, tiny
from recurra.llm.tensor_files import ONE
from recurra.llm.weights import DTYPES, Weights, parts, put, weight_types

os.environ["HF_HUB_OFFLINE"] = "1"

SIZES = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, untied, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, llama3": (
        "Llama",
        {"tie_word_embeddings": True, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama, yarn": ("Llama", {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
    "llama, yarn of Deepseek": (
        "Llama",
        {"rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 2.0, "mscale_all_dim": 0.5}},
    ),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "gemma2": ("Gemma2", {"sliding_window": 5, "layer_types": MIXED, "query_pre_attn_scalar": 9}),
    "gemma3": ("Gemma3Text", {"sliding_window": 5, "layer_types": MIXED}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 1}),
}


@cache
def transformers() -> Any:
    """Imported when it is first needed: that takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        return transformers


def make(kind: str, folder: Path, **more: Any) -> Any:
    """A random model of transformers, saved in a folder; biases and norms are random, too."""
    import torch

    name, own = KINDS[kind]
    tf = transformers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c = getattr(tf, f"{name}Config")(**{**SIZES, **own, **more})
        c._attn_implementation = "eager"
        torch.manual_seed(7)
        model = getattr(tf, f"{name.removesuffix('Text')}ForCausalLM")(c).eval()
        for p in model.parameters():
            wide = p.shape[-1] ** -0.5 if p.ndim > 1 else 0.3
            p.data += wide * torch.randn(p.shape)
        model.save_pretrained(folder)
    return model


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / ONE)


def logits(model: Any, tokens: np.ndarray, **more: Any) -> np.ndarray:
    """[B, T, V] of transformers"""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(torch.tensor(tokens), **more).logits.double().numpy()


def tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, SIZES["vocab_size"], (rows, length))


def in_memory(
    name: str, count: int = 2, **changed: Any
) -> tuple[DecoderConfig, dict[str, Any], Weights]:
    """A tiny model of a kind: what is asked for, tensors as in files, and our weights of them."""
    given = tiny(preset(name), 43) | {"num_hidden_layers": count, "layer_types": None}
    own = {"hidden_size": 16, "intermediate_size": 24, "head_dim": 8, "sliding_window": 4}
    window = own if "sliding_window" in given else {k: own[k] for k in list(own)[:3]}
    c = configs.from_dict(given | window | changed)
    named = {p.name: random_weights(p, c, "f32", [1, k]) for k, p in enumerate(parts(c))}
    return c, named, packed(c, named)


def packed(c: DecoderConfig, named: dict[str, Any], dtype: str = "f32") -> Weights:
    kinds = {**DTYPES, "i8": np.int8}
    arrays = {
        n: np.zeros(shape, kinds[kind]) for n, (kind, shape) in weight_types(c, dtype).items()
    }
    for part in parts(c):
        put(arrays, part, slice(0, part.shape[0]), named[part.name])
    return Weights(c, arrays)
