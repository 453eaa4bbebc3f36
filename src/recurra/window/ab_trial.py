"""An A/B trial, by the clock, of a program with and without the window.

    off on off on → off is 1.3 times faster → off for 20 times as long → off on off on → off → ..

A prediction does not know the costs, on this machine and at this moment, of waking a thread or of
deferring an operator. So stretches of the program run both ways, and the least time per work of
each counts, since disturbances only lengthen a stretch. The window must also be faster than the
stretch before it, two times out of three. Fewer stretches decide that it is slower than that it is
faster. The same verdict again doubles the pause until the next trial; the time lost in a trial is
at most a fiftieth of the pause after it.

The native trial (native/trial.hpp) does the same for PyTorch's operators; this is its oracle.
"""

from __future__ import annotations

import math

LEAST, MOST = 2, 6  # stretches each way
ALIKE = 3  # stretches with the window that suffice if all won clearly, or most lost
CLEAR, WORTH = 1.15, 1.04  # factors: a clear difference; a gain for which the window is on
HOPELESS = 1.5  # times slower: one stretch each way suffices
PAUSE = {False: 20, True: 8}  # times the duration of a trial, by its verdict
LOSS = 50  # times the time lost in a trial
FIRST = {False: 0.5, True: 0.1}  # seconds: the least pause, by the verdict
LONGEST, DOUBLINGS = 600.0, 4096.0  # seconds; times the first pause


class Trial:
    """The trial of one program. Times are in seconds; work is in any unit."""

    def __init__(self) -> None:
        self.examining = True
        self.gain = 0.0  # of the window, in the last trial
        self.until = 0.0
        self._verdict = self._decided = False
        self._doubling = 1.0
        self._restart()

    def next(self, now: float) -> bool:
        """Return whether the next stretch goes through the window."""
        if not self.examining and now >= self.until:
            self._restart()
        if not self.examining:
            return self._verdict
        return self._count[True] < self._count[False]

    def done(self, on: bool, seconds: float, work: float, now: float) -> None:
        """Record a stretch that took so many seconds for so much work."""
        rate = seconds / work
        if not self.examining:
            self._watch(on, rate, now)
            return
        self._count[on] += 1
        self._best[on] = min(self._best[on], rate)
        self._spent += seconds
        if on:
            self._lost += max(0.0, seconds - work * self._best[False])
            self._won += rate < self._last_off
        else:
            self._last_off = rate
        if self._count[True] != self._count[False]:
            return
        self.gain = self._best[False] / self._best[True]
        if self._count[True] < LEAST:
            if self.gain * HOPELESS < 1:
                self._decide(False, now)
            return
        mostly = 3 * self._won >= 2 * self._count[True]
        never = not mostly and self._count[True] >= ALIKE and self.gain < 1
        surely = ALIKE <= self._count[True] == self._won and self.gain >= CLEAR
        if self.gain * CLEAR < 1 or never or surely or self._count[True] == MOST:
            self._decide(self.gain >= WORTH and mostly, now)

    def refuse(self, now: float) -> None:
        """Turn the window off without a trial."""
        self._decide(False, now)

    def _watch(self, on: bool, rate: float, now: float) -> None:
        """Restart the trial if the window is slower than without it, twice in a row."""
        slow = on and self._verdict and rate * WORTH > self._best[False]
        self._slow = self._slow + 1 if slow else 0
        if self._slow >= 2:
            self.until = now

    def _restart(self) -> None:
        self.examining = True
        self._count = {True: 0, False: 0}
        self._best = {True: math.inf, False: math.inf}
        self._slow = self._won = 0
        self._last_off = 0.0
        self._spent = self._lost = 0.0

    def _decide(self, verdict: bool, now: float) -> None:
        again = self._decided and verdict == self._verdict
        self._doubling = min(2 * self._doubling, DOUBLINGS) if again else 1.0
        lost = 0.0 if verdict else self._lost
        pause = max(PAUSE[verdict] * self._doubling * self._spent, LOSS * lost)
        self.until = now + min(max(pause, FIRST[verdict] * self._doubling), LONGEST)
        self._verdict, self._decided, self.examining = verdict, True, False
