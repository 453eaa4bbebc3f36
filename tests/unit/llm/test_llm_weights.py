"""Folders of Hugging Face → packed weights: names, shapes, files, memory, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from recurra.errors import RecurraError
from recurra.llm import config as configs
from recurra.llm import tensor_files, weights
from recurra.llm.init import init_model, save
from recurra.llm.presets import PRESETS, preset
from recurra.llm.tensor_files import INDEX, ONE, entries

Q = "model.layers.1.self_attn.q_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init_model("qwen-2", tmp_path / "model", small=True)
    return tmp_path / "model"


def change(folder: Path, **tensors: Any) -> None:
    """Other tensors in model.safetensors; None leaves one out, __ stands for a dot."""
    have = load_file(folder / ONE)
    for name, x in tensors.items():
        have.pop(name.replace("__", "."), None)
        if x is not None:
            have[name.replace("__", ".")] = x
    save_file(have, folder / ONE)


def test_packed(folder: Path):
    """Every tensor of the files lies where our names say, turned to [in, out]."""
    theirs, w = load_file(folder / ONE), weights.load(folder)
    d, q, kv, f = 64, 64, 32, 96
    assert w.config == configs.load(folder)
    for layer in range(4):
        mine = {n: a[layer] for n, a in w.arrays.items() if not weights.is_global(n)}
        pre = f"model.layers.{layer}."
        qkv, both = mine["qkv"], mine["gate_up"]
        assert (qkv.shape, both.shape) == ((d, q + 2 * kv), (d, 2 * f))
        for at, end, name in ((0, q, "q"), (q, q + kv, "k"), (q + kv, q + 2 * kv, "v")):
            np.testing.assert_array_equal(
                qkv[:, at:end].T, theirs[f"{pre}self_attn.{name}_proj.weight"]
            )
            np.testing.assert_array_equal(
                mine["qkv_bias"][at:end], theirs[f"{pre}self_attn.{name}_proj.bias"]
            )
        np.testing.assert_array_equal(both[:, :f].T, theirs[pre + "mlp.gate_proj.weight"])
        np.testing.assert_array_equal(both[:, f:].T, theirs[pre + "mlp.up_proj.weight"])
        np.testing.assert_array_equal(mine["down"].T, theirs[pre + "mlp.down_proj.weight"])
        np.testing.assert_array_equal(mine["o"].T, theirs[pre + "self_attn.o_proj.weight"])
        np.testing.assert_array_equal(mine["ln1"], theirs[pre + "input_layernorm.weight"])
        np.testing.assert_array_equal(mine["ln2"], theirs[pre + "post_attention_layernorm.weight"])
    np.testing.assert_array_equal(w.arrays["emb"], theirs["model.embed_tokens.weight"])
    np.testing.assert_array_equal(w.arrays["norm"], theirs["model.norm.weight"])


@pytest.mark.parametrize("name", ["llama-3.2-1b", "mistral", "gemma-2", "gemma-3", "qwen-3"])
def test_every_part_is_filled_once(name: str):
    """Parts cover our weights: no element is left as it was, none is written twice."""
    c = configs.from_dict(
        preset(name) | {"hidden_size": 64, "num_hidden_layers": 2, "layer_types": None}
    )
    count = {n: np.zeros(s, np.int8) for n, s in weights.shapes(c).items() if n != "emb"}
    for part in weights.parts(c):
        if part.target != "emb":
            place = part.place(count)
            assert place.shape == part.shape
            place += 1
    assert all((x == 1).all() for x in count.values())


def test_sharded_files_say_the_same(tmp_path: Path):
    init_model("gemma-3", tmp_path / "one", small=True)
    init_model("gemma-3", tmp_path / "many", small=True, shard=100_000)
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 3
    one, many = (weights.load(tmp_path / n).arrays for n in ("one", "many"))
    assert one.keys() == many.keys()
    for name, x in one.items():
        np.testing.assert_array_equal(x, many[name])


def test_types(tmp_path: Path):
    init_model("llama-3.2-1b", tmp_path / "b", small=True, dtype="bf16")
    init_model("llama-3.2-1b", tmp_path / "f", small=True)
    b, f = weights.load(tmp_path / "b"), weights.load(tmp_path / "f")
    as_bf16 = weights.load(tmp_path / "f", "bf16")
    assert as_bf16.nbytes * 2 == f.nbytes
    for name, x in f.arrays.items():
        assert as_bf16.arrays[name].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(x.astype(ml_dtypes.bfloat16), as_bf16.arrays[name])
        np.testing.assert_array_equal(b.arrays[name], as_bf16.arrays[name].astype(np.float32))


def test_a_tied_head_in_the_files_is_the_embedding(folder: Path):
    change(folder, lm_head__weight=load_file(folder / ONE)["model.embed_tokens.weight"])
    assert "head" not in weights.load(folder).arrays
    change(folder, lm_head__weight=np.zeros((259, 64), np.float32))
    with pytest.raises(RecurraError, match=r"safetensors: lm_head\.weight is not model\.embed_tok"):
        weights.load(folder)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({Q: None}, f"lacks {Q}\n  config.json asks for qwen2 L4"),
        (
            {f"model.layers.{k}.mlp.up_proj.weight": None for k in range(4)} | {Q: None},
            "mlp.up_proj.weight and 1 more",
        ),
        (
            {"model.layers.4.mlp.up_proj.weight": np.zeros((1, 2), np.float32)},
            "has model.layers.4.mlp.up_proj.weight, which qwen2 L4 D64 H4 KV2 HD16 F96 V259 has no",
        ),
        (
            {UP: np.zeros((64, 96), np.float32)},
            f"model.safetensors: {UP} is [64, 96], not [96, 64]\n  config.json asks for qwen2",
        ),
        ({UP: np.zeros((96, 64), np.int8)}, f"{UP} is I8, no floating-point numbers"),
    ],
)
def test_wrong_tensors_are_named(folder: Path, tensors: dict[str, Any], message: str):
    change(folder, **tensors)
    with pytest.raises(RecurraError) as error:
        weights.load(folder)
    assert message in str(error.value)


def test_wrong_files_are_named(tmp_path: Path, folder: Path):
    with pytest.raises(RecurraError, match=r"there is no model\.safetensors and no .* in"):
        entries(tmp_path)
    (tmp_path / ONE).write_bytes(b"nothing")
    with pytest.raises(RecurraError, match=r"model\.safetensors cannot be read as safetensors"):
        entries(tmp_path)
    (folder / ONE).write_bytes((folder / ONE).read_bytes()[:-100])
    with pytest.raises(RecurraError, match=r"model\.safetensors cannot be read as safetensors"):
        entries(folder)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("gone.safetensors", "names the file gone.safetensors, which is not in"),
        ("../escape.safetensors", "names the file ../escape.safetensors, which is not in"),
        ("model-00001-of-00003.safetensors", "says that model.norm.weight is in model-00001"),
    ],
)
def test_a_wrong_index_is_told(tmp_path: Path, file: str, message: str):
    init_model("llama-3.2-1b", tmp_path / "m", small=True, shard=200_000)
    index = json.loads((tmp_path / "m" / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = file
    (tmp_path / "m" / INDEX).write_text(json.dumps(index))
    last = index["weight_map"]["model.layers.3.mlp.up_proj.weight"]
    if file.startswith("model-"):
        index["weight_map"]["model.norm.weight"] = last
        (tmp_path / "m" / INDEX).write_text(json.dumps(index))
        message = f"says that model.norm.weight is in {last}"
    with pytest.raises(RecurraError) as error:
        entries(tmp_path / "m")
    assert message in str(error.value)


def test_memory_that_does_not_suffice(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "free_bytes", lambda: 10_000)
    with pytest.raises(RecurraError) as error:
        weights.load(folder)
    assert "do not fit into memory\n  as f32 they take 0.00 GB, 0.00 GB are free" in str(
        error.value
    )
    monkeypatch.setattr(weights, "free_bytes", lambda: None)
    assert weights.load(folder).nbytes > 10_000


def test_matrices_of_8_bits_have_scales(folder: Path):
    """w ≈ q · scale to half a step, a scale per output; vectors stay, bytes are a quarter."""
    f, q = weights.load(folder), weights.load(folder, "i8")
    for name, x in f.arrays.items():
        if name not in weights.MATRICES:
            np.testing.assert_array_equal(q.arrays[name], x)
            continue
        scale = q.arrays[f"{name}_scale"]
        scale = scale[:, None] if name == "emb" else scale[..., None, :]
        assert q.arrays[name].dtype == np.int8
        assert np.abs(q.arrays[name]).max() == 127
        assert (np.abs(q.arrays[name] * scale - x) <= 0.5001 * scale).all()
    assert q.nbytes < 0.3 * f.nbytes
    zero, one = weights.quantize(np.array([[0.0, 0.0], [np.inf, 1.0]], np.float32))
    assert not zero[0].any()
    assert np.isinf(one[1])  # what is not finite shows


@pytest.mark.slow
@pytest.mark.parametrize("dtype", weights.LOADED)
def test_the_files_are_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    """Loading holds the result and some rows; reading all files first would hold twice that."""
    given = preset("qwen-3") | {"vocab_size": 500, "num_hidden_layers": 4, "hidden_size": 128}
    c = configs.from_dict(given)
    (tmp_path / configs.FILE).write_text(json.dumps(given))
    save(tmp_path, c, "f32", 0, 10**9)
    monkeypatch.setattr(tensor_files, "MAX_READ", some := 5_000)

    def peak(load: Any) -> int:
        tracemalloc.start()
        kept = load()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert kept is not None
        return found

    weights.load(tmp_path, dtype)
    whole = weights.load(tmp_path, dtype).nbytes
    beside = 100_000  # names and shapes
    assert whole < peak(lambda: weights.load(tmp_path, dtype)) < whole + 6 * 4 * some + beside
    all_first = peak(lambda: (load_file(tmp_path / ONE), weights.load(tmp_path, dtype)))
    assert all_first > whole + sum(e.nbytes for e in entries(tmp_path).values())


def test_jax_reads_weights_where_they_lie(folder: Path):
    """Large ones of a layer begin at a cache line, as all of a weight's layers do together."""
    from recurra.backends.jax.region import JaxBackend

    borrow, w = JaxBackend().from_dlpack, weights.load(folder)
    large = [a[3] for n, a in w.arrays.items() if n in ("qkv", "o", "gate_up", "down")]
    for x in (*w.arrays.values(), *large):
        assert borrow(x).unsafe_buffer_pointer() == x.ctypes.data


def test_long_reading_is_watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    weights.load(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(weights, "SLOW", 1000)
    weights.load(folder)
    assert "reading MB 0/0" in capsys.readouterr().err


def test_init_is_told_what_is_wrong(tmp_path: Path, folder: Path):
    with pytest.raises(
        RecurraError, match="there is no configuration 'llama'\n  there are llama-2"
    ):
        init_model("llama", tmp_path / "x")
    with pytest.raises(RecurraError, match="has a model already"):
        init_model("qwen-2", folder, small=True)


def test_presets_are_models():
    for name in PRESETS:
        c = configs.from_dict(preset(name), name)
        assert c.max_positions >= 4096
    sizes = {
        n: sum(int(np.prod(p.shape)) for p in weights.parts(configs.from_dict(g)))
        for n, g in PRESETS.items()
    }
    billions = {n: round(k / 1e9, 2) for n, k in sizes.items()}
    assert billions == {
        "llama-2": 6.74,
        "llama-3": 8.03,
        "llama-3.2-1b": 1.24,
        "llama-3.2-3b": 3.21,
        "mistral": 7.24,
        "gemma-2": 2.61,
        "gemma-3": 1.0,
        "qwen-2": 0.49,
        "qwen-3": 0.6,
    }
