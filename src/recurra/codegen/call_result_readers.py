"""The readers of a host call's results: launches, later calls, or nobody.

step = step_call((i, t), a, token)
a = region(seed, i, t, step, ..)      of step, the observation: only until the next call
token = step[7]                       the next call takes it, and no launch
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from recurra.codegen.host_program import Program, calls_of, renamed_variables
from recurra.ir.types import Tuple
from recurra.ops.control import Item


class Reader(Enum):
    """The reader of one result of a host call."""

    NOBODY = "nobody"
    HOST = "the host, which hands it to later calls"
    LAUNCH = "launches, until the next call"
    ANYONE = "launches, or the host, also after the next call"


def readers(program: Program) -> Mapping[str, tuple[Reader, ...]]:
    """The reader of each result, by call."""
    plan, after = program.plan, renamed_variables(program.items)
    calls = calls_of(program.items)
    taken = {v for r in program.regions for v in (*r.held, *r.carried)}
    living = {v for names in plan.carried.values() for v in names}  # from step to step of a loop
    whole = {x.source for x in after if x.result is None} | living
    read = {
        (s.args[0].name, s.op.k)
        for r in program.regions
        for name in r.statements
        if isinstance((s := plan.statements[name]).op, Item)
    }

    def names_of(call: str, k: int) -> set[str]:
        """The variables that result k is handed on to."""
        names = {x.variable for x in after if (x.source, x.result) == (call, k)}
        while more := {x.variable for x in after if x.source in names} - names:
            names |= more
        return names

    def reader(call: str, k: int) -> Reader:
        names = names_of(call, k)
        if call in whole or names & taken or (names and (call, k) in read):
            return Reader.ANYONE
        if names:
            return Reader.HOST
        return Reader.LAUNCH if (call, k) in read else Reader.NOBODY

    types = {c: plan.graph[c].type for c in calls}
    return {
        c: tuple(reader(c, k) for k in range(len(t.items) if isinstance(t, Tuple) else 0))
        for c, t in types.items()
    }
