"""Tokens → text, piece by piece, and where stop strings end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.errors import RecurraError
from recurra.llm import config as configs
from recurra.llm.init import byte_tokenizer, init
from recurra.llm.text import Decoder, encode, tokenizer

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
    slow, fast = Decoder(BYTES, stop), Decoder(BYTES, stop)
    shown = "".join(slow.put(token) for token in BYTES.encode(text, add_special_tokens=False).ids)
    assert (shown + slow.end(), slow.stopped) == want
    assert (fast.add(text) + fast.end(), fast.stopped) == want


def test_pieces_are_whole_characters():
    d = Decoder(BYTES)
    pieces = [d.put(token) for token in BYTES.encode("ü€a", add_special_tokens=False).ids]
    assert pieces == ["", "ü", "", "", "€", "a"]


def test_what_may_be_a_stop_string_is_held_back():
    d = Decoder(BYTES, ["###"])
    assert [d.add("a#"), d.add("#"), d.add("b#")] == ["a", "", "##b"]
    assert d.end() == "#"


def test_a_character_that_is_not_complete_is_told_at_the_end():
    d = Decoder(BYTES)
    tokens = BYTES.encode("a€", add_special_tokens=False).ids[:-1]
    assert "".join(map(d.put, tokens)) == "a"
    assert d.end() == BYTES.decode(tokens)[1:] != ""


def test_special_tokens_are_not_text():
    d = Decoder(BYTES)
    assert [d.put(token) for token in BYTES.encode("a").ids] == ["", "a"]


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path):
    c = init("llama-2", tmp_path, small=True)
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
