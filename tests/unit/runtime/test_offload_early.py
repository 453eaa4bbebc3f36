"""Samples of offloaded stores that are taken before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_offload_samples import MOVED, learner

from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.runtime.offload.paged_buffer import Mover, Paged
from recurra.runtime.offload.tiers import HostTier

Numbers = np.ndarray


@pytest.fixture
def store() -> Iterator[Paged]:
    """Eight points of four numbers, two of them in memory."""
    mover, backend = Mover(), NumpyBackend()
    s = Paged("o", 8, 2, (4,), np.dtype("f4"), HostTier(backend), backend, mover)
    mover.stores.append(s)
    for k in range(8):
        room = s.empty(k)
        room[:] = k
        s[k] = room
    yield s
    mover.close()


def taking(s: Paged, numbers: Numbers, asked: list[str], who: str) -> Callable[[], np.ndarray]:
    def take() -> np.ndarray:
        asked.append(who)
        return s.rows(numbers, np.zeros(len(numbers), int), 1)

    return take


def early(
    s: Paged, numbers: Numbers, asked: list[str], before: Callable[[], Numbers | None]
) -> None:
    take = taking(s, numbers, asked, "early")
    s.take_early("call", lambda: (numbers, take()), before)


def asked_for(s: Paged, numbers: Numbers, asked: list[str]) -> list[float]:
    return s.samples("call", taking(s, numbers, asked, "late"), numbers).tolist()


def test_what_was_taken_early_is_not_taken_again(store: Paged) -> None:
    asked = list[str]()
    early(store, np.array([5, 1, 7]), asked, lambda: None)
    assert asked_for(store, np.array([5, 1, 7]), asked) == [5, 1, 7]
    assert asked == ["early"]


def test_other_numbers_are_taken_when_asked_for(store: Paged) -> None:
    asked = list[str]()
    early(store, np.array([5, 1, 7]), asked, lambda: None)
    assert asked_for(store, np.array([5, 2, 7]), asked) == [5, 2, 7]
    assert asked == ["early", "late"]
    assert asked_for(store, np.array([5, 1, 7]), asked) == [5, 1, 7]
    assert asked == ["early", "late", "late"]


def test_a_point_that_is_written_is_seen(store: Paged) -> None:
    asked = list[str]()
    early(store, np.array([3, 4]), asked, lambda: None)
    room = store.writable(3)
    room[:] = 30
    store[3] = room
    assert asked_for(store, np.array([3, 4]), asked) == [30, 4]
    assert asked == ["early", "late"]


def test_a_point_that_is_read_changes_nothing(store: Paged) -> None:
    asked = list[str]()
    early(store, np.array([3, 4]), asked, lambda: None)
    assert store[0].tolist() == [0, 0, 0, 0]
    assert asked_for(store, np.array([3, 4]), asked) == [3, 4]
    assert asked == ["early"]


def test_it_waits_until_those_before_are_let_go_of(store: Paged) -> None:
    asked, held = list[str](), [np.ones(1)]
    early(store, np.array([6]), asked, lambda: held[0] if held else None)
    assert not store.early["call"].made.done()
    assert asked == []
    held.clear()
    assert store.early["call"].made.result()[1].tolist() == [6]


def test_it_waits_no_longer_than_it_may(store: Paged) -> None:
    """Who asks, or wants a point, or ends the run, does not wait for what is held."""
    asked, held = list[str](), np.ones(1)
    early(store, np.array([6]), asked, lambda: held)
    assert asked_for(store, np.array([6]), asked) == [6]
    early(store, np.array([6]), asked, lambda: held)
    assert store[2].tolist() == [2, 2, 2, 2]
    store.drop()
    early(store, np.array([6]), asked, lambda: held)
    with ThreadPoolExecutor(1) as other:
        other.submit(store.mover.close).result(timeout=60)


def test_what_fails_early_is_told_when_asked_for(store: Paged) -> None:
    def fails() -> tuple[np.ndarray, np.ndarray]:
        raise OSError(5, "Input/output error")

    store.take_early("call", fails, lambda: None)
    store.finish_samples()
    with pytest.raises(OSError, match="Input/output error"):
        asked_for(store, np.array([6]), [])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_all_but_the_first_of_an_iteration_are(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    real = Paged.samples

    def seen(
        s: Paged, call: str, take: Callable[[], np.ndarray], numbers: np.ndarray
    ) -> np.ndarray:
        known = s.early.get(call)
        found.append(known is not None)
        assert known is None or (known.wanted.set() or known.made.result()[0] == numbers).all()
        return real(s, call, take, numbers)

    monkeypatch.setattr(Paged, "samples", seen)
    learner(backend, offload=MOVED).run(seed=1)
    assert found == ([False] + [True] * 5) * 3  # epochs of minibatches, of three iterations
