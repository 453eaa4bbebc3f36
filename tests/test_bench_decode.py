"""Decoders written by hand and ours make the same tokens, with and without a window."""

from __future__ import annotations

import pytest

from recurra.bench.decode.memory import held
from recurra.bench.decode.ours import ours
from recurra.bench.decode.suite import peers
from recurra.bench.decode.work import LAUNCH, STEPS, Work
from recurra.bench.harness import check

SMALL = dict(L=2, D=32, H=4, KV=2, HD=8, F=48, V=61)


@pytest.mark.parametrize(("B", "window"), [(1, 0), (2, 8)])
def test_all_make_the_same_tokens(B: int, window: int) -> None:
    work = Work(B, 160, window, **SMALL)
    us = ours(work)
    answer = us.answer()
    assert answer["tokens"].shape == (B, STEPS)
    assert len(set(answer["tokens"].ravel())) > 3
    for peer in peers(work):
        assert check((us, answer), (peer, peer.answer()), 1e-4) == "exact"


def test_they_run_on_from_the_prompt() -> None:
    work = Work(1, 160, **SMALL)
    for contestant in (ours(work), *peers(work)):
        contestant.run(2 * LAUNCH)
        contestant.run(LAUNCH)


def test_what_is_held_is_keys_values_and_little_that_does_not_grow() -> None:
    sizes = {**SMALL, "L": 1, "D": 64, "H": 8, "KV": 8}
    short, long = held(Work(1, 1024, **sizes)), held(Work(1, 2048, **sizes))
    assert (short.kept, long.kept) == (short.least, long.least)
    assert long.temporary == short.temporary
    window = held(Work(1, 1024, 8, **sizes))
    assert window.kept == 2 * window.least == 2 * 2 * 8 * 8 * 8 * 4
