"""Damaged and odd model folders: exit code 2 and a sentence, or the reference's answer."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fuzzing import each, seeded_at_length
from recurra import cli
from recurra.llm import config as configs
from recurra.llm import generate, oracle, program
from recurra.llm.init import byte_tokenizer, save
from recurra.llm.presets import preset

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
GENERATION, INDEX = "generation_config.json", "model.safetensors.index.json"
KINDS = ("llama-3.2-1b", "gemma-3", "qwen-3")
SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 8,
    "intermediate_size": 8,
    "head_dim": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "sliding_window": 4,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NUMBERS = [0, 1, 2, 3, 8, -1, 1.5, 1e308, 1e-308, 10**30, 10**400, float("inf"), float("nan")]
WORDS = ["", "8", "silu", "linear", "dynamic", "yarn", "mrope", "sliding_attention", "gemma2"]
GROUPS = [[], [1], [None], ["full_attention"] * 2, {}, {"a": 1}, {"type": "dynamic", "factor": 2.0}]
ODD: list[Any] = [None, True, False, *NUMBERS, *WORDS, *GROUPS]
SCALES = (float("nan"), float("inf"), 1e8, -1e4, 1e-40, 0.0)  # of which squares are numbers in f32
ADDED = ["rope_parameters", "rope_scaling", "layer_types", "sliding_window", "attention_bias"]
MORE = ["partial_rotary_factor", "quantization_config", "hidden_activation", "use_cache", "dtype"]


def folders(root: Path) -> list[Path]:
    """A model of each kind, in one file and in several."""
    made: list[Path] = []
    for name in KINDS:
        given = preset(name) | SIZES
        given |= {"layer_types": None} if name == "gemma-3" else {}
        for size in (3_000, 10**9):
            folder = root / f"{name}-{size}"
            folder.mkdir()
            (folder / CONFIG).write_text(json.dumps(given))
            (folder / GENERATION).write_text(json.dumps({"eos_token_id": [1, 5]}))
            byte_tokenizer().save(str(folder / TOKENIZER))
            save(folder, configs.load(folder), "f32", 0, size)
            made.append(folder)
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return folders(tmp_path_factory.mktemp("models"))


@pytest.fixture
def copy(models: list[Path], tmp_path: Path) -> Path:
    shutil.copytree(models[1], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module", autouse=True)
def written_once():
    """A program is written once for each configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "write", lru_cache(200)(program.write))
        yield


