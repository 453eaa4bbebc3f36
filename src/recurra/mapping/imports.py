"""JAX functions and our own compiled programs → memory-mapping problems."""

from __future__ import annotations

from collections.abc import Callable

from recurra.mapping.machine_model import TPU_V4I, Machine
from recurra.mapping.problem_from_hlo import Supply, extract
from recurra.runtime.executable import Executable
from recurra.schedule.tree import members
from recurra.storage.mapping_problem import Problem, ProblemError


def from_jax(
    function: Callable[..., object],
    *arguments: object,
    donated: tuple[int, ...] = (),
    machine: Machine = TPU_V4I,
    name: str = "",
    loop: int = 0,
    supply: Supply = "paper",
) -> Problem:
    """Return the problem of a traceable function of arrays or `jax.ShapeDtypeStruct`s.

    XLA compiles it for the device that JAX finds; nothing runs. `loop`, `supply`: see `extract`.
    """
    from recurra.backends.jax.hlo import of_function

    module = of_function(function, *arguments, donated=donated).module
    return extract(module, machine, name=name, loop=loop, supply=supply).problem


def from_program(
    program: Executable,
    region: int | None = None,
    *,
    machine: Machine = TPU_V4I,
    loop: int = 0,
    supply: Supply = "paper",
) -> Problem:
    """Return the problem of a region of a compiled program; by default of the one with the most
    equations."""
    compiled = program.compiled.program
    regions = compiled.regions
    if region is not None and not 0 <= region < len(regions):
        raise ProblemError(
            f"the program has no region {region}", facts=f"it has {len(regions)}, from 0 on"
        )

    from recurra.backends.jax.hlo import of_region

    if region is None:
        region = max(range(len(regions)), key=lambda k: len(members(regions[k].items)))
    module = of_region(compiled.plan, regions[region]).module
    name = f"region {region}"
    return extract(module, machine, name=name, loop=loop, supply=supply).problem
