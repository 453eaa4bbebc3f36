"""Host calls: convert operands to NumPy arrays, and results that are read to the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from recurra.backends.protocol import ArrayFunction, Backend, mesh_of
from recurra.codegen.array_machine import ArrayMachine, MachineArray, MachineStore
from recurra.codegen.call_result_readers import Reader
from recurra.codegen.offloaded_samples import samplers
from recurra.codegen.schedule_interpreter import ScheduleInterpreter, Scope
from recurra.codegen.shards import Shards
from recurra.errors import RecurraError, ShapeError
from recurra.ir.array_protocols import LibraryArray
from recurra.ir.expr import Env
from recurra.ir.graph import Node
from recurra.ir.types import NUMPY_NAME, Tuple, Type
from recurra.ops.control import Call
from recurra.runtime.offload.paged_buffer import Paged
from recurra.runtime.offload.prefetch_gather import Sampler
from recurra.storage.storage_plan import StoragePlan

Times = tuple[int, ...]  # of the loops around a call
Operand = np.ndarray | np.generic | Paged


def called(
    plan: StoragePlan,
    backend: Backend,
    walk: ScheduleInterpreter,
    shards: Shards | None,
    statement: str,
    seed: int,
    readers: Sequence[Reader],
) -> ArrayFunction:
    """Return f(times, *operands), which calls a host function.

    Operands are variables, the stores that it reads, and all points of an offloaded one.
    """
    node = plan.graph[statement]
    loops = [x for _, x in plan.schedule.paths()[statement] if x is not None]
    promised = [x.sizes(plan.sizes) for x in _results(node)]
    convert = None if shards is not None else _result_converter(plan, node, backend, readers)
    kept = [k for k in range(len(node.args)) if plan.access(statement, k) == "store"]
    homes = {k: plan.stores[plan.store_of(node.args[k].name)] for k in kept}
    rows = [k for k, s in homes.items() if s.room and statement in samplers(plan, s)]
    stored = [k for k in kept if k not in rows]
    sampler = Sampler(plan, node, seed) if rows else None

    def point(times: Times, stores: Mapping[str, MachineStore]) -> tuple[Scope, Env]:
        state = Scope({}, {**stores}, {}, tuple(zip(loops, times, strict=True)))
        return state, walk.point(statement, state)

    def read(machine: ArrayMachine, times: Times, *found: LibraryArray) -> list[MachineArray]:
        refs, on = [node.args[k] for k in stored], ScheduleInterpreter(plan, machine)
        state, env = point(times, {a.name: x for a, x in zip(refs, found, strict=True)})
        return [on.read(plan.stores[a.name], a, state, env) for a in refs]

    reading, operand = backend.reader(read), partial(_operand, backend)

    def operands(times: Times, values: Sequence[LibraryArray]) -> list[Operand]:
        args: list[LibraryArray | Paged] = [*values]
        for k, x in zip(stored, reading(times, *(values[k] for k in stored)), strict=True):
            args[k] = x
        return [x if isinstance(x, Paged) else operand(x) for x in args]

    run = _running(node, lambda times: point(times, {})[1])

    def call(times: Times, *values: LibraryArray) -> tuple[LibraryArray, ...]:
        if convert is not None:
            args = operands(times, values) if stored else [operand(x) for x in values]
            results = run(times, args)
            if [y.shape for y in results] != promised:
                raise _wrong_shape(results, node, promised)
            return convert(results)
        assert shards is not None
        mesh = mesh_of(backend)
        parts = zip(*(mesh.parts(x) for x in values), strict=True)
        each = [operands(times, part) for part in parts]  # of every worker
        results = run(times, shards.join_operands(node, zip(*each, strict=True)))
        return tuple(map(mesh.spread, shards.split_results(node, results)))

    def take(times: Times, *values: LibraryArray) -> tuple[LibraryArray, ...]:
        return (backend.borrow(_sampled(sampler, point(times, {})[1], operands(times, values))),)

    return call if sampler is None else take


def _results(node: Node) -> tuple[Type, ...]:
    return node.type.items if isinstance(node.type, Tuple) else ()


def _running(
    node: Node, env: Callable[[Times], Env]
) -> Callable[[Times, Iterable[Any]], Sequence[np.ndarray]]:
    """Return f(times, operands), which calls the function at the point that `env` finds."""
    plain = node.op.eval if isinstance(node.op, Call) and node.op.is_plain else None
    located = bool(node.op.mentions())  # does it depend on the point?

    def run(times: Times, xs: Iterable[Any]) -> Sequence[np.ndarray]:
        try:
            if plain is not None:
                return plain(np, *xs)
            return node.op.run(np, env(times) if located else {}, *xs)
        except RecurraError as error:
            raise _located(error, node, env(times)) from error

    return run


def _sampled(sampler: Sampler | None, env: Env, operands: Sequence[Operand]) -> np.ndarray:
    """The rows of a store that a call takes, by their numbers."""
    store, numbers = operands
    assert sampler is not None
    assert isinstance(store, Paged)
    assert isinstance(numbers, np.ndarray)
    return sampler(env, store, numbers)


def _operand(backend: Backend, array: LibraryArray) -> np.ndarray | np.generic:
    """A read-only array for a host function, as others may read it too; or a number."""
    if isinstance(array, np.generic):
        return array
    view = backend.host_operand(array)
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False
    return view


def _result_converter(
    plan: StoragePlan, node: Node, backend: Backend, readers: Sequence[Reader]
) -> Callable[[Sequence[np.ndarray]], tuple[LibraryArray, ...]]:
    """Return f(results), which converts them for their readers; unread ones stay zeros.

    A result that launches read until the next call is written to memory shared with the backend.
    """
    blank, shared, converted = list[Any](), list[_Place](), list[_Conversion]()
    for k, (type_, reader) in enumerate(zip(_results(node), readers, strict=True)):
        shape, dtype = type_.sizes(plan.sizes), NUMPY_NAME[type_.dtype]
        if reader is Reader.NOBODY:
            blank.append(backend.from_host_call(np.zeros(shape, dtype)))
        elif reader is Reader.LAUNCH and (staged := backend.staging(shape, dtype)) is not None:
            shared.append((k, staged[0]))
            blank.append(staged[1])
        else:
            converted.append((k, _read_only if reader is Reader.HOST else backend.from_host_call))
            blank.append(None)

    def convert(results: Sequence[np.ndarray]) -> tuple[LibraryArray, ...]:
        out = blank.copy()
        for k, place in shared:
            place[...] = results[k]
        for k, function in converted:
            out[k] = function(results[k])
        return tuple(out)

    return convert


_Place = tuple[int, np.ndarray]  # index of the result, and the memory that it is written to
_Conversion = tuple[int, Callable[[np.ndarray], LibraryArray]]  # index of the result, converter


def _read_only(array: np.ndarray) -> np.ndarray:
    """A copy that nobody writes to, or a number."""
    if isinstance(array, np.generic):
        return array
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def _located(error: RecurraError, node: Node, env: Env) -> RecurraError:
    """Add the point of the call to the error of a host function."""
    at = ", ".join(f"{d}={env[d]}" for d in node.domain.dims if d in env)
    facts = "\n  ".join(filter(None, [error.facts, at and f"called at {at}"]))
    return type(error)(error.what, facts=facts, hint=error.hint, loc=error.loc)


def _wrong_shape(
    results: Sequence[np.ndarray], node: Node, promised: Sequence[tuple[int, ...]]
) -> ShapeError:
    """The error for a result whose sizes are not those of its type."""
    assert isinstance(node.op, Call)
    found, type_, shape = next(
        (y.shape, t, shape)
        for y, t, shape in zip(results, _results(node), promised, strict=True)
        if y.shape != shape
    )
    return ShapeError(
        f"{node.op.fn.key} gives an array of shape {found}",
        facts=f"it was to give {type_}, which is {shape} here",
        hint="return that shape, or name the type that it has in rc.call(f, type, ...)",
        loc=node.loc,
    )
