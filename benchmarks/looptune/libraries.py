"""Figure 10: NumPy, TVM where there is one, and our kernels, by policy and by search."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Case, compare
from benchmarks.looptune.searches import POLICY, called, known
from benchmarks.nest import suite as nest
from benchmarks.nest.peers import contestant, inputs_of, peers
from benchmarks.nest.peers_tvm import available
from recurra.nest import catalogue
from recurra.nest.compiled import compile as compiled
from recurra.nest.loops import Nest
from recurra.nest.target import runnable
from recurra.nest.tune import tune_nest


def beside(size: tuple[int, int, int], seconds: float, pairs: int) -> dict[str, Any]:
    """Milliseconds of a call from Python, by name; answers are compared first."""
    p, on = catalogue.matmul(*size), runnable()[0]
    nests: dict[str, Nest] = {"tuned": tune_nest(p, on, seconds=seconds).nest}
    if (policy := known(on)) is not None:
        nests[POLICY] = policy.path(p)[-1]
    inputs = inputs_of(p)

    def ours(name: str) -> Any:
        call = compiled(p, schedule=nests[name], backend=on.name)  # pyright: ignore[reportArgumentType]
        out = call(*inputs)
        return contestant(name, lambda: call(*inputs, out=out), inputs)

    us, *others = (ours(name) for name in nests)
    case = Case(f"matmul {called(size)}", metric="call_ms")
    theirs = [peer for peer in peers("matmul", inputs, {}) if peer.name == "numpy"]
    iterations = max(3, min(2000, int(nest.SPAN_MS / nest.each_ms(us))))
    rows = compare(case, us, [*others, *theirs], pairs=pairs, iterations=iterations)
    if available():
        rows.append(nest.beside_tvm(case, us, inputs, pairs, iterations))
    return {"size": called(size), "ms": {us.name: rows[0].ours, **{r.peer: r.theirs for r in rows}}}
