"""Regions that are kept on disk as XLA made them."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar

import jax
import jax.monitoring
from jax.experimental import serialize_executable

from recurra.backend.jax.devices import devices
from recurra.backend.jax.region import JaxBackend, bits, in_its_bits
from recurra.backend.region_cache import RegionCache
from recurra.memory.plan import Plan
from recurra.program.region import Region

T = TypeVar("T")


class Kept(Protocol):
    """Where parts of a program are kept, by name."""

    def get(self, name: str, load: Callable[[bytes], T]) -> T | None: ...
    def put(self, name: str, data: bytes) -> None: ...


class CachedJax(JaxBackend):
    """XLA; a region is loaded at its first launch, or compiled and kept."""

    def __init__(self, kept: Kept):
        super().__init__()
        self.kept = kept
        self.loaded = RegionCache[Any]()

    def compile(self, plan: Plan, region: Region) -> Callable[..., tuple[Any, ...]]:
        def run(*given: Any) -> tuple[Any, ...]:
            return self.only(plan, region)(*given)

        return in_its_bits(plan, run)

    def only(self, plan: Plan, region: Region) -> Any:
        """The compiled region, made ready once."""
        return self.loaded.get(plan, region, self.ready)

    def besides(self, plan: Plan, region: Region, at: tuple[int, ...]) -> int:
        with bits(plan):
            told = self.only(plan, region).memory_analysis()
        return told.temp_size_in_bytes if told else 0

    def ready(self, plan: Plan, region: Region) -> Callable[..., Any]:
        name = f"{region.name}-{place()}"
        found = self.kept.get(name, _load)
        if found is not None:
            return found
        before = _hits()
        made = self.lowered(plan, region).compile()
        if _hits() == before:  # XLA leaves code out where it writes what it has read
            self.kept.put(name, pickle.dumps(serialize_executable.serialize(made)))
        return made


def place() -> str:
    """What JAX compiles for, and how it is set: a name of its own."""
    device = devices()[0]
    told = [device.platform, device.device_kind, jax.device_count(), os.environ.get("XLA_FLAGS")]
    told.append(device.client.platform_version)  # of the compiler for a GPU
    config: Any = jax.config
    told += [config.jax_enable_x64, config.jax_default_matmul_precision]
    told.append(config.read("jax_disable_most_optimizations"))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


@cache
def _listening() -> list[str]:
    """What JAX found in a cache of its own, from the first call on."""
    found: list[str] = []

    def heard(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(heard)
    return found


def _hits() -> int:
    return len(_listening())


def _load(data: bytes) -> Callable[..., Any]:
    return serialize_executable.deserialize_and_load(*pickle.loads(data))
