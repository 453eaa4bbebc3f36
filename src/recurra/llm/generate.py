"""Text generation: `Generator(folder).stream(["Once"])` yields tokens as they are computed.

Programs read weights where they were loaded, without copies. A program is compiled once for each
number of rows, length of prompts, number of tokens and kind of sampling; with `lengths`, for each
of the lengths to which prompts and new tokens are rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from recurra.errors import RecurraError, either
from recurra.llm import patterns
from recurra.llm import weights as loading
from recurra.llm.config import FILE, DecoderConfig, Layer
from recurra.llm.model import period
from recurra.llm.patterns import Pattern, SlidingWindow
from recurra.llm.program import UNKNOWN, DecoderProgram, Form, write
from recurra.llm.sampling import Sampling
from recurra.llm.store_budget import StoreRow, expect_room
from recurra.llm.tokenization import StreamingDetokenizer, encode, tokenizer
from recurra.llm.weights import Weights
from recurra.support.free_memory import free_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_PERIOD = 12  # layers after which patterns repeat, up to which layers are a dim
UNROLLED = 16  # layers up to which they are unrolled


@dataclass(frozen=True)
class Piece:
    """One token of a row; `end` is the reason if it is the row's last: eos, stop or length."""

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
    """A request for all rows; sampling may be a sequence, row by row."""

    new: int = 64
    sampling: Sampling | Sequence[Sampling] = field(default_factory=Sampling)
    seed: int = 0
    stop: Sequence[str] = ()
    eos: Sequence[int] | None = None  # None: the model's
    logprobs: bool = False
    memory: int | None = None  # the most bytes of stored keys and values


Prompts = str | Sequence[int] | Sequence[str | Sequence[int]]


def as_prompt_list(prompts: Any) -> list[str | Sequence[int]]:
    """The prompts as a list; a single one may be a text, or a list or an array of tokens."""
    prompts = _listed(prompts)
    rows: list[Any] = list(map(_listed, prompts)) if _has_order(prompts) else [prompts]
    if rows and all(isinstance(x, int | np.integer) for x in rows):
        rows = [rows]
    for p in rows:
        if not isinstance(p, str) and not _are_tokens(p):
            raise RecurraError.at_user_line(
                f"{p!r:.60} is no prompt",
                facts="a prompt is a text, or a list of tokens, which are integers",
                hint='generate(["Once upon a time"]), or generate([[5, 6, 7]])',
            )
    return rows


def _listed(value: Any) -> Any:
    """Convert an array of any library to a list; return other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _names(count: int, only: str) -> list[str]:
    """The names of prompts in messages."""
    return [f"prompt {k} of {count}" for k in range(1, count + 1)] if count != 1 else [only]


def _as_tuple(value: Any) -> tuple[object, ...]:
    """The elements of a list, or a single value as a tuple."""
    single = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    return (value,) if single else tuple(value)


def _are_tokens(value: object) -> bool:
    items: list[object] = list(value) if _has_order(value) else [None]
    return all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in items)


def _has_order(value: object) -> TypeGuard[Iterable[object]]:
    """Tell whether a value is a sequence of items: no text, and no dict or set."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set)


def with_overrides(ask: Request, options: Mapping[str, object]) -> Request:
    """A request with other fields; `eos` and `stop` may be a single one.

    Raises RecurraError for an unknown field or an illegal value.
    """
    known = [f.name for f in fields(Request)]
    if unknown := [name for name in options if name not in known]:
        raise RecurraError.at_user_line(
            f"nothing that is asked for is called {unknown[0]!r}",
            facts=f"there are {', '.join(known)}",
        )
    ask = replace(ask, **options)
    eos = None if ask.eos is None else _as_tuple(ask.eos)
    stop, sampling = _as_tuple(ask.stop), _as_tuple(ask.sampling)
    memory: object = ask.memory
    logprobs: Any = ask.logprobs
    limits = {
        "new": (_are_tokens([ask.new]), "an integer"),
        "seed": (_are_tokens([ask.seed]) and 0 <= ask.seed < 2**32, "from 0 to 4294967295"),
        "eos": (eos is None or _are_tokens(eos), "a token, or a list of tokens"),
        "stop": (all(isinstance(x, str) and x for x in stop), "texts, none of them empty"),
        "sampling": (
            all(isinstance(x, Sampling) for x in sampling),
            "a Sampling, or one for each row",
        ),
        "logprobs": (isinstance(logprobs, bool), "True or False"),
        "memory": (memory is None or _are_tokens([memory]), "a number of bytes"),
    }
    for name, (legal, limit) in limits.items():
        if not legal:
            value = getattr(ask, name)
            raise RecurraError.at_user_line(f"{name} is {value!r}, and must be {limit}")
    return replace(ask, eos=eos, stop=stop)


