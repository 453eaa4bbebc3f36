"""Compiled regions kept on disk; regions of the same StableHLO text share their code.

<program>/region_12_i_t-9b..   the name of its code
<code>/code                    the code of one text: of this region, of region_18_i_t, and of
                               regions of other programs

Regions are compiled one after the other: XLA spreads the compilation of each over all cores.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, Protocol, Self, TypeVar

import jax
import jax.monitoring
from jax.experimental import serialize_executable

from recurra.backends.jax.devices import devices
from recurra.backends.jax.launch import CodeLaunch
from recurra.backends.jax.region import JaxBackend, with_x64
from recurra.backends.region_cache import LazyFunction, RegionCache
from recurra.codegen.region import Region
from recurra.codegen.single_launch import Finish, WholeProgram
from recurra.cost.thresholds import XLA_ONE_RUN_LEVEL
from recurra.schedule.tree import Loop
from recurra.storage.storage_plan import StoragePlan
from recurra.support.notices import notice_if_long

T = TypeVar("T")


class CachedParts(Protocol):
    """An entry of the compilation cache: parts by name; `beside` finds another entry."""

    @property
    def name(self) -> str: ...
    def get(self, part: str, load: Callable[[bytes], T]) -> T | None: ...
    def put(self, part: str, data: bytes) -> None: ...
    def sibling(self, name: str) -> Self: ...
    def sibling_for(self, text: str) -> Self: ...
    def tell(self, line: str) -> None: ...


class CachedJax(JaxBackend):
    """JAX with regions on disk: each is loaded, or compiled and written, at its first launch."""

    def __init__(self, kept: CachedParts):
        super().__init__()
        self.kept = kept
        self.loaded = RegionCache[Any]()
        self.codes: dict[str, Any] = {}  # by name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kept,)

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        inner = len(region.around) if len(region.around) > 1 else 0
        return with_x64(plan, CodeLaunch(lambda: self.code_of(plan, region), inner))

    def code_of(self, plan: StoragePlan, region: Region) -> Any:
        """Return the code of a region, loaded or compiled once."""

        def load(plan: StoragePlan, region: Region) -> Any:
            return self.of_region(plan, region, partial(self.lowered, plan, region))

        return self.loaded.get(plan, region, load)

    @cached_property
    def device(self) -> Any:
        """The device that code is compiled and loaded for."""
        return _device()

    def accepts(self, array: object) -> bool:
        return super().accepts(array) and not self.is_other_device(array)

    def argument(self, array: Any) -> Any:
        """Convert an array for a launch; one on another device is copied to `device`."""
        array = super().argument(array)
        return jax.device_put(array, self.device) if self.is_other_device(array) else array

    def is_other_device(self, array: object) -> bool:
        return isinstance(array, jax.Array) and array.devices() != {self.device}

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        def load(seed: Any, inputs: Mapping[str, Any]) -> Any:
            lower = partial(self.traced(plan, region, finish).lower, seed, inputs)
            return self.of_region(plan, region, lower, whole=True)

        return with_x64(plan, LazyFunction(load))

    def of_region(
        self, plan: StoragePlan, region: Region, lower: Callable[[], Any], whole: bool = False
    ) -> Any:
        """Return the code of a region, or of the `whole` program that is one, inputs to results.

        It is traced only if its code is not on disk.
        """
        key = (replace(region, active=frozenset()), sorted(region.active), plan.stores, whole)
        return self.found(region.name, repr(key), lower, options_for(plan, region))

    def found(self, name: str, key: str, lower: Callable[[], Any], options: dict[str, Any]) -> Any:
        """Return the code of what `lower` lowers: loaded, or compiled and written.

        `key` tells it from other parts of the program, which has one entry, but may be cut into
        regions in several ways.
        """
        part = f"{name}-{_digest(place(), key)}"
        known = self.kept.get(part, bytes.decode)
        code = self.code(self.kept.sibling(known)) if known else None
        if code is not None:
            return code
        lowered = lower()
        text = text_of(lowered)
        kept = None if text is None else self.kept.sibling_for(f"{place()} {options} {text}")
        if kept is None or self.code(kept) is None:
            before = _hits()
            with notice_if_long(f"XLA compiles {name}"):
                code = lowered.compile(options)
            if kept is None or _hits() != before:  # XLA cannot write code that it has read
                return code
            self.codes[kept.name] = code
            self.keep(kept, name)
        self.kept.put(part, kept.name.encode())
        return self.codes[kept.name]

    def code(self, kept: CachedParts) -> Any:
        """Return the code of an entry from memory or from disk; None if there is none."""
        found = self.codes.get(kept.name)
        if found is None and (found := kept.get("code", _load)) is not None:
            self.codes[kept.name] = found
        return found

    def keep(self, kept: CachedParts, name: str) -> None:
        """Write compiled code to its entry."""
        try:
            data = pickle.dumps(serialize_executable.serialize(self.codes[kept.name]))
        except (NotImplementedError, ValueError) as error:  # JAX cannot serialize all code
            self.kept.tell(f"{name} is not kept: {error}")
        else:
            kept.put("code", data)


def text_of(lowered: Any) -> str | None:
    """Return the text that XLA compiles, and its calling convention, less the region's name.

    Return None if the code calls functions of this process, which the text does not contain.
    """
    args = lowered._lowering.compile_args  # there is no public way to know which arguments are used
    if args["host_callbacks"] or args["keepalive"]:
        return None
    text = re.sub(r"\Amodule @\S+", "module", lowered.as_text())
    convention = (lowered.in_tree, lowered.out_tree, lowered.in_avals, sorted(args["kept_var_idx"]))
    return f"{convention} {text}"


def options_for(plan: StoragePlan, region: Region) -> dict[str, Any]:
    """XLA's options: a region that runs once, in a program with loops, is optimized less."""
    level = "xla_backend_optimization_level"
    chosen = level in os.environ.get("XLA_FLAGS", "")
    chosen |= jax.config.read("jax_disable_most_optimizations") is True
    loops = bool(region.around or region.chunk) or any(isinstance(x, Loop) for x in region.items)
    if chosen or loops or not plan.schedule.loops() or devices()[0].platform != "cpu":
        return {}
    return {level: XLA_ONE_RUN_LEVEL}


def place() -> str:
    """A digest of the device that JAX compiles for, and of JAX's configuration."""
    device = devices()[0]
    facts = [device.platform, device.device_kind, jax.device_count(), os.environ.get("XLA_FLAGS")]
    facts.append(device.client.platform_version)  # has the version of the compiler for a GPU
    config: Any = jax.config
    facts += [config.jax_enable_x64, config.jax_default_matmul_precision]
    facts.append(config.read("jax_disable_most_optimizations"))
    return _digest(*facts)


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


@cache
def _listening() -> list[str]:
    """Listen to JAX's own compilation cache from the first call on; return the list of hits."""
    found: list[str] = []

    def heard(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(heard)
    return found


def _hits() -> int:
    return len(_listening())


def _load(data: bytes) -> Callable[..., Any]:
    """Load serialized code for the device that launches run on; JAX would load it for all."""
    here = [_device()]
    return serialize_executable.deserialize_and_load(*pickle.loads(data), execution_devices=here)


def _device() -> Any:
    (device,) = jax.device_put(0).devices()
    return device
