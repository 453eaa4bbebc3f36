"""Schedule, compile and tune the loops of tensor contractions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from recurra.support.renamed_names import old_module, warn_renamed

if TYPE_CHECKING:
    from recurra.nest.actions import PAPER, Actions
    from recurra.nest.agents.policy import proposed
    from recurra.nest.compiled import Contraction, compile
    from recurra.nest.einsum import from_sizes as contraction
    from recurra.nest.loops import Nest, scheduled, untiled
    from recurra.nest.problem import NestProblem
    from recurra.nest.quick_search import improve_nest
    from recurra.nest.tune import tune_nest

_WHERE = {
    "PAPER": ("actions", "PAPER"),
    "Actions": ("actions", "Actions"),
    "Contraction": ("compiled", "Contraction"),
    "compile": ("compiled", "compile"),
    "contraction": ("einsum", "from_sizes"),
    "improve_nest": ("quick_search", "improve_nest"),
    "Nest": ("loops", "Nest"),
    "scheduled": ("loops", "scheduled"),
    "untiled": ("loops", "untiled"),
    "NestProblem": ("problem", "NestProblem"),
    "proposed": ("agents.policy", "proposed"),
    "tune_nest": ("tune", "tune_nest"),
}

_RENAMED = {"Problem": "NestProblem", "improved": "improve_nest", "tuned": "tune_nest"}
_RENAMED_MODULES = {
    "door": "compiler_hook",
    "emission": "instruction_builder",
    "entry": "checked_call",
    "guarded_call": "checked_call",
    "env": "gymnasium_env",
    "improve": "quick_search",
    "kept": "kernel_store",
    "meaning": "reference",
    "native": "executable_memory",
    "scopes": "register_scopes",
    "standard": "default_schedule",
    "state": "observation",
    "team": "threads",
}

for _old, _new in _RENAMED_MODULES.items():
    old_module(f"{__name__}.{_old}", f"{__name__}.{_new}")


def __getattr__(name: str) -> object:
    """Import a name at its first use: compiling needs NumPy, problems do not."""
    if (current := _RENAMED.get(name) or _RENAMED_MODULES.get(name)) is not None:
        warn_renamed(f"recurra.nest.{name}", f"recurra.nest.{current}")
        if name in _RENAMED_MODULES:
            return importlib.import_module(f"{__name__}.{current}")
        return __getattr__(current)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _WHERE[name]
    value = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


__all__ = [
    "PAPER",
    "Actions",
    "Contraction",
    "Nest",
    "NestProblem",
    "compile",
    "contraction",
    "improve_nest",
    "proposed",
    "scheduled",
    "tune_nest",
    "untiled",
]
