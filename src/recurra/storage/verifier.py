"""Run a plan with points instead of values, and check that every read finds its point.

Naive on purpose, and independent: it shares no code with the scheduler, the planner or the walk.
It uses only the schedule's tree, the accesses and the stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from recurra.ir.expr import evaluate
from recurra.ir.graph import Ref, Slice
from recurra.ir.statement import Statement
from recurra.ir.types import Domain
from recurra.ops.control import Merge
from recurra.schedule.tree import TOP, Exec, Item, Loop
from recurra.storage.arena import Arena
from recurra.storage.storage_plan import StoragePlan

Point = tuple[int, ...]


def validate(plan: StoragePlan, arena: Arena | None = None) -> list[str]:
    """List the errors of a plan, at most 20. Meant for small bounds.

    With an `arena`, a write into a store erases all stores that share its bytes.
    """
    run = _Simulation(plan, overlaps=_overlaps(arena) if arena else {})
    run.begin(TOP)
    run.items(plan.schedule.items, [])
    run.finish()
    return run.errors


def _overlaps(arena: Arena) -> dict[str, list[str]]:
    """The stores that share bytes with each store."""
    ends = {
        x.store: (at, at + x.nbytes) for x, at in zip(arena.live_ranges, arena.offsets, strict=True)
    }
    return {
        x: [y for y, (c, d) in ends.items() if y != x and a < d and c < b]
        for x, (a, b) in ends.items()
    }


@dataclass
class _Simulation:
    plan: StoragePlan
    overlaps: Mapping[str, list[str]]
    errors: list[str] = field(default_factory=list)
    latest: dict[str, Point] = field(default_factory=dict)
    seeded: dict[str, tuple[str, Point]] = field(default_factory=dict)
    slots: dict[str, dict[Point, Point]] = field(default_factory=dict)
    sums: dict[str, list[Point]] = field(default_factory=dict)
    done: dict[str, set[Point]] = field(default_factory=dict)  # by statement
    written: dict[str, set[Point]] = field(default_factory=dict)  # by array
    at_home: dict[str, set[Point]] = field(default_factory=dict)  # by store: another array's points

    def fail(self, text: str) -> None:
        if len(self.errors) < 20:
            self.errors.append(text)

    def node(self, statement: str) -> Statement:
        return self.plan.statements[statement]

    def items(self, items: tuple[Item, ...], clocks: list[tuple[Loop, int]]) -> None:
        for it in items:
            if isinstance(it, Exec):
                self.execute(it.name, clocks)
            else:
                self.loop(it, clocks)

    def below(self, items: tuple[Item, ...]) -> Iterator[str]:
        for it in items:
            if isinstance(it, Exec):
                yield it.name
            else:
                yield from self.below(it.body)

    def loop(self, loop: Loop, clocks: list[tuple[Loop, int]]) -> None:
        for name, init in self.plan.initial_values.get(loop.id, ()):
            self.seeded[name] = (init, self.latest.get(init, ()))
            self.latest.pop(name, None)
        times: list[int] = []
        for s in self.below(loop.body):
            r = self.node(s).domain[loop.dim]
            env = dict(self.plan.sizes)
            for outer, u in clocks:
                env[outer.dim] = (u - outer.shift[s]) * outer.step
            for p in range(evaluate(r.lo, env), evaluate(r.hi, env)):
                times.append(p * loop.step + loop.shift[s])
        for u in range(min(times, default=0), max(times, default=-1) + 1):
            self.begin(loop.id)
            self.items(loop.body, [*clocks, (loop, u)])

    def begin(self, where: int) -> None:
        for s in self.plan.starts.get(where, ()):
            self.sums[s] = []

    def execute(self, statement: str, clocks: list[tuple[Loop, int]]) -> None:
        env: dict[str, int] = dict(self.plan.sizes)
        for loop, u in clocks:
            env[loop.dim] = (u - loop.shift[statement]) * loop.step
        s = self.node(statement)
        domain = s.domain
        if not all(evaluate(r.lo, env) <= env[r.dim] < evaluate(r.hi, env) for r in domain):
            return
        if not evaluate(s.where, env):
            return
        point = tuple(env[d] for d in domain.dims)
        if point in self.done.setdefault(statement, set()):
            self.fail(f"{statement} is computed twice at {point}")
        self.done[statement].add(point)
        if s.accumulates:
            self.add(statement, point, env)
            return
        self.operands(statement, point, env)
        array, at = s.array, tuple(evaluate(e, env) for e in s.places)
        if at in self.written.setdefault(array, set()):
            self.fail(f"{array}{at} is written twice")
        self.written[array].add(at)
        self.latest[array] = at
        self.seeded.pop(array, None)
        if array in self.plan.homes:
            self.write_home(array, at)
        if array in self.plan.stores:
            self.erase_overlapping(array)
            self.slots.setdefault(array, {})[self.place(array, at)] = at

    def add(self, statement: str, point: Point, env: dict[str, int]) -> None:
        self.check(statement, 0, self.node(statement).args[0], env)
        if point in self.sums.setdefault(statement, []):
            self.fail(f"{statement} adds {point} twice")
        self.sums[statement].append(point)

    def operands(self, statement: str, point: Point, env: dict[str, int]) -> None:
        node = self.node(statement)
        sums = [w for a in node.args for w in self.plan.statements.writers[a.name] if w.accumulates]
        if sums:
            (total,) = node.args
            for w in sums:
                want = set(self.summed(w, self.points(total, env)))
                if set(self.sums.get(w.name, [])) != want:
                    self.fail(f"{statement} at {point} has not added exactly {total}")
        elif isinstance(node.op, Merge):
            k = next(k for k, c in enumerate(node.op.when) if evaluate(c, env))
            self.branch(statement, node, k, env)
        else:
            for k, a in enumerate(node.args):
                self.check(statement, k, a, env)

    def summed(self, statement: Statement, places: Iterator[Point]) -> Iterator[Point]:
        """The points of a statement that adds into some places."""
        targets = set(places)
        for p in self.every(statement.domain):
            env = {**self.plan.sizes, **dict(zip(statement.domain.dims, p, strict=True))}
            if tuple(evaluate(e, env) for e in statement.places) in targets:
                yield p

    def branch(self, statement: str, node: Statement, index: int, env: dict[str, int]) -> None:
        """Check that a merge that is a carried variable holds the chosen branch already."""
        if statement not in self.plan.initial_merges:
            self.check(statement, index, node.args[index], env)
            return
        (want,) = self.points(node.args[index], env)
        source = node.args[1].name
        have = self.seeded.get(source) if index == 0 else (source, self.latest.get(source))
        if have != (node.args[index].name, want) and not self.constant(node.args[index].name):
            self.fail(f"{statement} finds {have}, wants {node.args[index].name}{want}")

    def constant(self, name: str) -> bool:
        (n, *_) = self.plan.statements.writers[name]
        return not n.args and not len(n.domain)

    def points(self, ref: Ref, env: dict[str, int]) -> Iterator[Point]:
        return product(
            *(
                range(evaluate(e.lo, env), evaluate(e.hi, env), e.step)
                if isinstance(e, Slice)
                else (evaluate(e, env),)
                for e in ref.index
            )
        )

    def check(self, statement: str, index: int, ref: Ref, env: dict[str, int]) -> None:
        access = self.plan.accesses[statement, index]
        if access == "store" and ref.name in self.plan.stores:
            self.check_padding(statement, ref, env)
        for want in self.points(ref, env):
            known = self.written.get(ref.name, set()) | self.at_home.get(ref.name, set())
            if access == "store" and ref.name in self.plan.homes:
                self.check_home(statement, ref.name, want)
            elif want not in known:
                self.fail(f"{statement} reads {ref.name}{want} before it is computed")
            elif access == "store":
                have = self.slots.get(ref.name, {}).get(self.place(ref.name, want))
                if have != want:
                    self.fail(f"{statement} reads {ref.name}{want}, its slot holds {have}")
            elif self.latest.get(ref.name) != want:
                have = self.latest.get(ref.name)
                self.fail(f"{statement} reads {ref.name}{want}, the variable holds {have}")

    def check_padding(self, statement: str, ref: Ref, env: dict[str, int]) -> None:
        """Check that a range of a fixed length stays in its store, also past the last point."""
        axes = {a.dim: a for a in self.plan.stores[ref.name].axes}
        for r, e in zip(self.plan.statements.arrays[ref.name].domain, ref.index, strict=True):
            a = axes[r.dim]
            if isinstance(e, Slice) and e.pad is not None and a.kind in ("full", "tiled"):
                first, count = evaluate(e.lo, env) - a.lo, evaluate(e.pad, env)
                end = first + (count - 1) * e.step + 1 if count else first
                if not 0 <= first <= end <= a.slots:
                    self.fail(f"{statement} reads {first}:{end} of {a.slots} places of {ref}")
            elif isinstance(e, Slice) and e.pad is not None and a.kind == "strided":
                first, rest = divmod(evaluate(e.lo, env) - a.lo, a.step)
                end = first + evaluate(e.pad, env) * e.step // a.step
                if rest or not 0 <= first <= end < a.slots:
                    self.fail(f"{statement} reads {first}:{end} of {a.slots - 1} places of {ref}")

    def home_points(self, name: str, point: Point) -> list[Point]:
        """The points of the home store that hold one point of an equation without a store."""
        home = self.plan.homes[name]
        at = dict(zip(self.plan.statements.arrays[name].domain.dims, point, strict=True))
        first = home.size * (at[home.along] if home.along is not None else 0)
        dims = self.plan.statements.arrays[home.store].domain.dims
        return [
            tuple(first + k if d == home.dim else at[d] for d in dims) for k in range(home.size)
        ]

    def erase_overlapping(self, store: str) -> None:
        """Erase the stores that share bytes with this one."""
        for other in self.overlaps.get(store, ()):
            self.slots.pop(other, None)

    def write_home(self, array: str, point: Point) -> None:
        """Write points of the home store, whose slots must be free."""
        name = self.plan.homes[array].store
        self.erase_overlapping(name)
        slots, points = self.slots.setdefault(name, {}), self.at_home.setdefault(name, set())
        for p in self.home_points(array, point):
            slot, coalesced = self.place(name, p), self.is_coalesced(name, p)
            if slot in slots:
                self.fail(f"{array} is made at {name}{p}, which {slots[slot]} has")
            slots[slot] = p if coalesced else ()
            points |= {p} if coalesced else set()

    def is_coalesced(self, name: str, point: Point) -> bool:
        """Tell whether a point precedes the domain of an equation: its source is stored there."""
        ranges = zip(self.plan.statements.arrays[name].domain, point, strict=True)
        return any(q < evaluate(r.lo, self.plan.sizes) for r, q in ranges)

    def check_home(self, statement: str, name: str, want: Point) -> None:
        """Check that a read of an equation without a store finds its point in the home store."""
        store = self.plan.homes[name].store
        if want not in self.written.get(name, ()):
            self.fail(f"{statement} reads {name}{want} before it is computed")
        for p in self.home_points(name, want):
            have = self.slots.get(store, {}).get(self.place(store, p))
            if have != (p if self.is_coalesced(store, p) else ()):
                self.fail(f"{statement} reads {name}{want}, the slot of {store}{p} holds {have}")

    def place(self, name: str, point: Point) -> Point:
        """The slot of a point."""
        at = dict(zip(self.plan.statements.arrays[name].domain.dims, point, strict=True))
        out: list[int] = []
        for a in self.plan.stores[name].axes:
            if a.kind in ("full", "tiled"):
                if not 0 <= at[a.dim] - a.lo < a.slots:
                    self.fail(f"{name}{point} has no slot in {a}")
                out.append(at[a.dim] - a.lo)
            elif a.kind == "strided":  # -1 is the slot of points that are not kept
                number, rest = divmod(at[a.dim] - a.lo, a.step)
                if number >= a.slots - 1:
                    self.fail(f"{name}{point} has no slot in {a}")
                out.append(-1 if rest else number)
            elif a.kind in ("circular", "mirrored"):
                out.append(at[a.dim] % a.slots)
        return tuple(out)

    def every(self, domain: Domain) -> Iterator[Point]:
        """All points, dim by dim: the range of a dim may depend on earlier dims."""
        points: list[Point] = [()]
        for r in domain:
            envs = [{**self.plan.sizes, **dict(zip(domain.dims, p, strict=False))} for p in points]
            points = [
                (*p, q)
                for p, env in zip(points, envs, strict=True)
                for q in range(evaluate(r.lo, env), evaluate(r.hi, env))
            ]
        return iter(points)

    def places(self, statement: Statement) -> Iterator[Point]:
        """Yield the places that a statement writes."""
        for p in self.every(statement.domain):
            env = {**self.plan.sizes, **dict(zip(statement.domain.dims, p, strict=True))}
            if evaluate(statement.where, env):
                yield tuple(evaluate(e, env) for e in statement.places)

    def finish(self) -> None:
        """Check that every point of every statement was computed, and that outputs still exist."""
        for name, node in self.plan.graph.nodes.items():
            every = {p for s in self.plan.statements.writers[name] for p in self.places(s)}
            if name in self.plan.graph.outputs:
                every = set(self.every(node.domain))
            written = self.written.get(name, set())
            if every != written:
                left = sorted(every - written)
                self.fail(f"{name} is not computed at {left[:3]}")
            if name in self.plan.graph.outputs and set(self.slots.get(name, {}).values()) != every:
                self.fail(f"the output {name} is not kept")
