"""Prompts → text: `Generator(folder).stream(["Once"])` gives tokens as they come.

Weights stay where they were loaded; programs read them there. A program is compiled once for each
number of rows, length of prompts, number of tokens and kind of sampling; with `lengths`, for each
of the lengths that prompts and new tokens are rounded up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from recurra.errors import RecurraError, either, here
from recurra.llm import patterns
from recurra.llm import weights as loading
from recurra.llm.budget import StoreRow, expect_room
from recurra.llm.config import FILE, DecoderConfig, Layer
from recurra.llm.model import turns
from recurra.llm.patterns import Pattern, SlidingWindow
from recurra.llm.program import UNKNOWN, Form, Written, write
from recurra.llm.sampling import Kind, Sampling
from recurra.llm.text import Decoder, encode, tokenizer
from recurra.llm.weights import Weights
from recurra.support.free_memory import free_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TURNS = 12  # of layers, up to which they are compiled once for all rounds
UNROLLED = 16  # layers, up to which they are equations of their own


@dataclass(frozen=True)
class Piece:
    """One token of a row; `end` says why it is the row's last: eos, stop or length."""

    row: int
    token: int
    text: str
    logprob: float | None = None
    end: str | None = None


@dataclass(frozen=True)
class Completion:
    """A continuation of a prompt; `text` ends before a stop string, `tokens` do not."""

    text: str
    tokens: tuple[int, ...]
    end: str
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Request:
    """A request, for all rows or, as a sequence, row by row."""

    new: int = 64
    sampling: Sampling | Sequence[Sampling] = field(default_factory=Sampling)
    seed: int = 0
    stop: Sequence[str] = ()
    eos: Sequence[int] | None = None  # None: those of the model
    logprobs: bool = False
    memory: int | None = None  # bytes that may be kept of the past


Prompts = str | Sequence[int] | Sequence[str | Sequence[int]]


def each(prompts: Any) -> list[str | Sequence[int]]:
    """The prompts, of which one may stand alone: a text, or a list or an array of tokens."""
    prompts = _listed(prompts)
    given: list[Any] = list(map(_listed, prompts)) if _has_order(prompts) else [prompts]
    if given and all(isinstance(x, int | np.integer) for x in given):
        given = [given]
    for p in given:
        if not isinstance(p, str) and not _are_tokens(p):
            raise RecurraError(
                f"{p!r:.60} is no prompt",
                facts="a prompt is a text, or a list of tokens, which are integers",
                hint='generate(["Once upon a time"]), or generate([[5, 6, 7]])',
                loc=here(),
            )
    return given


def _listed(given: Any) -> Any:
    """The array of any library as a list; anything else as it is."""
    return given.tolist() if hasattr(given, "tolist") else given


def _names(count: int, only: str) -> list[str]:
    """The names of prompts in messages."""
    return [f"prompt {k} of {count}" for k in range(1, count + 1)] if count != 1 else [only]


def _several(given: Any) -> tuple[object, ...]:
    """The elements of a list, or the one thing that stands alone."""
    alone = isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)
    return (given,) if alone else tuple(given)


def _are_tokens(given: object) -> bool:
    items: list[object] = list(given) if _has_order(given) else [None]
    return all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in items)


def _has_order(given: object) -> TypeGuard[Iterable[object]]:
    """Is it some things in an order? A text is one thing, and a dict or a set has no order."""
    one = isinstance(given, str | bytes | Mapping | Set)
    return isinstance(given, Iterable) and not one


def requested(ask: Request, asked: Mapping[str, object]) -> Request:
    """A request with other fields; one end or stop may stand alone.

    Raises RecurraError for what is no field, or no value of it.
    """
    known = [f.name for f in fields(Request)]
    if strange := [name for name in asked if name not in known]:
        raise RecurraError(
            f"nothing that is asked for is called {strange[0]!r}",
            facts=f"there are {', '.join(known)}",
            loc=here(),
        )
    ask = replace(ask, **asked)
    eos = None if ask.eos is None else _several(ask.eos)
    stop, how = _several(ask.stop), _several(ask.sampling)
    memory: object = ask.memory
    logprobs: Any = ask.logprobs
    limits = {
        "new": (_are_tokens([ask.new]), "an integer"),
        "seed": (_are_tokens([ask.seed]) and 0 <= ask.seed < 2**32, "from 0 to 4294967295"),
        "eos": (eos is None or _are_tokens(eos), "a token, or a list of tokens"),
        "stop": (all(isinstance(x, str) and x for x in stop), "texts, none of them empty"),
        "sampling": (all(isinstance(x, Sampling) for x in how), "a Sampling, or one for each row"),
        "logprobs": (isinstance(logprobs, bool), "True or False"),
        "memory": (memory is None or _are_tokens([memory]), "a number of bytes"),
    }
    for name, (fine, said) in limits.items():
        if not fine:
            raise RecurraError(f"{name} is {getattr(ask, name)!r}, and must be {said}", loc=here())
    return replace(ask, eos=eos, stop=stop)


