"""Our decoder as `recurra generate` runs it: the prompt at once, then several tokens a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode.workload import LAUNCH, STEPS, Work
from benchmarks.harness import Contestant
from recurra.llm.program import DecoderProgram, Form, write


def written(
    work: Work, logprobs: bool, unrolled: bool = True, backend: str = "jax"
) -> DecoderProgram:
    form = Form(work.B, work.prompt, work.T, logprobs=logprobs, chunk=LAUNCH, unrolled=unrolled)
    return write(work.config, form, backend=backend)


def inputs(work: Work, program: DecoderProgram) -> dict[str, NDArray[Any]]:
    weights = work.weights
    named = {
        key: weights[name] if at is None else weights[name][at]
        for key, (name, at) in program.model.inputs.items()
    }
    return {"prompt": work.tokens, **named}


def launches(
    work: Work, logprobs: bool, backend: str
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """What launches make from the end of the prompt on, and where they start."""
    program = written(work, logprobs, backend=backend)
    for lo, made in program.launches(0, inputs(work, program)):
        if lo + LAUNCH > work.prompt - 1:
            yield lo, made


def contestant(work: Work) -> Contestant:
    """The compiled program as a contestant."""
    return on(work, "jax", "ours")


def contestant_on_torch(work: Work) -> Contestant:
    """The same on PyTorch, where attention is a call of its kernel."""
    return on(work, "torch", "ours on PyTorch")


def on(work: Work, backend: str, name: str) -> Contestant:
    running: Iterator[Any] | None = None

    def run(index: int) -> Any:
        nonlocal running
        if running is None:
            running = launches(work, False, backend)
        return [next(running) for _ in range(-(-index // LAUNCH))]

    def answer() -> Mapping[str, NDArray[Any]]:
        made: dict[str, list[NDArray[Any]]] = {"next": [], "logprob": []}
        first = None
        for lo, one in launches(work, True, backend):
            first = lo if first is None else first
            for name, parts in made.items():
                parts.append(one[name])
            if sum(x.shape[1] for x in made["next"]) >= STEPS + LAUNCH:
                break
        assert first is not None
        skip = work.prompt - 1 - first
        whole = {n: np.concatenate(x, axis=1)[:, skip : skip + STEPS] for n, x in made.items()}
        return {"tokens": whole["next"], "logprob": whole["logprob"]}

    return Contestant(name, run, answer)
