"""The gain model: kernels' times → whether, and how, it pays to run them side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from recurra.window.ab_trial import Trial
from recurra.window.list_schedule import gain
from recurra.window.task import Task, WindowError

NEW = 0.3  # the weight of the newest measurement
TINY = 20e-6  # s: what takes less is run by the thread that launches it, if nothing holds it up
OVERHEAD = 25e-6  # s: of a launch through the window; `recurra bench window` measures it
LEAST_GAIN = 1.1  # below it the window is off
SAMPLE, MOST = 64, 256  # launches of a stretch: at least, and if nobody waits for them
SOON = 5  # times TINY: what takes longer is handed over, however long that takes


def check_policy(policy: str, known: Sequence[str]) -> None:
    """Raises WindowError for a word that says nothing of when the window is on."""
    if policy not in known:
        raise WindowError(f"policy {policy!r}", facts=f"it is one of {', '.join(known)}")


@dataclass(frozen=True)
class Outside:
    """The kind of what the program does itself, between launches."""

    name: str


class Durations:
    """Seconds by kind of launch; the newest measurements count most."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def learn(self, kind: Hashable, seconds: float) -> None:
        """One more measurement."""
        before = self._seconds.get(kind, seconds)
        self._seconds[kind] = before + NEW * (seconds - before)

    def expect(self, kind: Hashable) -> float | None:
        """The expected seconds of a kind of kernel; None if it was never seen."""
        return self._seconds.get(kind)

    def rows(self) -> list[dict[str, object]]:
        """The durations, as rows of a table."""
        return [{"kernel": str(k), "µs": round(1e6 * s, 1)} for k, s in self._seconds.items()]


class Judgment:
    """Decides, from what was learned, how the next launches run.

    A first stretch goes through the window, and is all that is needed where list scheduling of it
    shows that it cannot pay. Else a `Trial` decides.
    """

    def __init__(self, threads: int, slots: int):
        self.threads, self.slots = threads, slots
        self.durations = Durations()
        self.trial = Trial()
        self.predicted: float | None = None  # the gain of the first stretch
        self.wake = 0.0  # s: until a sleeping thread has begun
        self._weights: dict[Hashable, float] = {}  # the same for all stretches of an examination

    def tiny(self, kind: Hashable) -> bool:
        """Would handing it to a thread cost more than running it in place?"""
        expected = self.durations.expect(kind)
        return expected is not None and expected < max(TINY, min(self.wake, SOON * TINY))

    def woke(self, seconds: float) -> None:
        """A sleeping thread took so long to begin; one that was disturbed counts little."""
        self.wake += NEW * (min(seconds, 2 * self.wake + TINY) - self.wake)

    def large(self, kind: Hashable) -> bool:
        """Is its duration known, and worth more than one thread?"""
        return self.durations.expect(kind) is not None and not self.tiny(kind)

    def next(self, now: float) -> bool:
        """Does the next stretch go through the window?"""
        before = self.trial.examining
        on = self.predicted is None or self.trial.next(now)
        if self.trial.examining and not before:
            self._weights.clear()
        return on

    def ended(
        self, on: bool, seconds: float, launched: Sequence[tuple[Task, Hashable]], now: float
    ) -> None:
        """A stretch of these launches took so long."""
        if self.predicted is None:
            self._predict(launched, now)
        else:
            self.trial.done(on, seconds, sum(self._weight(kind) for _, kind in launched), now)

    def _predict(self, launched: Sequence[tuple[Task, Hashable]], now: float) -> None:
        tasks, kinds = [task for task, _ in launched], [kind for _, kind in launched]
        outside = [isinstance(kind, Outside) for kind in kinds]
        seconds = [self._weight(kind) for kind in kinds]
        self.predicted = gain(tasks, seconds, self.threads, OVERHEAD, self.slots, outside)
        self._weights.clear()
        if self.predicted < LEAST_GAIN:
            self.trial.refuse(now)

    def _weight(self, kind: Hashable) -> float:
        return self._weights.setdefault(kind, self.durations.expect(kind) or TINY)
