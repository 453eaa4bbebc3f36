"""Text generation as one program over (b, l, t): the token of each position, and the end of rows.

    tok[b, t < P] = prompt;   tok[b, t] = next[b, t - 1];   next = choose(logits(tok))

Prompts have P positions; shorter ones begin at position pad[b], and the place of position t in its
row is t - pad[b]. The token of position t is tok[b, t]; the one after it is next[b, t].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.llm.config import DecoderConfig, Layer
from recurra.llm.model import Model
from recurra.llm.patterns import Causal, Prefix, Sinks
from recurra.llm.sampling import LARGEST, Sampling, SamplingInputs, SamplingStages, choose
from recurra.llm.store_budget import StoreRow
from recurra.llm.weights import Weights
from recurra.report.html import code, folds_html, table

if TYPE_CHECKING:
    from recurra import Tensor
    from recurra.runtime.executable import Executable


UNKNOWN = -1  # the next token where logits are NaN or inf
CHUNK = 16  # steps of a launch of programs that do not end by themselves


@dataclass(frozen=True)
class Form:
    """The static properties of a program, which is compiled once for each form."""

    rows: int
    prompt: int  # positions, P
    steps: int  # T: the tokens at P .. T are generated
    kind: SamplingStages = field(default_factory=SamplingStages)
    ragged: bool = False
    logprobs: bool = False
    logits: bool = False  # output those of every position: [B, T, V]
    unrolled: bool = True
    until: bool = False  # a launch ends with the last row, by `eos`
    chunk: int | None = None  # steps of a launch (None: by their cost)
    eos: tuple[int, ...] = ()
    pad: int = 0


@dataclass(frozen=True)
class DecoderProgram:
    """A compiled program, and the model and settings that its inputs belong to."""

    form: Form
    model: Model
    settings: SamplingInputs
    executable: Executable

    def inputs(
        self, weights: Weights, prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> dict[str, np.ndarray]:
        """The inputs for prompts, all of which end at P."""
        form = self.form
        length = form.prompt if self.has_prompt_dim else form.steps
        tokens = np.full((form.rows, length), form.pad, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, form.prompt - len(prompt) : form.prompt] = prompt
        out = {"prompt": tokens, **self.model.arrays(weights), **self.settings.arrays(sampling)}
        if form.ragged:
            out["pad"] = np.array([form.prompt - len(p) for p in prompts], np.int32)
        return out

    @property
    def has_prompt_dim(self) -> bool:
        """Tell whether a prompt's positions are over a dim of their own."""
        return self.model.before is not None

    @property
    def stores(self) -> Sequence[StoreRow]:
        """The stores of the past, a row each: k_3, its slots, bytes."""
        stores = self.executable.compiled.plan.stores
        inputs = {s.name for s in stores.values() if s.given}
        rows = self.executable.store_rows
        return [r for r in rows if r["store"] not in inputs and r["class"] != "output"]

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
        """Yield (first position, results from there on [B, n, ..]) of each launch, as it ends.

        Results that no launch yields, such as all of a program that is a single launch, or
        positions of a loop before or after the others, come last; if rows end before, only those
        they have.
        """
        outputs = [self.executable.outputs[o] for o in self.executable.logs.values()]
        steps, done = self.executable.execution.steps(seed, inputs=inputs), 0
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                rest = {name: x[:, done:] for name, x in self.by_name(end.value).items()}
                if next(iter(rest.values())).shape[1]:
                    yield done, rest
                return
            points = {step.points.get(o) for o in outputs}
            if len(points) == 1 and (new := points.pop()) is not None and new.start == done:
                done = new.stop
                yield new.start, self.by_name(step.outputs)

    def by_name(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results of a launch by their names in `rc.output`, [B, steps, ..]."""
        program = self.executable
        return {
            name: program.compilation.arrange(o, outputs[inner])
            for name, o in program.logs.items()
            if (inner := program.outputs[o]) in outputs
        }


def write(
    config: DecoderConfig, form: Form, dtype: str = "f32", backend: str = "jax"
) -> DecoderProgram:
    """Compile the program of a form, whose output is `next`, i32[] over (b, t).

    It is UNKNOWN where logits are NaN or inf. Depending on the form, `logprob`, f32[] of that
    token, and all `logits`, f32[V], are outputs, too.
    """
    config = replace(
        config, layers=tuple(clamp_pattern(layer, form.steps) for layer in config.layers)
    )
    has_prefix = any(isinstance(layer.pattern, Prefix) for layer in config.layers)
    words = ["b", *([] if form.unrolled else ["l"]), *(["p"] if has_prefix else []), "t"]
    ctx = rc.Context(dims=" ".join(words))
    with ctx as pairs:
        axes = dict(zip(words, pairs, strict=True))
        (b, rows), (t, end) = axes["b"], axes["t"]
        P = axes["p"][1] if has_prefix else rc.bound("P")
        prompt = rc.input(rc.i32, (b, axes["p"][0] if has_prefix else t), name="prompt")
        tok = rc.like(rc.i32, domain=(b, t), name="tok")
        model, place, logits, every = decoder(config, form, dtype, axes, prompt, tok, P)
        settings = SamplingInputs(form.kind, b)
        u = None
        if form.kind.drawn:  # by the place in a row: draws do not depend on other rows
            u = rc.uniform((b,), (form.steps,)).take(rc.maximum(place, 0))
        seen = history_mask(tok, place, (b, t), config.vocab_size) if form.kind.penalized else None
        follows, steps = choose(logits, settings, u, seen), form.steps
        if form.eos:
            ended = finished_mask(tok, form.eos, (b, t), P)
            follows = rc.where(ended, form.pad, follows)
            if form.until:
                steps = rc.until(ended | is_any(follows, form.eos), P - 1, max=form.steps)
        tok[b, t, t < P] = prompt[b, t]
        tok[b, t] = follows[b, t - 1]
        known = logits.max().abs() < LARGEST  # NaN is not, and spreads to the maximum
        rc.output(next=next_positions(rc.where(known, follows, UNKNOWN), (b, t), P))
        if form.logprobs:
            rc.output(logprob=next_positions(logits.log_softmax().take(follows), (b, t), P))
        if form.logits:
            rc.output(logits=every)
    sizes: dict[Any, object] = {rows: form.rows, end: steps, P: form.prompt}
    if not form.unrolled:
        sizes[axes["l"][1]] = len(config.layers)
    chunk = form.chunk if form.until else form.chunk or CHUNK
    return DecoderProgram(
        form, model, settings, ctx.compile(sizes, backend=backend, launch_steps=chunk)
    )


def decoder(
    config: DecoderConfig,
    form: Form,
    dtype: str,
    axes: Mapping[str, tuple[Any, Any]],
    prompt: Tensor,
    tok: Tensor,
    P: Any,
) -> tuple[Model, Tensor, Tensor, Tensor]:
    """The model over (b, t), the places of tokens in their rows, the logits, and those of all t.

    If a prompt's positions attend to later ones, they are over a dim of their own, p < P, which
    does not wait for generated tokens; the positions over t read their keys and values.
    """
    b, t = axes["b"][0], axes["t"][0]
    pad = rc.input(rc.i32, (b,), name="pad") if form.ragged else None
    place = positions_of(t, pad)
    dims = (b, t) if form.unrolled else (b, axes["l"][0], t)
    length = positions_of(P, pad)
    if "p" not in axes:
        model = Model(config, dims, place, form.ragged, dtype, None, length)
        logits = model.logits(tok)
        return model, place, logits, logits
    p = axes["p"][0]
    early = Model(config, (*dims[:-1], p), positions_of(p, pad), form.ragged, dtype, P, length)
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


def positions_of(t: Any, pad: Tensor | None) -> Tensor:
    """The place of position t in its row, i32[]."""
    place = rc.value(t, "i32")
    return place if pad is None else place - pad


def next_positions(tensor: Tensor, dims: tuple[Any, Any], P: Any) -> Tensor:
    """The values from position P - 1 on, and 0 before, where nothing is computed."""
    b, t = dims
    out = rc.like(tensor.type, domain=dims)
    out[b, t, t < P - 1] = rc.constant(0).cast(tensor.type.dtype)
    out[b, t] = tensor
    return out


def clamp_pattern(layer: Layer, steps: int) -> Layer:
    """The layer with a pattern for so many positions: sinks and a window of all are causal."""
    pattern = layer.pattern
    if isinstance(pattern, Sinks) and pattern.width >= steps:
        return replace(layer, pattern=Causal())
    numbers = {f.name: min(getattr(pattern, f.name), steps) for f in fields(pattern)}
    return replace(layer, pattern=replace(pattern, **numbers))


def is_any(tok: Tensor, tokens: Sequence[int]) -> Tensor:
    """bool[]: true if `tok` is one of the tokens."""
    hits: list[Tensor] = [tok == token for token in tokens]
    return reduce(or_, hits)


def finished_mask(tok: Tensor, eos: Sequence[int], dims: tuple[Any, Any], P: Any) -> Tensor:
    """bool[] over (b, t): true if an end token is at or before t, not counting the prompt."""
    return cumulative_any(is_any(tok, eos) & rc.value(dims[1] >= P), dims, "ended")


def history_mask(tok: Tensor, place: Tensor, dims: tuple[Any, Any], size: int) -> Tensor:
    """bool[V] over (b, t): the tokens at or before t."""
    return cumulative_any((tok.one_hot(size) > 0.0) & (place >= 0), dims, "seen")


def cumulative_any(tensor: Tensor, dims: tuple[Any, Any], name: str) -> Tensor:
    """Tell whether a condition held at or before t, element by element."""
    # All of it is defined at t = 0, so that the loop's statements start together and run in chunks.
    b, t = dims
    before = rc.like(tensor.type, domain=dims, name=name)
    out = before | tensor
    before[b, 0] = rc.constant(False).broadcast_to(tensor.shape)
    before[b, t + 1] = out
    return out
