"""Prompts → tokens and text: against transformers, rows against rows alone, ends, the command."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llm_models as models
from recurra import cli
from recurra.errors import RecurraError
from recurra.llm import oracle, weights
from recurra.llm.generate import Generator, Request, with_patterns
from recurra.llm.init import init_model
from recurra.llm.patterns import Prefix
from recurra.llm.program import write
from recurra.llm.sampling import Sampling

NEW = 8
TWO = {"num_hidden_layers": 2}


def of_transformers(model: Any, rows: list[list[int]], **more: Any) -> list[list[int]]:
    """What `generate` makes of left-padded rows, without ends."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows])
    model.generation_config.eos_token_id = None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **more
        )
    return out[:, longest:].tolist()


def prompts(*lengths: int) -> list[list[int]]:
    return [models.tokens(1, n, seed=n)[0].tolist() for n in lengths]


def made(g: Generator, rows: list[list[int]], **asked: Any) -> list[list[int]]:
    return [list(c.tokens) for c in g.generate(rows, Request(NEW, eos=()), **asked)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama, tied, llama3", "mistral", "gemma2", "gemma3", "qwen2"])
def test_greedy_tokens_are_those_of_transformers(kind: str, tmp_path: Path):
    two = TWO | ({"layer_types": models.MIXED[:2]} if kind.startswith("gemma") else {})
    model, rows = models.make(kind, tmp_path, **two), prompts(7, 3, 5)
    want = of_transformers(model, rows)
    assert len({token for row in want for token in row}) > 3
    assert made(Generator(tmp_path, backend="numpy"), rows) == want


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["causal", "window:4", "sinks:2+3", "prefix:5"])
def test_one_token_is_the_first_of_two(folder: Path, mix: str):
    """But for the rounding of another program, of the prompt alone."""
    g = Generator(folder, backend="numpy", attention=mix)
    rows = prompts(9, 4)
    two = g.generate(rows, new=2, eos=(), logprobs=True)
    one = g.generate(rows, new=1, eos=(), logprobs=True)
    for a, b in zip(one, two, strict=True):
        assert (a.tokens, a.end) == (b.tokens[:1], "length")
        assert a.logprobs == pytest.approx((b.logprobs or ())[:1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
        {"rope_type": "linear", "factor": 4.0},
    ],
)
def test_positions_past_those_that_were_trained(
    tmp_path: Path, rope: dict[str, Any], unrolled: bool
):
    """Prompts that end before the last position and behind it, each alone in transformers."""
    more = {"rope_parameters": {**rope, "rope_theta": 1e4}, "max_position_embeddings": 12}
    model, rows = models.make("llama", tmp_path, **TWO, **more), prompts(9, 20, 30)
    want = [of_transformers(model, [row])[0] for row in rows]
    assert made(Generator(tmp_path, backend="numpy", unrolled=unrolled), rows) == want
    plain = models.make("llama", tmp_path / "plain", **TWO, max_position_embeddings=64)
    assert [of_transformers(plain, [row])[0] for row in rows] != want


@pytest.mark.slow
def test_positions_past_the_stretched_ones_are_refused(tmp_path: Path):
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 12}
    more = {"rope_parameters": {**rope, "rope_theta": 1e4}, "max_position_embeddings": 12}
    models.make("llama", tmp_path, **TWO, **more)
    g = Generator(tmp_path, backend="numpy")
    with pytest.raises(RecurraError) as e:
        g.generate(prompts(20), new=5)
    assert "max_position_embeddings 12, stretched to 24" in str(e.value)
    assert "hint: new=4" in str(e.value)


@pytest.mark.slow
def test_the_same_by_jax_with_layers_as_a_dim(tmp_path: Path):
    model, rows = models.make("llama", tmp_path, **TWO), prompts(6, 4)
    g = Generator(tmp_path, unrolled=False)
    assert made(g, rows) == of_transformers(model, rows)


