"""Tokenization: a folder's tokenizer, incremental decoding of tokens, and stop strings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.errors import RecurraError
from recurra.llm.config import FILE, DecoderConfig
from recurra.support.optional_packages import needed_by

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"


def tokenizer(folder: str | Path, config: DecoderConfig) -> Tokenizer:
    """Load a folder's tokenizer; raises RecurraError if it is missing or has unknown tokens."""
    path = Path(folder) / TOKENIZER
    if not path.is_file():
        raise RecurraError(
            f"there is no file {path}",
            facts="text needs the tokenizer that the model was trained with",
            hint="save it beside the model: tokenizer.save_pretrained(folder)",
        )
    with needed_by("text"):
        from tokenizers import Tokenizer
    try:
        out = Tokenizer.from_file(str(path))
        out.decode(out.encode("a").ids)  # some damaged files can be read, and fail here
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # exceptions from Rust are no Exception
        raise RecurraError(f"{path} is no tokenizer", facts=str(error)) from None
    out.no_truncation()  # files may have settings of an earlier use
    out.no_padding()
    top = max(out.get_vocab(with_added_tokens=False).values(), default=-1)
    if top >= config.vocab_size:
        raise RecurraError(
            f"{path} has a token {top}, and {FILE} a vocab_size of {config.vocab_size}",
            facts="a model has an embedding for every token of its tokenizer",
            hint="take the tokenizer of this model",
        )
    return out


def encode(tok: Tokenizer, text: str, name: str = "the prompt") -> list[int]:
    """Encode a prompt, with the tokens that the tokenizer adds. Raises RecurraError for none."""
    if not text:
        raise RecurraError(
            f"{name} is empty",
            facts="there is no text to go on with",
            hint="write a word, or give the token that begins a text",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a surrogate, from bytes that were no text
        raise RecurraError(
            f"{name} is no text",
            facts=f"after {text[: error.start]!r:.60} comes a byte that is not UTF-8",
            hint="turn it into UTF-8: iconv -f LATIN1 -t UTF-8",
        ) from None
    ids: list[int] = tok.encode(text).ids
    if not ids:
        raise RecurraError(f"{name} has no tokens", facts=f"it is {text!r}", hint="write a word")
    return ids


@dataclass
class StreamingDetokenizer:
    """An incremental decoder of one row's tokens, which returns whole characters before a stop.

    The text follows a `prompt` of tokens, because the text of a token may depend on earlier ones,
    as the first one of a text has no leading space. `stopped` is the stop string that ended the
    row. Text that may be the beginning of one is held back.
    """

    tokenizer: Tokenizer
    stop: Sequence[str] = ()
    prompt: Sequence[int] = ()
    stopped: str | None = None
    held: str = ""
    tokens: list[int] = field(default_factory=list[int])
    decoded: int = 0  # the number of tokens whose text is certain
    context: int = 0  # the first of the tokens that are decoded again, as context
    length: int = 0  # the number of characters of the decoded tokens

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.decoded = len(self.tokens)
        while (before := self._text(0, self.decoded)).endswith("�"):  # half a character
            self.decoded -= 1
        self.length, self.context = len(before), self.decoded
        while self.context and self._text(self.context, self.decoded)[:1] in ("", "�"):
            self.context -= 1

    def put(self, token: int) -> str:
        """Add a token; return the text that is certain now."""
        self.tokens.append(token)
        end, before = len(self.tokens), len(self._text(self.context, self.decoded))
        text = self._text(self.context, end)[before:]
        if not text or self._ends_in_bytes():
            return ""
        if text.endswith("�"):  # half a character, of at most three tokens
            end -= 3
            part = self._text(self.context, end)[before:] if end > self.decoded else ""
            if not part or not text.startswith(part):
                return ""
            text = part
        self.context, self.decoded = self.decoded, end
        self.length += len(text)
        return self.add(text)

    def _text(self, begin: int, end: int) -> str:
        return self.tokenizer.decode(self.tokens[begin:end])

    def _ends_in_bytes(self) -> bool:
        """Tell whether the last token is a byte, whose text depends on the next token.

        A run of bytes is � for each of them unless all together are characters.
        """
        single = ((x, self.tokenizer.decode([x])) for x in reversed(self.tokens[self.context :]))
        token, text = next((x for x in single if x[1]), (0, ""))  # tokens without text do not count
        name = self.tokenizer.id_to_token(token) or ""
        return text != name and re.fullmatch("<0x[0-9A-F]{2}>", name) is not None

    def add(self, text: str) -> str:
        """Add text; return the part that is no beginning of a stop string."""
        out = ""
        for letter in text if self.stopped is None else "":
            self.held += letter
            if matches := [s for s in self.stop if self.held.endswith(s)]:
                self.stopped = max(matches, key=len)
                out += self.held.removesuffix(self.stopped)
                self.held = ""
                break
            cut = len(self.held) - max((_overlap(self.held, s) for s in self.stop), default=0)
            out, self.held = out + self.held[:cut], self.held[cut:]
        return out

    def end(self) -> str:
        """Return the text that was held back, after the last token; � for an incomplete one."""
        rest = self._text(0, len(self.tokens))[self.length :]
        out = self.add(rest) + self.held
        self.held = ""
        return out


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)