class Generator:
    """A model in memory, its tokenizer and its compiled programs.

    Args:
        attention: patterns for its layers, as in `patterns.parse_mix`; None: its own.
        unrolled: layers are separate equations (None: if they are few, or have no short period).
        lengths: prompts and new tokens are rounded up to these, so that one program continues
            prompts of many lengths (None: each length has its own program).

    Raises RecurraError if the folder has no model, or another model's tokenizer.
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
        path: Any = folder
        if not isinstance(path, str | Path) or not str(path):
            raise RecurraError.at_user_line(
                f"{path!r:.60} is no folder",
                facts="a model is a folder with config.json, *.safetensors and tokenizer.json",
                hint='Generator("models/tiny")',
            )
        self.folder, self.dtype, self.backend = Path(folder), dtype, backend
        if lengths is not None and not (_are_tokens(lengths) and all(x > 0 for x in lengths)):
            raise RecurraError.at_user_line(
                f"lengths are {lengths!r}, and must be integers above 0",
                hint="lengths=[64, 256]",
            )
        flat: Any = unrolled
        if not isinstance(flat, bool | None):
            raise RecurraError.at_user_line(
                f"unrolled is {unrolled!r}, and must be True, False or None",
                hint="leave it out: layers are equations of their own where they are few",
            )
        self.lengths = None if lengths is None else tuple(sorted(lengths))
        loaded = loading.load(folder, dtype)
        c = loaded.config
        if attention is not None:
            c = with_patterns(c, patterns.parse_mix(attention, len(c.layers)))
        self.weights, self.config = Weights(c, loaded.arrays), c
        few = len(c.layers) <= UNROLLED
        irregular = period(c.layers) > min(MAX_PERIOD, len(c.layers) // 2)
        self.unrolled = (few or irregular) if unrolled is None else unrolled
        self.programs: dict[Form, DecoderProgram] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer(self.folder, self.config)

    def encode(self, prompts: str | Sequence[str]) -> list[list[int]]:
        """Encode each text, or a single one."""
        names = _names(len(texts := as_prompt_list(prompts)), "the prompt")
        for text in texts:
            if not isinstance(text, str):
                raise RecurraError.at_user_line(
                    f"{text!r:.60} is no text", hint='encode(["Once upon a time"])'
                )
        return [encode(self.tokenizer, str(p), n) for p, n in zip(texts, names, strict=True)]

    def generate(
        self, prompts: Prompts, ask: Request | None = None, **options: object
    ) -> list[Completion]:
        """Continue one or several prompts, texts or tokens; options are fields of `Request`."""
        prompts = as_prompt_list(prompts)
        rows: list[list[Piece]] = [[] for _ in prompts]
        for piece in self.stream(prompts, ask, **options):
            rows[piece.row].append(piece)
        return [_completion(row) for row in rows]

    def stream(
        self, prompts: Prompts, ask: Request | None = None, **options: object
    ) -> Iterator[Piece]:
        """Yield tokens as they are computed: of all rows at a position, then of the next one.

        Raises RecurraError before anything is computed for missing prompts, unknown tokens, or
        prompts that exceed the model's positions.
        """
        ask = with_overrides(ask or Request(), options)
        prompts = as_prompt_list(prompts)
        texts = [p for p in prompts if isinstance(p, str)]
        rows = [
            encode(self.tokenizer, p, name) if isinstance(p, str) else [int(x) for x in p]
            for p, name in zip(prompts, _names(len(prompts), "the prompt"), strict=True)
        ]
        self.expect(rows, ask)
        program, inputs = self.prepare(rows, ask)
        return self._pieces(program, inputs, rows, ask, decode=bool(texts) or bool(ask.stop))

    def _pieces(
        self,
        program: DecoderProgram,
        inputs: dict[str, np.ndarray],
        rows: list[list[int]],
        ask: Request,
        decode: bool,
    ) -> Iterator[Piece]:
        form = program.form
        decoders = {
            row: StreamingDetokenizer(self.tokenizer, ask.stop, prompt) if decode else None
            for row, prompt in enumerate(rows)
        }
        for first, results in program.launches(ask.seed, inputs):
            for t in range(max(first, form.prompt - 1), first + results["next"].shape[1]):
                at_t = {name: x[:, t - first] for name, x in results.items()}
                for row, decoder in list(decoders.items()):
                    piece = _piece(at_t, row, decoder, form.eos, t == form.prompt + ask.new - 2)
                    if piece.end is not None:
                        del decoders[row]
                    yield piece
            if not decoders:
                return

    def expect(self, rows: Sequence[Sequence[int]], ask: Request) -> None:
        """Raise RecurraError if prompts cannot be continued."""
        c = self.config
        if not rows:
            raise RecurraError(
                "there is no prompt", hint=either("--prompt TEXT", "generator.generate('a text')")
            )
        if ask.new < 1:
            raise RecurraError(
                f"{ask.new} new tokens are none", hint=either("--max-new-tokens 64", "new=64")
            )
        if unknown := [x for x in ask.eos or () if not 0 <= x < c.vocab_size]:
            raise RecurraError(
                f"eos is {unknown[0]}, which no row ends by",
                facts=f"tokens of {self.folder} are 0 to {c.vocab_size - 1}",
                hint="leave it out: the model has its own",
            )
        names = _names(len(rows), "a prompt")
        for name, row in zip(names, rows, strict=True):
            unknown = [x for x in row if not 0 <= x < c.vocab_size]
            if unknown or not row:
                has = f"has a token {unknown[0]}" if unknown else "has no tokens"
                raise RecurraError(
                    f"{name} {has}",
                    facts=f"those of {self.folder} are 0 to {c.vocab_size - 1}",
                    hint="give tokens of the model's"
                    if unknown
                    else "give it a word to go on with",
                )
        longest = max(map(len, rows))
        if longest + ask.new > c.reach:
            fits = int(c.reach) - longest
            more = f", stretched to {int(c.reach)}" if c.reach > c.max_positions else ""
            name = names[[len(row) for row in rows].index(longest)]
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
        """The number of positions in the program for so many tokens."""
        return min((n for n in self.lengths or () if n >= count), default=count)

    def prepare(
        self, rows: Sequence[Sequence[int]], ask: Request
    ) -> tuple[DecoderProgram, dict[str, np.ndarray]]:
        """The program for these prompts, and its inputs."""
        c, places = self.config, self.places(max(map(len, rows)))
        given = ask.sampling
        sampling = [given] * len(rows) if isinstance(given, Sampling) else given
        if len(sampling) != len(rows):
            raise RecurraError(
                f"{len(sampling)} ways to sample for {len(rows)} prompts",
                hint="give one Sampling for all prompts, or a list of one for each",
            )
        kind = reduce(or_, (x.kind for x in sampling))
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
            source = "that are free" if ask.memory is None else ""

            def of_window(width: int) -> Sequence[StoreRow]:
                windowed = with_patterns(c, [SlidingWindow(width)] * len(c.layers))
                return write(windowed, form, self.dtype, self.backend).stores

            expect_room(program.stores, budget, form.prompt, form.steps, of_window, source)
        return program, program.inputs(self.weights, rows, sampling)


def _completion(row: Sequence[Piece]) -> Completion:
    return Completion(
        "".join(p.text for p in row),
        tuple(p.token for p in row),
        row[-1].end or "length",
        tuple(x for p in row if (x := p.logprob) is not None) or None,
    )


def _piece(
    results: dict[str, np.ndarray],
    row: int,
    decoder: StreamingDetokenizer | None,
    eos: Sequence[int],
    last: bool,
) -> Piece:
    """The token of one row, from the results of all rows at a position."""
    token = int(results["next"][row])
    if token == UNKNOWN:
        raise RecurraError(
            "no token follows: the model's logits are NaN or inf",
            facts=f"sums of its weights are too large for 32 bits, in row {row + 1}",
            hint="the files are damaged, or training has diverged: take others",
        )
    logprob = float(results["logprob"][row]) if "logprob" in results else None
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
    """Replace the attention patterns of a model, layer by layer."""
    layers = zip(config.layers, mix, strict=True)
    return replace(config, layers=tuple(Layer(pattern, layer.rope) for layer, pattern in layers))
