"""Odd models, prompts and options of `recurra generate`: one sentence and exit code 2, or right."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from recurra import cli
from recurra.errors import RecurraError
from recurra.llm.generate import Generator, Request
from recurra.llm.init import init_model
from recurra.llm.sampling import Sampling

INF, NAN = float("inf"), float("nan")
YARN = {"rope_type": "yarn", "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    init_model("llama-3.2-1b", out, small=True)
    return out


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = cli.main(["generate", "--backend", "numpy", "--max-new-tokens", "2", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompt", ""], "the prompt is empty\n"),
        (["--prompt", "a", "--eos", "-1"], "--eos is -1, which no row ends by\n  tokens of "),
        (["--prompt", "a", "--eos", "5", "1000000"], "--eos is 1000000, which no row ends by\n"),
        (["--prompt", "a", "--top-k", "10000000000"], "--top-k is 10000000000, and must be whole"),
        (["--prompt", "a", "--temperature", "1e300"], "--temperature is 1e+300, and must be 0 or "),
        (["--prompt", "a", "--temperature", "nan"], "--temperature is nan, and must be 0 or more"),
        (["--prompt", "a", "--logprobs"], "--logprobs are shown as JSON only\n"),
        (["--prompt", "a", "--attention", "causal," * 4 + "linear"], "there are 5 attention pat"),
        (["--prompt", "a", "--attention", "window:0"], "'window:0' is no attention pattern"),
        (["--prompt", "x" * 510], "a prompt has 511 tokens, and with 2 new ones 513\n"),
    ],
)
def test_options(folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    code, out, err = command(capsys, "--model", folder, *options)
    assert (code, out) == (2, "")
    assert err.startswith(said)


@pytest.mark.parametrize("words", [["a", "bc"], ["a", "--prompt", "bc"]])
def test_an_option_may_be_repeated(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
):
    g = Generator(folder, backend="numpy")
    told = [
        f"{p}{c.text}" for p, c in zip(["a", "bc"], g.generate(["a", "bc"], new=2), strict=True)
    ]
    assert command(capsys, "--model", folder, "--prompt", *words) == (0, "\n".join([*told, ""]), "")


@pytest.mark.slow
def test_every_end_that_is_named_counts(folder: Path, capsys: pytest.CaptureFixture[str]):
    first = Generator(folder, backend="numpy").generate("a", new=2, eos=())[0].tokens[0]
    other = (first + 1) % 259
    _, out, _ = command(
        capsys, "--model", folder, "--prompt", "a", "--eos", first, "--eos", other, "--json"
    )
    assert json.loads(out)["rows"][0]["end"] == "eos"
    _, out, _ = command(capsys, "--model", folder, "--prompt", "a", "--eos", "--json")  # no end
    assert json.loads(out)["rows"][0]["end"] == "length"
    stops = ["--stop", "xyz", "--stop", "�"]
    _, out, _ = command(capsys, "--model", folder, "--prompt", "a", *stops, "--json")
    assert len(json.loads(out)["rows"]) == 1


@pytest.mark.parametrize("given", [3, lambda t: 0, ["causal"], b"causal", ""])
def test_what_is_no_attention_pattern(folder: Path, given: Any):
    with pytest.raises(RecurraError, match="is no attention pattern"):
        Generator(folder, attention=given)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"logprobs": "x"}, "logprobs is 'x', and must be True or False"),
        ({"ask": Request(logprobs=3)}, "logprobs is 3, and must be True or False"),  # pyright: ignore
        ({"prompts": {"a": 1}}, "{'a': 1} is no prompt"),
        ({"prompts": [{5: 1}]}, "{5: 1} is no prompt"),
        ({"prompts": {5, 6}}, "{5, 6} is no prompt"),
    ],
)
def test_requests_that_cannot_be(folder: Path, asked: dict[str, Any], said: str):
    g = Generator(folder, backend="numpy")
    with pytest.raises(RecurraError, match=re.escape(said)):
        g.generate(**{"prompts": "a", "new": 2, **asked})


def test_one_text_is_one_prompt_to_encode(folder: Path):
    g = Generator(folder, backend="numpy", unrolled=False)
    assert g.encode("abc") == g.encode(["abc"])
    with pytest.raises(RecurraError, match=r"\[5\] is no text"):
        g.encode([5])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecurraError, match="unrolled is 'x', and must be True, False or None"):
        Generator(folder, unrolled="x")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rms_norm_eps": INF}, "rms_norm_eps inf is no number above 0"),
        ({"rope_theta": INF}, "rope_theta inf is no number above 0"),
        ({"rope_theta": 1.0}, "rope_theta 1.0 is no number above 1"),
        ({"eos_token_id": [1, 259]}, "eos_token_id [1, 259] is none of the 259 tokens that there"),
        ({"rope_parameters": {"rope_type": ["x"]}}, "rope_type ['x'] is not known"),
        ({"rope_scaling": {"rope_theta": "x"}}, "rope_scaling.rope_theta 'x' is no number above 0"),
        ({"rope_scaling": {"rope_theta": -1}}, "rope_scaling.rope_theta -1 is no number above 0"),
        ({"rope_scaling": LLAMA3}, "high_freq_factor 1.0 is not above low_freq_factor 1.0"),
        ({"rope_scaling": YARN | {"beta_fast": 0}}, "rope_scaling.beta_fast 0 is no number above"),
        ({"rope_scaling": YARN | {"beta_slow": -1}}, "rope_scaling.beta_slow -1 is no number"),
        ({"rope_scaling": YARN | {"mscale": NAN}}, "rope_scaling.mscale nan is no number above 0"),
        ({"rope_scaling": YARN | {"truncate": "no"}}, "truncate 'no' is neither true nor false"),
        ({"rope_scaling": YARN | {"attention_factor": -1}}, "attention_factor -1 is no number"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": "x"}},
            "rope_scaling.original_max_position_embeddings 'x' is no integer above 0",
        ),
        ({"rope_scaling": {"type": "linear", "factor": INF}}, "rope_scaling.factor inf is no num"),
    ],
)
def test_configurations(
    copy: Path, keys: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
):
    given = json.loads((copy / CONFIG).read_text())
    if "rope_parameters" in keys:
        given.pop("rope_scaling")
    (copy / CONFIG).write_text(json.dumps(given | keys))
    code, out, err = command(capsys, "--model", copy, "--prompt", "a")
    assert (code, out) == (2, "")
    assert err.startswith(f"{copy / CONFIG}: ")
    assert said in err.splitlines()[0]


def test_rope_that_says_nothing_is_plain(copy: Path):
    given = json.loads((copy / CONFIG).read_text())
    ropes: list[Any] = []
    for scaling in (None, {"rope_type": None}, {"type": "default"}):
        (copy / CONFIG).write_text(json.dumps(given | {"rope_scaling": scaling}))
        ropes.append(Generator(copy, backend="numpy").config.layers[0].rope)
    assert ropes[0] == ropes[1] == ropes[2]
    mscale = {**YARN, "mscale": 0.0, "truncate": False}
    (copy / CONFIG).write_text(json.dumps(given | {"rope_scaling": mscale}))
    rope = Generator(copy, backend="numpy").config.layers[0].rope
    assert (rope.mscale, rope.truncate) == (0.0, False)


@pytest.mark.slow
def test_a_token_of_padding_that_is_none_changes_nothing(copy: Path, folder: Path):
    """As models whose vocabulary has grown say; rows of several lengths and ends have padding."""
    given = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(given | {"pad_token_id": 259}))
    rows, found = [[5, 6, 7, 8], [9]], []
    for path in (folder, copy):
        g = Generator(path, backend="numpy")
        free = g.generate(rows, new=6, eos=())
        found.append((free, g.generate(rows, new=6, eos=free[0].tokens[2])))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (WEIGHTS, b"", "cannot be read as safetensors"),
        (WEIGHTS, b"\x05", "cannot be read as safetensors"),
        (WEIGHTS, b"\xff" * 40, "cannot be read as safetensors"),
        (CONFIG, b"", "is no JSON"),
        (CONFIG, b"[" * 100_000, "is no JSON"),
        (CONFIG, b"\xff\xfe{}", "is no JSON"),
        (CONFIG, b"[1]", "is no object of keys and values"),
        (f"{WEIGHTS}.index.json", b"[]", "weight_map is missing"),
        (f"{WEIGHTS}.index.json", b'{"weight_map": {"a": 1}}', "names the file 1, which is not"),
        ("generation_config.json", b'{"eos_token_id": 259}', "eos_token_id 259 is none of"),
        ("generation_config.json", b'{"eos_token_id": -1}', "eos_token_id -1 is no token"),
        ("tokenizer.json", b"{", "is no tokenizer"),
    ],
)
def test_files(copy: Path, name: str, data: bytes, said: str, capsys: pytest.CaptureFixture[str]):
    (copy / name).write_bytes(data)
    code, out, err = command(capsys, "--model", copy, "--prompt", "a")
    assert (code, out) == (2, "")
    assert err.startswith(str(copy / name))
    assert said in err


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_folders_for_files(copy: Path, name: str, capsys: pytest.CaptureFixture[str]):
    (copy / name).unlink()
    (copy / name).mkdir()
    code, _, err = command(capsys, "--model", copy, "--prompt", "a")
    assert code == 2
    assert err.startswith(f"{copy / name} cannot be read")


@pytest.mark.parametrize(
    ("dtype", "held", "value"),
    [("f64", "f32", 1e300), ("f32", "bf16", 3.4e38), ("f64", "i8", 1e300)],
)
def test_numbers_that_do_not_fit(copy: Path, dtype: str, held: str, value: float):
    arrays = load_file(copy / WEIGHTS)
    name = "model.layers.1.mlp.down_proj.weight"
    arrays[name] = arrays[name].astype(f"f{int(dtype[1:]) // 8}")
    arrays[name][3, 4] = value
    save_file(arrays, copy / WEIGHTS)
    with pytest.raises(RecurraError, match=f"{name} has a number too large for"):
        Generator(copy, dtype=held)


@pytest.mark.parametrize("given", [None, 3, "", b"models/tiny"])
def test_a_generator_of_no_folder(given: Any):
    with pytest.raises(RecurraError, match="is no folder\n"):
        Generator(given)


@pytest.mark.slow
def test_limits(folder: Path):
    """The last position is used; more of the most likely than there are tokens are all."""
    g = Generator(folder, backend="numpy")
    (last,) = g.generate([[5] * 510], new=2, eos=())
    assert len(last.tokens) == 2
    drawn = [
        g.generate([[5, 6]], new=8, eos=(), seed=4, sampling=Sampling(temperature=2.0, top_k=k))
        for k in (259, 300, 2**31 - 1)
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    cold = [
        g.generate([[5, 6]], new=8, eos=(), sampling=Sampling(temperature=x)) for x in (0, 1e-60)
    ]
    assert cold[0] == cold[1]


def test_several_stops_end_at_the_first(folder: Path):
    g = Generator(folder, backend="numpy")
    text = g.generate("Once", new=12, eos=())[0].text
    letters = [x for x in text if x.isascii() and x.isprintable()]
    stops = [letters[1], letters[0], "never there"]
    (c,) = g.generate("Once", new=12, eos=(), stop=stops)
    assert (c.text, c.end) == (text[: min(text.index(x) for x in letters[:2])], "stop")


def test_two_streams_at_once(folder: Path):
    """Of one generator, taken in turns: each is what it is alone."""
    g = Generator(folder, backend="numpy")
    rows = ([5, 6, 7], [9, 8, 7])
    alone = [[p.token for p in g.stream([r], new=8, eos=())] for r in rows]
    both = [g.stream([r], new=8, eos=()) for r in rows]
    pairs = list(zip(*both, strict=True))
    assert [[pair[k].token for pair in pairs] for k in (0, 1)] == alone
    cut = g.stream([rows[0]], new=8, eos=())
    next(cut)
    cut.close()
    assert [p.token for p in g.stream([rows[0]], new=8, eos=())] == alone[0]


def test_no_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = command(capsys, "--model", folder, "--prompt", "-")
    assert (code, out) == (2, "")
    assert err.startswith("there is no standard input\n")


@pytest.mark.parametrize(
    ("where", "said"),
    [("config.json/x", "cannot be made\n  Not a directory"), ("config.json", "cannot be made")],
)
def test_init_where_no_folder_can_be(
    folder: Path, where: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["llm", "init", str(folder / where)]) == 2
    assert said in capsys.readouterr().err


def test_init_of_a_seed_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["llm", "init", str(tmp_path / "m"), "--seed", "-1"]) == 2
    assert capsys.readouterr().err.startswith("--seed is -1, and must be 0 or more\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("cut", 1, ""), (signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, -15, "")],
)
def test_left_while_it_generates(copy: Path, how: Any, code: int, said: str):
    """A reader that goes away, Ctrl-C, and the end by another process: no traceback."""
    given = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(given | {"max_position_embeddings": 100_000}))
    words = ["generate", "--model", str(copy), "--prompt", "ab", "--max-new-tokens", "5000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "recurra.cli", *words, "--eos", "0", "--backend", "numpy"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4)[:2] == b"ab"
    if how == "cut":
        process.stdout.close()
    else:
        process.send_signal(how)
    err = process.stderr.read().decode()
    assert (process.wait(120), err) == (code, said)
    process.stderr.close()
    process.stdout.close()


def test_heads_that_are_tied_in_other_types(copy: Path):
    """The same numbers, in more bits, are the embedding."""
    arrays = load_file(copy / WEIGHTS)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].astype(np.float64)
    save_file(arrays, copy / WEIGHTS)
    assert "head" not in Generator(copy, backend="numpy").weights.arrays
