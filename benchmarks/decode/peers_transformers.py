"""transformers' Llama, and Mistral for windows, with its dynamic and its static cache.

A loop over forward passes with `scaled_dot_product_attention`: what generate() does beside them is
left out, which is in their favor.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.decode.peers_torch import stepping
from benchmarks.decode.workload import Work
from benchmarks.harness import Contestant

CACHES = ("dynamic", "static")


def weights(work: Work) -> dict[str, torch.Tensor]:
    """Ours by the names of theirs, [out, in] and one matrix each."""
    w, out = work.weights, dict[str, NDArray[np.float32]]()
    heads = [work.H * work.HD, (work.H + work.KV) * work.HD]
    for l in range(work.L):
        at = f"model.layers.{l}."
        q, k, v = np.split(w["qkv"][l], heads, -1)
        gate, up = np.split(w["gate_up"][l], 2, -1)
        for name, x in {"q": q, "k": k, "v": v, "o": w["o"][l]}.items():
            out[f"{at}self_attn.{name}_proj.weight"] = x.T
        for name, x in {"gate": gate, "up": up, "down": w["down"][l]}.items():
            out[f"{at}mlp.{name}_proj.weight"] = x.T
        out[f"{at}input_layernorm.weight"] = w["ln1"][l]
        out[f"{at}post_attention_layernorm.weight"] = w["ln2"][l]
    out |= {"model.embed_tokens.weight": w["emb"], "model.norm.weight": w["norm"]}
    out["lm_head.weight"] = w["emb"]
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in out.items()}


def model_of(work: Work) -> Any:
    """Their model with our weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    kind = "Mistral" if work.window else "Llama"
    given = {k: x for k, x in work.given.items() if k not in ("architectures", "model_type")}
    given |= {"attn_implementation": "sdpa"} | (
        {"sliding_window": work.window} if work.window else {}
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**given)
    )
    model.load_state_dict(weights(work))
    return model.eval()


class Decoder:
    """A model and a cache; a step is a token of every row."""

    def __init__(self, work: Work, cache: str):
        self.work, self.cache, self.model = work, cache, model_of(work)

    def begin(self) -> torch.Tensor:
        """Fills the cache with the prompt but for its last token, which it gives."""
        import transformers

        config = self.model.config
        if self.cache == "static":
            self.past: Any = transformers.StaticCache(config=config, max_cache_len=self.work.T)
        else:
            self.past = transformers.DynamicCache(config=config)
        last = self.work.prompt - 1
        tokens = torch.from_numpy(self.work.tokens).long()
        self.step(tokens[:, :last])
        return tokens[:, last]

    @torch.inference_mode()
    def step(self, tokens: Any) -> Any:
        """The logits [B, V] that follow tokens [B] or [B, S]."""
        tokens = tokens if tokens.ndim == 2 else tokens[:, None]
        out = self.model(
            input_ids=tokens, past_key_values=self.past, use_cache=True, logits_to_keep=1
        )
        return out.logits[:, -1]


def transformers_model(work: Work, cache: str) -> Contestant:
    """Greedy decoding, a forward pass per token."""
    return stepping(f"transformers {cache}", lambda: Decoder(work, cache))
