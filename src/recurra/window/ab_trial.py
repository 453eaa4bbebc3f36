"""Decide by the clock if the window pays: both ways in turns, then the better one for a while.

    off on off on → off is 1.3 times faster → off for 20 times as long → off on off on → off → ..

A prediction knows nothing of what it costs, on this machine and at this moment, to wake a thread or
to take an operator aside. So stretches of the program are run either way, and the least time per
work of each counts: what disturbs a stretch makes it longer, never shorter. The window must also be
faster than the stretch before it, two times out of three. That it is slower is believed sooner than
that it is faster. The same answer again doubles the pause; what trying has lost is at most a
fiftieth of the pause that follows.

The native one (native/trial.hpp) does the same for PyTorch's operators; this is its oracle.
"""

from __future__ import annotations

import math

LEAST, MOST = 2, 6  # stretches each way
ALIKE = 3  # with the window: all won, clearly, or most of them lost, and the best: no more
CLEAR, WORTH = 1.15, 1.04  # times slower or faster: clearly; times faster: the window is on
HOPELESS = 1.5  # times slower: one stretch each way is enough
PAUSE = {False: 20, True: 8}  # times what an examination took: on is doubted sooner than off
LOSS = 50  # times what it lost
FIRST = {False: 0.5, True: 0.1}  # seconds
LONGEST, DOUBLINGS = 600.0, 4096.0  # seconds; times the first pause


class Trial:
    """The trial of one program. Times are given, in seconds; work is in any unit."""

    def __init__(self) -> None:
        self.examining = True
        self.gain = 0.0  # times faster with the window, when it was last examined
        self.until = 0.0
        self._verdict = self._asked = False
        self._doubling = 1.0
        self._restart()

    def next(self, now: float) -> bool:
        """Does the next stretch go through the window?"""
        if not self.examining and now >= self.until:
            self._restart()
        if not self.examining:
            return self._verdict
        return self._count[True] < self._count[False]

    def done(self, on: bool, seconds: float, work: float, now: float) -> None:
        """A stretch ended: so many seconds for so much work."""
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
        """Decide that it cannot pay, as far as is known without trying."""
        self._decide(False, now)

    def _watch(self, on: bool, rate: float, now: float) -> None:
        """Slower than being off was, twice in a row: that is looked at again."""
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
        again = self._asked and verdict == self._verdict
        self._doubling = min(2 * self._doubling, DOUBLINGS) if again else 1.0
        lost = 0.0 if verdict else self._lost
        pause = max(PAUSE[verdict] * self._doubling * self._spent, LOSS * lost)
        self.until = now + min(max(pause, FIRST[verdict] * self._doubling), LONGEST)
        self._verdict, self._asked, self.examining = verdict, True, False
