"""Passes, and the compile context, which they read and leave facts in.

INCREMENTALIZE = Pass("incrementalize", run)              run(graph, cx) -> Graph
PEEL_INDEPENDENT = Pass("peel_independent", run, applies) applies(graph, cx) -> bool
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recurra.cost.target import PLAIN, Target
from recurra.cost.tuning import Tuning
from recurra.ir.graph import Graph
from recurra.ir.output_axes import Axes
from recurra.ops.collective import SHARDS
from recurra.transforms.rewriter.optimization_fuel import Fuel

Phase = tuple[Hashable, ...]  # loops around an equation: (place, dim, step); the innermost shift
Phases = Callable[[Graph, Mapping[str, int], frozenset[str]], Mapping[str, Phase]]


@dataclass(frozen=True)
class FreeDims:
    """The dims that order nothing and become axes: of a `batch`, and `inside` of tiles.

    The axes go `last` or first; `why` is for people.
    """

    batch: tuple[str, ...]
    inside: tuple[str, ...]
    last: bool
    why: str

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.inside, *self.batch)


@dataclass(frozen=True)
class Shard:
    """`dim` is split over `workers`."""

    dim: str
    bound: str
    workers: int

    def __str__(self) -> str:
        return f"{self.dim}: split over {self.workers} workers"

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bounds as one worker has them."""
        return {**sizes, self.bound: sizes[self.bound] // self.workers, SHARDS: self.workers}


@dataclass
class CompileContext:
    """The purpose of one compilation, and what its passes have decided and why.

    `scheduled` gives the loops that the equations of a graph would run in, with some dims as axes.
    `workers` share rows and `groups` of rows take turns, if there are several. `offloads` tells by
    name and bytes whether the store of an equation may go to slow memory.
    """

    sizes: Mapping[str, int]
    scheduled: Phases
    tuning: Tuning = field(default_factory=Tuning)
    target: Target = PLAIN
    workers: int = 1
    groups: int = 1
    offloads: Callable[[str, int], bool] | None = None
    fuel: Fuel = field(default_factory=Fuel)
    remarks: list[str] = field(default_factory=list[str])
    # what passes leave to those after them
    axes: Sequence[Axes] = ()
    """Where the dims of every output are now."""
    free: FreeDims | None = None
    """The dims that become axes, once a pass has asked for them."""
    shard: Shard | None = None
    """How rows are split over workers."""
    turns: tuple[str, ...] = ()
    """The dims that count groups of rows."""
    is_split: bool = False
    """Given points have been taken out of a loop, which begins at a whole launch."""

    def remark(self, *decisions: object) -> None:
        """Notes decisions, and why they were made, for people: a line each."""
        self.remarks += map(str, decisions)

    def phases(self, graph: Graph, free: Iterable[str]) -> Mapping[str, Phase]:
        """The loop in which every equation would run if the dims in `free` were axes."""
        return self.scheduled(graph, self.sizes, frozenset(free))


def always(graph: Graph, cx: CompileContext) -> bool:
    """Tell that a pass runs on every graph."""
    return True


@dataclass(frozen=True)
class Pass:
    """A step from graph to graph, which keeps the answer of every program.

    `applies` is cheap and changes nothing: where it is false, `run` would give the graph back.
    """

    name: str
    run: Callable[[Graph, CompileContext], Graph]
    applies: Callable[[Graph, CompileContext], bool] = always

    @property
    def summary(self) -> str:
        """The first line of the docstring of `run`."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    @property
    def condition(self) -> str:
        """The condition under which it runs, in words; nothing if it always does."""
        told = (inspect.getdoc(self.applies) or "").partition("\n")[0]
        return "" if self.applies is always else told.removeprefix("Tell whether ").rstrip(".")
