"""Backends by name, imported only when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from recurra.backends.protocol import Backend
from recurra.errors import RecurraError, here
from recurra.support.optional_packages import needed_by

BACKENDS = {
    "jax": "recurra.backends.jax.region:JaxBackend",
    "numpy": "recurra.backends.numpy.backend:NumpyBackend",
    "torch": "recurra.backends.torch.region:TorchBackend",
    "jax+nest": "recurra.backends.jax.tuned:TunedJax",
    "torch+nest": "recurra.backends.torch.tuned:TunedTorch",
}
DOORS = dict.fromkeys(("jax+nest", "torch+nest"), "recurra.nest.compiler_hook")  # makes kernels
ON_DISK = {"jax": "recurra.backends.jax.disk_cache:CachedJax"}
"""Those that can keep what they compile; regions of `jax+nest` would name kernels that are gone."""
MESHES = {
    "jax": "recurra.backends.jax.mesh:JaxMesh",
    "numpy": "recurra.backends.numpy.mesh:NumpyMesh",
}


def backend_of(backend: str | Backend) -> Backend:
    """A backend by its name; imported only then."""
    asked: Any = backend
    if not isinstance(asked, str) and hasattr(asked, "target"):
        return asked
    one_of("backend", asked, BACKENDS)
    module, _, name = BACKENDS[asked].partition(":")
    with needed_by(f"the backend {asked!r}"):
        given = [importlib.import_module(DOORS[asked])] if asked in DOORS else []
        return getattr(importlib.import_module(module), name)(*given)


def mesh_of(backend: Backend, workers: int) -> Backend:
    """The backend on several workers."""
    if backend.name not in MESHES:
        raise RecurraError(
            f"the backend {backend.name!r} runs on one worker, not {workers}",
            facts=f"{' and '.join(MESHES)} run on several",
            hint="leave workers out, or choose one of these",
            loc=here(),
        )
    module, _, name = MESHES[backend.name].partition(":")
    return getattr(importlib.import_module(module), name)(workers)


def keeps_regions(backend: Backend) -> bool:
    """Is there a form of the backend that keeps compiled regions on disk?"""
    return backend.name in ON_DISK


def on_disk(backend: Backend, entry: Any) -> Backend:
    """The backend with its compiled regions kept in an entry of the compilation cache."""
    module, _, name = ON_DISK[backend.name].partition(":")
    return getattr(importlib.import_module(module), name)(entry)


def one_of(what: str, name: Any, table: Mapping[str, Any]) -> None:
    """Raises where a table has nothing of that name."""
    if name not in list(table):  # which may be anything
        raise RecurraError(
            f"there is no {what} {name!r}",
            facts=f"there are {', '.join(table)}",
            hint=f"did you mean {what}={near[0]!r}?"
            if (near := get_close_matches(str(name), table, 1))
            else f"{what}={next(iter(table))!r} is what is taken if none is named",
            loc=here(),
        )
