"""What is asked for at the edges: nothing is lost, and what means nothing is one sentence."""

from __future__ import annotations

import io
import json
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from recurra import cli
from recurra.errors import RecurraError
from recurra.llm.generate import Generator, as_prompt_list
from recurra.llm.init import byte_tokenizer, init_model
from recurra.llm.sampling import Sampling
from recurra.llm.tokenization import StreamingDetokenizer
from recurra.llm.weights import is_finite


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    init_model("llama-3.2-1b", out, small=True)
    return out


@pytest.fixture(scope="module")
def g(folder: Path) -> Generator:
    return Generator(folder, backend="numpy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "prefix", "length", "new"),
    [
        ("numpy", 5, 12, 3),
        ("numpy", 5, 17, 20),
        ("numpy", 12, 12, 20),
        ("jax", 3, 12, 3),
        ("jax", 5, 17, 40),
        ("torch", 5, 17, 20),
    ],
)
def test_a_prefix_loses_no_token(folder: Path, backend: str, prefix: int, length: int, new: int):
    g = Generator(folder, attention=f"prefix:{prefix}", backend=backend)
    rows = [list(range(5, 5 + length)), list(range(9, 9 + length))]
    done = g.generate(rows, new=new, eos=(), logprobs=True)
    assert [len(c.tokens) for c in done] == [new, new]
    assert [c.end for c in done] == ["length", "length"]
    seen = [(p.row, p.token) for p in g.stream(rows, new=new, eos=(), logprobs=True)]
    assert [[t for r, t in seen if r == row] for row in (0, 1)] == [list(c.tokens) for c in done]


def test_draws_are_those_of_the_place_in_a_row(g: Generator):
    """A row draws what it draws alone, however long its neighbors are."""
    ask: dict[str, Any] = {"new": 6, "seed": 3, "sampling": Sampling(temperature=1.0), "eos": ()}
    row = [5, 6, 7]
    alone = g.generate([row], **ask)[0].tokens
    beside = g.generate([row, [*range(5, 16)]], **ask)[0].tokens
    assert alone == beside
    assert alone != g.generate([row], **{**ask, "seed": 4})[0].tokens


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_prompt_is_read_at_once_for_one_new_token_too(folder: Path, backend: str):
    g = Generator(folder, backend=backend, unrolled=False)
    rows = np.random.default_rng(0).integers(5, 250, (8, 200)).tolist()
    first, both = (g.generate(rows, new=n, eos=()) for n in (1, 2))
    assert [c.tokens for c in first] == [c.tokens[:1] for c in both]
    for program in g.programs.values():
        told = program.executable.compiled.stages.decisions
        assert any("points at once" in x and "at a time" in x for x in told), told


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"eos": 1.5}, "eos is 1.5, and must be a token"),
        ({"stop": None}, "stop is None, and must be texts"),
        ({"stop": 5}, "stop is 5, and must be texts"),
        ({"sampling": None}, "sampling is None, and must be a Sampling"),
        ({"sampling": {"temperature": 1}}, "and must be a Sampling, or one for each row"),
        ({"memory": "1GB"}, "memory is '1GB', and must be a number of bytes"),
    ],
)
def test_what_is_no_value_is_refused(g: Generator, asked: dict[str, Any], said: str):
    with pytest.raises(RecurraError) as error:
        g.generate([5, 6], **asked)
    assert said in str(error.value)


@pytest.mark.parametrize("lengths", [8, "ab", [4, "b"], [0, 8], [-4]])
def test_lengths_are_integers(folder: Path, lengths: Any):
    with pytest.raises(RecurraError, match="must be integers"):
        Generator(folder, lengths=lengths)


