"""What JAX and Torch hold at once in a run, as their own allocators and profilers tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from recurra.ir.types import NUMPY_NAME
from recurra.runtime.executable import Executable
from recurra.runtime.single_launch_run import SingleRun


def on_jax(p: Executable) -> int:
    """Arrays that are there before and after every launch, and what XLA says of the launch."""
    plan, peak, before = p.compiled.program.plan, 0, _live()
    by_name = {r.name: r for r in p.compiled.program.regions}
    backend: Any = p.backend

    def watched(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        lowered = backend.lowered(plan, by_name[name]).compile()
        inside = lowered.memory_analysis().temp_size_in_bytes

        def launch(*given: Any) -> Any:
            nonlocal peak
            given = tuple(jax.tree.map(jax.numpy.asarray, x) for x in given)
            first = _live()
            made = run(*given)
            peak = max(peak, first + inside - before, _live() + inside - before)
            return made

        return launch

    if p.runner.single is not None:
        return _of_single(p.runner.single)
    p.execution.regions = {n: watched(n, f) for n, f in p.execution.regions.items()}
    p.run(seed=1)
    return peak


def _of_single(single: SingleRun) -> int:
    """What XLA says of a program that is one launch, and what is there before it is copied."""
    launch: Any = single.stores
    inputs = {x.name: np.zeros(x.shape, NUMPY_NAME[x.type.dtype]) for x in single.read}
    told = launch.lower(np.uint32(1), inputs).compile().memory_analysis()
    before = _live()
    made = launch(np.uint32(1), inputs)
    assert _live() - before == sum(x.nbytes for x in made) <= told.output_size_in_bytes
    return told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes


def _live() -> int:
    return sum(x.nbytes for x in jax.live_arrays())


def on_torch(p: Executable) -> int:
    """What the allocator of the CPU gave out, and got back, event by event."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        p.run(seed=1)
    told: Any = profile.profiler
    todo, found = list(told.kineto_results.experimental_event_tree()), list[tuple[int, int, int]]()
    while todo:
        event = todo.pop()
        todo += event.children
        if hasattr(event.extra_fields, "alloc_size"):
            x = event.extra_fields
            found.append((event.start_time_ns, x.ptr, x.alloc_size))
    live = peak = 0
    sizes: dict[int, int] = {}
    for _, at, n in sorted(found):
        if n > 0:
            sizes[at] = n
        live += n if n > 0 else -sizes.pop(at, 0)
        peak = max(peak, live)
    return peak
