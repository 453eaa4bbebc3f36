"""Products that widen what they read in fewer bits: right in every part, and held once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import recurra as rc
from numpy_memory import counted
from process_memory import numbers
from recurra.codegen.widened_product import parts
from recurra.ir.types import NUMPY_NAME
from recurra.llm import config as configs
from recurra.llm.generate import Generator, Request
from recurra.llm.init import save
from recurra.llm.presets import preset
from recurra.runtime.executable import Executable

WIDE, NARROW = 4100, 300  # points of a matrix of more than a part, and no whole number of parts
LABELS = {"vd": "d,vd->v", "dv": "d,dv->v"}


def looped(lies: str, dtype: str, backend: str) -> Executable:
    """x[t+1] = tanh(the first of W · x[t]), of a matrix in few bits."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        shape = (WIDE, NARROW) if lies == "vd" else (NARROW, WIDE)
        w = rc.input(rc.Type(dtype, shape), (), name="w")
        x = rc.like(rc.f32[NARROW], domain=(t,))
        y = rc.einsum(LABELS[lies], x, w.cast("f32"))
        x[0] = rc.constant(np.linspace(-1, 1, NARROW), "f32")
        x[t + 1] = (y.cut(0, NARROW) * 0.05).tanh()
        rc.output(y=y)
    return ctx.compile({T: 3}, backend=backend)


def matrix(lies: str, dtype: str) -> np.ndarray:
    shape = (WIDE, NARROW) if lies == "vd" else (NARROW, WIDE)
    return np.random.default_rng(3).integers(-8, 9, shape).astype(NUMPY_NAME[dtype])


def by_hand(lies: str, w: np.ndarray) -> np.ndarray:
    x, out, wide = np.linspace(-1, 1, NARROW), list[np.ndarray](), w.astype(np.float64)
    for _ in range(3):
        out.append(np.einsum(LABELS[lies], x, wide))
        x = np.tanh(out[-1][:NARROW] * 0.05)
    return np.stack(out)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8"])
@pytest.mark.parametrize("lies", sorted(LABELS))
def test_a_matrix_in_parts(lies: str, dtype: str, backend: str) -> None:
    program = looped(lies, dtype, backend)
    w = matrix(lies, dtype)
    assert parts(LABELS[lies], "float32", np.zeros(NARROW, np.float32), w) is not None
    assert "widened where products read them" in str(program.compiled.stages.decisions)
    got = program.run(inputs={"w": w})["y"]
    np.testing.assert_allclose(got, by_hand(lies, w), rtol=2e-5, atol=2e-4)


def test_a_matrix_of_less_than_a_part_is_read_in_two() -> None:
    """What is read whole is widened ahead of a loop, and held there."""
    found = parts(LABELS["vd"], "float32", np.zeros(300, np.float32), np.zeros((1030, 300), "i1"))
    assert found is not None
    assert (found.size, found.length) == (1030, 515)


def test_numpy_allocates_what_is_predicted() -> None:
    program, w = looped("vd", "bf16", "numpy"), matrix("vd", "bf16")
    program.run(inputs={"w": w})  # what is made once for all runs
    with counted() as count:
        program.run(inputs={"w": w})
    assert count.peak < 2 * w.nbytes  # in f32 it would be as much by itself, and a part beside it
    assert program.memory.nbytes == pytest.approx(count.peak + w.nbytes, rel=0.01)


def decoder(folder: Path, layers: int, words: int) -> Path:
    given = preset("llama-2") | {
        "vocab_size": words,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    }
    folder.mkdir()
    (folder / configs.FILE).write_text(json.dumps(given))
    save(folder, configs.from_dict(given), "bf16", 0, 10**9)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "i8"])
def test_no_matrix_is_held_in_more_bits(dtype: str, unrolled: bool, tmp_path: Path) -> None:
    g = Generator(decoder(tmp_path / "m", 3, 500), dtype=dtype, unrolled=unrolled)
    plan = g.prepare([[5, 6, 7]], Request(new=4, eos=()))[0].executable.compiled.plan
    kept = {n: (s.type.dtype, s.nbytes(plan.sizes)) for n, s in plan.stores.items()}
    matrices = sum(n for t, n in kept.values() if t == dtype)
    assert sum(n for _, n in kept.values()) < 1.05 * matrices, kept
    made = {n: a.type for n, a in plan.statements.arrays.items() if isinstance(a.type, rc.Type)}
    wide = {n: str(t) for n, t in made.items() if t.dtype == "f32" and t.nbytes(plan.sizes) > 1e5}
    assert not wide


PEAK = """
import sys
from process_memory import forget_peak, peak
from recurra.llm.generate import Generator
forget_peak()
g = Generator(sys.argv[1], dtype="bf16", backend=sys.argv[2], unrolled=False)
g.generate([[5, 6, 7, 8]], new=4, eos=())
print(g.weights.nbytes, peak())
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_weights_are_in_memory_once(backend: str, tmp_path: Path) -> None:
    """What a process takes for more weights, beside one that runs the same program of fewer."""
    folders = [decoder(tmp_path / str(n), n, words) for n, words in ((2, 2000), (16, 64_000))]
    (few, low), (many, high) = found = [numbers(PEAK, str(x), backend) for x in folders]
    assert many - few > 80e6
    assert high - low < 1.25 * (many - few), found
