"""Region: a part of the schedule that is compiled to one function, and its arguments and results.

region loop_i(ints: i in chunks; held: gamma; carried: W b m v; stores: o a r g; gives: W b m v)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from recurra.codegen.early_exit import EarlyExit, LastValue, PostExitValues, fillable
from recurra.ir.expr import TRUE
from recurra.ops.control import Merge
from recurra.ops.source import Input
from recurra.schedule.tree import TOP, Exec, Item, Loop, is_constant, members
from recurra.storage.storage_plan import StoragePlan


@dataclass(frozen=True)
class Region:
    """`items` run once per launch; the times of the loops `around` are arguments.

    With `chunk`, a launch runs the times lo..hi-1 of that loop, both of them arguments. A launch
    that finds out where rows end (`polls`) returns that first.
    """

    name: str
    items: tuple[Item, ...]
    active: frozenset[str]
    around: tuple[Loop, ...]
    chunk: Loop | None
    held: tuple[str, ...]  # variables read, not changed
    carried: tuple[str, ...]  # variables read and returned: donated
    gives: tuple[str, ...]  # variables returned, the carried first
    stores: tuple[str, ...]  # written here: donated
    reads: tuple[str, ...] = ()  # stores that are only read here
    ends: tuple[str, ...] = ()  # endings of loops: where rows end is an argument after the times
    tail: Loop | None = None  # the region only fills the points that this loop skipped
    local: tuple[str, ...] = ()  # stores that are made inside, and not returned

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that run."""
        return tuple(s for s in members(self.items) if s in self.active)

    @property
    def found(self) -> tuple[str, ...]:
        """The endings of `ends` that the region finds out itself."""
        return tuple(e for e in self.ends if e in self.statements)

    @property
    def polls(self) -> bool:
        """Does it compute where a loop ends that the host knows of?"""
        return bool(self.found)

    @property
    def is_empty(self) -> bool:
        """Is there nothing to execute? Inputs count: a launch without results may be watched."""
        return self.tail is None and not self.statements

    def __str__(self) -> str:
        chunks, ends = [self.chunk] if self.chunk else [], [f"end by {e}" for e in self.ends]
        fresh = [v for v in self.gives if v not in self.carried]
        parts = {
            "ints": [*(x.dim for x in self.around), *(f"{x.dim} in chunks" for x in chunks), *ends],
            "held": self.held,
            "carried": self.carried,
            "stores": self.stores,
            "reads": self.reads,
            "gives": [*(ends if self.polls else ()), *fresh],
        }
        inner = "; ".join(f"{k}: {' '.join(v)}" for k, v in parts.items() if v)
        return f"region {self.name}({inner})"


@dataclass
class Flow:
    """The variables that part of a schedule reads before writing (`uses`), and writes (`makes`)."""

    plan: StoragePlan
    inside: frozenset[str] = frozenset()  # its statements, also those that never run
    uses: dict[str, None] = field(default_factory=dict)
    makes: dict[str, None] = field(default_factory=dict)

    def items(self, items: tuple[Item, ...], active: frozenset[str]) -> Flow:
        for it in items:
            if isinstance(it, Exec):
                if it.name in active:
                    self.statement(it.name, active)
            else:
                self.initial_values(it, active)
                self.body(it, active)
        return self

    def body(self, loop: Loop, active: frozenset[str]) -> Flow:
        self.starts(loop.id, active)
        return self.items(loop.body, active)

    def starts(self, where: int, active: frozenset[str]) -> None:
        for step in steps_below(self.plan, where, active):
            self.makes[step] = None

    def initial_values(self, loop: Loop, active: frozenset[str]) -> None:
        for name, init in self.plan.initial_values.get(loop.id, ()):
            if name in active:
                self.read(init)
                self.makes[name] = None

    def read(self, name: str) -> None:
        (writer, *_) = self.plan.statements.writers[name]
        if name not in self.makes and not is_constant(writer):
            self.uses[name] = None

    def statement(self, text: str, active: frozenset[str]) -> None:
        node = self.plan.statements[text]
        if text in self.plan.initial_merges:
            self.read(node.args[1].name)
        else:
            merge = isinstance(node.op, Merge)
            for k in self.plan.open(node, active) if merge else range(len(node.args)):
                name, how = node.args[k].name, self.plan.accesses[text, k]
                # a statement that does not run belongs to a branch not taken
                never = merge and how == "now" and name in self.inside - active
                if how != "store" and not never:
                    self.read(name)
        may_not_run = node.conditions != (TRUE, ()) or text in self.plan.schedule.predicated
        kept = may_not_run and any(node.array in x for x in self.plan.carried.values())
        if node.accumulates or kept:  # where it does not run, the old value stays
            self.read(node.array)
        if not is_constant(node):
            self.makes[node.array] = None