class Generator:
    """A model in memory, its tokenizer and its compiled programs.

    `attention` is a mix of patterns for its layers, as `patterns.parse_mix` reads it; None: its
    own. `unrolled`: layers are equations of their own (None: if they are few, or differ in no
    short turns). `lengths`: prompts have places for the next of them, and so have new tokens, so
    that one program goes on with prompts of many lengths (None: each has its own).
    Raises RecurraError where the folder is no model, or the tokenizer not its own.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        attention: str | None = None,
        dtype: str = "f32",
        backend: str = "jax",
        unrolled: bool | None = None,
        lengths: Sequence[int] | None = None,
    ):
        given: Any = folder
        if not isinstance(given, str | Path) or not str(given):
            raise RecurraError(
                f"{given!r:.60} is no folder",
                facts="a model is a folder with config.json, *.safetensors and tokenizer.json",
                hint='Generator("models/tiny")',
                loc=here(),
            )
        self.folder, self.dtype, self.backend = Path(folder), dtype, backend
        if lengths is not None and not (_are_tokens(lengths) and all(x > 0 for x in lengths)):
            raise RecurraError(
                f"lengths are {lengths!r}, and must be integers above 0",
                hint="lengths=[64, 256]",
                loc=here(),
            )
        flat: Any = unrolled
        if not isinstance(flat, bool | None):
            raise RecurraError(
                f"unrolled is {unrolled!r}, and must be True, False or None",
                hint="leave it out: layers are equations of their own where they are few",
                loc=here(),
            )
        self.lengths = None if lengths is None else tuple(sorted(lengths))
        loaded = loading.load(folder, dtype)
        c = loaded.config
        if attention is not None:
            c = with_patterns(c, patterns.parse_mix(attention, len(c.layers)))
        self.weights, self.config = Weights(c, loaded.arrays), c
        few = len(c.layers) <= UNROLLED
        apart = turns(c.layers) > min(TURNS, len(c.layers) // 2)
        self.unrolled = (few or apart) if unrolled is None else unrolled
        self.programs: dict[Form, Written] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer(self.folder, self.config)

    def encode(self, prompts: str | Sequence[str]) -> list[list[int]]:
        """The tokens of each text, or of the only one."""
        names = _names(len(texts := each(prompts)), "the prompt")
        for text in texts:
            if not isinstance(text, str):
                raise RecurraError(
                    f"{text!r:.60} is no text", hint='encode(["Once upon a time"])', loc=here()
                )
        return [encode(self.tokenizer, str(p), n) for p, n in zip(texts, names, strict=True)]

    def generate(
        self, prompts: Prompts, ask: Request | None = None, **asked: object
    ) -> list[Completion]:
        """Continue each prompt, a text or tokens, or the only one; `asked`: fields of `Request`."""
        prompts = each(prompts)
        made: list[list[Piece]] = [[] for _ in prompts]
        for piece in self.stream(prompts, ask, **asked):
            made[piece.row].append(piece)
        return [
            Completion(
                "".join(p.text for p in row),
                tuple(p.token for p in row),
                row[-1].end or "length",
                tuple(p.logprob for p in row if p.logprob is not None)
                if row[0].logprob is not None
                else None,
            )
            for row in made
        ]

    def stream(
        self, prompts: Prompts, ask: Request | None = None, **asked: object
    ) -> Iterator[Piece]:
        """Tokens as they come: of all rows at a position, then of the next one.

        Raises RecurraError before anything is computed: no prompt, a token that is none of the
        model's, or a prompt that leaves no room up to its longest position.
        """
        ask = requested(ask or Request(), asked)
        prompts = each(prompts)
        texts = [p for p in prompts if isinstance(p, str)]
        rows = [
            encode(self.tokenizer, p, name) if isinstance(p, str) else [int(x) for x in p]
            for p, name in zip(prompts, _names(len(prompts), "the prompt"), strict=True)
        ]
        self.expect(rows, ask)
        program, inputs = self.prepared(rows, ask)
        return self._pieces(program, inputs, rows, ask, decode=bool(texts) or bool(ask.stop))

    def _pieces(
        self,
        program: Written,
        inputs: dict[str, np.ndarray],
        rows: list[list[int]],
        ask: Request,
        decode: bool,
    ) -> Iterator[Piece]:
        form = program.form
        going = {
            row: Decoder(self.tokenizer, ask.stop, prompt) if decode else None
            for row, prompt in enumerate(rows)
        }
        for first, made in program.launches(ask.seed, inputs):
            for t in range(max(first, form.prompt - 1), first + made["next"].shape[1]):
                here = {name: x[:, t - first] for name, x in made.items()}
                for row, decoder in list(going.items()):
                    piece = _piece(here, row, decoder, form.eos, t == form.prompt + ask.new - 2)
                    if piece.end is not None:
                        del going[row]
                    yield piece
            if not going:
                return

    def expect(self, rows: Sequence[Sequence[int]], ask: Request) -> None:
        """Raises where they cannot be gone on from."""
        c = self.config
        if not rows:
            raise RecurraError(
                "there is no prompt", hint=either("--prompt TEXT", "generator.generate('a text')")
            )
        if ask.new < 1:
            raise RecurraError(
                f"{ask.new} new tokens are none", hint=either("--max-new-tokens 64", "new=64")
            )
        if strange := [x for x in ask.eos or () if not 0 <= x < c.vocab_size]:
            raise RecurraError(
                f"eos is {strange[0]}, which no row ends by",
                facts=f"tokens of {self.folder} are 0 to {c.vocab_size - 1}",
                hint="leave it out: the model has its own",
            )
        named = _names(len(rows), "a prompt")
        for name, row in zip(named, rows, strict=True):
            strange = [x for x in row if not 0 <= x < c.vocab_size]
            if strange or not row:
                said = f"has a token {strange[0]}" if strange else "has no tokens"
                raise RecurraError(
                    f"{name} {said}",
                    facts=f"those of {self.folder} are 0 to {c.vocab_size - 1}",
                    hint="give tokens of the model's"
                    if strange
                    else "give it a word to go on with",
                )
        longest = max(map(len, rows))
        if longest + ask.new > c.reach:
            fits = int(c.reach) - longest
            more = f", stretched to {int(c.reach)}" if c.reach > c.max_positions else ""
            name = named[[len(row) for row in rows].index(longest)]
            raise RecurraError(
                f"{name} has {longest} tokens, and with {ask.new} new ones {longest + ask.new}",
                facts=f"{self.folder / FILE} has max_position_embeddings {c.max_positions}{more}",
                hint=either(f"--max-new-tokens {fits}", f"new={fits}")
                if fits > 0
                else "a shorter prompt",
            )
        for count, what in ((longest, "a prompt of {} tokens"), (ask.new, "{} new tokens")):
            if self.lengths is not None and count > max(self.lengths, default=0):
                raise RecurraError(
                    f"{what.format(count)} is longer than every length that there are programs for",
                    facts=f"lengths are {', '.join(map(str, self.lengths)) or 'none'}",
                    hint=f"Generator(.., lengths={(*self.lengths, count)})",
                )

    def places(self, count: int) -> int:
        """The number of places in the program for so many tokens."""
        return min((n for n in self.lengths or () if n >= count), default=count)

    def prepared(
        self, rows: Sequence[Sequence[int]], ask: Request
    ) -> tuple[Written, dict[str, np.ndarray]]:
        """The program for these prompts, and what it is to be run with."""
        c, places = self.config, self.places(max(map(len, rows)))
        how = [ask.sampling] * len(rows) if isinstance(ask.sampling, Sampling) else ask.sampling
        if len(how) != len(rows):
            raise RecurraError(
                f"{len(how)} ways to sample for {len(rows)} prompts",
                hint="give one Sampling for all prompts, or a list of one for each",
            )
        kind = Kind()
        for one in how:
            kind |= one.kind
        eos = c.eos if ask.eos is None else tuple(ask.eos)
        form = Form(
            len(rows),
            places,
            places + self.places(ask.new) - 1,
            kind,
            ragged=self.lengths is not None or len(set(map(len, rows))) > 1,
            logprobs=ask.logprobs,
            unrolled=self.unrolled,
            until=bool(eos),
            eos=eos,
            pad=next((x for x in (c.pad, *eos) if x is not None and x < c.vocab_size), 0),
        )
        if form not in self.programs:
            self.programs[form] = write(c, form, self.dtype, self.backend)
        program = self.programs[form]
        free = free_bytes() if ask.memory is None else None
        budget = ask.memory if free is None else free
        if budget is not None:
            told = "that are free" if ask.memory is None else ""

            def of_window(width: int) -> Sequence[StoreRow]:
                windowed = with_patterns(c, [SlidingWindow(width)] * len(c.layers))
                return write(windowed, form, self.dtype, self.backend).stores

            expect_room(program.stores, budget, form.prompt, form.steps, of_window, told)
        return program, program.inputs(self.weights, rows, how)


def _piece(
    here: dict[str, np.ndarray],
    row: int,
    decoder: Decoder | None,
    eos: Sequence[int],
    last: bool,
) -> Piece:
    """The token of one row, of what all rows made at a position."""
    token = int(here["next"][row])
    if token == UNKNOWN:
        raise RecurraError(
            "no token follows: the model's logits are NaN or inf",
            facts=f"sums of its weights are too large for 32 bits, in row {row + 1}",
            hint="the files are damaged, or training has diverged: take others",
        )
    logprob = float(here["logprob"][row]) if "logprob" in here else None
    text = decoder.put(token) if decoder else ""
    end = None
    if decoder is not None and decoder.stopped is not None:
        end = "stop"
    elif token in eos:
        end = "eos"
    elif last:
        end = "length"
    if end in ("eos", "length") and decoder is not None:
        text += decoder.end()
    return Piece(row, token, text, logprob, end)


def with_patterns(config: DecoderConfig, mix: Sequence[Pattern]) -> DecoderConfig:
    """The model with other attention, layer by layer."""
    layers = zip(config.layers, mix, strict=True)
    return replace(config, layers=tuple(Layer(pattern, layer.rope) for layer, pattern in layers))
