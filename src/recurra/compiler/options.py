"""The options of `compile` and `run`, and the checks of their values."""

from __future__ import annotations

import difflib
import importlib
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from recurra.backends.protocol import Backend
from recurra.backends.registry import backend_of
from recurra.codegen.arena_views import can_place
from recurra.cost import prices
from recurra.cost.target import PLAIN, Target
from recurra.cost.tuning_knobs import Tuning
from recurra.errors import RecurraError
from recurra.storage.arena_solvers import PlacementSolver
from recurra.storage.offload import Offload, Tier
from recurra.support.renamed_names import warn_renamed

KNOBS = frozenset(f.name for f in fields(Tuning))
Scheduler = Literal["own", "isl"]


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compilation: its target, and its limits."""

    backend: str | Backend = "jax"
    """The library that runs it: "jax", "numpy", "torch"; "jax+nest" and "torch+nest" tune
    contractions."""
    memory: int | str | None = None
    """The most bytes that a run may hold, such as "2GiB". To fit, values are recomputed or moved to
    a disk; a program that does not fit even so is refused."""
    check: Literal["", "nan", "bounds"] | None = None
    """With "nan", a run that computes a NaN or inf fails with the op, the point and the line; its
    launches are short, and slower. With "bounds", a read by data outside of its axis fails."""
    workers: int = 1
    """Devices over which the rows of a dim that orders nothing are sharded."""
    groups: int = 1
    """Groups of rows of host environments: while one is stepped, the others act."""
    offload: Offload | Tier | None = None
    """Where large stores are kept: the "host" or a "disk"; a `recurra.Offload` has more options."""
    placement: PlacementSolver | None = None
    """Put stores in one block of memory, by a solver: "greedy", "exact", "mapping", a file of
    offsets, or a function of the problem."""
    scheduler: Scheduler = "own"
    """The scheduler: our own, or isl's."""
    tuning: Tuning = field(default_factory=Tuning)
    """Knobs for experts; each is also an option of its own name."""

    @classmethod
    def from_keywords(cls, given: Mapping[str, object]) -> CompileOptions:
        """The options for keywords, which include the knobs of `Tuning`."""
        return cls().with_options(given)

    def with_options(self, given: Mapping[str, object]) -> CompileOptions:
        """The options with others that keywords say."""
        own = {name: x for name, x in given.items() if name not in KNOBS}
        knobs = {name: x for name, x in given.items() if name in KNOBS}
        options = replace(self, **own)
        return replace(options, tuning=replace(options.tuning, **knobs)) if knobs else options

    def fill_defaults(self, given: Mapping[str, object]) -> CompileOptions:
        """The options, with keywords for those that have their default."""
        default = CompileOptions()

        def is_default(name: str) -> bool:
            mine, theirs = (self.tuning, default.tuning) if name in KNOBS else (self, default)
            return getattr(mine, name) == getattr(theirs, name)

        return self.with_options({name: x for name, x in given.items() if is_default(name)})


RENAMED = {  # their old names, for one release
    "swap": "offload",
    "axes": "vectorized",
    "last": "batch_last",
    "single": "single_launch",
    "chunk": "launch_steps",
    "held": "memory_price",
    "strip": "tile_points",
    "attention": "fused_attention",
    "given": "min_peeled_points",
    "diagonals": "min_skew_gain",
    "rows": "tile_rows",
    "enough": "untiled_step_ns",
    "asking": "poll_steps",
    "behind": "min_overlapped_ns",
    "counted": "host_loops",
    "kernel": "attention_kernel",
}


def by_new_names(given: Mapping[str, object]) -> dict[str, object]:
    """Rename options with old names; each gives a DeprecationWarning."""
    for name in RENAMED.keys() & given.keys():
        warn_renamed(f"the option {name}", RENAMED[name])
    return {RENAMED.get(name, name): x for name, x in given.items()}


def read_options(words: Iterable[str]) -> tuple[CompileOptions, Target]:
    """Parse options such as `tile_points=4 backend=torch`; return them and their target.

    The target is the named backend on this machine, or a plain one.
    """
    named = {name: _value(text) for name, _, text in (x.partition("=") for x in words)}
    given = by_new_names(named)
    expect_known(given, ())
    options = CompileOptions.from_keywords(given)
    target = target_of(backend_of(options.backend)) if "backend" in given else PLAIN
    return options, options.tuning.override(target)


def target_of(backend: Backend) -> Target:
    """The target of a backend, with its prices on this machine."""
    return replace(backend.target, prices=prices.of_machine(backend.name))


def _value(text: str) -> Any:
    """Parse a number, True, False or None; any other text is a name."""
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


CHECKS = ("nan", "bounds")
# solvers of other packages
PLACEMENTS = {"mapping": "recurra.mapping.compiler_hook:mapping"}