def needed(plan: StoragePlan) -> frozenset[str]:
    """The statements to run: all but inputs that are read in place."""
    every = {s: plan.statements[s] for s in members(plan.schedule.items)}
    variables = variables_read(plan, every)
    return frozenset(
        s for s, x in every.items() if not isinstance(x.op, Input) or x.array in variables
    )


def variables_read(plan: StoragePlan, statements: Iterable[str]) -> set[str]:
    """The variables that statements read, and those that any loop is seeded with."""
    seeds = {init for pairs in plan.initial_values.values() for _, init in pairs}
    operands = ((s, k, a) for s in statements for k, a in enumerate(plan.statements[s].args))
    return seeds | {a.name for s, k, a in operands if plan.access(s, k) != "store"}


def stores_read(plan: StoragePlan, statements: Iterable[str]) -> set[str]:
    """The stores of which statements read a point."""
    operands = ((s, k, a) for s in statements for k, a in enumerate(plan.statements[s].args))
    found = ((plan.accesses.get((s, k)), a) for s, k, a in operands)
    return {plan.store_of(a.name) for x, a in found if x == "store"}


def stores_of(plan: StoragePlan, statements: Sequence[str]) -> tuple[str, ...]:
    """The stores that statements read or write, in the order of the plan."""
    touched = stores_read(plan, statements).union(map(plan.written, statements))
    return tuple(n for n in plan.stores if n in touched)


def make_region(
    plan: StoragePlan,
    name: str,
    items: tuple[Item, ...],
    active: frozenset[str],
    around: tuple[Loop, ...],
    wanted: set[str],
    chunk: Loop | None = None,
    ends: tuple[str, ...] = (),
) -> Region:
    """Build the region of `items`; `wanted` are the variables that anybody reads before writing."""
    flow = flow_of(plan, items, active, chunk, around)
    gives = [
        v
        for v in flow.makes
        if v in wanted and (chunk is None or v in outliving_variables(plan, chunk))
    ]
    carried = tuple(v for v in flow.uses if v in gives)
    held = tuple(v for v in flow.uses if v not in gives)
    fresh = tuple(v for v in gives if v not in carried)
    mine = [s for s in members(items) if s in active]
    stores, outputs = stores_of(plan, mine), set(map(plan.written, mine))
    written = tuple(s for s in stores if s in outputs and not plan.stores[s].given)
    reads = tuple(s for s in stores if s not in written)
    gives = (*carried, *fresh)
    return Region(name, items, active, around, chunk, held, carried, gives, written, reads, ends)


def outliving_variables(plan: StoragePlan, loop: Loop) -> frozenset[str]:
    """The variables that outlive a step of a loop."""
    return plan.carried.get(loop.id, frozenset())


def past_end(
    plan: StoragePlan,
    name: str,
    loop: Loop,
    ended: EarlyExit,
    active: frozenset[str],
    around: tuple[Loop, ...],
    streamed: Container[str] = (),
) -> Region | None:
    """The region that fills the stores of an ended loop, but for `streamed`; None without any."""
    stores = tuple(n for n in fillable(plan, loop, active) if n not in streamed)
    past = PostExitValues(plan.graph, ended, loop.dim)
    kept = (past.value(n) for n in stores)
    held = tuple(dict.fromkeys(x.name for x in kept if isinstance(x, LastValue)))
    if not stores:
        return None
    return Region(name, (), active, around, None, held, (), (), stores, (), (ended.going,), loop)


def flow_of(
    plan: StoragePlan,
    items: tuple[Item, ...],
    active: frozenset[str],
    chunk: Loop | None,
    around: tuple[Loop, ...] = (),
) -> Flow:
    """The variables that some items use and make; a chunk is repeated steps of its loop."""
    flow = Flow(plan, frozenset(members((chunk,) if chunk is not None else items)))
    if chunk is not None:
        return flow.body(chunk, active)
    flow.starts(start_of(around), active & frozenset(members(items)))
    return flow.items(items, active)


def start_of(around: tuple[Loop, ...]) -> int:
    """The key in `StoragePlan.starts` of the body that a region belongs to."""
    return around[-1].id if around else TOP


def steps_below(plan: StoragePlan, where: int, items: Iterable[str]) -> tuple[str, ...]:
    """Folds that start anew at `where` and whose steps are among `items`."""
    inside = set(items)
    return tuple(s for s in plan.starts.get(where, ()) if s in inside)
