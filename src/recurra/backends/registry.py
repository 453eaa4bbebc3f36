"""Backends by name, each imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any

from recurra.backends.protocol import Backend
from recurra.errors import RecurraError
from recurra.support.optional_packages import needed_by

BACKENDS = {
    "jax": "recurra.backends.jax.region:JaxBackend",
    "numpy": "recurra.backends.numpy.numpy_backend:NumpyBackend",
    "torch": "recurra.backends.torch.region:TorchBackend",
    "jax+nest": "recurra.backends.jax.nest_kernels:TunedJax",
    "torch+nest": "recurra.backends.torch.nest_kernels:TunedTorch",
}
DOORS = dict.fromkeys(("jax+nest", "torch+nest"), "recurra.nest.compiler_hook")  # makes kernels
ON_DISK = {"jax": "recurra.backends.jax.disk_cache:CachedJax"}
"""Backends that keep compiled regions; those of `jax+nest` would name kernels that are gone."""
MESHES = {
    "jax": "recurra.backends.jax.mesh:JaxMesh",
    "numpy": "recurra.backends.numpy.mesh:NumpyMesh",
}


def backend_of(backend: str | Backend) -> Backend:
    """Return the backend of that name, importing it; a backend object is returned as it is."""
    wanted: Any = backend
    if not isinstance(wanted, str) and hasattr(wanted, "target"):
        return wanted
    expect_one_of("backend", wanted, BACKENDS)
    with needed_by(f"the backend {wanted!r}"):
        arguments = [resolve_name(DOORS[wanted])] if wanted in DOORS else []
        return resolve_name(BACKENDS[wanted])(*arguments)


def mesh_of(backend: Backend, workers: int) -> Backend:
    """Return the backend on several workers. Raise RecurraError if there is none."""
    if backend.name not in MESHES:
        raise RecurraError.at_user_line(
            f"the backend {backend.name!r} runs on one worker, not {workers}",
            facts=f"{' and '.join(MESHES)} run on several",
            hint="leave workers out, or choose one of these",
        )
    return resolve_name(MESHES[backend.name])(workers)


def has_disk_cache(backend: Backend) -> bool:
    """Is there a form of the backend that keeps compiled regions on disk?"""
    return backend.name in ON_DISK


def with_disk_cache(backend: Backend, entry: Any) -> Backend:
    """Return the backend that keeps its compiled regions in an entry of the compilation cache."""
    return resolve_name(ON_DISK[backend.name])(entry)


def expect_one_of(what: str, name: Any, table: Mapping[str, Any]) -> None:
    """Raise RecurraError if a table has no entry of that name."""
    if name not in list(table):  # a name of any type
        raise RecurraError.at_user_line(
            f"there is no {what} {name!r}",
            facts=f"there are {', '.join(table)}",
            hint=f"did you mean {what}={near[0]!r}?"
            if (near := get_close_matches(str(name), table, 1))
            else f"{what}={next(iter(table))!r} is what is taken if none is named",
        )
