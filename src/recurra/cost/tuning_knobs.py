"""Knobs for experts, which override choices by cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf
from typing import TypedDict

from recurra.cost.attention import AttentionKernel
from recurra.cost.prices import Prices
from recurra.cost.target import Target
from recurra.cost.thresholds import MIN_PEELED_POINTS


@dataclass(frozen=True)
class Tuning:
    """Knobs for experts, which may change from version to version; results never depend on them.

    None leaves the choice to the compiler.
    """

    vectorized: bool = True
    """Dims that order nothing become axes of arrays; if false, every dim is a loop."""
    batch_last: bool | None = None
    """Batch axes are the last ones in memory; if false, the first."""
    single_launch: bool = True
    """A run that is not watched is one launch, if no host function is called in it."""
    launch_steps: int | None = None
    """Steps of the outermost loop in one launch."""
    memory_price: float | None = None
    """Price of a stored byte, as a multiple of its traffic (0: store all); by default 1.3."""
    tile_points: int | None = None
    """Points of a tile of a growing range (0: no tiles); isl's scheduler supports none."""
    fused_attention: bool | None = None
    """Attention in loops is a call of the backend's kernel; if false, equations; None: by cost."""
    min_peeled_points: int = MIN_PEELED_POINTS
    """Peel iterations that wait for nothing of their loop into one batch if they are at least so
    many (0: never)."""
    min_skew_gain: float = 1.0
    """Tables are computed by diagonals where that is this many times cheaper (0: always)."""
    tile_rows: int | None = None
    """Rows of a batch that fill a tile (0: no tiles); the backend's own by default."""
    untiled_step_ns: float | None = None
    """Nanoseconds of a step that needs no tiles, where batch axes are last; infinite if
    `tile_rows` is given, else the backend's own."""
    poll_steps: float | None = None
    """Price of polling a device whether rows go on, in steps of the loop (0: nothing)."""
    min_overlapped_ns: float | None = None
    """Nanoseconds of work that get a launch of their own, if no host call waits for them."""
    host_loops: tuple[str, ...] | None = None
    """Dims whose loops run on the host: every point is a launch, with buffers of its own."""
    attention_kernel: AttentionKernel | None = None
    """The kernel of attention to compare with equations; the backend's own by default."""
    prices: Prices | None = None
    """Prices of work; by default those that `recurra calibrate` found on this machine."""

    def override(self, target: Target) -> Target:
        """The target with the properties that are set here.

        If `tile_rows` is set, steps of any length are tiled.
        """
        new = {f.name: x for f in fields(Target) if (x := getattr(self, f.name)) is not None}
        if "tile_rows" in new:
            new.setdefault("untiled_step_ns", inf)
        return replace(target, **new)


class Knobs(TypedDict, total=False):
    """The fields of `Tuning` as keywords of `compile`, for type checkers."""

    vectorized: bool
    batch_last: bool | None
    single_launch: bool
    launch_steps: int | None
    memory_price: float | None
    tile_points: int | None
    fused_attention: bool | None
    min_peeled_points: int
    min_skew_gain: float
    tile_rows: int | None
    untiled_step_ns: float | None
    poll_steps: float | None
    min_overlapped_ns: float | None
    host_loops: tuple[str, ...] | None
    attention_kernel: AttentionKernel | None
    prices: Prices | None
