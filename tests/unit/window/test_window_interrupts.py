"""Ctrl-C in a block of PyTorch's operators, at any moment: nothing of the block is left behind."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import eval_frame

from built import FOLDER
from random_torch import bits
from recurra.window.native.native_build import TORCH
from recurra.window.native.native_window import load
from recurra.window.torch.concurrent import EXPORTERS, READERS, SETTERS, concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
]
REPLACED = [*((torch.Tensor, name) for name in READERS), *EXPORTERS, *SETTERS]
X = torch.randn(120, 120, generator=torch.Generator().manual_seed(0)) / 11


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """Raise KeyboardInterrupt in so many seconds; 0: not any more.

    A signal that another thread takes may come after its timer was stopped: it raises nothing.
    """
    armed = False

    def ring(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    def interrupt(seconds: float) -> None:
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, ring)
    yield interrupt
    interrupt(0)
    signal.signal(signal.SIGALRM, before)


def program() -> torch.Tensor:
    x = X
    for _ in range(8):
        x = torch.tanh(torch.mm(x, X))
    return x


def defers() -> None:
    with concurrent(2, policy="always") as block:
        for _ in range(3):
            torch.mm(X, X)
    assert block.counts["deferred"]


@pytest.mark.parametrize(("policy", "rounds"), [("always", 0), ("always", 3), ("learn", 3)])
def test_nothing_is_left_of_a_block_that_was_interrupted(
    interrupt: Callable[[float], None], policy: Any, rounds: int
) -> None:
    """Where a block has no operators, what begins and ends it is interrupted."""
    dice = random.Random(rounds)
    expected = bits([program()])
    module = load(FOLDER, TORCH)
    before = [getattr(owner, name) for owner, name in REPLACED]
    stance = eval_frame._stance  # pyright: ignore
    interrupted = 0
    for _ in range(150):
        results: list[torch.Tensor] = []
        try:
            try:
                interrupt(1e-6 + dice.random() * (0.003 if rounds else 0.0004))
                with concurrent(2, 16, policy=policy):
                    for _ in range(rounds):
                        results.append(program())
            finally:
                interrupt(0)
        except KeyboardInterrupt:
            interrupted += 1
        assert all(bits([y]) == expected for y in results)
        assert [getattr(owner, name) for owner, name in REPLACED] == before
        assert module.functions_replaced() == 0
        assert eval_frame._stance == stance  # pyright: ignore
        defers()
    assert interrupted > 10