def test_fewer_repetitions_are_those_of_transformers(tmp_path: Path):
    """Places before a row are none of its tokens."""
    model, rows = models.make("qwen3", tmp_path, **TWO), prompts(4, 2)
    want = of_transformers(model, rows[:1], repetition_penalty=1.7)
    g, how = Generator(tmp_path, backend="numpy"), Sampling(repetition_penalty=1.7)
    both = made(g, rows, sampling=how)
    assert both == [*want, *made(g, rows[1:], sampling=how)]
    assert want != of_transformers(model, rows[:1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    init_model("llama-3.2-1b", out, small=True)
    return out


@pytest.fixture
def g(folder: Path) -> Generator:
    return Generator(folder, backend="numpy", unrolled=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mix", ["causal", "window:4", "dilated:3", "linear", "chunk:4", "sinks:2+3", "prefix:5"]
)
def test_a_row_is_what_it_is_alone(folder: Path, mix: str):
    g = Generator(folder, backend="numpy", attention=mix, unrolled=False)
    rows = prompts(9, 1, 4)
    assert made(g, rows) == [made(g, [row])[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["prefix:5", "prefix:99,window:4"])
@pytest.mark.parametrize("lengths", [(7,), (9, 1, 4)])
def test_a_prompt_that_sees_all_of_itself(folder: Path, mix: str, lengths: tuple[int, ...]):
    """Each token is the most likely one by the reference, whose prefix ends with the prompt."""
    g = Generator(folder, backend="numpy", attention=mix)
    rows = prompts(*lengths)
    named = models.tensors(folder)
    for row, new in zip(rows, made(g, rows), strict=True):
        layers = [
            Prefix(min(x.length, len(row))) if isinstance(x, Prefix) else x
            for x in (layer.pattern for layer in g.config.layers)
        ]
        c = with_patterns(g.config, layers)
        logits = oracle.logits(c, named, np.array([row + new]))[0, len(row) - 1 : -1]
        assert logits.argmax(-1).tolist() == new


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["causal,chunk:4", "sinks:2+3", "prefix:3"])
def test_one_program_for_prompts_of_many_lengths(folder: Path, mix: str):
    g = Generator(folder, attention=mix, backend="numpy", lengths=(10, 6))
    alone = Generator(folder, attention=mix, backend="numpy")
    for rows, new in ((prompts(5), 6), (prompts(3), 4)):
        (done,) = g.generate(rows, Request(new, eos=()))
        assert (list(done.tokens), done.end) == (made(alone, rows)[0][:new], "length")
    assert [(f.prompt, f.steps) for f in g.programs] == [(6, 11)]


def test_prompts_longer_than_all_lengths_are_refused(folder: Path):
    g = Generator(folder, backend="numpy", lengths=(4, 8))
    with pytest.raises(RecurraError, match="a prompt of 9 tokens is longer than every length"):
        g.generate(prompts(9), new=4)
    with pytest.raises(RecurraError, match=r"lengths=\(4, 8, 12\)"):
        g.generate(prompts(3), new=12)


def test_one_token_of_one(g: Generator):
    """A program of one position has no launches to tell of on the way."""
    rows = prompts(1)
    (first,) = g.generate(rows, Request(1, eos=()))
    assert (first.tokens, first.end) == (tuple(made(g, rows)[0][:1]), "length")


def test_rows_end_with_their_tokens_of_end(g: Generator):
    rows = prompts(5, 3, 4)
    free = made(g, rows)
    ends = (free[0][3], free[2][5])
    got = g.generate(rows, Request(NEW, eos=ends))
    for row, full in zip(got, free, strict=True):
        at = [k for k, token in enumerate(full) if token in ends]
        assert list(row.tokens) == (full[: at[0] + 1] if at else full)
        assert row.end == ("eos" if at else "length")


def test_an_end_in_a_prompt_is_none(g: Generator):
    rows = [[5, 1, 6, 1], [1, 1]]
    free = made(g, rows)
    assert not {1} & {token for row in free for token in row}
    assert [list(c.tokens) for c in g.generate(rows, Request(NEW, eos=(1,)))] == free


def test_it_stops_when_no_row_goes_on(g: Generator, monkeypatch: pytest.MonkeyPatch):
    """All rows end within the first launch: there is no second one, and it is cut short."""
    rows = prompts(3, 3)
    ends = tuple(row[0] for row in made(g, rows))
    asked = Request(200, eos=ends)
    program, inputs = g.prepare(rows, asked)
    launches: list[tuple[int, int]] = []
    steps = program.executable.execution.steps

    def counted(*args: Any, **more: Any) -> Any:
        for step in steps(*args, **more):
            launches.extend({(step.lo, p.stop) for p in step.points.values()})
            yield step

    monkeypatch.setattr(program.executable.execution, "steps", counted)
    assert [c.tokens for c in g.generate(rows, asked)] == [(e,) for e in ends]
    assert program.form.steps == 202
    assert launches == [(0, 3)]


@pytest.mark.slow
def test_ends_inside_the_program_are_those_of_the_stream(g: Generator):
    """Beside a program that never ends by itself; what is past a row's end is zero."""
    rows = prompts(5, 3)
    free = made(g, rows)
    ends = (free[0][4],)
    program, inputs = g.prepare(rows, Request(NEW, eos=ends))
    assert program.form.until
    whole = write(g.config, replace(program.form, until=False), backend="jax")
    pieces = whole.launches(0, whole.inputs(g.weights, rows, [Sampling()] * 2))
    streamed = np.concatenate([made["next"] for _, made in pieces], axis=1)[:, 4:]
    found = program.executable.run(inputs=inputs)
    for row, c in enumerate(g.generate(rows, Request(NEW, eos=ends))):
        new, tokens = found["next"][row, 4:], c.tokens
        np.testing.assert_array_equal(streamed[row, : len(tokens)], tokens)
        np.testing.assert_array_equal(new[: len(tokens)], tokens)
        assert not new[len(tokens) :].any()


def test_draws(g: Generator):
    """Functions of the seed, the row and the position; a greedy row beside them is as it was."""
    rows = prompts(4, 4, 4)
    how = [Sampling(temperature=1.0), Sampling(), Sampling(temperature=1.5, top_k=5, top_p=0.9)]
    one = made(g, rows, sampling=how, seed=1)
    assert one == made(g, rows, sampling=how, seed=1)
    other = made(g, rows, sampling=how, seed=2)
    assert one[0] != other[0]
    assert one[1] == other[1] == made(g, rows)[1]
    assert len(g.programs) == 2


def test_a_program_shows_what_it_keeps(g: Generator):
    program, _ = g.prepare(prompts(3), Request(NEW))
    page = program._repr_html_()
    assert "llama L4 D64 H4 KV2 HD16 F96 V259, 10 positions" in page
    assert all(f">{s['store']}<" in page for s in program.stores)


def test_logprobs_are_those_of_the_reference(folder: Path, g: Generator):
    rows = prompts(5, 2)
    got = g.generate(rows, Request(6, eos=(), logprobs=True))
    for row, c in zip(rows, got, strict=True):
        tokens = np.array([[*row, *c.tokens]])
        logits = oracle.logits(g.config, models.tensors(folder), tokens)[0, len(row) - 1 : -1]
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        want = np.log(p[np.arange(6), list(c.tokens)])
        np.testing.assert_allclose(c.logprobs, want, atol=1e-4)


def test_text(g: Generator):
    whole = g.generate(["Once upon", "a"], Request(20, Sampling(temperature=1.0), 5, eos=()))
    for c in whole:
        assert c.text == g.tokenizer.decode(list(c.tokens))
    letters = [x for x in whole[0].text[2:] if x.isascii() and x.isprintable()]
    stopped = g.generate(
        ["Once upon", "a"], Request(20, Sampling(temperature=1.0), 5, (letters[0],), ())
    )
    assert stopped[0].text == whole[0].text.split(letters[0])[0]
    assert stopped[0].end == "stop"


@pytest.mark.parametrize(
    ("rows", "asked", "message"),
    [
        ([], {}, "there is no prompt"),
        ([[]], {}, "a prompt has no tokens\n  those of"),
        ([[5, 259]], {}, "a prompt has a token 259\n  those of"),
        ([[5] * 600], {}, "a prompt has 600 tokens, and with 64 new ones 664\n"),
        ([[5] * 500], {}, "has max_position_embeddings 512\n  hint: new=12"),
        ([[5]], {"new": 0}, "0 new tokens are none"),
        ([[5]], {"sampling": [Sampling()] * 2}, "2 ways to sample for 1 prompts"),
    ],
)
def test_refused(g: Generator, rows: list[list[int]], asked: dict[str, Any], message: str):
    with pytest.raises(RecurraError) as error:
        g.stream(rows, **asked)
    assert message in str(error.value)


# ---- the command


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main([str(x) for x in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


FEW = ("--max-new-tokens", 6, "--backend", "numpy")


@pytest.mark.slow
def test_init_and_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    where = tmp_path / "m"
    code, out, _ = run(capsys, "llm", "init", "--config", "gemma-2", "--tiny", where)
    assert (code, out) == (
        0,
        f"{where}: gemma2 L4 D64 H4 KV2 HD16 F96 V259, 0.6 MB of random weights\n",
    )
    code, out, err = run(capsys, "generate", "--model", where, "--prompt", "Once", "--stores", *FEW)
    assert (code, out[:4]) == (0, "Once")
    assert [line.split()[0] for line in err.splitlines() if line.startswith("k_")] == [
        "k_0", "k_1", "k_2", "k_3",
    ]  # fmt: skip
    assert err.splitlines()[-2].startswith("total")
    size = Generator(where).weights.nbytes
    assert err.splitlines()[-1].split() == ["weights", "f32", f"{size:,}", "B"]
    more = ("--attention", "window:3", "--json", "--logprobs", "--temperature", 0.7)
    code, out, _ = run(capsys, "generate", "--model", where, "--prompt", "Once", "a", *FEW, *more)
    told = json.loads(out)
    assert [row["prompt"] for row in told["rows"]] == ["Once", "a"]
    assert told["weights"] == {"type": "f32", "bytes": size}
    assert all(len(row["logprobs"]) == len(row["tokens"]) <= 6 for row in told["rows"])
    assert {s["slots"] for s in told["stores"] if s["store"].startswith("k_")} == {"t: 3 + 3"}


def damage(folder: Path, what: str) -> None:
    """One thing that is wrong with a model."""
    given = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    if what == "rope":
        given["rope_scaling"] = {"rope_type": "longrope"}
    elif what == "vocabulary":
        given["vocab_size"] = 200
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:200].copy()
    elif what == "missing":
        del tensors["model.norm.weight"]
    elif what == "shape":
        tensors["model.norm.weight"] = np.ones(3, np.float32)
    (folder / "config.json").write_text(json.dumps(given))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("rope", "config.json: rope_scaling.rope_type 'longrope' is not known"),
        ("vocabulary", "tokenizer.json has a token 258, and config.json a vocab_size of 200"),
        ("missing", "lacks model.norm.weight\n  config.json asks for llama"),
        ("shape", "model.safetensors: model.norm.weight is [3], not [64]"),
        ("memory", "do not fit into memory\n  as f32 they take 0.00 GB, 0.00 GB are free"),
    ],
)
def test_models_that_are_wrong_are_one_sentence(
    tmp_path: Path,
    what: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    init_model("llama-3.2-1b", tmp_path / "m", small=True)
    damage(tmp_path / "m", what)
    if what == "memory":
        monkeypatch.setattr(weights, "free_bytes", lambda: 1)
    code, out, err = run(capsys, "generate", "--model", tmp_path / "m", "--prompt", "a", *FEW)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate --model nowhere --prompt a", "there is no file nowhere/config.json"),
        ("generate --model FOLDER/config.json --prompt a", "config.json is a file\n"),
        ("generate --model FOLDER", "there is no prompt"),
        ("generate --model FOLDER --prompt a --attention windw:3", "is no attention pattern"),
        (
            "generate --model FOLDER --prompt a --top-p 2 --temperature 1",
            "--top-p is 2.0, and must be",
        ),
        ("generate --model FOLDER --prompt a --max-new-tokens 900", "--max-new-tokens 510"),
        ("generate --model FOLDER --prompt a --memory 1KiB", "hint: --memory 66KiB"),
        ("generate --model FOLDER --prompt a --memory much", "'much' is no amount of memory"),
        ("generate --model FOLDER --prompt a --backend tpu", "there is no backend 'tpu'"),
        ("llm init --config bert x", "there is no configuration 'bert'"),
        ("llm init --config qwen-2 FOLDER", "has a model already"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
):
    given = (x.replace("FOLDER", str(folder)) for x in arguments.split())
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
