"""The options of `compile` and `run`: each is checked, and what is wrong is said."""

from __future__ import annotations

import difflib
import importlib
import warnings
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from recurra.backends.protocol import Backend
from recurra.backends.registry import backend_of
from recurra.codegen.arena_views import can_place
from recurra.cost import prices
from recurra.cost.target import PLAIN, Target
from recurra.cost.tuning import Tuning
from recurra.errors import RecurraError, here
from recurra.storage.arena_solvers import Asked
from recurra.storage.offload import Offload, Tier

KNOBS = frozenset(f.name for f in fields(Tuning))
Scheduler = Literal["own", "isl"]


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compilation: its target, and its limits."""

    backend: str | Backend = "jax"
    """What runs it: "jax", "numpy", "torch"; "jax+nest" and "torch+nest" tune contractions."""
    memory: int | str | None = None
    """Bytes that a run holds at most, such as "2GiB"; more is computed twice, or moved to a disk,
    where it has to be, and what does not fit even so is refused."""
    check: Literal["", "nan", "bounds"] | None = None
    """With "nan", a run that makes a NaN or inf is refused with the op, the point and the line;
    launches are then short, and slower. With "bounds", a read by data that leaves its axis is."""
    workers: int = 1
    """Devices that share the rows of a dim that orders nothing; each has some of them."""
    groups: int = 1
    """Groups of rows of host environments: while one is stepped, the others act."""
    offload: Offload | Tier | None = None
    """Large stores lie on the "host" or a "disk"; a `recurra.Offload` says which, and where."""
    placement: Asked | None = None
    """Stores lie in one block of memory, where a solver puts them: "greedy", "exact", "mapping", a
    file of offsets, or a function of the problem."""
    scheduler: Scheduler = "own"
    """Who orders the loops; "isl" is the scheduler of isl."""
    tuning: Tuning = field(default_factory=Tuning)
    """Knobs for experts; each is also an option of its own name."""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> CompileOptions:
        """The options that keywords say, knobs of `Tuning` among them."""
        return cls().but(given)

    def but(self, given: Mapping[str, object]) -> CompileOptions:
        """The options with others that keywords say."""
        own = {name: x for name, x in given.items() if name not in KNOBS}
        knobs = {name: x for name, x in given.items() if name in KNOBS}
        options = replace(self, **own)
        return replace(options, tuning=replace(options.tuning, **knobs)) if knobs else options

    def filled(self, given: Mapping[str, object]) -> CompileOptions:
        """The options, and of those that have their default what keywords say."""
        default = CompileOptions()

        def is_default(name: str) -> bool:
            if name in KNOBS:
                return getattr(self.tuning, name) == getattr(default.tuning, name)
            return getattr(self, name) == getattr(default, name)

        return self.but({name: x for name, x in given.items() if is_default(name)})


RENAMED = {"swap": "offload"}


def by_new_names(given: Mapping[str, object]) -> dict[str, object]:
    """Options by the names that they have now; an old one gives a DeprecationWarning."""
    for name in RENAMED.keys() & given.keys():
        told = f"the option {name} is called {RENAMED[name]} now; the old name goes with the next"
        warnings.warn(f"{told} release", DeprecationWarning, stacklevel=3)
    return {RENAMED.get(name, name): x for name, x in given.items()}


def read_options(words: Iterable[str]) -> tuple[CompileOptions, Target]:
    """Read options as text, such as `strip=4 backend=torch`, and what they aim at.

    The target is that of the backend on this machine if one is named, else a plain one.
    """
    named = {name: _value(text) for name, _, text in (x.partition("=") for x in words)}
    given = by_new_names(named)
    expect_known(given, ())
    options = CompileOptions.of(given)
    target = target_of(backend_of(options.backend)) if "backend" in given else PLAIN
    return options, options.tuning.aimed(target)


def target_of(backend: Backend) -> Target:
    """The target of a backend, with its prices on this machine."""
    return replace(backend.target, prices=prices.of_machine(backend.name))


def _value(text: str) -> Any:
    """A number, True, False or None; anything else is a name."""
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


CHECKS = ("nan", "bounds")
PLACEMENTS = {
    "mapping": "recurra.mapping.compiler_hook:mapping"
}  # solvers that are another package's


def checked(options: CompileOptions) -> CompileOptions:
    """The options, if they can be meant, as a program that is checked at run time needs them.

    Under "nan" a launch is one iteration, and nothing is tiled, so that a point has a name.
    """
    if options.check not in (None, "", *CHECKS):
        raise RecurraError(
            f"there is no check {options.check!r}",
            facts=f"there are {' and '.join(map(repr, CHECKS))}",
            hint='check="nan"',
            loc=here(),
        )
    expect_count("workers", "devices that each have some of the rows", options.workers)
    expect_count("groups", "rows that take turns at the host", options.groups)
    expect_tuning(options.tuning)
    if options.check != "nan":
        return options
    tuning = options.tuning
    named = replace(
        tuning,
        chunk=1 if tuning.chunk is None else tuning.chunk,
        rows=0 if tuning.rows is None else tuning.rows,
    )
    return replace(options, tuning=named)


def expect_known(
    names: Mapping[str, object], bounds: Sequence[str], inputs: Sequence[str] = ()
) -> None:
    """Raises RecurraError, with a name that is near, if one of them is no option."""
    known = [f.name for f in (*fields(CompileOptions), *fields(Tuning))]
    for name, value in names.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise RecurraError(
                f"compile has no option {name!r}",
                facts=f"its options are {', '.join(known)}",
                hint=f"bounds go into a dict: compile({{{name}: {value!r}}})"
                if name in bounds
                else f'inputs go into a dict: inputs={{"{name}": {name}}}, of run'
                if name in inputs
                else f"perhaps you meant {close[0]}"
                if close
                else "leave it out",
                loc=here(),
            )


def expect_count(option: str, what: str, given: object) -> None:
    """Raises RecurraError if an option is no number of things."""
    if not isinstance(given, int) or given < 1:
        raise RecurraError(
            f"a program cannot run on {given!r} {option}",
            facts=f"{option} are {what}",
            hint=f"give how many: {option}=2",
            loc=here(),
        )


LEAST: Mapping[str, tuple[type, int]] = {
    "chunk": (Integral, 1), "held": (Real, 0), "strip": (Integral, 0), "given": (Integral, 0),
    "diagonals": (Real, 0), "rows": (Integral, 0), "enough": (Real, 0), "asking": (Real, 0),
    "behind": (Real, 0),
}  # fmt: skip
SWITCHES = ("axes", "last", "single", "attention")


def expect_tuning(tuning: Tuning) -> None:
    """Raises RecurraError for a knob that cannot be turned so."""
    for f in fields(Tuning):
        value: Any = getattr(tuning, f.name)
        if value is None and f.default is None:
            continue
        kind, least = LEAST.get(f.name, (object, 0))
        if f.name in LEAST and not _is_at_least(value, kind, least):
            want = f"a {'whole ' * (kind is Integral)}number of at least {least}"
        elif f.name in SWITCHES and not isinstance(value, bool):
            want = "True or False"
        else:
            continue
        raise RecurraError(
            f"{f.name} cannot be {value!r}",
            facts=f"{f.name}= is {want}",
            hint="leave it out: it is then decided by cost",
            loc=here(),
        )


def _is_at_least(value: Any, kind: type, least: int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and value >= least


def expect_seed(seed: Any) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise RecurraError(
            f"the seed cannot be {seed!r}",
            facts="draws are functions of a seed of 32 bits and of their point",
            hint="give an integer from 0 to 4294967295: seed=0",
            loc=here(),
        )


def placed(options: CompileOptions, backend: Backend) -> CompileOptions:
    """The options with a solver for the name "mapping", which is imported only then.

    Raises RecurraError where stores cannot lie in one block.
    """
    asked = options.placement
    if asked is None:
        return options
    if options.workers > 1:
        raise RecurraError(
            "stores of several workers cannot lie in one block",
            facts=f"the program is compiled for {options.workers} workers",
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
    if not isinstance(asked, str) or asked not in PLACEMENTS:
        return options
    module, _, name = PLACEMENTS[asked].partition(":")
    return replace(options, placement=getattr(importlib.import_module(module), name))


def expect_alone(options: CompileOptions) -> None:
    """Raises RecurraError if stores of several workers are to be offloaded, or watched."""
    if options.workers == 1:
        return
    facts = f"the program is compiled for {options.workers} workers"
    if options.offload is not None:
        raise RecurraError(
            "stores of several workers cannot be offloaded",
            facts=facts,
            hint="leave workers out, or offload",
            loc=here(),
        )
    if options.check == "nan":
        raise RecurraError(
            "check='nan' looks at one worker only",
            facts=facts,
            hint="leave workers out to find out where a NaN comes from",
            loc=here(),
        )
