"""Tokens → text, piece by piece, and where stop strings end it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from recurra.errors import RecurraError
from recurra.llm import config as configs
from recurra.llm.generate import Generator
from recurra.llm.init import byte_tokenizer, init_model
from recurra.llm.tokenization import StreamingDetokenizer, encode, tokenizer

BYTES = byte_tokenizer()
WORDS = st.text(alphabet="ab€", max_size=12)


def first_stop(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first; of several, the longest."""
    for n in range(len(text) + 1):
        done = [s for s in stop if text[:n].endswith(s)]
        if done:
            longest = max(done, key=len)
            return text[: n - len(longest)], longest
    return text, None


@given(text=WORDS, stop=st.lists(st.text(alphabet="ab€", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_a_stop_string(text: str, stop: list[str]):
    """Whether it comes byte by byte or at once; what was shown is never taken back."""
    want = first_stop(text, stop)
    slow, fast = StreamingDetokenizer(BYTES, stop), StreamingDetokenizer(BYTES, stop)
    shown = "".join(slow.put(token) for token in BYTES.encode(text, add_special_tokens=False).ids)
    assert (shown + slow.end(), slow.stopped) == want
    assert (fast.add(text) + fast.end(), fast.stopped) == want


def test_pieces_are_whole_characters():
    d = StreamingDetokenizer(BYTES)
    pieces = [d.put(token) for token in BYTES.encode("ü€a", add_special_tokens=False).ids]
    assert pieces == ["", "ü", "", "", "€", "a"]


LETTERS = "ab\uffff\u2080\u00c3\U0001f7ff"
OCTETS = {
    byte: token
    for letter in LETTERS
    for byte, token in zip(
        letter.encode(), BYTES.encode(letter, add_special_tokens=False).ids, strict=True
    )
}


@given(st.lists(st.sampled_from(sorted(OCTETS)), max_size=40))
def test_bytes_that_are_no_text_come_as_they_are_made(octets: list[int]):
    """No more than a character's bytes are waited for; together it is what they are at once."""
    d, pieces = StreamingDetokenizer(BYTES), list[str]()
    for byte in octets:
        pieces.append(d.put(OCTETS[byte]))
        assert len(d.tokens) - d.decoded <= 6
    text = "".join(pieces) + d.end()
    assert text == BYTES.decode(d.tokens) == bytes(octets).decode(errors="replace")


def test_what_may_be_a_stop_string_is_held_back():
    d = StreamingDetokenizer(BYTES, ["###"])
    assert [d.add("a#"), d.add("#"), d.add("b#")] == ["a", "", "##b"]
    assert d.end() == "#"


def test_a_character_that_is_not_complete_is_told_at_the_end():
    d = StreamingDetokenizer(BYTES)
    tokens = BYTES.encode("a€", add_special_tokens=False).ids[:-1]
    assert "".join(map(d.put, tokens)) == "a"
    assert d.end() == BYTES.decode(tokens)[1:] != ""


def test_special_tokens_are_not_text():
    d = StreamingDetokenizer(BYTES)
    assert [d.put(token) for token in BYTES.encode("a").ids] == ["", "a"]


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path):
    c = init_model("llama-2", tmp_path, small=True)
    assert tokenizer(tmp_path, c).decode([3]) == "!"
    small: Any = configs.from_dict(configs.read_json(tmp_path / "config.json") | {"vocab_size": 99})
    with pytest.raises(RecurraError) as error:
        tokenizer(tmp_path, small)
    assert "tokenizer.json has a token 258, and config.json a vocab_size of 99" in str(error.value)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RecurraError, match=r"tokenizer\.json is no tokenizer"):
        tokenizer(tmp_path, c)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(RecurraError, match=r"there is no file .*tokenizer\.json"):
        tokenizer(tmp_path, c)


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(RecurraError, match="the prompt is empty\n  there is no text to go on"):
        encode(BYTES, "")
    with pytest.raises(RecurraError, match="the prompt has no tokens"):
        encode(type("T", (), {"encode": lambda *_: type("E", (), {"ids": []})})(), "a")


def fallback(unigram: bool) -> Any:
    """A tokenizer of words, and of bytes for what is none, as those of Llama 2 and Gemma."""
    words = ["<unk>", "<s>", "▁", "a", "▁a", "é", "b"]
    names = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    back = decoders.ByteFallback()
    if unigram:
        made = Tokenizer(models.Unigram([(x, -1.0) for x in names], 0, byte_fallback=True))
        made.decoder = decoders.Sequence([back, decoders.Metaspace()])
    else:
        places = {x: k for k, x in enumerate(names)}
        made = Tokenizer(models.BPE(places, [], byte_fallback=True, unk_token="<unk>"))
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), back, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    made.add_special_tokens(["<s>"])
    return made


FALLBACK = [fallback(False), fallback(True)]
TOKENS = st.lists(st.integers(0, 262) | st.integers(0, 8), max_size=8)


@pytest.mark.parametrize("tok", FALLBACK, ids=["BPE", "unigram"])
@given(prompt=TOKENS, new=TOKENS)
def test_bytes_that_are_no_text_are_read_as_all_tokens_together(
    tok: Any, prompt: list[int], new: list[int]
):
    """A tokenizer's own stream gives up where bytes are no text."""
    prompt = [*prompt, 3]
    d = StreamingDetokenizer(tok, (), prompt)
    pieces = [d.put(token) for token in new]
    before, whole = tok.decode(prompt), tok.decode(prompt + new)
    assert before + "".join(pieces) + d.end() == whole
    if not any(token > 6 for token in new):
        assert before + "".join(pieces) == whole  # nothing is held back for long


def test_a_prompt_that_ends_in_bytes_is_not_said_again():
    prompt = [3, *(7 + byte for byte in "日".encode())]
    for tok in FALLBACK:
        assert tok.decode(prompt) == "a日"
        d = StreamingDetokenizer(tok, (), prompt)
        assert d.put(6) + d.put(3) == "ba"


def test_what_a_tokenizer_was_last_used_with_does_not_cut_prompts(tmp_path: Path):
    c = init_model("llama-2", tmp_path, small=True)
    plain = encode(tokenizer(tmp_path, c), "Once upon a time")
    own = tokenizer(tmp_path, c)
    own.enable_truncation(5)
    own.enable_padding(length=40)
    own.save(str(tmp_path / "tokenizer.json"))
    assert encode(tokenizer(tmp_path, c), "Once upon a time") == plain


def test_added_tokens_may_be_beyond_the_embeddings(tmp_path: Path):
    """As the token of an image that the tokenizer of Gemma 3's text models has."""
    c = init_model("llama-2", tmp_path, small=True)
    own = tokenizer(tmp_path, c)
    own.add_special_tokens(["<image>"])
    own.save(str(tmp_path / "tokenizer.json"))
    g = Generator(tmp_path, backend="numpy")
    assert len(g.generate("Once", new=2, eos=())[0].tokens) == 2
    with pytest.raises(RecurraError, match=f"a prompt has a token {c.vocab_size}\n"):
        g.generate("Once <image>", new=2)


def test_a_tokenizer_that_is_read_and_cannot_be_used_is_refused(tmp_path: Path):
    """Its template names a token of which it says nothing: the library panics."""
    c = init_model("llama-2", tmp_path, small=True)
    file = tmp_path / "tokenizer.json"
    given = json.loads(file.read_text())
    assert given["post_processor"]["special_tokens"]
    given["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(given))
    with pytest.raises(RecurraError, match=r"tokenizer\.json is no tokenizer"):
        tokenizer(tmp_path, c)
