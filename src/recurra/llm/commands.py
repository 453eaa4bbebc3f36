"""The commands `recurra llm init` and `recurra generate`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

from tyro.conf import Positional, UseAppendAction

from recurra.errors import RecurraError
from recurra.llm.store_budget import StoreRow


@dataclass(frozen=True)
class Init:
    """Write a folder like those of Hugging Face, with random weights and a tokenizer of bytes.

    Example: recurra llm init --config llama-3.2-1b --tiny models/tiny
    """

    out: Positional[Path]
    """The folder to write."""
    config: str | None = None
    """The model with these sizes: llama-2, llama-3, llama-3.2-1b, llama-3.2-3b, mistral, gemma-2,
    gemma-3, qwen-2 or qwen-3. A tiny llama-3.2-1b if none is named."""
    tiny: bool = False
    """A model of that kind with a few thousand weights; without it, of billions."""
    dtype: Literal["f32", "bf16"] = "f32"
    """Type of the weights."""
    seed: int = 0
    """The seed of the weights."""
    json: bool = False
    """Print what was written as one JSON object."""

    def __call__(self) -> int:
        from recurra.llm.init import init_model

        name, small = self.config, self.tiny
        if name is None:
            name, small = "llama-3.2-1b", True
        c = init_model(name, self.out, small=small, dtype=self.dtype, seed=self.seed)
        size = sum(p.stat().st_size for p in self.out.glob("*.safetensors"))
        if self.json:
            print(json.dumps({"folder": str(self.out), "model": str(c), "bytes": size}))
        else:
            print(f"{self.out}: {c}, {size / 1e6:.1f} MB of random weights")
        return 0


@dataclass(frozen=True)
class Generate:
    """Let a language model continue a text; tokens are shown as they are computed.

    Example: recurra generate --model models/tiny --prompt "Once upon a time" --attention window:64
    """

    model: Path
    """A folder with config.json, *.safetensors and tokenizer.json."""
    prompt: UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """The text; several texts are continued side by side. - reads standard input."""
    attention: str | None = None
    """The attention pattern: causal, window:W, chunk:C, sinks:K+W, dilated:D, prefix:N or linear;
    several, joined by commas, are repeated over the layers. The model's own, if none is named."""
    max_new_tokens: int = 64
    """Tokens at most, of each text."""
    temperature: float = 0.0
    """0 takes the most likely token, more draws with logits divided by it."""
    top_k: int = 0
    """Draw from the k most likely tokens (0: from all)."""
    top_p: float = 1.0
    """Draw from the most likely tokens that have this probability together."""
    min_p: float = 0.0
    """Draw from tokens with at least this fraction of the probability of the most likely one."""
    repetition_penalty: float = 1.0
    """Divides the logits of earlier tokens; above 1 there are fewer repetitions."""
    seed: int = 0
    """The seed of the draws."""
    stop: UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Texts that end a row; they are not shown."""
    eos: UseAppendAction[tuple[tuple[int, ...], ...]] = ()
    """Tokens that end a row (the model's own, if none is named)."""
    logprobs: bool = False
    """Also give the logarithm of every token's probability; with --json."""
    dtype: Literal["f32", "bf16", "i8"] = "f32"
    """Type of the weights in memory: bf16 stores keys and values in 16 bits, too; i8 rounds
    matrices to 8 bits, with a scale per output channel."""
    backend: str = "jax"
    """The library that runs the compiled program: jax, torch or numpy."""
    memory: str | None = None
    """The most bytes of stored keys and values, as 64MiB; a program that needs more is refused."""
    stores: bool = False
    """Show the stores that the compiler derived, on standard error."""
    json: bool = False
    """Print one JSON object at the end, instead of the text as it is computed."""

    def __call__(self) -> int:
        from recurra.llm.generate import Generator, Request
        from recurra.llm.sampling import Sampling
        from recurra.support.byte_units import parse

        if self.logprobs and not self.json:
            raise RecurraError("logprobs are shown as JSON only", hint="--logprobs --json")
        texts = [*chain(*self.prompt)]
        if texts.count("-") > 1:
            raise RecurraError(
                "standard input is one prompt", facts=f"it is named {texts}", hint="--prompt -"
            )
        sampling = Sampling(
            self.repetition_penalty, self.temperature, self.top_k, self.top_p, self.min_p
        )
        memory = None if self.memory is None else parse(self.memory)
        stop, eos = tuple(chain(*self.stop)), tuple(chain(*self.eos)) if self.eos else None
        ask = Request(self.max_new_tokens, sampling, self.seed, stop, eos, self.logprobs, memory)
        prompts = [_standard_input() if p == "-" else p for p in texts]
        g = Generator(self.model, attention=self.attention, dtype=self.dtype, backend=self.backend)
        since = time.perf_counter()
        if self.json:
            done = g.generate(prompts, ask)
            seconds = time.perf_counter() - since
            rows = [
                {"prompt": p, "text": c.text, "tokens": c.tokens, "end": c.end}
                | ({"logprobs": c.logprobs} if self.logprobs else {})
                for p, c in zip(prompts, done, strict=True)
            ]
            *_, program = g.programs.values()
            weights = {"type": self.dtype, "bytes": g.weights.nbytes}
            result = {"rows": rows, "seconds": seconds, "stores": program.stores}
            print(json.dumps(result | {"weights": weights}))
        elif len(prompts) > 1:
            for prompt, c in zip(prompts, g.generate(prompts, ask), strict=True):
                print(f"{prompt}{c.text}")
        else:
            pieces = g.stream(prompts, ask)
            print(*prompts, end="", flush=True)
            for piece in pieces:
                print(piece.text, end="", flush=True)
            print()
        if self.stores:
            *_, program = g.programs.values()
            _show(program.stores)
            print(f"{'weights':<12} {self.dtype:<41} {g.weights.nbytes:>12,} B", file=sys.stderr)
        return 0


def _standard_input() -> str:
    """Standard input as text, without a byte order mark."""
    stdin: TextIO | None = sys.stdin
    if stdin is None or stdin.closed:
        raise RecurraError("there is no standard input", facts="it is closed", hint="--prompt TEXT")
    data = stdin.buffer.read() if hasattr(stdin, "buffer") else stdin.read().encode()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecurraError(
            "standard input is not UTF-8",
            facts=f"byte {error.start} is {data[error.start]:#04x}",
            hint="turn it into UTF-8: iconv -f LATIN1 -t UTF-8",
        ) from None


def _show(rows: Sequence[StoreRow]) -> None:
    """Print the stores, a line each, and their total bytes."""
    for r in rows:
        print(
            f"{r['store']:<12} {r['slots']:<20} {r['shape']:<20} {r['bytes']:>12,}", file=sys.stderr
        )
    print(f"{'total':<54} {sum(r['bytes'] for r in rows):>12,} B", file=sys.stderr)
