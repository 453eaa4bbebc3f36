"""ScheduleCache, plans and programs are values: they print, compare, copy and pickle."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from example_programs import EXAMPLES, read_example
from recurra.codegen.host_program import ChunkLoop, HostItem, HostLoop
from recurra.compiler.pipeline import Compiled
from recurra.ir.expr import Sym, compare
from recurra.ir.graph import Ref, Slice
from recurra.schedule.tree import TOP
from recurra.storage.storage_plan import StoragePlan


def compiled(name: str, **options: Any) -> Compiled:
    """An example for small bounds."""
    of = read_example(name)
    bounds = {of[str(r.hi)]: 8 for r in of["ctx"].builder.graph().dims if str(r.hi) in of}
    return of["ctx"].compile(bounds, backend="numpy", **options).compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_equal_to_their_copies(name: str) -> None:
    made = compiled(name)
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert other == made
        assert str(other.schedule) == str(made.schedule)
        assert str(other.plan) == str(made.plan)


def test_values_are_found_by_other_processes() -> None:
    """Texts, and so indices, have other hashes there: one that was taken here is left behind."""

    def reads() -> list[Ref]:
        t = Sym("t")
        return [Ref("x", (t - 1, Slice(t, Sym("T")))), Ref("y", (compare("<", t, 3),))]

    hashed = {a: str(a) for a in reads()}
    script = (
        "import pickle, sys; known, reads = pickle.load(sys.stdin.buffer);"
        "print(*(known[a] for a in reads), sep='\\n')"
    )
    for seed in "12":
        told = subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps((hashed, reads())),
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert told.stdout.decode().split("\n")[:-1] == list(map(str, reads()))


@pytest.mark.parametrize("scheduler", ["own", "isl"])
def test_two_compilations_are_equal(scheduler: str) -> None:
    one, other = (compiled("diffusion", scheduler=scheduler) for _ in range(2))
    assert (one.schedule, one.plan, one.program) == (other.schedule, other.plan, other.program)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_loops_have_ids_of_their_own(name: str) -> None:
    made = compiled(name)
    for plan in (made.plan, made.program.plan):
        ids = [x.id for x in plan.schedule.loops()]
        assert len({TOP, *ids}) == 1 + len(ids)
        assert by_loop(plan) <= {TOP, *ids}
    assert host_ids(made.program.items) <= {x.id for x in made.plan.schedule.loops()}


def by_loop(plan: StoragePlan) -> set[int]:
    """The loops that a plan says something of."""
    return {*plan.carried, *plan.starts, *plan.initial_values}


def host_ids(items: tuple[HostItem, ...]) -> set[int]:
    """The loops that the host runs."""
    out: set[int] = set()
    for it in items:
        out |= {it.loop.id} if isinstance(it, (HostLoop, ChunkLoop)) else set[int]()
        out |= host_ids(it.body) if isinstance(it, HostLoop) else set[int]()
    return out
