"""The gain model: durations of kernels → whether the next launches go through the window."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from recurra.window.ab_trial import Trial
from recurra.window.list_schedule import gain
from recurra.window.task import Task, WindowError

NEW = 0.3  # the weight of the newest measurement
TINY = 20e-6  # s: shorter kernels run in the thread that launches them, if they are ready
OVERHEAD = 25e-6  # s: of a launch through the window; `recurra bench window` measures it
LEAST_GAIN = 1.1  # below it the window is off
SAMPLE, MOST = 64, 256  # launches of a stretch: at least, and at most if nothing waits
SOON = 5  # times TINY: longer kernels go to workers, however long these take to wake


def check_policy(policy: str, known: Sequence[str]) -> None:
    """Raise WindowError for an unknown policy."""
    if policy not in known:
        raise WindowError(f"policy {policy!r}", facts=f"it is one of {', '.join(known)}")


@dataclass(frozen=True)
class Outside:
    """The kind of the program's own work between launches."""

    name: str


class Durations:
    """Moving averages of seconds by kind of launch."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def record(self, kind: Hashable, seconds: float) -> None:
        before = self._seconds.get(kind, seconds)
        self._seconds[kind] = before + NEW * (seconds - before)

    def expect(self, kind: Hashable) -> float | None:
        """Return the expected seconds of a kind of kernel; None for an unknown one."""
        return self._seconds.get(kind)

    def rows(self) -> list[dict[str, object]]:
        """Return the durations as rows of a table."""
        return [{"kernel": str(k), "µs": round(1e6 * s, 1)} for k, s in self._seconds.items()]


class GainModel:
    """Decides from measurements how the next launches run.

    A first stretch goes through the window. If its list schedule shows that the window cannot pay,
    it is off; otherwise a `Trial` decides.
    """

    def __init__(self, threads: int, slots: int):
        self.threads, self.slots = threads, slots
        self.durations = Durations()
        self.trial = Trial()
        self.predicted: float | None = None  # the gain of the first stretch
        self.wake_seconds = 0.0  # latency of a sleeping thread
        self._weights: dict[Hashable, float] = {}  # constant during a trial

    def is_tiny(self, kind: Hashable) -> bool:
        """Return whether a worker costs more than running such a kernel in place."""
        expected = self.durations.expect(kind)
        return expected is not None and expected < max(TINY, min(self.wake_seconds, SOON * TINY))

    def record_wake_up(self, seconds: float) -> None:
        """Record the latency of a sleeping thread, with outliers capped."""
        self.wake_seconds += NEW * (min(seconds, 2 * self.wake_seconds + TINY) - self.wake_seconds)

    def is_large(self, kind: Hashable) -> bool:
        """Return whether the duration of a kind is known and worth more than one thread."""
        return self.durations.expect(kind) is not None and not self.is_tiny(kind)

    def next(self, now: float) -> bool:
        """Return whether the next stretch goes through the window."""
        before = self.trial.examining
        on = self.predicted is None or self.trial.next(now)
        if self.trial.examining and not before:
            self._weights.clear()
        return on

    def record_stretch(
        self, on: bool, seconds: float, launched: Sequence[tuple[Task, Hashable]], now: float
    ) -> None:
        """Record the duration of a stretch of these launches."""
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
