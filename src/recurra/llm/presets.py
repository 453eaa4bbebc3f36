"""The contents of config.json for well-known models, by name, and their tiny versions."""

from __future__ import annotations

from typing import Any

from recurra.errors import RecurraError

Json = dict[str, Any]


def _preset(
    model_type: str, kind: str, sizes: tuple[int, ...], positions: int, eps: float, **more: object
) -> Json:
    """The config.json of a model with `sizes` V, D, F, L, H, KV."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    names += ("num_attention_heads", "num_key_value_heads")
    return {
        "architectures": [kind],
        "model_type": model_type,
        **dict(zip(names, sizes, strict=True)),
        "max_position_embeddings": positions,
        "rms_norm_eps": eps,
        "hidden_act": "silu",
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        **more,
    }


_LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA32 = {"rope_theta": 500_000.0, "rope_scaling": _LLAMA3}
_GEMMA = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_L, _M, _Q2, _Q3 = (f"{x}ForCausalLM" for x in ("Llama", "Mistral", "Qwen2", "Qwen3"))
_G2, _G3 = "Gemma2ForCausalLM", "Gemma3ForCausalLM"
_SIX = [("full" if layer % 6 == 5 else "sliding") + "_attention" for layer in range(26)]

PRESETS: dict[str, Json] = {
    "llama-2": _preset(
        "llama", _L, (32000, 4096, 11008, 32, 32, 32), 4096, 1e-5, tie_word_embeddings=False
    ),
    "llama-3": _preset(
        "llama",
        _L,
        (128256, 4096, 14336, 32, 32, 8),
        8192,
        1e-5,
        rope_theta=500_000.0,
        tie_word_embeddings=False,
    ),
    "llama-3.2-1b": _preset(
        "llama", _L, (128256, 2048, 8192, 16, 32, 8), 131072, 1e-5, head_dim=64, **_LLAMA32
    ),
    "llama-3.2-3b": _preset(
        "llama", _L, (128256, 3072, 8192, 28, 24, 8), 131072, 1e-5, head_dim=128, **_LLAMA32
    ),
    "mistral": _preset(
        "mistral",
        _M,
        (32000, 4096, 14336, 32, 32, 8),
        32768,
        1e-5,
        sliding_window=4096,
        tie_word_embeddings=False,
    ),
    "gemma-2": _preset(
        "gemma2",
        _G2,
        (256000, 2304, 9216, 26, 8, 4),
        8192,
        1e-6,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        **_GEMMA,
    ),
    "gemma-3": _preset("gemma3_text", _G3, (262144, 1152, 6912, 26, 4, 1), 32768, 1e-6, **_GEMMA)
    | {
        "sliding_window": 512,
        "layer_types": _SIX,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    "qwen-2": _preset(
        "qwen2", _Q2, (151936, 896, 4864, 24, 14, 2), 131072, 1e-6, rope_theta=1_000_000.0
    ),
    "qwen-3": _preset(
        "qwen3",
        _Q3,
        (151936, 1024, 3072, 28, 16, 8),
        40960,
        1e-6,
        head_dim=128,
        rope_theta=1_000_000.0,
    ),
}


def preset(name: str) -> Json:
    """Return the config.json of a model; raises RecurraError for an unknown name."""
    if name not in PRESETS:
        raise RecurraError(
            f"there is no configuration {name!r}", facts=f"there are {', '.join(PRESETS)}"
        )
    return dict(PRESETS[name])


def tiny(config: Json, vocab_size: int) -> Json:
    """Return a config for a model of the same kind that is small enough for a test."""
    layers = 6 if "layer_types" in config else 4
    out = config | {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4 if config["num_key_value_heads"] > 16 else 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    if "sliding_window" in config:
        out["sliding_window"] = 16
    if "layer_types" in config:
        out["layer_types"] = config["layer_types"][:layers]
    if "rope_scaling" in config:
        out["rope_scaling"] = config["rope_scaling"] | {"original_max_position_embeddings": 128}
    return out
