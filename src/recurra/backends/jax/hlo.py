"""Compile a function or a region with XLA: its scheduled module and buffer assignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from recurra.backends.jax.region import JaxBackend
from recurra.codegen.region import Region
from recurra.storage.storage_plan import StoragePlan


@dataclass(frozen=True)
class Hlo:
    """Serialized `HloModuleProto` and `BufferAssignmentProto`."""

    module: bytes
    assignment: bytes


def of_function(
    function: Callable[..., Any], *arguments: Any, donated: tuple[int, ...] = ()
) -> Hlo:
    """Compile a traceable function of arrays or `jax.ShapeDtypeStruct`s. Nothing runs."""
    return _hlo(jax.jit(function, donate_argnums=donated).lower(*arguments).compile())


def of_region(plan: StoragePlan, region: Region) -> Hlo:
    """Compile a region of a program. Nothing runs."""
    return _hlo(JaxBackend().lowered(plan, region).compile())


def _hlo(compiled: jax.stages.Compiled) -> Hlo:
    runtime: Any = compiled.runtime_executable()
    analysis: Any = compiled.memory_analysis()
    module = runtime.hlo_modules()[0].as_serialized_hlo_module_proto()
    return Hlo(module, analysis.serialized_buffer_assignment_proto)