def checked(options: CompileOptions) -> CompileOptions:
    """Check options; with check="nan", adapt them.

    A launch is then one iteration, and nothing is tiled, so that a point can be named.
    """
    if options.check not in (None, "", *CHECKS):
        raise RecurraError.at_user_line(
            f"there is no check {options.check!r}",
            facts=f"there are {' and '.join(map(repr, CHECKS))}",
            hint='check="nan"',
        )
    expect_count("workers", "devices that each have some of the rows", options.workers)
    expect_count("groups", "rows that take turns at the host", options.groups)
    expect_tuning(options.tuning)
    if options.check != "nan":
        return options
    defaults = {"launch_steps": 1, "tile_rows": 0}
    unset = {k: v for k, v in defaults.items() if getattr(options.tuning, k) is None}
    return replace(options, tuning=replace(options.tuning, **unset))


def expect_known(
    names: Mapping[str, object], bounds: Sequence[str], inputs: Sequence[str] = ()
) -> None:
    """Raise RecurraError, with a similar name, if one of the names is no option."""
    known = [f.name for f in (*fields(CompileOptions), *fields(Tuning))]
    for name, value in names.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise RecurraError.at_user_line(
                f"compile has no option {name!r}",
                facts=f"its options are {', '.join(known)}",
                hint=f"bounds go into a dict: compile({{{name}: {value!r}}})"
                if name in bounds
                else f'inputs go into a dict: inputs={{"{name}": {name}}}, of run'
                if name in inputs
                else f"perhaps you meant {close[0]}"
                if close
                else "leave it out",
            )


def expect_count(option: str, what: str, given: object) -> None:
    """Raise RecurraError if an option is no positive integer."""
    if not isinstance(given, int) or given < 1:
        raise RecurraError.at_user_line(
            f"a program cannot run on {given!r} {option}",
            facts=f"{option} are {what}",
            hint=f"give how many: {option}=2",
        )


NUMBERS: Mapping[object, tuple[type, str]] = {int: (Integral, "whole "), float: (Real, "")}
LEAST = {"launch_steps": 1}  # other knobs may be 0


def expect_tuning(tuning: Tuning) -> None:
    """Raise RecurraError for a knob with an illegal value, by the type of its field."""
    for name, hint in get_type_hints(Tuning).items():
        kind, *other = get_args(hint) or (hint,)
        value: Any = getattr(tuning, name)
        if value is None and other:
            continue
        if kind in NUMBERS:
            (number, whole), least = NUMBERS[kind], LEAST.get(name, 0)
            is_legal = _is_at_least(value, number, least)
            want = f"a {whole}number of at least {least}"
        else:
            is_legal, want = kind is not bool or isinstance(value, bool), "True or False"
        if not is_legal:
            raise RecurraError.at_user_line(
                f"{name} cannot be {value!r}",
                facts=f"{name}= is {want}",
                hint="leave it out: it is then decided by cost",
            )


def _is_at_least(value: Any, number: type, least: int) -> bool:
    return isinstance(value, number) and not isinstance(value, bool) and value >= least


def expect_seed(seed: Any) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise RecurraError.at_user_line(
            f"the seed cannot be {seed!r}",
            facts="draws are functions of a seed of 32 bits and of their point",
            hint="give an integer from 0 to 4294967295: seed=0",
        )


def placed(options: CompileOptions, backend: Backend) -> CompileOptions:
    """Replace the name of a solver of another package by the solver, which is imported now.

    Raises RecurraError if stores cannot be in one block.
    """
    solver = options.placement
    if solver is None:
        return options
    if options.workers > 1:
        raise RecurraError.at_user_line(
            "stores of several workers cannot lie in one block",
            facts=f"the program is compiled for {options.workers} workers",
            hint="leave workers out, or placement",
        )
    if not can_place(backend):
        raise RecurraError.at_user_line(
            f"the backend {backend.name!r} places stores itself",
            facts="each is one buffer, which is donated from launch to launch and changed in place",
            hint='leave placement out, or compile with backend="numpy" or "torch"',
        )
    if not isinstance(solver, str) or solver not in PLACEMENTS:
        return options
    module, _, name = PLACEMENTS[solver].partition(":")
    return replace(options, placement=getattr(importlib.import_module(module), name))


def expect_alone(options: CompileOptions) -> None:
    """Raise RecurraError if stores of several workers are to be offloaded or checked."""
    if options.workers == 1:
        return
    facts = f"the program is compiled for {options.workers} workers"
    if options.offload is not None:
        raise RecurraError.at_user_line(
            "stores of several workers cannot be offloaded",
            facts=facts,
            hint="leave workers out, or offload",
        )
    if options.check == "nan":
        raise RecurraError.at_user_line(
            "check='nan' looks at one worker only",
            facts=facts,
            hint="leave workers out to find out where a NaN comes from",
        )
