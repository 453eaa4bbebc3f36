"""Outputs of which the host takes a piece after every launch."""

from __future__ import annotations

from recurra.codegen.host_program import ChunkLoop, HostLoop, Program
from recurra.codegen.loop_segments import members


def streamed(program: Program) -> dict[str, int]:
    """Outputs that leave with every launch, and the axis that they leave along."""
    out: dict[str, int] = {}
    for it in program.items:
        if not isinstance(it, (ChunkLoop, HostLoop)):
            continue
        inside = map(program.plan.written, members(it.loop.body))
        mine = it.region.stores if isinstance(it, ChunkLoop) else tuple(dict.fromkeys(inside))
        for store in (program.plan.stores[n] for n in mine if n in program.plan.stores):
            for k, a in enumerate(store.kept):
                if store.output and a.dim == it.loop.dim and a.kind == "window":
                    out[store.name] = k
    return out
