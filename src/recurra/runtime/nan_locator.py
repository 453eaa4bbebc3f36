"""Find the op that made the NaN or inf in a result.

    loss is nan at i=3   →   log_2 makes -inf at i=3, t=7, b=1, out of 0.0     train.py:12

If a metric or a carried variable is not finite, its launch is run again on NumPy, from the state
before it and with the recorded answers of the host. Elements that an op makes NaN out of operands
without NaN, or inf out of finite ones, are counted. The first k of them are kept, later ones are
replaced by 1: the smallest k for which the result is bad, by bisection, names the culprit. Elements
hidden by a mask or an untaken branch reach no result, and are not named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.protocol import ArrayFunction
from recurra.codegen.host_program import ChunkLoop, HostLoop, Program
from recurra.codegen.region import Region
from recurra.codegen.region_function import region_function
from recurra.codegen.schedule_interpreter import ScheduleInterpreter, Scope
from recurra.errors import NotFiniteError
from recurra.ir.array_protocols import LibraryArray
from recurra.ir.expr import Env
from recurra.ir.graph import Ref
from recurra.ir.op import Op
from recurra.ir.statement import Statement
from recurra.ir.types import Tuple, is_floating
from recurra.ops.control import Call, Merge
from recurra.ops.reduction import Fold
from recurra.ops.sampled_rows import Samples
from recurra.ops.source import Input
from recurra.runtime.host_executor import Execution, Resume, Step
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import is_store_key

Answers = list[tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class BadElement:
    """One NaN or inf that an op made out of better operands."""

    node: Statement
    env: Mapping[str, int]
    element: tuple[int, ...]
    value: float
    operands: tuple[object, ...]
    result: int = 0  # the index of the result, of a call


@dataclass
class NanWatch:
    """Counts bad elements; keeps the first `through` of them (None: all), replaces the others."""

    through: int | None
    count: int = 0
    last: BadElement | None = None  # the last one kept

    def replace_bad(
        self,
        node: Statement,
        env: Mapping[str, int],
        array: np.ndarray,
        bad: np.ndarray,
        xs: Sequence[object] = (),
        result: int = 0,
    ) -> np.ndarray:
        """Return a result with the bad elements that are not kept replaced by 1."""
        spots = np.argwhere(bad)
        left = len(spots) if self.through is None else max(0, self.through - self.count)
        room = min(left, len(spots))
        if room and self.count + room == self.through:
            at = tuple(map(int, spots[room - 1]))
            self.last = BadElement(node, dict(env), at, float(array[at]), tuple(xs), result)
        self.count += len(spots)
        if room < len(spots):
            array = np.array(array, copy=True)
            array[tuple(spots[room:].T)] = 1
        return array


@dataclass(frozen=True)
class WatchedArrays(ScheduleInterpreter):
    """A walk that runs statements as NumPy does, and watches their results."""

    watch: NanWatch = field(default_factory=lambda: NanWatch(None))
    operands: list[object] = field(default_factory=list[object])

    def value(self, sink: str, index: int, ref: Ref, state: Scope, env: Env) -> object:
        x = super().value(sink, index, ref, state, env)
        self.operands.append(x)
        return x

    def execute(self, statement: str, state: Scope) -> None:
        node = self.statements[statement]
        self.operands.clear()
        if node.accumulates:
            self.operands.append(state.vals[node.array])
        super().execute(statement, state)
        y = state.vals[node.array]
        if isinstance(node.type, Tuple) or not _not_finite(np.asarray(y)).any():
            return
        xs, env = tuple(self.operands), self.point(statement, state)
        bad = self.bad_elements(node, env, np.asarray(y), xs)
        fixed = self.watch.replace_bad(node, env, np.asarray(y), bad, xs)
        if fixed is not y:
            state.vals[node.array] = fixed
            if not node.accumulates:
                self.keep(node, fixed, state, env)

    def bad_elements(
        self, node: Statement, env: Env, result: np.ndarray, xs: Sequence[object]
    ) -> np.ndarray:
        """A mask of the elements that are worse than the operands they are computed of."""
        if isinstance(node.op, Merge):
            return np.zeros(result.shape, bool)
        if not xs:
            return np.isnan(result)

        def again(bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            clean = [_mended(bad, x) for x in xs]
            if node.accumulates:
                assert isinstance(node.op, Fold)
                return Op.registry[node.op.monoid_of]().eval(np, *clean)
            return np.asarray(node.op.run(np, env, *clean))

        nan = np.isnan(result) & np.isnan(again(_nan))
        return nan | (np.isinf(result) & np.isinf(again(_not_finite)))


def _mended(bad: Callable[[np.ndarray], np.ndarray], value: object) -> object:
    """An operand with its bad elements replaced by 1; of the results of a call, each."""
    if isinstance(value, tuple):
        return tuple(_mended(bad, y) for y in cast("tuple[object, ...]", value))
    value = np.asarray(value)
    return np.where(bad(value), 1, value).astype(value.dtype)


def _nan(array: np.ndarray) -> np.ndarray:
    return np.isnan(array) if is_floating(array.dtype) else np.zeros(array.shape, bool)


def _not_finite(array: np.ndarray) -> np.ndarray:
    return ~np.isfinite(array) if is_floating(array.dtype) else np.zeros(array.shape, bool)


@dataclass
class _WatchedNumpy(NumpyBackend):
    """NumPy with watched regions."""

    watch: NanWatch

    def __post_init__(self) -> None:
        super().__init__()

    def compile(self, plan: StoragePlan, region: Region) -> ArrayFunction:
        return region_function(
            plan, region, self.machine, lambda p, m: WatchedArrays(p, m, watch=self.watch)
        )


@dataclass
class Check:
    """Checks every launch of one run. `names`: the user's names of the program's outputs."""

    program: Program
    names: Mapping[str, str]
    seed: int
    inputs: Mapping[str, object]
    resume: Resume | None
    answers: Answers = field(default_factory=list[tuple[np.ndarray, ...]])
    allowed: set[str] = field(default_factory=set[str])  # inf that no op made
    resumable: bool = False  # may the last launch be run again alone?
    launches: int = 0  # since the state that a replay begins with
    ended: bool = False
    given: BadElement | None = None  # the first that an environment returned in this launch

    def __post_init__(self) -> None:
        self.resumable = _hands_on_variables(self.program)

    def recorded(self, execution: Execution) -> Execution:
        """Wrap an execution so that the answers of its host calls are recorded."""

        def wrap(statement: str, call: ArrayFunction) -> ArrayFunction:
            if not self.answers_are_kept(statement):
                return call
            point = self.points(
                ScheduleInterpreter(self.program.plan, execution.backend.machine), statement
            )

            def recorded(times: tuple[int, ...], *operands: object) -> tuple[LibraryArray, ...]:
                found = call(times, *operands)
                self.answers.append(tuple(map(execution.backend.numpy, found)))
                self.given = self.given or self.not_finite(statement, point, times)
                return found

            return recorded

        return execution.using(calls=wrap)

    def answers_are_kept(self, statement: str) -> bool:
        """Is it a call of a function? Samples are taken again instead."""
        return not isinstance(self.program.plan.statements[statement].op, Samples)

    def points(self, walk: ScheduleInterpreter, statement: str) -> Callable[[tuple[int, ...]], Env]:
        """Return the function from the times of the loops around a call to its point."""
        path = self.program.plan.schedule.paths()[statement]
        loops = [x for _, x in path if x is not None]

        def point(times: tuple[int, ...]) -> Env:
            state = Scope({}, {}, {}, tuple(zip(loops, times, strict=True)))
            return walk.point(statement, state)

        return point

    def not_finite(
        self, statement: str, point: Callable[[tuple[int, ...]], Env], times: tuple[int, ...]
    ) -> BadElement | None:
        """The first bad element of the newest answer, if its results are named, as of environments.

        It may be gone from later values: tanh and min remove an inf, a draw a NaN.
        """
        node = self.program.plan.statements[statement]
        if not isinstance(node.op, Call) or not node.op.fn.results:
            return None
        for k, y in enumerate(self.answers[-1]):
            if (bad := _not_finite(y)).any():
                at = tuple(map(int, np.argwhere(bad)[0]))
                return BadElement(node, dict(point(times)), at, float(y[at]), (), k)
        return None

    def step(self, launch: Step) -> None:
        """Check a launch. Raises NotFiniteError."""
        self.launches += 1
        self.resumable &= set(self.program.plan.graph.outputs) <= launch.outputs.keys()
        self.look({**launch.outputs, **launch.variables}, f"{launch.dim}={launch.lo}")
        if self.resumable:
            kept = {n: np.array(x, copy=True) for n, x in launch.variables.items()}
            self.resume = (launch.hi, kept)
            self.answers.clear()
            self.launches = 0

    def end(self, results: Mapping[str, object]) -> None:
        """Check the results of the run. Raises NotFiniteError."""
        self.ended = True
        if not self.resumable:  # else every step was checked
            self.look(results)

    def look(self, results: Mapping[str, object], where: str = "") -> None:
        """Raise NotFiniteError for a result of a launch, or an answer of the host."""
        self.look_at_results(results, where)
        if self.given is not None:
            raise self.refusal(self.given)

    def look_at_results(self, results: Mapping[str, object], where: str) -> None:
        bad = bad_names(results) - self.allowed
        if not bad:
            return
        (watch_all, results_of_all), never = self.replay(None), bad_names(self.replay(0)[1])
        reached = bad & bad_names(results_of_all) - never
        if not reached:
            if any(np.isnan(np.asarray(results[n])).any() for n in bad):
                self.unexplained(sorted(bad)[0], results, where)
            self.allowed |= bad
            return
        low, high = 0, watch_all.count
        while high - low > 1:
            k = (low + high) // 2
            if reached & bad_names(self.replay(k)[1]):
                high = k
            else:
                low = k
        found, shown = self.replay(high)
        assert found.last is not None
        name = sorted(reached & bad_names(shown), key=lambda n: (n not in self.names, n))[0]
        led = f"{self.called(name)} is {_worst(results[name])}" + (f" at {where}" if where else "")
        by_op = not isinstance(found.last.node.op, Call)
        raise self.refusal((by_op and self.given) or found.last, f"\n  it reaches {led}")

    def replay(self, through: int | None) -> tuple[NanWatch, Mapping[str, object]]:
        """Run the launch again, keeping the first `through` bad elements; return its results."""
        watch, answers = NanWatch(through), iter(self.answers)
        backend = _WatchedNumpy(watch)
        plan = self.program.plan
        walk = ScheduleInterpreter(plan, backend.machine)

        def wrap(statement: str, call: ArrayFunction) -> ArrayFunction:
            node, point = plan.statements[statement], self.points(walk, statement)

            def answered(times: tuple[int, ...], *_: object) -> tuple[np.ndarray, ...]:
                env = point(times)
                return tuple(_answer(watch, node, env, y, k) for k, y in enumerate(next(answers)))

            return answered if self.answers_are_kept(statement) else call

        execution = Execution(self.program, backend).using(calls=wrap)
        steps = execution.steps(self.seed, inputs=self.inputs, resume=self.resume)
        results: Mapping[str, object] = {}
        with np.errstate(all="ignore"), closing(steps):
            for _ in range(self.launches):
                s = next(steps)
                results = {**s.outputs, **s.variables}
            if self.ended:
                try:
                    next(steps)
                except StopIteration as end:
                    results = end.value
        return watch, results

    # ---- messages

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def unexplained(self, name: str, results: Mapping[str, object], where: str) -> None:
        raise NotFiniteError(
            f"{self.called(name)} is {_worst(results[name])}" + (f" at {where}" if where else ""),
            facts="run again on NumPy, no op makes it: the backends round differently there, or "
            "it was in what the run was resumed with",
            hint="compile with backend='numpy', check='nan'",
        )

    def refusal(self, found: BadElement, led: str = "") -> NotFiniteError:
        dims, element = self.point(found)
        places = [f"{d}={p}" for d, p in dims.items()]
        places += [f"element {list(element)}"] if element else []
        at = f" at {', '.join(places)}" if dims else "".join(f", {x}" for x in places)
        takes = [
            f"{a.name} is {_near(x, found, k)}"
            for k, (a, x) in enumerate(zip(found.node.args, found.operands, strict=False))
        ]
        if isinstance(found.node.op, Call):
            return self.answer_refusal(found, found.node.op, at, led)
        if isinstance(found.node.op, Input):
            takes = ["it comes from outside of the program"]
        return NotFiniteError(
            f"{found.node.op.name} makes {_text(found.value)}{at}",
            facts=f"{found.node.name}: {', '.join(takes) or 'it has no operands'}{led}",
            hint=f"keep what {found.node.op.name} is given where it is finite "
            "(rc.maximum, rc.minimum, a smaller learning rate)",
            loc=found.node.loc,
        )

    def answer_refusal(self, found: BadElement, op: Call, at: str, led: str) -> NotFiniteError:
        """The error for a value of the host, such as the reward of one row of an environment."""
        words = op.fn.results
        what = f" as {words[found.result]}" if found.result < len(words) else ""
        row = f" of row {found.element[0]}" if op.batch_dims and found.element else ""
        where = "in a wrapper: np.nan_to_num(x)"
        if np.isnan(found.value) or not op.fn.results:
            where = "where the program reads it: rc.where(x == x, x, 0.0)"
        return NotFiniteError(
            f"{op.fn.key} gives {_text(found.value)}{what}{row}{at}",
            facts=f"{found.node.name}: it comes from outside of the program{led}",
            hint=f"mend {op.fn.key}, or leave out what is not finite {where}",
            loc=found.node.loc,
        )

    def point(self, found: BadElement) -> tuple[dict[str, int], tuple[int, ...]]:
        """The point of an element, dims that are axes included, and its index in the value."""
        graph = self.program.plan.graph
        dims = {d: int(found.env[d]) for d in found.node.domain.dims if d in found.env}
        left: list[int] = []
        type_ = found.node.type
        type_ = type_.items[found.result] if isinstance(type_, Tuple) else type_
        for k, size in zip(found.element, type_.shape, strict=False):
            mine = [d.name for d in graph.dims if d.hi == size and d.name not in dims]
            if mine:
                dims[mine[0]] = k
            else:
                left.append(k)
        order = list(graph.declared)
        return dict(sorted(dims.items(), key=lambda p: order.index(p[0]))), tuple(left)


def _hands_on_variables(program: Program) -> bool:
    """Is there one outermost loop, the last item, whose steps share nothing but variables?"""
    loops = [x for x in program.items if isinstance(x, (ChunkLoop, HostLoop))]
    if len(loops) != 1 or loops[0] is not program.main or program.items[-1] is not loops[0]:
        return False
    plan, dim = program.plan, loops[0].loop.dim
    read = {
        plan.graph[n].args[k].name
        for (n, k), access in plan.accesses.items()
        if access == "store" and n in plan.graph.nodes
    }
    return not any(a.dim == dim for n in read & plan.stores.keys() for a in plan.stores[n].kept)


def _answer(
    watch: NanWatch, node: Statement, env: Mapping[str, int], result: np.ndarray, index: int
) -> np.ndarray:
    """Result `index` of the host, watched like an op's; a copy, as launches may destroy it."""
    result = np.array(result, copy=True)
    bad = _not_finite(result)
    return watch.replace_bad(node, env, result, bad, result=index) if bad.any() else result


