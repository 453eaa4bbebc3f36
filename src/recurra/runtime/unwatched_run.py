"""A run that nobody watches, of a program without host calls: one launch.

Inputs are taken as they are, results leave as they were asked for, nothing is done in between.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from recurra.backends.protocol import Backend
from recurra.codegen.host_program import Program, RegionLaunch
from recurra.codegen.input_layout import in_place
from recurra.codegen.region import Region
from recurra.codegen.single_launch import Arrays, Finish, WholeProgram, output_of
from recurra.compiler.options import expect_seed
from recurra.ir.arrays import ArrayNamespace, LibraryArray
from recurra.runtime.compilation import Compilation
from recurra.runtime.inputs import ProgramInput, expect_inputs
from recurra.storage.storage_plan import StoragePlan

if TYPE_CHECKING:
    from recurra.runtime.run_request import RunRequest


class WholeProgramBackend(Backend, Protocol):
    """A backend that `compiles_whole`."""

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        """f(seed, inputs) -> results, of a region that is all of a program."""
        ...

    def argument(self, x: object) -> LibraryArray:
        """What the whole takes of a caller's array: it only reads it, and only while it runs."""
        ...


class SingleRun:
    """Runs a program as one launch. Results are made what the user wrote in there, if they stay on
    the device; on the host that is a view."""

    def __init__(self, compilation: Compilation, program: Program) -> None:
        self.compilation, self.program = compilation, program
        self.backend = cast(WholeProgramBackend, compilation.backend)
        self.read = [x for x in compilation.inputs.values() if x.is_read]
        self.outputs = tuple(dict.fromkeys(program.plan.graph.outputs))

    @cached_property
    def stores(self) -> WholeProgram:
        """The launch whose results are the stores of outputs."""
        return self.launch("program", lambda made, xp: tuple(made[n] for n in self.outputs))

    @cached_property
    def arrays(self) -> WholeProgram:
        """The launch whose results are those of the user."""
        return self.launch("program_native", self.results)

    def launch(self, name: str, finish: Finish) -> WholeProgram:
        """The program, ready to be compiled at its first run; it is kept by its name."""
        (only,) = self.program.items
        assert isinstance(only, RegionLaunch)
        region = replace(only.region, name=name)
        return self.backend.compile_whole(self.program.plan, region, finish)

    def results(self, stores: Arrays, xp: ArrayNamespace) -> tuple[LibraryArray, ...]:
        """Every named tensor, [*dims of its domain, *shape]; what the caller gave stays his."""
        given = {n for n in self.outputs if self.program.plan.stores[n].given}
        own = {n: xp.asarray(x, copy=True) if n in given else x for n, x in stores.items()}
        return self.arranged(own, xp)

    def arranged(self, stores: Arrays, xp: ArrayNamespace) -> tuple[LibraryArray, ...]:
        """Every named tensor, of the stores of outputs."""
        return tuple(
            stores[n] if same else self.as_named(o, stores, xp) for o, n, same in self.named
        )

    def as_named(self, output: str, stores: Arrays, xp: ArrayNamespace) -> LibraryArray:
        """An output as the user wrote it, of the store of its equation."""
        name = self.compilation.outputs[output]
        made = output_of(self.program.plan, name, stores[name], xp)
        return self.compilation.arrange(output, made, xp)

    @cached_property
    def named(self) -> tuple[tuple[str, str, bool], ...]:
        """Every named tensor's output, its equation, and whether its store is what the user
        wrote."""
        plan, out = self.program.plan, list[tuple[str, str, bool]]()
        for o in self.compilation.named.values():
            store = plan.stores[n := self.compilation.outputs[o]]
            like = np.broadcast_to(np.zeros(()), store.shape(plan.sizes))
            out.append((o, n, self.as_named(o, {n: like}, np) is like))
        return tuple(out)

    def on_host(self, made: tuple[LibraryArray, ...]) -> tuple[LibraryArray, ...]:
        """Every named tensor, of the stores of outputs, as NumPy arrays of the caller's own."""
        backend, stores = self.backend, self.program.plan.stores
        own = {
            n: backend.numpy(x) if stores[n].given else backend.result(x)
            for n, x in zip(self.outputs, made, strict=True)
        }
        return self.arranged(own, np)

    def in_place(self, x: ProgramInput, request: RunRequest) -> object:
        """An input as it was given, or in the type that it has in the program."""
        return in_place(request.inputs[x.name], x.name, x.type.dtype, x.loc)

    def run(self, request: RunRequest) -> dict[str, LibraryArray]:
        """Every named tensor, by name; all of them are there when this returns."""
        c, backend, since = self.compilation, self.backend, time.perf_counter()
        expect_inputs(c.inputs, request.inputs)
        expect_seed(request.seed)
        inputs = {x.name: backend.argument(self.in_place(x, request)) for x in self.read}
        launch = self.arrays if request.native else self.stores
        try:
            made = backend.wait(launch(np.uint32(request.seed), inputs))
        except BaseException:
            backend.settle()
            raise
        if not request.native:
            made = self.on_host(made)
        ms = (time.perf_counter() - since) * 1e3
        c.compiled.stages.tell("launches", f"all of the program: {ms:.1f} ms")
        return dict(zip(c.named, made, strict=True))
