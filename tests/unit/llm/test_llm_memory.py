"""The peak of a process that generates: its weights, and little beside them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from process_memory import numbers
from recurra.llm import config as configs
from recurra.llm.init import init_model, save

pytestmark = pytest.mark.slow
SIZES = {"num_hidden_layers": 16, "num_attention_heads": 6, "num_key_value_heads": 2}
WIDE = {"hidden_size": 384, "intermediate_size": 1152, "head_dim": 64}  # 27 million weights
NARROW = {"hidden_size": 24, "intermediate_size": 48, "head_dim": 4}

GENERATE = """
import sys
from process_memory import forget_peak, peak
from recurra.llm.generate import Generator
forget_peak()
folder, dtype, backend = sys.argv[1:]
g = Generator(folder, dtype=dtype, backend=backend)
g.generate([[5, 6, 7, 8, 9, 10, 11]], new=4, eos=())
print(g.weights.nbytes, peak())
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one kind; the weights of one take some 50 MB in bf16, of the other nothing."""
    folder = tmp_path_factory.mktemp("models")
    init_model("llama-3.2-1b", folder / "first", small=True)
    given = json.loads((folder / "first" / configs.FILE).read_text())
    for name, widths in {"wide": WIDE, "narrow": NARROW}.items():
        out = folder / name
        out.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (out / file).write_bytes((folder / "first" / file).read_bytes())
        text = json.dumps({**given, **SIZES, **widths})
        (out / configs.FILE).write_text(text)
        save(out, configs.from_dict(json.loads(text), name), "bf16", 0, 2**40)
    return folder


# Reduced weights are converted where a product reads them: a layer in f32, and code for it, stay
# as they are when there are more of them. A whole copy in f32 would be 111 MB.
BESIDE = {"jax": 85e6, "torch": 25e6, "numpy": 8e6}
CASES = [("f32", "jax"), ("bf16", "jax"), ("i8", "jax"), ("bf16", "torch"), ("bf16", "numpy")]


@cache
def of_runtime(models: Path, backend: str) -> list[float]:
    """The runtime's own memory: what a model takes whose weights take nothing."""
    return numbers(GENERATE, str(models / "narrow"), "bf16", backend)


@pytest.mark.parametrize(("dtype", "backend"), CASES)
def test_a_process_holds_weights_once(models: Path, dtype: str, backend: str) -> None:
    few, own = of_runtime(models, backend)
    weights, peak = numbers(GENERATE, str(models / "wide"), dtype, backend)
    assert weights > 25e6 > 50 * few
    beside = 0 if dtype == "f32" else BESIDE[backend]
    assert peak - own < 1.2 * (weights - few) + beside
