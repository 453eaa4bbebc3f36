"""Text and tokens: tokenizer.json of a folder, tokens as text as they come, and stop strings."""

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
        out.decode(out.encode("a").ids)  # some files are read, and fail at their first text
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of its own kind, whatever is wrong: Rust's are no Exception
        raise RecurraError(f"{path} is no tokenizer", facts=str(error)) from None
    out.no_truncation()  # as for one text: files may say what they were last used with
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
    """Tokens of a prompt, with the ones that the tokenizer adds. Raises RecurraError for none."""
    if not text:
        raise RecurraError(
            f"{name} is empty",
            facts="there is no text to go on with",
            hint="write a word, or give the token that begins a text",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a character, as of bytes that were no text
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
class Decoder:
    """Tokens of one row → text, piece by piece: whole characters, nothing from a stop string on.

    It is the text that follows a `prompt` of tokens: how a token reads may depend on those before
    it, as where the first one of a text is written without its space. `stopped` is the stop string
    that ended it. What may be the beginning of one is held back.
    """

    tokenizer: Tokenizer
    stop: Sequence[str] = ()
    prompt: Sequence[int] = ()
    stopped: str | None = None
    held: str = ""
    tokens: list[int] = field(default_factory=list[int])
    told: int = 0  # tokens whose text is certain, ..
    context: int = 0  # .. the last ones with text from here on, and ..
    given: int = 0  # .. their characters

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.told = len(self.tokens)
        while (before := self._text(0, self.told)).endswith("�"):  # half a character
            self.told -= 1
        self.given, self.context = len(before), self.told
        while self.context and self._text(self.context, self.told)[:1] in ("", "�"):
            self.context -= 1

    def put(self, token: int) -> str:
        """The text that is certain with one more token."""
        self.tokens.append(token)
        end, before = len(self.tokens), len(self._text(self.context, self.told))
        text = self._text(self.context, end)[before:]
        if not text or self._ends_in_bytes():
            return ""
        if text.endswith("�"):  # half a character, which three more bytes end, or none
            end -= 3
            part = self._text(self.context, end)[before:] if end > self.told else ""
            if not part or not text.startswith(part):
                return ""
            text = part
        self.context, self.told = self.told, end
        self.given += len(text)
        return self.add(text)

    def _text(self, begin: int, end: int) -> str:
        return self.tokenizer.decode(self.tokens[begin:end])

    def _ends_in_bytes(self) -> bool:
        """Does the last token stand for a byte, which is read together with its neighbors?

        Each of them is � unless all are characters, so that the next one decides.
        """
        alone = ((x, self.tokenizer.decode([x])) for x in reversed(self.tokens[self.context :]))
        token, text = next((x for x in alone if x[1]), (0, ""))  # others do not come in between
        name = self.tokenizer.id_to_token(token) or ""
        return text != name and re.fullmatch("<0x[0-9A-F]{2}>", name) is not None

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
        """The text that was held back, once no token follows; of a character's bytes, �."""
        rest = self._text(0, len(self.tokens))[self.given :]
        out = self.add(rest) + self.held
        self.held = ""
        return out


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that `stop` begins with."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)
