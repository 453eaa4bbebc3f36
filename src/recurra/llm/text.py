"""Text and tokens: tokenizer.json of a folder, tokens as text as they come, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.errors import RecurraError
from recurra.llm.config import FILE, DecoderConfig
from recurra.support.optional_packages import needed_by

TOKENIZER = "tokenizer.json"


def tokenizer(folder: str | Path, config: DecoderConfig) -> Any:
    """That of a folder. Raises RecurraError where there is none, or the model lacks its tokens."""
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
        out: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # of its own kind, whatever is wrong with the file
        raise RecurraError(f"{path} is no tokenizer", facts=str(error)) from None
    top = max(out.get_vocab(with_added_tokens=True).values(), default=-1)
    if top >= config.vocab_size:
        raise RecurraError(
            f"{path} has a token {top}, and {FILE} a vocab_size of {config.vocab_size}",
            facts="a model has an embedding for every token of its tokenizer",
            hint="take the tokenizer of this model",
        )
    return out


def encode(tok: Any, text: str) -> list[int]:
    """Tokens of a prompt, with the ones that the tokenizer adds. Raises RecurraError for none."""
    if not text:
        raise RecurraError(
            "the prompt is empty",
            facts="there is no text to go on with",
            hint="write a word, or give the token that begins a text",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a character, as of bytes that were no text
        raise RecurraError("the prompt is no text", facts=str(error)) from None
    ids: list[int] = tok.encode(text).ids
    if not ids:
        raise RecurraError("the prompt has no tokens", facts=f"it is {text!r}", hint="write a word")
    return ids


@dataclass
class Decoder:
    """Tokens of one row → text, piece by piece: whole characters, nothing from a stop string on.

    It is the text that follows a `prompt` of tokens: how a token reads may depend on those before
    it, as where the first one of a text is written without its space. `stopped` is the stop string
    that ended it. What may be the beginning of one is held back.
    """

    tokenizer: Any
    stop: Sequence[str] = ()
    prompt: Sequence[int] = ()
    stopped: str | None = None
    held: str = ""
    tokens: list[int] = field(default_factory=list[int])
    given: int = 0  # characters of them that were told
    stream: Any = field(init=False)

    def __post_init__(self) -> None:
        from tokenizers.decoders import DecodeStream

        self.stream = DecodeStream(skip_special_tokens=True)
        for token in self.prompt:
            self.tell(token)

    def put(self, token: int) -> str:
        """The text that is certain with one more token."""
        return self.add(self.tell(token))

    def tell(self, token: int) -> str:
        self.tokens.append(token)
        text: str = self.stream.step(self.tokenizer, token) or ""
        self.given += len(text)
        return text

    def add(self, text: str) -> str:
        """The same of more text; where it is cut in pieces makes no difference."""
        out = ""
        for letter in text if self.stopped is None else "":
            self.held += letter
            if found := [s for s in self.stop if self.held.endswith(s)]:
                self.stopped = max(found, key=len)
                out += self.held.removesuffix(self.stopped)
                self.held = ""
                break
            cut = len(self.held) - max((_overlap(self.held, s) for s in self.stop), default=0)
            out, self.held = out + self.held[:cut], self.held[cut:]
        return out

    def end(self) -> str:
        """What was held back, once no token follows; of a character's bytes, �."""
        rest = self.tokenizer.decode(self.tokens)[self.given :] if self.tokens else ""
        out = self.add(rest) + self.held
        self.held = ""
        return out


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that `stop` begins with."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)
