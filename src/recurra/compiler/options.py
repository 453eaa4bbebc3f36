"""What `compile` and `run` may be told: each option is checked, and what is wrong is said."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from recurra.cost.tuning import Tuning
from recurra.errors import RecurraError, here
from recurra.memory.placement import Asked
from recurra.memory.swap import Swap, Tier
from recurra.program.execute import Backend
from recurra.program.placed import can_place

Scheduler = Literal["own", "isl"]


@dataclass(frozen=True)
class CompileOptions:
    """What a program is compiled for, and what it may take."""

    backend: str | Backend = "jax"
    """What runs the program: "jax", "numpy", "torch", with "+nest" for tuned contractions."""
    memory: int | str | None = None
    """Bytes that a run holds at most, such as "2GiB"; more is computed twice, or moved to a disk,
    where it has to be, and what does not fit even so is refused."""
    check: Literal["", "nan"] | None = None
    """With "nan", a run that makes a NaN or inf is refused with the op, the point and the line;
    launches are then short, and slower."""
    workers: int = 1
    """Devices that share the rows of a dim that orders nothing; each has some of them."""
    groups: int = 1
    """Groups of rows of host environments: while one is stepped, the others act."""
    swap: Swap | Tier | None = None
    """Large stores lie on the "host" or a "disk"; a `recurra.Swap` says which, and where."""
    placement: Asked | None = None
    """Stores lie in one block of memory, where a solver puts them: "greedy", "exact", "mapping", a
    file of offsets, or a function of the problem."""
    scheduler: Scheduler = "own"
    """Who orders the loops; "isl" is the scheduler of isl."""
    tuning: Tuning = field(default_factory=Tuning)
    """Knobs for experts; each is also an option of its own name."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CompileOptions:
        """The options that keywords say, those of `Tuning` among them."""
        knobs = {f.name for f in fields(Tuning)}
        own = {name: x for name, x in given.items() if name not in knobs}
        tuning = replace(
            own.pop("tuning", Tuning()), **{k: x for k, x in given.items() if k in knobs}
        )
        return cls(**own, tuning=tuning)


PLACEMENTS = {"mapping": "recurra.mapping.door:mapping"}  # solvers that are another package's


def checked(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What is checked at run time; a launch is then one iteration, and nothing is tiled, so that
    a point has a name."""
    check = options.get("check") or ""
    if check not in ("", "nan"):
        raise RecurraError(f"there is no check {check!r}", facts="there is 'nan'", loc=here())
    rest = {k: v for k, v in options.items() if k != "check"}
    return check, {"chunk": 1, "rows": 0, **rest} if check else rest


def expect_known(options: Mapping[str, Any], bounds: Sequence[str]) -> None:
    known = [f.name for f in (*fields(CompileOptions), *fields(Tuning))]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise RecurraError(
                f"compile has no option {name!r}",
                facts=f"its options are {', '.join(known)}",
                hint=f"bounds go into a dict: compile({{{name}: {options[name]!r}}})"
                if name in bounds
                else f"perhaps you meant {close[0]}"
                if close
                else "leave it out",
                loc=here(),
            )


def count(option: str, what: str, options: Mapping[str, Any]) -> int:
    n = options.get(option, 1)
    if not isinstance(n, int) or n < 1:
        raise RecurraError(
            f"a program cannot run on {n!r} {option}",
            facts=f"{option} are {what}",
            hint=f"give how many: {option}=2",
            loc=here(),
        )
    return n


def expect_seed(seed: Any) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise RecurraError(
            f"the seed cannot be {seed!r}",
            facts="draws are functions of a seed of 32 bits and of their point",
            hint="give an integer from 0 to 4294967295: seed=0",
            loc=here(),
        )


def placed(options: Mapping[str, Any], backend: Backend, workers: int) -> dict[str, Any]:
    """The options with a solver for the name "mapping", which is imported only then.

    Raises RecurraError where stores cannot lie in one block.
    """
    asked = options.get("placement")
    if asked is None:
        return {**options}
    if workers > 1:
        raise RecurraError(
            "stores of several workers cannot lie in one block",
            facts=f"the program is compiled for {workers} workers",
            hint="leave workers out, or placement",
            loc=here(),
        )
    if not can_place(backend):
        raise RecurraError(
            f"the backend {backend.name!r} places stores itself",
            facts="each is one buffer, which is donated from launch to launch and changed in place",
            hint='leave placement out, or compile with backend="numpy" or "torch"',
            loc=here(),
        )
    if asked not in PLACEMENTS:
        return {**options}
    module, _, name = PLACEMENTS[asked].partition(":")
    return {**options, "placement": getattr(importlib.import_module(module), name)}


def expect_alone(options: Mapping[str, Any], workers: int) -> None:
    """Stores are swapped by the host of one worker."""
    if options.get("swap") is not None and workers > 1:
        raise RecurraError(
            "stores of several workers cannot be swapped",
            facts=f"the program is compiled for {workers} workers",
            hint="leave workers out, or swap",
            loc=here(),
        )
