"""Passes, and the compile context that they read and in which they leave facts for later ones.

INCREMENTALIZE = Pass("incrementalize", run)              run(graph, cx) -> Graph
PEEL_INDEPENDENT = Pass("peel_independent", run, applies) applies(graph, cx) -> bool
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recurra.cost.target import PLAIN, Target
from recurra.cost.thresholds import MEMORY_PRICE
from recurra.cost.tuning_knobs import Tuning
from recurra.ir.graph import Graph
from recurra.ir.output_axes import Axes
from recurra.ops.collective import SHARDS
from recurra.transforms.rewriter.optimization_fuel import Fuel

Phase = tuple[Hashable, ...]  # loops around an equation: (place, dim, step); the innermost shift
Phases = Callable[[Graph, Mapping[str, int], frozenset[str]], Mapping[str, Phase]]


@dataclass(frozen=True)
class FreeDims:
    """The dims that impose no order and become axes: `batch` dims, and those `inside` of tiles.

    The axes go `last` or first; `why` is the reason, for remarks.
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
    """A split of `dim`, which has `bound` points, over `workers`."""

    dim: str
    bound: str
    workers: int

    def __str__(self) -> str:
        return f"{self.dim}: split over {self.workers} workers"

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the bounds of one worker."""
        return {**sizes, self.bound: sizes[self.bound] // self.workers, SHARDS: self.workers}


@dataclass
class CompileContext:
    """The purpose of one compilation, and what its passes have decided and why.

    `scheduled` gives the loops that the equations of a graph would run in, with some dims as axes.
    `workers` share the rows of a batch, and `groups` of rows are stepped in turn. `offloads` tells
    by name and bytes whether the store of an equation may go to slow memory.
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
    # facts that passes leave to later ones
    axes: Sequence[Axes] = ()
    """For each output, the axes that its dims have become."""
    free: FreeDims | None = None
    """The dims that become axes; None until a pass asks for them."""
    shard: Shard | None = None
    """The dim that is split over workers."""
    turns: tuple[str, ...] = ()
    """The dims that count groups of rows."""
    is_split: bool = False
    """True once a loop has been peeled, so that it begins at a whole launch."""

    @property
    def memory_price(self) -> float:
        """The price of a byte that stays in memory, as a multiple of its traffic."""
        return MEMORY_PRICE if self.tuning.memory_price is None else self.tuning.memory_price

    def remark(self, *decisions: object) -> None:
        """Add a line of text for each decision: what was decided, and why."""
        self.remarks += map(str, decisions)

    def phases(self, graph: Graph, free: Iterable[str]) -> Mapping[str, Phase]:
        """Return the loops in which each equation would run if the dims in `free` were axes."""
        return self.scheduled(graph, self.sizes, frozenset(free))


def always(graph: Graph, cx: CompileContext) -> bool:
    """Tell that a pass runs on every graph."""
    return True


@dataclass(frozen=True)
class Pass:
    """A step from graph to graph, which keeps the answer of every program.

    `applies` is cheap and changes nothing; if it is false, `run` would return the graph unchanged.
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
        """The condition under which the pass runs, in words; "" if it always does."""
        summary = (inspect.getdoc(self.applies) or "").partition("\n")[0]
        return "" if self.applies is always else summary.removeprefix("Tell whether ").rstrip(".")
