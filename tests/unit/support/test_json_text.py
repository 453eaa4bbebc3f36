"""JSON of anyone: what is wrong with it is one kind of error."""

from __future__ import annotations

import pytest

from recurra.support import json_text


def test_it_is_read() -> None:
    assert json_text.parse(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, b"\xff", "nope"])
def test_whatever_is_wrong_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_text.parse(text)
