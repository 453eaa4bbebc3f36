"""The generated host part of a program, a host call in its inner loop, launches left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import recurra as rc
from recurra.frontend.functions import call
from recurra.ir.user_objects import HostFunction
from recurra.runtime.host_executor import Execution

ITERATIONS, STEPS = 50, 200


@cache
def execution() -> Execution:
    """x[i,t+1] comes from a host function of y[i,t] = tanh(x[i,t]); a sum over t trains nothing."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        x = rc.like(rc.f32[()], domain=(i, t))
        x[i, 0] = rc.constant(0.0)
        y = x.tanh() + rc.value(t)
        (z,) = call(HostFunction("step", lambda x: (x,)), [rc.f32[()]], [y], (), y.domain)
        x[i, t + 1] = z
        rc.log(total=y[i, 0:T].sum())
    return ctx.compile({I: ITERATIONS, T: STEPS}, backend="numpy").execution


class _Nothing:
    """Stands for a run: every launch and call gives back what it is given, at once."""

    def __init__(self) -> None:
        self.execution = execution()

    def regions(self, *names: str) -> tuple[Any, ...]:
        found = {r.name: r for r in self.execution.program.regions}
        return tuple(self._constant(len(found[n].gives) + len(found[n].stores)) for n in names)

    def _constant(self, count: int) -> Any:
        result = (0,) * count
        return lambda *_: result

    def calls(self, *names: str) -> tuple[Any, ...]:
        return tuple(lambda *_: 0 for _ in names)

    def variables(self, *names: str) -> tuple[Any, ...]:
        return (0,) * len(names)

    stores = variables

    def neutral(self, step: str) -> int:
        return 0

    def enter(self, lo: int, variables: dict[str, Any]) -> tuple[int, tuple[Any, ...]]:
        return lo, tuple(variables.values())

    def report(self, *_: Any) -> None:
        return None


def launches() -> int:
    """Statements that one run executes in its inner loop."""
    per_step = sum(len(r.around) == 2 for r in execution().program.regions) + 1
    return ITERATIONS * STEPS * per_step


def seconds_per_run() -> None:
    """One run of the host part."""
    for _ in execution().main(_Nothing(), 0, lambda x: x):
        pass
