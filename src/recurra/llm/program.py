"""Text that goes on, as one program over (b, l, t): what a position holds, and when a row ends.

    tok[b, t < P] = prompt;   tok[b, t] = next[b, t - 1];   next = choose(logits(tok))

Rows have prompts of P places; of shorter ones the first pad[b] are not there, and the place of
position t is t - pad[b]. A position's token is written at t, the token that follows is `next`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.llm.budget import StoreRow
from recurra.llm.config import DecoderConfig, Layer
from recurra.llm.model import Model
from recurra.llm.patterns import Causal, Prefix, Sinks
from recurra.llm.sampling import LARGEST, Kind, Sampling, SamplingInputs, choose
from recurra.llm.weights import Weights
from recurra.report.html import code, folds_html, table

if TYPE_CHECKING:
    from recurra import Tensor
    from recurra.runtime.executable import Executable


UNKNOWN = -1  # what follows where logits are NaN or inf
CHUNK = 16  # steps of a launch of programs that never end by themselves


@dataclass(frozen=True)
class Form:
    """The form of a program; it is compiled once for each."""

    rows: int
    prompt: int  # places, P
    steps: int  # T: the tokens at P .. T are made
    kind: Kind = field(default_factory=Kind)
    ragged: bool = False
    logprobs: bool = False
    logits: bool = False  # of every position: [B, T, V]
    unrolled: bool = True
    until: bool = False  # a launch ends where the last row does, by `eos`
    chunk: int | None = None  # steps of a launch (None: by their cost)
    eos: tuple[int, ...] = ()
    pad: int = 0


@dataclass(frozen=True)
class Written:
    """A compiled program, and what its inputs are made of."""

    form: Form
    model: Model
    settings: SamplingInputs
    executable: Executable

    def inputs(
        self, weights: Weights, prompts: Sequence[Sequence[int]], how: Sequence[Sampling]
    ) -> dict[str, np.ndarray]:
        """The inputs for prompts that end at P: shorter ones have places before them."""
        form = self.form
        tokens = np.full((form.rows, form.prompt if self.apart else form.steps), form.pad, np.int32)
        for row, given in enumerate(prompts):
            tokens[row, form.prompt - len(given) : form.prompt] = given
        out = {"prompt": tokens, **self.model.arrays(weights), **self.settings.arrays(how)}
        if form.ragged:
            out["pad"] = np.array([form.prompt - len(p) for p in prompts], np.int32)
        return out

    @property
    def apart(self) -> bool:
        """Are a prompt's positions over a dim of their own?"""
        return self.model.before is not None

    @property
    def stores(self) -> Sequence[StoreRow]:
        """The stores from position to position, a row each: k_3, its slots, bytes."""
        stores = self.executable.compiled.plan.stores
        given = {s.name for s in stores.values() if s.given}  # also of every other layer
        rows = self.executable.store_rows
        return [r for r in rows if r["store"] not in given and r["class"] != "output"]

    def _repr_html_(self) -> str:
        """The stores of the past, and the schedule."""
        folds = {
            "stores": table(self.stores, bar="bytes"),
            "schedule": code(self.executable.schedule_text),
        }
        return folds_html(f"{self.model.config}, {self.form.steps} positions", folds)

    def launches(
        self, seed: int, inputs: Mapping[str, object]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """(first position, what was made from it on [B, n, ..]) of each launch, as it is made.

        What no launch gave, such as all of a program that runs in one, or positions that a loop
        before or after the others makes, is given at the end. Where rows end before that, only what
        they have is given.
        """
        outputs = [self.executable.outputs[o] for o in self.executable.logs.values()]
        steps, done = self.executable.execution.steps(seed, inputs=inputs), 0
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                rest = {name: x[:, done:] for name, x in self.named(end.value).items()}
                if next(iter(rest.values())).shape[1]:
                    yield done, rest
                return
            points = {step.points.get(o) for o in outputs}
            if len(points) == 1 and (new := points.pop()) is not None and new.start == done:
                done = new.stop
                yield new.start, self.named(step.outputs)

    def named(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results of one launch, by our names, [B, steps, ..]."""
        program = self.executable
        inner = {name: (o, program.outputs[o]) for name, o in program.logs.items()}
        return {
            name: program.compilation.arrange(o, outputs[mine])
            for name, (o, mine) in inner.items()
            if mine in outputs
        }


def write(config: DecoderConfig, form: Form, dtype: str = "f32", backend: str = "jax") -> Written:
    """The program of a form, compiled: it gives `next`, i32[] over (b, t).

    That is UNKNOWN where logits are NaN or inf. As the form asks, it also gives `logprob` f32[] of
    that token, and all `logits` f32[V].
    """
    config = replace(config, layers=tuple(within(layer, form.steps) for layer in config.layers))
    apart = any(isinstance(layer.pattern, Prefix) for layer in config.layers)
    words = ["b", *([] if form.unrolled else ["l"]), *(["p"] if apart else []), "t"]
    ctx = rc.Context(dims=" ".join(words))
    with ctx as pairs:
        axes = dict(zip(words, pairs, strict=True))
        (b, rows), (t, end) = axes["b"], axes["t"]
        P = axes["p"][1] if apart else rc.bound("P")
        prompt = rc.input(rc.i32, (b, axes["p"][0] if apart else t), name="prompt")
        tok = rc.like(rc.i32, domain=(b, t), name="tok")
        model, place, logits, every = decoder(config, form, dtype, axes, prompt, tok, P)
        settings = SamplingInputs(form.kind, b)
        u = None
        if form.kind.drawn:  # by the place in a row: what its neighbors have changes no draw
            u = rc.uniform((b,), (form.steps,)).take(rc.maximum(place, 0))
        seen = seen_of(tok, place, (b, t), config.vocab_size) if form.kind.penalized else None
        follows, steps = choose(logits, settings, u, seen), form.steps
        if form.eos:
            ended = ended_of(tok, form.eos, (b, t), P)
            follows = rc.where(ended, form.pad, follows)
            if form.until:
                steps = rc.until(ended | is_any(follows, form.eos), P - 1, max=form.steps)
        tok[b, t, t < P] = prompt[b, t]
        tok[b, t] = follows[b, t - 1]
        known = logits.max().abs() < LARGEST  # NaN is not, and of one logit all are
        rc.output(next=next_positions(rc.where(known, follows, UNKNOWN), (b, t), P))
        if form.logprobs:
            rc.output(logprob=next_positions(logits.log_softmax().take(follows), (b, t), P))
        if form.logits:
            rc.output(logits=every)
    sizes: dict[Any, object] = {rows: form.rows, end: steps, P: form.prompt}
    if not form.unrolled:
        sizes[axes["l"][1]] = len(config.layers)
    chunk = form.chunk if form.until else form.chunk or CHUNK
    return Written(form, model, settings, ctx.compile(sizes, backend=backend, chunk=chunk))


def decoder(
    config: DecoderConfig,
    form: Form,
    dtype: str,
    axes: Mapping[str, tuple[Any, Any]],
    prompt: Tensor,
    tok: Tensor,
    P: Any,
) -> tuple[Model, Tensor, Tensor, Tensor]:
    """The model over (b, t), the places of tokens in their rows, the logits, those of all of T.

    Where a prompt's positions see later ones, they are over a dim of their own, p < P: none waits
    for a token that is made, and the positions over t take their keys and values from there.
    """
    b, t = axes["b"][0], axes["t"][0]
    pad = rc.input(rc.i32, (b,), name="pad") if form.ragged else None
    place = place_of(t, pad)
    dims = (b, t) if form.unrolled else (b, axes["l"][0], t)
    given = place_of(P, pad)
    if "p" not in axes:
        model = Model(config, dims, place, form.ragged, dtype, None, given)
        logits = model.logits(tok)
        return model, place, logits, logits
    p = axes["p"][0]
    early = Model(config, (*dims[:-1], p), place_of(p, pad), form.ragged, dtype, P, given)
    first = early.logits(prompt)
    late = tuple(
        replace(x, pattern=Causal()) if isinstance(x.pattern, Prefix) else x for x in config.layers
    )
    model = early.after(replace(config, layers=late), dims, place)
    logits = model.logits(tok)
    every = rc.like(logits.type, domain=(b, t))
    every[b, t, t < P] = first[b, t]
    every[b, t] = logits
    return model, place, logits, every


def place_of(t: Any, pad: Tensor | None) -> Tensor:
    """i32[] of position t: of rows that begin later, less."""
    place = rc.value(t, "i32")
    return place if pad is None else place - pad


def next_positions(tensor: Tensor, dims: tuple[Any, Any], P: Any) -> Tensor:
    """The values from position P - 1 on; nobody asks for those before, and they are 0."""
    b, t = dims
    out = rc.like(tensor.type, domain=dims)
    out[b, t, t < P - 1] = rc.constant(0).cast(tensor.type.dtype)
    out[b, t] = tensor
    return out


def within(layer: Layer, steps: int) -> Layer:
    """The same among so many positions: a window that never moves has no sinks before it."""
    pattern = layer.pattern
    if isinstance(pattern, Sinks) and pattern.width >= steps:
        return replace(layer, pattern=Causal())
    numbers = {f.name: min(getattr(pattern, f.name), steps) for f in fields(pattern)}
    return replace(layer, pattern=replace(pattern, **numbers))


def is_any(tok: Tensor, those: Sequence[int]) -> Tensor:
    """bool[]: is it one of them?"""
    hits: list[Tensor] = [tok == token for token in those]
    return reduce(or_, hits)


def ended_of(tok: Tensor, eos: Sequence[int], dims: tuple[Any, Any], P: Any) -> Tensor:
    """bool[] over (b, t): an end was written at or before t; one in the prompt is none."""
    return ever(is_any(tok, eos) & rc.value(dims[1] >= P), dims, "ended")


def seen_of(tok: Tensor, place: Tensor, dims: tuple[Any, Any], size: int) -> Tensor:
    """bool[V] over (b, t): tokens at or before t."""
    return ever((tok.one_hot(size) > 0.0) & (place >= 0), dims, "seen")


def ever(tensor: Tensor, dims: tuple[Any, Any], name: str) -> Tensor:
    """Has it held at or before t, element by element?"""
    # All of it is defined at t = 0, too: a loop whose statements start at one time runs in chunks.
    b, t = dims
    before = rc.like(tensor.type, domain=dims, name=name)
    out = before | tensor
    before[b, 0] = rc.constant(False).broadcast_to(tensor.shape)
    before[b, t + 1] = out
    return out
