"""The report of a block of `window.concurrent()`: counts, operators, and a timeline.

with recurra.window.concurrent(explain=True) as block:
    y = model(x)
print(block)  →  deferred: 40
                 ..
                 aten::mm  deferred  40  1.20  it gives new tensors
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recurra.report.html import table_html
from recurra.window.launch_records import ThreadSpan
from recurra.window.task import WindowError
from recurra.window.timeline import save_threads


@dataclass(frozen=True)
class OperatorOutcome:
    """The calls of an operator that ran in one way for one reason, and the caller's time.

    `what` is deferred, at once (without waiting for calls in flight), or caller (after them).
    """

    operator: str
    what: str
    why: str
    calls: int
    us: float


@dataclass(frozen=True)
class Block:
    """The report of a block: how many operators were deferred, run at once, alone, ..

    With explain=True it has each operator, sorted by the caller's time, and the spans of the last
    4096 calls, with their threads: 0 is the caller.
    """

    ended: dict[str, float] = field(default_factory=dict[str, float])
    fates: list[OperatorOutcome] = field(default_factory=list[OperatorOutcome])
    spans: list[ThreadSpan] = field(default_factory=list[ThreadSpan])
    until_now: Callable[[], dict[str, float]] = field(default=dict[str, float], repr=False)

    @property
    def counts(self) -> dict[str, float]:
        """Counts of operators deferred, run at once, alone, ..: until now, or to the end."""
        return self.ended or self.until_now() or self.ended

    def __str__(self) -> str:
        counts = "\n".join(f"{k}: {v:g}" for k, v in self.counts.items())
        if not self.fates:
            return counts
        width = max(len(f.operator) for f in self.fates)
        lines = [f"{'operator':<{width}}  {'what':<8}  {'calls':>6}  {'ms':>8}  why"]
        lines += [
            f"{f.operator:<{width}}  {f.what:<8}  {f.calls:>6}  {f.us / 1000:>8.2f}  {f.why}"
            for f in self.fates
        ]
        return "\n".join([counts, "", *lines])

    def save_timeline(self, path: str | Path) -> None:
        """Write a timeline, a lane for each thread: a page, or .json for Perfetto.

        Raises WindowError for other names, and without explain=True.
        """
        if not self.spans:
            raise WindowError(
                "a block has no timeline",
                facts="it ran no operators that it looked at, or nobody asked when they ran",
                hint="window.concurrent(explain=True)",
            )
        save_threads(Path(path), self.spans, str(Block(self.counts)))

    def _repr_html_(self) -> str:
        return table_html([{"operators": k, "count": v} for k, v in self.counts.items()])
