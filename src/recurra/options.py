"""What `compile` and `run` may be told: each option is checked, and what is wrong is said."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recurra.compile import compile_graph
from recurra.cost.target import FIELDS
from recurra.errors import RecurraError, here
from recurra.program.execute import Backend
from recurra.program.placed import can_place

CHECKS = ("nan", "bounds")
PLACEMENTS = {"mapping": "recurra.mapping.door:mapping"}  # solvers that are another package's


def checked(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The run-time check, and the other options. Under "nan" a launch is one iteration, and
    nothing is tiled, so that a point has a name."""
    check = options.get("check") or ""
    if check not in ("", *CHECKS):
        raise RecurraError(
            f"there is no check {check!r}",
            facts=f"there are {' and '.join(map(repr, CHECKS))}",
            hint='check="nan"',
            loc=here(),
        )
    rest = {k: v for k, v in options.items() if k != "check"}
    return check, {"chunk": 1, "rows": 0, **rest} if check == "nan" else rest


def expect_known(options: Mapping[str, Any], bounds: Sequence[str]) -> None:
    own = list(inspect.signature(compile_graph).parameters)[2:-1]  # less the graph, bounds, target
    known = [*own, *FIELDS, "check", "memory"]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise RecurraError(
                f"compile has no option {name!r}",
                facts=f"its options are backend, {', '.join(known)}",
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
