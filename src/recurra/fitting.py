"""fitting: a program compiled so that a run holds no more than a budget, if there is a way.

    ctx.compile({B: 64, T: 200}, memory="8MiB")

What a program holds is known before it runs (`Executable.memory`). As long as that is too much, it
is compiled again where a byte that is kept is dearer, so that more of what learning reads of acting
is computed twice, then in smaller tiles of its rows: the first that fits is the one that repeats
least. The paper's third way, swapping to the host, is not one yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recurra.amounts import parse
from recurra.errors import here
from recurra.executable import Executable
from recurra.footprint.run import footprint
from recurra.memory.budget import expect_room
from recurra.memory.plan import Plan
from recurra.program.region import Region

HELD = (16.0, 256.0, 4096.0)  # what a byte that is kept is worth, times its traffic
ROWS = (128, 32)  # of a tile

Options = Mapping[str, Any]


def fitted(make: Callable[[dict[str, Any]], Executable], options: Options) -> Executable:
    """What `make` compiles with these options, or with others as well that make it fit.

    Raises PlanError where nothing that is tried does: it names the least budget that would do.
    """
    asked = options.get("memory")
    given = {name: x for name, x in options.items() if name != "memory"}
    if asked is None:
        return make(given)
    budget, tried = parse(asked), list[tuple[int, Executable]]()
    for more in ways(given):
        program = make({**given, **more})
        peak = between_launches(program)
        if peak <= budget:
            peak = program.memory.nbytes
        if peak <= budget:
            program.compiled.stages.decisions.append(told(peak, budget, more))
            return program
        tried.append((peak, program))
    _, best = min(tried, key=lambda x: x[0])
    expect_room(best.memory, budget, here())
    raise AssertionError("what does not fit is refused")


@dataclass
class Bare:
    """A backend whose launches take nothing beside what they are given and give."""

    donates: bool

    def besides(self, plan: Plan, region: Region, at: tuple[int, ...]) -> int:
        return 0


def between_launches(program: Executable) -> int:
    """Bytes that are held outside of launches, at least: nothing is compiled to know them."""
    backend: Any = program.backend
    if not hasattr(backend, "besides"):
        return program.memory.nbytes
    return footprint(program.compiled.program, Bare(backend.donates)).nbytes


def ways(given: Options) -> Iterator[dict[str, Any]]:
    """Options beside those that are given, from what repeats nothing to what repeats most."""
    yield {}
    held = () if "held" in given else HELD
    yield from ({"held": h} for h in held)
    most = {"held": held[-1]} if held else {}
    yield from ({**most, "rows": r} for r in (() if "rows" in given else ROWS))


def told(peak: int, budget: int, more: Options) -> str:
    """One line of `decisions`."""
    how = ", ".join(f"{name}={x:g}" for name, x in more.items())
    return f"memory: {peak:,} of {budget:,} B {f'by {how}' if how else 'as it is'}"
