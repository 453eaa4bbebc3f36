"""Run the host part of a program on a backend, and collect its outputs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from recurra.backends.protocol import ArrayFunction, Backend, Mesh, Wrap, mesh_of
from recurra.codegen.arena_views import arena_arrays
from recurra.codegen.call_result_readers import Reader, readers
from recurra.codegen.host_program import Program
from recurra.codegen.host_source import host_source as written
from recurra.codegen.input_layout import inputs_read, written_order
from recurra.codegen.loop_segments import times
from recurra.codegen.offloaded_samples import has_samples
from recurra.codegen.region import Region
from recurra.codegen.schedule_interpreter import ScheduleInterpreter
from recurra.codegen.shards import Shards
from recurra.codegen.store_access import blank
from recurra.codegen.streamed_outputs import streamed
from recurra.errors import RecurraError
from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.expr import TRUE
from recurra.ir.output_axes import turned
from recurra.ir.types import NUMPY_NAME, Tuple, Type
from recurra.runtime.host_calls import called
from recurra.runtime.initial_buffers import Given
from recurra.runtime.offload.paged_buffer import Mover, Paged
from recurra.schedule.tree import Loop, is_constant
from recurra.storage.store import Store, store_key


@dataclass(frozen=True)
class _Copied(Mapping[str, np.ndarray]):
    """Arrays of a backend as NumPy arrays, each copied when it is read."""

    arrays: Mapping[str, object]
    numpy: Callable[[object], np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.numpy(self.arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@dataclass(frozen=True)
class Step:
    """The host's view after an outermost launch: its times, outputs and carried variables.

    `points` are the new points of each output; they differ from the times where an output is made
    some steps late.
    """

    dim: str
    lo: int
    hi: int
    outputs: Mapping[str, np.ndarray]
    variables: Mapping[str, np.ndarray]
    points: Mapping[str, range]


@dataclass
class Execution:
    """One program, compiled once for a backend; it may run any number of times.

    With `shards`, the backend is a mesh of as many workers.
    """

    program: Program
    backend: Backend | Mesh
    shards: Shards | None = None
    regions: dict[str, ArrayFunction] = field(default_factory=dict[str, ArrayFunction])
    readers: Mapping[str, tuple[Reader, ...]] = field(init=False)  # of the results of host calls
    around: Wrap | None = None  # wraps every host call
    mover: Mover | None = None  # of the last run: the moves of offloaded stores

    def __post_init__(self) -> None:
        self.text = written(self.program)
        scope: dict[str, HostMain] = {}
        exec(compile(self.text, "<recurra program>", "exec"), scope)
        self.main, self.readers = scope["main"], readers(self.program)
        self.regions = {r.name: self.compiled(r) for r in self.program.regions}

    def using(
        self,
        *,
        launches: Wrap | None = None,
        calls: Wrap | None = None,
        backend: Backend | None = None,
    ) -> Execution:
        """Return the same program with its launches and host calls wrapped, on another backend.

        Nothing is compiled again, and this execution stays as it is.
        """
        other = copy(self)
        if launches is not None:
            other.regions = {name: launches(name, run) for name, run in self.regions.items()}
        other.around = calls or self.around
        other.backend = backend or self.backend
        return other

    def compiled(self, region: Region) -> ArrayFunction:
        """Compile a region; launches that read offloaded stores or samples are waited for.

        Launches ahead of the host would hold points of the store, and more than two samples.
        """
        plan, wait = self.program.plan, self.backend.wait
        launch = self.backend.compile(plan, region)
        if not any(plan.stores[s].room for s in region.reads) and not has_samples(
            plan, region.held
        ):
            return launch
        return lambda *args: wait(launch(*args))

    def steps(
        self,
        seed: int = 0,
        *,
        inputs: Mapping[str, object] | None = None,
        resume: Resume | None = None,
        native: bool = False,
        watched: bool = True,
    ) -> Generator[Step, None, dict[str, LibraryArray]]:
        """Yield a Step after every launch of the outermost loop; return all outputs.

        Inputs and outputs are [*dims, *shape] in the order of the domain. `resume` is (time,
        variables) of an earlier Step: the main loop goes on from there. `native` outputs are arrays
        of the backend, without a copy. Steps of a run that is not `watched` have only the outputs
        that leave with every launch. No launch is in flight when it ends, even by an error.
        """
        run = _ExecutorRun(self, inputs or {}, resume, seed, watched)
        copy = self.backend.array if self.shards is None else mesh_of(self.backend).copy
        self.mover = run.mover
        try:
            stores = yield from self.main(run, self.backend.array(np.uint32(seed)), copy)
        finally:  # also of a generator that is closed, or left by an error
            run.mover.close()
            self.backend.synchronize()
        return run.results(stores, native)


Resume = tuple[int, Mapping[str, np.ndarray]]


class _ExecutorRun:
    """The state of one run, as the generated host code sees it."""

    def __init__(
        self,
        execution: Execution,
        inputs: Mapping[str, object],
        resume: Resume | None,
        seed: int,
        watched: bool,
    ):
        self.backend, self.plan = execution.backend, execution.program.plan
        self.compiled, self.inputs, self.resume = execution.regions, inputs, resume
        self.main, self.shards = execution.program.main, execution.shards
        self.around, self.seed, self.watched = execution.around, seed, watched
        self.readers = execution.readers
        missing = inputs_read(self.plan) - inputs.keys()
        if missing:
            raise RecurraError(
                f"the program reads the inputs {', '.join(sorted(missing))}",
                facts=f"it was given {', '.join(sorted(inputs)) or 'none'}",
                hint="steps(inputs={name: array}), one array [*dims, *shape] for each rc.input",
            )
        self.walk, self.mover = ScheduleInterpreter(self.plan, execution.backend.machine), Mover()
        self.offload = execution.program.offload
        self.streamed = streamed(execution.program)
        self.pieces: dict[str, list[np.ndarray]] = {n: [] for n in self.streamed}
        self.spans: dict[str, tuple[Loop, int, int]] = {}
        self.traveling = {store_key(n): s for n, s in self.plan.stores.items()}

    def enter(self, lo: int, variables: Mapping[str, object]) -> tuple[int, tuple[object, ...]]:
        """Return the first time of the outermost loop and its state; those of a resumed run."""
        if self.resume is None:
            return lo, tuple(variables.values())
        time, saved = self.resume
        known = [isinstance(x, int) for x in variables.values()]  # ends of rows are numbers
        return time, tuple(
            int(np.max(saved[n])) if k else self.saved(n, saved[n], variables[n])
            for n, k in zip(variables, known, strict=True)
        )

    def saved(self, name: str, array: np.ndarray, place: object = None) -> object:
        """Convert a saved variable, or store `name[]`; `place` is its array in the arena."""
        store = self.traveling.get(name)
        mine = store is not None and self.plan.arena and store.name in self.plan.arena.places
        if store is not None and store.per_point:
            places = place if mine and isinstance(place, list) else [None] * len(array)
            return [self.settled(y, at) for y, at in zip(array, places, strict=True)]
        return self.settled(array, place if mine else None)

    def settled(self, array: np.ndarray, place: object) -> object:
        """Copy the array of an earlier run to its place in the arena, or to memory of its own."""
        if place is not None:
            return self.backend.machine.write(place, (), self.backend.array(array))
        if self.shards is not None:
            return mesh_of(self.backend).spread(list(array))
        return self.backend.array(array)

    def whole(self, name: str, array: object) -> np.ndarray:
        """An output as a NumPy array, with the rows of all workers."""
        parts = self.backend.numpy(array)
        return parts if self.shards is None else self.shards.join_output(name, parts, np)

    def result(self, name: str, array: object) -> np.ndarray:
        """`whole`, of a store that no launch takes again; an input of the caller's is copied."""
        if self.shards is None and not self.plan.stores[name].given:
            return self.backend.final_numpy(array)
        return self.whole(name, array)

    def joined(self, name: str, parts: LibraryArray, xp: ArrayNamespace) -> LibraryArray:
        """Join the rows of all workers of an output."""
        return parts if self.shards is None else self.shards.join_output(name, parts, xp)

    def of_all(self, name: str, parts: list[np.ndarray]) -> np.ndarray:
        """Join an output of which each worker has a NumPy array."""
        return parts[0] if self.shards is None else self.shards.join_output(name, parts, np)

    @property
    def workers(self) -> int:
        return 1 if self.shards is None else self.shards.workers

    @property
    def lead(self) -> tuple[slice, ...]:
        """The index of the axes of an array that come before those of its store."""
        return () if self.shards is None else (slice(None),)

    def later(self, lo: int) -> int:
        """The first time of a later segment of the main loop; a resumed run may be past it."""
        return lo if self.resume is None else max(lo, self.resume[0])

    def end(self, going: object, end: int, after: int) -> int:
        """The end of rows after a step, as far as known; waits for the launch that computes it."""
        return end if np.any(self.backend.numpy(going)) else min(end, after)

    def ended(self, end: object) -> int:
        """The end of rows as a launch returned it: the same on all workers."""
        return int(np.max(self.backend.numpy(end)))

    def rest(self, values: Mapping[str, LibraryArray], end: int) -> None:
        """Append the points past the end of all rows to outputs that left with every launch."""
        for name, value in values.items():
            axis, store = self.streamed[name], self.plan.stores[name]
            shape, points = list(store.shape(self.plan.sizes)), self.span_of(name)
            shape[axis] = points.stop - min(max(end, points.start), points.stop)
            each = [np.zeros(shape, NUMPY_NAME[store.type.dtype]) for _ in range(self.workers)]
            parts = self.backend.numpy(value) if self.shards and np.ndim(value) else None
            for k, piece in enumerate(each):
                piece[...] = self.backend.numpy(value) if parts is None else parts[k]
            self.pieces[name].append(self.of_all(name, each))

    def span_of(self, name: str) -> range:
        """The points of an output along its outermost loop."""
        _, lo, hi = self.span(name)
        return self.points(name, lo, hi)

    def neutral(self, step: str) -> object:
        """The initial value of a fold."""
        return self.backend.array(blank(self.plan, step, np))

    def report(
        self,
        dim: str,
        lo: int,
        hi: int,
        outputs: Mapping[str, LibraryArray],
        variables: Mapping[str, object],
        end: int | None = None,
    ) -> Step:
        """Collect the outputs after a launch of the outermost loop; return its Step.

        Points from `end` on, where no row goes on, are left out.
        """
        shown: dict[str, np.ndarray] = {}
        ranges: dict[str, range] = {}

        def new_points(name: str) -> range:
            at = self.points(name, lo, hi)
            return at if end is None else range(at.start, max(at.start, min(at.stop, end)))

        for name, array in outputs.items():
            axis, store = self.streamed.get(name), self.plan.stores[name]
            if axis is not None:
                ranges[name] = new_points(name)
                shown[name] = self.piece(name, array, axis, ranges[name])
                self.pieces[name].append(shown[name])
            elif self.watched and [a.dim for a in store.kept] == [dim] and not store.type.shape:
                ranges[name] = at = new_points(name)
                first = store.kept[0].lo
                new = slice(at.start - first, at.stop - first)
                shown[name] = self.whole(name, array[(*self.lead, new)])
        return Step(dim, lo, hi, shown, _Copied(variables, self.numpy), ranges)

    def numpy(self, array: object) -> np.ndarray:
        """Copy a variable or a store to NumPy; a list of buffers to [buffers, *shape of one]."""
        if isinstance(array, list):
            return np.stack([self.backend.numpy(y) for y in cast(list[object], array)])
        return self.backend.numpy(array)

    def launches(self, lo: int, hi: int, size: int) -> Iterator[tuple[int, int]]:
        """Split the times lo..hi-1 at multiples of `size`."""
        while lo < hi:
            end = min(lo - lo % size + size, hi)
            yield lo, end
            lo = end

    def points(self, name: str, lo: int, hi: int) -> range:
        """The points of an output that are made at the times lo..hi-1 of its outermost loop."""
        loop, first, last = self.span(name)
        lo, hi, shift = max(lo, first), min(hi, last), loop.shift[name]
        if loop.step > 0:
            return range(lo - shift, max(lo, hi) - shift)
        return range(shift - max(lo, hi) + 1, shift - lo + 1)

    def span(self, name: str) -> tuple[Loop, int, int]:
        """The outermost loop of an output, its first time in it and one past its last."""
        if name not in self.spans:
            loop = next(x for _, x in self.plan.schedule.paths()[name] if x is not None)
            self.spans[name] = (loop, *times(self.plan.statements, loop, name, self.plan.sizes))
        return self.spans[name]

    def piece(self, name: str, array: LibraryArray, axis: int, points: range) -> np.ndarray:
        """Some points of a store that is a window along an axis, cut by NumPy, not by a launch."""
        slots, window = array.shape[len(self.lead) + axis], self.whole(name, array)
        if points.start % slots == 0 and len(points) == slots:
            return window
        return np.take(window, [p % slots for p in points], axis=axis)

    def results(
        self, stores: Mapping[str, LibraryArray], native: bool = False
    ) -> dict[str, LibraryArray]:
        out: dict[str, LibraryArray] = {}
        xp = self.backend.machine.xp if native else np
        for name in self.plan.graph.outputs:
            store = self.plan.stores[name]
            if name in self.streamed:
                axis = self.streamed[name]
                none = list(store.shape(self.plan.sizes))  # a run resumed at its end has no pieces
                none[axis] = 0
                empty = np.zeros(none, NUMPY_NAME[store.type.dtype])
                pieces = self.pieces[name] or [self.of_all(name, [empty] * self.workers)]
                array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=axis)
                array = xp.asarray(array) if native else array
            else:
                array = self.backend.wait(stores[name])
                array = self.joined(name, array, xp) if native else self.result(name, array)
                lengths = (self.length(name, a.dim) for a in store.kept)
                array = array[tuple(slice(0, n) for n in lengths)]  # less the room for padded reads
                array = array[self.done(name)]
            order = written_order(self.plan.graph[name].domain, store, len(array.shape))
            out[name] = turned(array, order, xp)
        return out

    def length(self, name: str, dim: str) -> int:
        """The number of points of an output along a dim, on all workers."""
        n = self.plan.graph[name].domain[dim].size(self.plan.sizes)
        return n * self.workers if self.shards and dim == self.shards.dim else n

    def done(self, name: str) -> tuple[slice, ...]:
        """The slice of an output that this run has made: a resumed one lacks the points before."""
        main, kept = self.main, self.plan.stores[name].kept
        if self.resume is None or main is None:
            return ()
        writers = [w.name for w in self.plan.statements.writers[name] if w.name in main.loop.shift]
        if not writers:
            return ()
        first = self.resume[0] - main.loop.shift[writers[0]]
        return tuple(
            slice(max(0, first - a.lo) if a.dim == main.loop.dim else 0, None) for a in kept
        )

    def regions(self, *names: str) -> tuple[ArrayFunction, ...]:
        return tuple(self.compiled[n] for n in names)

    def stores(self, *names: str) -> tuple[object, ...]:
        """The initial arrays of stores: inputs, or zeros, as masked values must be finite."""
        initial = Given(self.plan, self.backend, self.inputs, self.shards)
        found, views = [self.plan.stores[n] for n in names], arena_arrays(self.plan, self.backend)
        return tuple(
            views[s.name] if s.name in views else self.offloaded(s) if s.room else initial.store(s)
            for s in found
        )

    def offloaded(self, store: Store) -> Paged:
        assert self.offload is not None
        return self.mover.store(store, self.offload, self.plan.sizes, self.backend)

    def variables(self, *names: str) -> tuple[object, ...]:
        """The initial values of variables: constants have their value, others are zero."""
        return tuple(map(self.blank, names))

    def blank(self, name: str) -> object:
        (writer, *_) = self.plan.statements.writers[name]
        if isinstance(writer.type, Tuple):  # results of a call that may not run in the first step
            return None if writer.where == TRUE else tuple(map(self.zeros, writer.type.items))
        if is_constant(writer):
            return self.backend.adopt(np.array(writer.op.run(np, dict(self.plan.sizes))))
        return self.zeros(writer.type)

    def zeros(self, type_: Type) -> object:
        return self.backend.adopt(np.zeros(type_.sizes(self.plan.sizes), NUMPY_NAME[type_.dtype]))

    def calls(self, *statements: str) -> tuple[ArrayFunction, ...]:
        functions = {s: self.call(s) for s in statements}
        return tuple(self.around(s, f) if self.around else f for s, f in functions.items())

    def call(self, statement: str) -> ArrayFunction:
        plan, readers = self.plan, self.readers.get(statement, ())
        return called(plan, self.backend, self.walk, self.shards, statement, self.seed, readers)


HostMain = Callable[..., Generator[Step, None, Mapping[str, LibraryArray]]]
"""main(run, seed, copy), the generated host code, returns the stores; `run` is an _ExecutorRun."""