def command(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    given = ["--backend", "numpy", "--max-new-tokens", "2", "--prompt", "hi", *words]
    code = cli.main(["generate", "--model", str(folder), *given])
    said = capsys.readouterr()
    return code, said.out, said.err


def edit(folder: Path, **keys: Any) -> None:
    given = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(given | keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 is more than 10000"),
        ({"rope_theta": 10**400}, "rope_theta 1000000"),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps 1e+300 is no number above 0 that 32 bits hold"),
        (
            {"rope_scaling": LLAMA3 | {"factor": 1e-300}},
            "rope_scaling.factor 1e-300 is no number above 0 that 32 bits hold",
        ),
        ({"max_position_embeddings": 10**400}, "max_position_embeddings 1000000"),
        (
            {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "head_dim 2 is less than 4, which dynamic rope needs",
        ),
    ],
)
def test_numbers_that_no_model_has(
    copy: Path, keys: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
):
    edit(copy, **keys)
    code, out, err = command(capsys, copy)
    assert (code, out) == (2, "")
    assert err.startswith(f"{copy / CONFIG}: {said}")
    assert len(err) < 400


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("numpy", ()),
        ("numpy", ("--json", "--logprobs")),
        ("jax", ("--temperature", "1")),
        ("torch", ("--repetition-penalty", "2")),
    ],
)
def test_no_token_follows_logits_that_are_no_numbers(
    copy: Path, backend: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    tensors = load_file(copy / WEIGHTS)
    tensors["model.layers.0.mlp.up_proj.weight"][:] = 3e38  # finite, and its sums are not
    save_file(tensors, copy / WEIGHTS)
    code, out, err = command(capsys, copy, "--backend", backend, *options)
    assert (code, out) == (2, "" if "--json" in options else "hi")
    assert err.startswith("no token follows: the model's logits are NaN or inf\n")


@pytest.mark.parametrize("name", ["window:{}", "chunk:{}", "dilated:{}", "sinks:{}+2", "prefix:{}"])
def test_patterns_of_any_width(copy: Path, name: str, capsys: pytest.CaptureFixture[str]):
    wide, wider = (
        command(capsys, copy, "--prompt", "a", "--attention", name.format(n)) for n in (9, 10**30)
    )
    assert wide[0] == 0
    assert wide == wider


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes cut off, changed, left out, put in or said twice."""
    at, some = int(rng.integers(len(data))), int(rng.choice([1, 8, 100]))
    at = at if rng.integers(2) else min(at, int(rng.integers(1, 200)))
    ways = (
        data[:at],
        data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :],
        data[:at] + data[at + some :],
        data[:at] + rng.bytes(some) + data[at:],
        data[:at] + data[at : at + some] * 2 + data[at + some :],
        data.decode("latin-1").encode("utf-16"),
    )
    return ways[rng.integers(len(ways))]


def changed(given: Any, rng: np.random.Generator, added: list[str]) -> Any:
    """JSON with one value of another type or size, or without it."""
    if not isinstance(given, dict | list) or not given or (not added and rng.random() < 0.3):
        return ODD[rng.integers(len(ODD))]
    out: Any = {**given} if isinstance(given, dict) else dict(enumerate(given))
    key = [*out, *added][rng.integers(len(out) + len(added))]
    out[key] = changed(out.get(key), rng, [])
    if rng.random() < 0.2:
        del out[key]
    return out if isinstance(given, dict) else [*out.values()]


def scaled(file: Path, rng: np.random.Generator) -> None:
    """A file of weights with one number of another size."""
    tensors = load_file(file)
    one = tensors[sorted(tensors)[rng.integers(len(tensors))]].reshape(-1)
    one[rng.integers(one.size)] = SCALES[rng.integers(len(SCALES))]
    save_file(tensors, file)


def damage(folder: Path, rng: np.random.Generator) -> None:
    """One of a folder's files in another way than it should be."""
    files = sorted(folder.iterdir())
    file = files[rng.integers(len(files))]
    match int(rng.integers(8)):
        case 0 | 1 | 2:
            given = json.loads((folder / CONFIG).read_text())
            (folder / CONFIG).write_text(json.dumps(changed(given, rng, [*ADDED, *MORE])))
        case 3 if file.suffix == ".json":
            file.write_text(json.dumps(changed(json.loads(file.read_text()), rng, [])))
        case 4:
            held = [f for f in files if f.suffix == ".safetensors"]
            scaled(held[rng.integers(len(held))], rng)
        case 5:
            file.unlink()
            if rng.integers(2):
                file.mkdir()
        case 6:
            file.write_bytes(files[rng.integers(len(files))].read_bytes())
        case _:
            file.write_bytes(damaged(file.read_bytes(), rng))


def expect_reference(folder: Path, told: str) -> None:
    """What a folder was gone on with is what the reference says of its tensors."""
    (row,) = json.loads(told)["rows"]
    tensors = {
        n: x for f in folder.glob("*.safetensors") if f.is_file() for n, x in load_file(f).items()
    }
    c = configs.load(folder)
    given = [*generate.tokenizer(folder, c).encode("hi").ids, *row["tokens"]]
    start = len(given) - len(row["tokens"]) - 1
    with np.errstate(over="ignore"):
        logits = oracle.logits(c, tensors, np.array([given[:-1]]), given=start + 1)[0, start:]
    chosen = logits[np.arange(len(row["tokens"])), row["tokens"]]
    close = 1e-3 * max(1.0, np.abs(logits).max())
    assert (chosen >= logits.max(-1) - close).all()
    log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    np.testing.assert_allclose(row["logprobs"], chosen - log_sum, atol=close)


def check(models: list[Path], root: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder = root / "damaged"
    shutil.copytree(models[rng.integers(len(models))], folder)
    try:
        damage(folder, rng)
        names = {p.name for p in folder.iterdir()}
        with warnings.catch_warnings():  # of NumPy, where sums are too large for 32 bits
            warnings.simplefilter("ignore", RuntimeWarning)
            code, out, err = command(capsys, folder, "--json", "--logprobs")
        assert {p.name for p in folder.iterdir()} == names
        if code == 2:
            assert err
            assert not out
        else:
            assert (code, err) == (0, "")
            expect_reference(folder, out)
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_damaged_folders(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for seed in range(20):
        check(models, tmp_path, capsys, seed)


@seeded_at_length()
def test_damaged_folders_long(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: range
):
    each(seeds, lambda seed: check(models, tmp_path, capsys, seed))
