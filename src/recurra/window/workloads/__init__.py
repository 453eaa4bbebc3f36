"""Programs like those of the paper, in PyTorch: inference and simulation.

They are not the published models, but have their structure (dependences, and control flow by data)
at sizes of the same order, with weights from a seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recurra.window.task import WindowError

_WHERE: Mapping[str, tuple[str, ...]] = {
    "physics": ("ant", "grasp", "humanoid", "cheetah", "walker"),
    "dynamic": ("instanas", "routing", "condconv"),
    "cells": ("nasnet", "amoebanet", "squeezenet", "randomwire"),
}
NAMES = tuple(name for names in _WHERE.values() for name in names)


@dataclass(frozen=True)
class TorchWorkload:
    """A program: `run()` returns a tensor or several, the same for the same seed."""

    name: str
    family: str
    run: Callable[[], Any]


def make(name: str, *, batch: int = 0, seed: int = 0) -> TorchWorkload:
    """Return a workload by name. `batch` 0 is the paper's: 1 image, or 2048 environments.

    Raises WindowError for an unknown name, and a negative batch.
    """
    family = next((family for family, names in _WHERE.items() if name in names), None)
    if family is None:
        raise WindowError(f"there is no workload {name!r}", facts=f"there are {', '.join(NAMES)}")
    if batch < 0:
        raise WindowError(f"a batch of {batch}", facts="it is at least 1, or 0 for the paper's")
    module = importlib.import_module(f"{__name__}.{family}")
    return TorchWorkload(name, family, module.make_program(name, batch, seed))
