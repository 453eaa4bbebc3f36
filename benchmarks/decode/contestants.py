"""Who decodes: ours on JAX and on PyTorch, and everyone else, by name; made where they run."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from benchmarks.decode.recurra_program import contestant, contestant_on_torch
from benchmarks.decode.workload import Work
from benchmarks.harness import Contestant

Make = Callable[[Work], Contestant]
US = "ours"
LAYOUTS = ("[B,T,KV,HD]", "[B,KV,T,HD]")
ON_JAX = (US, *(f"JAX padded {layout}" for layout in LAYOUTS))
LLAMA_CPP = "llama.cpp is left out: its package for Python comes as source, built for minutes"


def makers() -> dict[str, Make]:
    """All that can run here; a name says what it is. Nothing is made, and no library imported."""
    out: dict[str, Make] = {US: contestant}
    for layout in LAYOUTS:
        out[f"JAX padded {layout}"] = _padded(layout)
    out["ours on PyTorch"] = contestant_on_torch
    for fused in (False, True):
        out["Torch + SDPA" if fused else "Torch eager"] = _eager(fused)
    if find_spec("transformers") is not None:
        for cache in ("dynamic", "static"):
            out[f"transformers {cache}"] = _transformers(cache)
    return out


def _padded(layout: str) -> Make:
    def make(work: Work) -> Contestant:
        from benchmarks.decode.peers_jax import padded

        return padded(work, layout)

    return make


def _eager(fused: bool) -> Make:
    def make(work: Work) -> Contestant:
        from benchmarks.decode.peers_torch import eager

        return eager(work, fused)

    return make


def _transformers(cache: str) -> Make:
    def make(work: Work) -> Contestant:
        from benchmarks.decode.peers_transformers import transformers_model

        return transformers_model(work, cache)

    return make
