"""What decoding holds: keys, values and what XLA needs beside them, against these alone."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.decode.recurra_program import written
from benchmarks.decode.workload import Work
from benchmarks.harness import Row
from recurra.backends.jax.region import JaxBackend

LIMIT, LONG = 0.98, 16384  # at most 2 % beside so long a past: what is beside it does not grow


@dataclass(frozen=True)
class Held:
    """Bytes: `kept` of keys and values, `temporary` in a launch, `least` that there must be."""

    kept: int
    temporary: int
    least: int


def held(work: Work) -> Held:
    """What the program of a work holds while it makes tokens; nothing is run."""
    program = written(work, False).executable.compiled.program
    plan, backend = program.plan, JaxBackend()
    caches = [n for n in plan.stores if n.startswith(("k_", "v_")) and n[2:].isdecimal()]
    made = [r for r in program.regions if set(caches) <= {*r.stores} and "logits" in r.active]
    found = [backend.lowered(plan, r).compile().memory_analysis() for r in made]
    points = min(work.T, work.window or work.T)
    return Held(
        sum(plan.stores[n].nbytes(plan.sizes) for n in caches),
        max(x.temp_size_in_bytes for x in found if x is not None),
        2 * work.L * work.B * points * work.KV * work.HD * 4,
    )


def row(work: Work) -> Row:
    """A line of the report; a window is held twice, so that it is read in one piece."""
    x = held(work)
    ours, ratio = x.kept + x.temporary, x.least / (x.kept + x.temporary)
    limit = LIMIT if not work.window and work.T >= LONG else None
    least = "keys and values alone"
    return Row(
        str(work), "held_MB", ours / 1e6, least, x.least / 1e6, ratio, (ratio, ratio), limit, "none"
    )
