"""Decide by the clock if a program's launches go through a window.

    learned → in order ⇄ through the window, in turns → whatever is faster, for a while

A run that ends before the next comparison is in order, as if there were no window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from recurra.cost.thresholds import MAX_STRETCH_LAUNCHES, MIN_STRETCH_LAUNCHES, WINDOW_SLOTS
from recurra.runtime.host_executor import Execution
from recurra.window.ab_trial import WORTH
from recurra.window.gain_model import LEAST_GAIN, GainModel
from recurra.window.thread_pool import ThreadSpan
from recurra.window.timed_stretches import Stretch


@dataclass
class ConcurrencyTrial:
    """The measurements of a program's runs on so many threads; str() tells how launches run."""

    threads: int
    stretch: Stretch
    seconds: float = inf  # of the last run
    _taken: threading.Lock = field(default_factory=threading.Lock)

    def ends_before_comparison(self) -> bool:
        """Will a run in order be over before the next comparison is due?"""
        trial = self.stretch.judgment.trial
        off = self.stretch.runs_in_order and not trial.examining
        return off and time.perf_counter() + self.seconds < trial.until

    @contextmanager
    def continued(self) -> Generator[Stretch]:
        """Continue the stretch for one run; concurrent runs of other threads get their own."""
        if not self._taken.acquire(blocking=False):
            yield _stretch(GainModel(self.threads, WINDOW_SLOTS))
            return
        since = time.perf_counter()
        try:
            self.stretch.resume()
            yield self.stretch
            self.stretch.pause()
            self.seconds = time.perf_counter() - since
        except BaseException:
            self.stretch = _stretch(self.stretch.judgment)
            raise
        finally:
            self._taken.release()

    def __str__(self) -> str:
        judgment = self.stretch.judgment
        trial, predicted = judgment.trial, judgment.predicted
        window = f"through a window of {self.threads} threads"
        if predicted is None:
            return f"{window}, to learn what launches take"
        if trial.examining:
            return f"{window} and in order, in turns, to see which is faster"
        if not self.stretch.runs_in_order:
            return f"{window}, at best {trial.gain:.2f} times as fast as in order at best"
        why = f"{window} they were at best {trial.gain:.2f} times as fast"
        if trial.gain >= WORTH:
            why = f"{window} they were faster in few of the stretches"
        if predicted < LEAST_GAIN:
            why = f"{window} they would be {predicted:.2f} times as fast at best"
        rest = max(0.0, trial.until - time.perf_counter())
        return f"in order, since {why}; looked at again in {rest:.2g} s"


@dataclass(frozen=True)
class RunLaunches:
    """The execution of one run; `how` its launches run in words, and when each ran in a window."""

    execution: Execution
    how: ConcurrencyTrial | str = ""
    spans: Collection[ThreadSpan] = ()


def new_trial(threads: int) -> ConcurrencyTrial:
    """Return the judgment of a program that has not run yet."""
    return ConcurrencyTrial(threads, _stretch(GainModel(threads, WINDOW_SLOTS)))


def _stretch(judgment: GainModel) -> Stretch:
    return Stretch(judgment, MIN_STRETCH_LAUNCHES, MAX_STRETCH_LAUNCHES)