def bad_names(results: Mapping[str, object]) -> set[str]:
    """The results that hold a NaN or inf; stores are left out, as a mask may hide elements."""
    values = {n: x for n, x in results.items() if x is not None and not is_store_key(n)}
    return {n for n, x in values.items() if _not_finite(np.asarray(x)).any()}


def _worst(value: object) -> str:
    a = np.asarray(value)
    return "nan" if np.isnan(a).any() else _text(float(a[~np.isfinite(a)].flat[0]))


def _text(value: float) -> str:
    return f"{value:.5g}"


def _near(operand: object, found: BadElement, index: int) -> str:
    """Operand `index` at the element, or its extremes if it has axes that the result lacks."""
    x = np.asarray(operand)
    labels: str = getattr(found.node.op, "labels", "")
    if labels:
        ins, _, out = labels.partition("->")
        axes = [out.find(c) for c in ins.split(",")[index]]
    else:
        axes = list(range(x.ndim)) if x.ndim == len(found.element) else [-1] * x.ndim
    if all(
        0 <= a < len(found.element) and found.element[a] < n
        for a, n in zip(axes, x.shape, strict=True)
    ):
        return _text(float(x[tuple(found.element[a] for a in axes)]))
    return f"from {_text(float(x.min()))} to {_text(float(x.max()))}" if x.size else "empty"
