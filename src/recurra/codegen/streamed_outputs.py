"""Outputs whose newest points the host copies after every launch."""

from __future__ import annotations

from recurra.codegen.host_program import ChunkLoop, HostLoop, Program
from recurra.schedule.tree import members


def streamed(program: Program) -> dict[str, int]:
    """The axis along which each streamed output leaves, by its name."""
    out: dict[str, int] = {}
    for it in program.items:
        if not isinstance(it, (ChunkLoop, HostLoop)):
            continue
        inside = map(program.plan.written, members(it.loop.body))
        mine = it.region.stores if isinstance(it, ChunkLoop) else tuple(dict.fromkeys(inside))
        for store in (program.plan.stores[n] for n in mine if n in program.plan.stores):
            for k, a in enumerate(store.kept):
                if store.output and a.dim == it.loop.dim and a.kind == "circular":
                    out[store.name] = k
    return out
