"""A run that nobody watches, of a program without host calls: one launch.

Inputs are taken as they are, and results are arranged inside: nothing else is done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

import numpy as np

from recurra.backends.protocol import Backend
from recurra.codegen.host_program import Program, RegionLaunch
from recurra.codegen.input_layout import dtype_name, in_caller_layout
from recurra.codegen.region import Region
from recurra.codegen.single_launch import Arrays, Finish, OutputOf, WholeProgram, output_of
from recurra.compiler.options import expect_seed
from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.output_axes import RestoredAxes
from recurra.ir.types import NUMPY_NAME
from recurra.runtime.compilation import Compilation
from recurra.runtime.inputs import ProgramInput, expect_inputs
from recurra.storage.storage_plan import StoragePlan

if TYPE_CHECKING:
    from recurra.runtime.run_request import RunRequest


class WholeProgramBackend(Backend, Protocol):
    """A backend that `compiles_whole`."""

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        """Return f(seed, inputs) -> results of a region that is all of a program."""
        ...

    def accepts(self, array: object) -> TypeGuard[LibraryArray]:
        """Can the array be an argument as it is, if it has the right shape and type?"""
        ...

    def argument(self, array: object) -> LibraryArray:
        """Convert a caller's array for a launch, which only reads it, and only while it runs."""
        ...


class SingleRun:
    """Runs a program as one launch.

    Results that stay on the device are arranged inside the launch; on the host that is a view.
    """

    def __init__(self, compilation: Compilation, program: Program) -> None:
        self.compilation, self.program = compilation, program
        self.backend = cast(WholeProgramBackend, compilation.backend)
        self.read = [x for x in compilation.inputs.values() if x.is_read]
        self.types = {x.name: (x.shape, NUMPY_NAME[x.type.dtype]) for x in self.read}
        self.outputs = tuple(dict.fromkeys(program.plan.graph.outputs))

    @cached_property
    def stores(self) -> WholeProgram:
        """The launch whose results are the stores of outputs."""
        return self.launch("program", lambda arrays, xp: tuple(arrays[n] for n in self.outputs))

    @cached_property
    def arrays(self) -> WholeProgram:
        """The launch whose results are the user's named tensors."""
        return self.launch("program_native", self.results)

    def launch(self, name: str, finish: Finish) -> WholeProgram:
        """Return the program, compiled at its first run; it is cached by its name."""
        (only,) = self.program.items
        assert isinstance(only, RegionLaunch)
        region = replace(only.region, name=name)
        return self.backend.compile_whole(self.program.plan, region, finish)

    def results(self, stores: Arrays, xp: ArrayNamespace) -> tuple[LibraryArray, ...]:
        """Arrange every named tensor, [*dims of its domain, *shape]; an input is copied."""
        given = {n for n in self.outputs if self.program.plan.stores[n].given}
        own = {n: xp.asarray(x, copy=True) if n in given else x for n, x in stores.items()}
        return self.arranged(own, xp)

    def arranged(self, stores: Arrays, xp: ArrayNamespace) -> tuple[LibraryArray, ...]:
        """Convert the stores of outputs to every named tensor."""
        return tuple(
            restored(convert(stores[name], xp), xp) for name, convert, restored in self.arrangements
        )

    @cached_property
    def arrangements(self) -> tuple[tuple[str, OutputOf, RestoredAxes], ...]:
        """The equation of every named tensor, and the conversions of its store."""
        c, plan = self.compilation, self.program.plan
        named = ((c.outputs[o], c.restored[o]) for o in c.named.values())
        return tuple((name, output_of(plan, name), restored) for name, restored in named)

    def on_host(self, outputs: tuple[LibraryArray, ...]) -> tuple[LibraryArray, ...]:
        """Convert the stores of outputs to every named tensor, as NumPy arrays of the caller."""
        backend, stores = self.backend, self.program.plan.stores
        own = {
            n: backend.numpy(x) if stores[n].given else backend.final_numpy(x)
            for n, x in zip(self.outputs, outputs, strict=True)
        }
        return self.arranged(own, np)

    def arguments(self, given: Mapping[str, object]) -> Arrays:
        """The inputs that are read, as they are or converted to the program's types."""
        are_these = type(given) is dict and given.keys() == self.types.keys()
        if are_these and all(self.accepts(name, x) for name, x in given.items()):
            return cast(Arrays, given)
        expect_inputs(self.compilation.inputs, given)
        return {x.name: self.argument(x, given[x.name]) for x in self.read}

    def accepts(self, name: str, given: object) -> bool:
        """Can the launch take the array of an input as it is?"""
        if not self.backend.accepts(given):
            return False
        return self.types[name] == (given.shape, dtype_name(given.dtype))

    def argument(self, x: ProgramInput, given: object) -> LibraryArray:
        """Convert the array of an input for the launch."""
        return self.backend.argument(in_caller_layout(given, x.name, x.type.dtype, x.loc))

    def run(self, request: RunRequest) -> dict[str, LibraryArray]:
        """Run the program; return every named tensor, by name, when all of them are ready."""
        c, backend, since = self.compilation, self.backend, time.perf_counter()
        inputs = self.arguments(request.inputs)
        expect_seed(request.seed)
        launch = self.arrays if request.native else self.stores
        try:
            results = backend.wait(launch(np.uint32(request.seed), inputs))
        except BaseException:
            backend.synchronize()
            raise
        if not request.native:
            results = self.on_host(results)
        if "launches" in c.compiled.stages.config.log:
            ms = (time.perf_counter() - since) * 1e3
            c.compiled.stages.say(f"all of the program: {ms:.1f} ms")
        return dict(zip(c.named, results, strict=True))
