"""How many random programs were run adds up over seeds, and over the processes of one run."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

import fuzzing


def test_a_seed_that_ran_twice_counts_once(tmp_path: Path) -> None:
    runs = [
        ("a", 1, "x", 5),
        ("a", 1, "x", 4),
        ("a", 1, "y", 7),
        ("a", 2, "z", 1),
        ("b", 1, "x", 2),
    ]
    names = ("test", "seed", "run", "programs")
    kept = tmp_path / "fuzz.jsonl"
    assert fuzzing.counts(kept) == {}
    kept.write_text("".join(json.dumps(dict(zip(names, r, strict=True))) + "\n" for r in runs))
    assert fuzzing.counts(kept) == {"a": (10, 2), "b": (2, 1)}


def test_all_seeds_are_checked_and_those_that_are_wrong_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzzing, "ran", ran := fuzzing.Counter[str]())
    seen: list[int] = []

    def check(seed: int) -> None:
        seen.append(seed)
        assert seed % 3 != 2, "wrong"

    with pytest.raises(ExceptionGroup) as found:
        fuzzing.each(range(6), check)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert [e.__notes__ for e in found.value.exceptions] == [["seed 2"], ["seed 5"]]
    assert list(ran.values()) == [2]  # up to the first that is wrong


def test_a_program_has_so_many_seconds_of_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {signal.ITIMER_PROF: 0.05, signal.ITIMER_REAL: 60.0}
    monkeypatch.setattr(fuzzing, "TIMERS", limits)
    monkeypatch.setattr(fuzzing, "ran", fuzzing.Counter[str]())
    monkeypatch.setattr(fuzzing, "failed", set[str]())

    def endless(_: int) -> None:
        while True:
            pass

    fuzzing.each([1], lambda _: time.sleep(0.1))  # a busy machine is no fault of the program's
    with pytest.raises(ExceptionGroup) as found:
        fuzzing.each([2], endless)
    assert isinstance(found.value.exceptions[0], TimeoutError)
