"""Our PPO as a user writes it, compiled: the measure of everything written by hand here."""

from __future__ import annotations

from dataclasses import replace

from recurra.bench.harness import Contestant
from recurra.bench.ppo.programs import batch_last_kept
from recurra.bench.ppo.work import Work


def ours(work: Work) -> Contestant:
    """Stands in for our program where there is none: the best region by hand.

    Its answer needs the keys of `work.answers`, from the draws of `work`: RESET gives each row one
    number, key 0, SAMPLE one per step, key i, counters (b, t). It is called in a process of its own
    before JAX starts, so it may set the number of devices.
    """
    return replace(batch_last_kept(work), name="by hand")
