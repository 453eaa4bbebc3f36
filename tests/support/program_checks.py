"""What every program must pass: passes keep the oracle's answer, plans hold, backends agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from random_programs import Case, ragged
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.protocol import Backend
from recurra.codegen.single_launch import as_single_launch, output_of
from recurra.compiler import pipeline
from recurra.compiler.options import CompileOptions
from recurra.cost.target import PLAIN
from recurra.cost.tuning_knobs import Tuning
from recurra.ir.graph_parser import parse
from recurra.ir.output_axes import restore_functions
from recurra.ir.verify import verify
from recurra.reference.equivalence import as_written
from recurra.reference.interpreter import run
from recurra.runtime.host_executor import Execution
from recurra.storage.arena_offsets import allocate
from recurra.storage.verifier import validate
from recurra.transforms.compile_context import Pass
from recurra.transforms.recurrences import incrementalize_elementwise

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
small_points = partial(patch.object, incrementalize_elementwise, "MIN_STREAMED_BYTES")
SMALL = Tuning(
    tile_points=2, min_peeled_points=1, min_skew_gain=0.0
)  # what is done for many points, done for few
# passes that only run if they are asked for
ASKED = ("shard", "batch_groups", "poll_interval", "host_gather")


def by_name() -> dict[str, tuple[Pass, Tuning]]:
    """Every pass of the pipeline, with axes that go first and last."""
    found = {p.name: (p, SMALL) for p in pipeline.PASSES if p.name not in ASKED}
    axes, _ = found.pop("vectorize")
    return {
        **found,
        "first": (axes, replace(SMALL, batch_last=False)),
        "last": (axes, replace(SMALL, batch_last=True)),
    }


PASSES = by_name()
PIPELINE = (
    "canonicalize",
    "incrementalize",
    "peel_independent",
    "strip_mine",
    "pad",
    "rematerialize",
    "tile",
    "first",
    "reductions_to_accumulators",
)


def same(
    case: Case,
    got: Sequence[Any],
    want: Sequence[Any],
    what: str,
    exact: bool = False,
    **close: float,
) -> None:
    for o, x, y in zip(case.graph.outputs, got, want, strict=True):
        assert x.shape == y.shape, f"{what}: {o} has shape {x.shape}, wants {y.shape}"
        if exact:
            np.testing.assert_array_equal(x, y, err_msg=f"{what}: {o}")
        else:
            np.testing.assert_allclose(x, y, err_msg=f"{what}: {o}", **(close or CLOSE))


def oracle(case: Case) -> list[Any]:
    found = run(case.graph, case.sizes)
    return [found[o] for o in case.graph.outputs]


# Passes that ask for the order of statements: what has no static length has no place in memory.
OF_STATIC_LENGTHS = (
    "products_ahead",
    "rematerialize",
    "tile",
    "running_totals",
    "distribute",
    "snapshot_points",
)


@small_points(1)
def passes(case: Case, names: Sequence[str], want: Sequence[Any], **close: float) -> None:
    """Every pass, one after the other, keeps every output."""
    cx = pipeline.compile_context(case.sizes)
    g, cx.axes = case.graph, as_written(case.graph)
    done: list[str] = []
    for name in names:
        if ragged(g, case.sizes) and name in OF_STATIC_LENGTHS:
            continue
        done.append(name)
        step, cx.tuning = PASSES[name]
        cx.free = None
        g = verify(step.run(g, cx) if step.applies(g, cx) else g)
        assert parse(str(g)) == g
        found = run(g, case.sizes)
        got = [
            restore_functions(g, case.graph[was].domain.dims, a)(found[o], np)
            for o, was, a in zip(g.outputs, case.graph.outputs, cx.axes, strict=True)
        ]
        same(case, got, want, " ".join(done), **close)


def compiled(
    case: Case,
    backend: Backend,
    want: Sequence[Any],
    exact: bool = False,
    check: bool = True,
    **options: Any,
) -> list[Any]:
    """The plan is valid, and the program gives what the oracle gives."""
    asked = CompileOptions.from_keywords(options)
    c = pipeline.compile_graph(case.graph, case.sizes, asked, asked.tuning.override(PLAIN))
    if check:
        wrong = validate(c.plan, allocate(c.plan))
        assert not wrong, f"{options}: {wrong[0]}\n{c.schedule}\n{c.plan}"
    steps = Execution(c.program, backend).steps()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            results = end.value
            break

    def arranged(results: Mapping[str, Any]) -> list[Any]:
        wanted = case.graph.outputs
        at = {o: backend.numpy(results[c.outputs[o]]) for o in wanted}
        before = {o: case.graph[o].domain.dims for o in wanted}
        return [restore_functions(c.plan.graph, before[o], c.axes[o])(at[o], np) for o in wanted]

    got = arranged(results)
    same(case, got, want, f"{backend.name} {options}", exact)
    once = at_once(c, backend)
    if once is not None:
        same(case, arranged(once), got, f"{backend.name} {options}, as one launch", exact)
    return got


def at_once(c: pipeline.Compiled, backend: Any) -> dict[str, Any] | None:
    """What a program gives as one launch, if it can be one."""
    whole = as_single_launch(c.plan, c.program, PLAIN.prices)
    if whole is None:
        return None
    (region,), plan = whole.regions, whole.plan
    names = tuple(dict.fromkeys(plan.graph.outputs))

    def finish(stores: Mapping[str, Any], xp: Any) -> tuple[Any, ...]:
        return tuple(output_of(plan, o)(stores[o], xp) for o in names)

    launch = backend.compile_whole(plan, region, finish)
    return dict(zip(names, launch(np.uint32(0), {}), strict=True))


def examine(case: Case) -> None:
    """Everything but JAX."""
    want = oracle(case)
    numpy = NumpyBackend()
    for options in (
        {},
        {"vectorized": False},
        {"batch_last": True, "tile_points": 2, "min_peeled_points": 1},
    ):
        with small_points(1) if options else nullcontext():
            one = compiled(case, numpy, want, launch_steps=4, **options)
            compiled(case, numpy, one, exact=True, check=False, launch_steps=2, **options)
            compiled(case, numpy, one, exact=True, check=False, launch_steps=1, **options)
