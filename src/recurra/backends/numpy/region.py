"""A region as Python source that calls NumPy, written while the region is walked through once.

    def region_2_t(seed, t_from, t_end, h, x_store, h_store):
        for t in range(t_from, t_end):
            x = x_store[t]
            tanh = np.tanh(x + h)
            h_store[t] = tanh
            h_ = tanh

The walk operates on stand-ins for arrays, which write each call down; numbers known at run time
only (times, ends of rows) are `Count`s. A function of another library is called as it is. The calls
are those that an interpreter would make, so that the answer is the same to the last bit.

A program that is one region is such a function of its seed and inputs:

    def program(seed, inputs):
        x = inputs["x"]
        h_store = np.zeros((40, 2), np.float32)
        ..
        return (h_store,)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recurra.backends.bounded_int import ANY
from recurra.backends.numpy.python_source_writer import Writer
from recurra.backends.numpy.source_blocks import Line, text_of
from recurra.backends.numpy.source_machine import WritingMachine
from recurra.backends.numpy.traced_array import StandIn, zero_array
from recurra.codegen.region import Region
from recurra.codegen.region_function import argument_types, region_function, time_arguments
from recurra.codegen.schedule_interpreter import ScheduleInterpreter, Scope
from recurra.codegen.single_launch import Finish, whole_program
from recurra.schedule.tree import Loop
from recurra.storage.storage_plan import StoragePlan
from recurra.support.source_text import tuple_of


def written(plan: StoragePlan, region: Region) -> tuple[str, dict[str, Any]]:
    """The source of a region, and the objects that it mentions by name."""
    w = Writer()
    machine = WritingMachine(w, plan.sizes)
    args: list[Any] = [
        machine.counter(w.named(name), ANY if most is None else (0, most))
        for name, most in time_arguments(plan, region)
    ]
    seed = w.named("seed")
    parameters = [seed, *map(str, args)]
    stores = (f"{s}_store" for s in (*region.stores, *region.reads))
    names = (*region.held, *region.carried, *stores)
    for wanted, known in zip(names, argument_types(plan, region), strict=True):
        parameters.append(name := w.named(wanted))
        if isinstance(known, list):  # the results of a host call
            args.append(
                tuple(StandIn(w, f"{name}[{k}]", zero_array(*x)) for k, x in enumerate(known))
            )
        else:
            args.append(StandIn(w, name, zero_array(*known)))
    results = region_function(plan, region, machine, WritingWalk)(
        StandIn(w, seed, zero_array((), "uint32")), *args
    )
    head = f"def {region.name}({', '.join(parameters)}):"
    return text_of(head, w.items, tuple_of([*map(w.owned, results)])), w.scope


def written_whole(
    plan: StoragePlan, region: Region, finish: Finish, inputs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The source of a program that is one region, for inputs of these types; and its objects."""
    w = Writer()
    machine = WritingMachine(w, plan.sizes)
    seed, dictionary = w.named("seed"), w.named("inputs")
    args = dict[str, Any]()
    for name, x in inputs.items():
        args[name] = StandIn(w, w.named(name), zero_array(x.shape, x.dtype))
        w.items.append(Line(args[name].name, f"{dictionary}[{name!r}]"))
    launch = region_function(plan, region, machine, WritingWalk)
    whole = whole_program(plan, region, launch, machine, finish)
    results = whole(StandIn(w, seed, zero_array((), "uint32")), args)
    gives = w.unaliased(results, (x.name for x in args.values()))
    head = f"def {region.name}({seed}, {dictionary}):"
    return text_of(head, w.items, tuple_of(gives)), w.scope


class WritingWalk(ScheduleInterpreter):
    """A walk that tells the writer where values begin and end."""

    def execute(self, statement: str, state: Scope) -> None:
        super().execute(statement, state)
        value = state.vals[self.statements[statement].array]
        self.machine.writer.keep(value)  # pyright: ignore[reportAttributeAccessIssue]

    def run(self, loop: Loop, lo: Any, hi: Any, active: frozenset[str], state: Scope) -> None:
        with self.machine.writer.step():  # pyright: ignore[reportAttributeAccessIssue]
            super().run(loop, lo, hi, active, state)


def defined(region: Region, text: str, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """Execute source in a scope; return the function of the region's name."""
    scope = {"np": np, **scope}
    exec(compile(text, f"<recurra {region.name}>", "exec"), scope)
    return scope[region.name]