def metaspace() -> Any:
    """As of Llama 2: a space is written before a word, and not before the first one of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["<unk>", "▁Once", "▁upon", "▁a", "▁time"]
    tok = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    return tok


def test_text_keeps_its_first_space():
    tok = metaspace()
    prompt = tok.encode("Once upon").ids
    decoder = StreamingDetokenizer(tok, prompt=prompt)
    assert "".join([decoder.put(3), decoder.put(4), decoder.end()]) == " a time"
    decoder = StreamingDetokenizer(tok, ["a"], prompt=prompt)
    assert (decoder.put(3), decoder.stopped) == (" ", "a")


def test_what_a_prompt_holds_back_is_no_text_of_what_follows():
    tok = byte_tokenizer()
    prompt = tok.encode("é!").ids
    decoder = StreamingDetokenizer(tok, prompt=prompt)
    parts = tok.encode("ü", add_special_tokens=False).ids
    assert [decoder.put(parts[0]), decoder.put(parts[1]), decoder.end()] == ["", "ü", ""]
    decoder = StreamingDetokenizer(tok, prompt=prompt)
    assert [decoder.put(parts[0]), decoder.end()] == ["", "�"]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_tokens_are_arrays_of_any_library(library: str):
    array: Any = import_module(library).asarray
    assert as_prompt_list(array([5, 6, 7])) == as_prompt_list(array([[5, 6, 7]])) == [[5, 6, 7]]
    assert as_prompt_list([array([5, 6]), "a", array([7])]) == [[5, 6], "a", [7]]
    with pytest.raises(RecurraError, match=r"\[5.5\] is no prompt"):
        as_prompt_list(array([[5.5]]))


@pytest.mark.slow
def test_one_may_stand_alone(g: Generator):
    def tokens(prompts: Any, **asked: Any) -> list[tuple[int, ...]]:
        return [c.tokens for c in g.generate(prompts, new=4, **asked)]

    assert tokens("Once") == tokens(["Once"])
    assert tokens([5, 6, 7]) == tokens([[5, 6, 7]]) == tokens(np.array([5, 6, 7]))
    first = tokens("Once", eos=())[0][0]
    assert tokens("Once", eos=first) == tokens("Once", eos=[first]) == [(first,)]
    assert tokens("Once", stop="x") == tokens("Once", stop=["x"])


@pytest.mark.parametrize(
    ("prompts", "asked", "message"),
    [
        (b"Once", {}, "b'Once' is no prompt\n"),
        (None, {}, "None is no prompt\n"),
        ([[5.5, 6]], {}, "[5.5, 6] is no prompt\n"),
        ([["a"]], {}, "['a'] is no prompt\n"),
        (["a", 5], {}, "5 is no prompt\n"),
        (["\udcff"], {}, "the prompt is no text\n"),
        ("a", {"seed": -1}, "seed is -1, and must be from 0 to 4294967295"),
        ("a", {"seed": 2**32}, "seed is 4294967296, and must be from 0"),
        ("a", {"new": 2.5}, "new is 2.5, and must be an integer"),
        ("a", {"eos": "x"}, "eos is 'x', and must be a token"),
        ("a", {"stop": [""]}, "stop is [''], and must be texts, none of them empty"),
        ("a", {"tokens": 3}, "nothing that is asked for is called 'tokens'\n"),
        (["a", "b" * 600], {}, "prompt 2 of 2 has 601 tokens, and with 2 new ones 603\n"),
        ([[5], []], {}, "prompt 2 of 2 has no tokens\n"),
        (["a", [5], ""], {}, "prompt 3 of 3 is empty\n"),
    ],
)
def test_what_means_nothing_is_one_sentence(
    g: Generator, prompts: Any, asked: dict[str, Any], message: str
):
    with pytest.raises(RecurraError) as told:
        g.generate(prompts, **{"new": 2, **asked})
    assert str(told.value).startswith(message)


def command(folder: Path, *options: str) -> int:
    words = ["generate", "--model", str(folder), "--backend", "numpy", "--max-new-tokens", "2"]
    return cli.main([*words, *options])


def test_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def given(data: bytes) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "latin-1"))
        return command(folder, "--prompt", "-"), *capsys.readouterr()

    code, out, _ = given("é".encode())
    assert (code, out[0]) == (0, "é")
    assert given(b"\xef\xbb\xbf" + "é".encode()) == (code, out, "")
    code, out, said = given(b"ab\xff")
    assert (code, out) == (2, "")
    assert said.startswith("standard input is not UTF-8\n  byte 2 is 0xff\n")


def test_a_seed_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert command(folder, "--prompt", "a", "--temperature", "1", "--seed", "-1") == 2
    assert capsys.readouterr().err.startswith("--seed is -1, and must be from 0")


def changed(folder: Path, out: Path, **keys: Any) -> Path:
    """The model with other keys in its config.json, which begins with a byte order mark."""
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    given = json.loads((folder / "config.json").read_text()) | keys
    (out / "config.json").write_text(json.dumps(given), encoding="utf-8-sig")
    return out


def test_files_of_other_tools(folder: Path, g: Generator, tmp_path: Path):
    marked = Generator(changed(folder, tmp_path / "marked"), backend="numpy")
    assert marked.generate("Once", new=2) == g.generate("Once", new=2)
    packed = changed(folder, tmp_path / "packed", quantization_config={"quant_method": "awq"})
    with pytest.raises(RecurraError, match="quantization_config says that the weights are packed"):
        Generator(packed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(folder: Path, tmp_path: Path, value: float):
    out = changed(folder, tmp_path / "bad")
    file = out / "model.safetensors"
    arrays = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    arrays[name][3, 4] = value
    save_file(arrays, file, {"format": "pt"})
    with pytest.raises(RecurraError, match=f"safetensors: {name} has NaN or inf"):
        Generator(out)


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_what_is_finite(kind: Any):
    for value, is_fine in ((0.0, True), (-3e4, True), (np.nan, False), (-np.inf, False)):
        assert is_finite(np.array([1.0, value], kind)) == is_fine


def test_init_without_options_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["llm", "init", str(tmp_path / "one")]) == 0
    assert cli.main(["llm", "init", "--tiny", str(tmp_path / "two")]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert one.split(": ")[1] == two.split(": ")[1]
    assert sum(p.stat().st_size for p in (tmp_path / "one").iterdir()) < 2_000_000


@pytest.mark.slow
def test_init_of_no_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """As an empty variable of a shell gives; a model of billions of weights was written."""
    assert cli.main(["llm", "init", "--config", "", str(tmp_path / "m")]) == 2
    assert capsys.readouterr().err.startswith("there is no configuration ''\n")
    assert not (tmp_path / "m").exists()


def test_a_command_that_is_in_no_group_is_hinted_at(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["llm", "generate"]) == 2
    assert "hint: perhaps you meant recurra generate\n" in capsys.readouterr().err


@pytest.mark.slow
def test_threads_write_their_programs_at_once(folder: Path):
    """As servers do: each thread's first request compiles a program of its own."""
    prompts = [[5, 6, 7][: 1 + k] for k in range(3)]
    g, found = Generator(folder, backend="numpy"), dict[int, tuple[int, ...]]()

    def request(k: int) -> None:
        found[k] = g.generate(prompts[k], new=4, eos=())[0].tokens

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=request, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    alone = Generator(folder, backend="numpy")
    assert found == {k: alone.generate(prompts[k], new=4, eos=())[0].tokens for k in range(3)}


@pytest.mark.parametrize("backend", [None, 3, ["numpy"]])
def test_what_is_no_backend_is_refused(folder: Path, backend: Any):
    with pytest.raises(RecurraError, match=r"there is no backend .*\n"):
        Generator(folder, backend=backend).generate("a", new=1)
