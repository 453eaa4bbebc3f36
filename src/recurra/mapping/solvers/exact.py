"""The optimal solution: an answer that meets the upper bound, else branch and bound.

The bound ignores addresses, and usually a simple search meets it. Otherwise a tree is searched that
has every placement of every buffer: in order of time, each buffer goes to slow memory, or to each
possible offset and interval. Offsets are sums of sizes: a valid mapping stays valid when everything
is pushed down.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recurra.mapping.bounds import TOLERANCE, bound
from recurra.mapping.search import Search
from recurra.mapping.solvers.default import search_by_default
from recurra.mapping.struct_of_arrays import NEVER
from recurra.storage.mapping_problem import Buffer, Latency, Placement, Problem, Solution

FEW = 60  # the most buffers of which the tree is searched
PART = 0.4  # the largest share of the time for the bound, and for an answer that meets it
BOUND = 5e-4  # CPU seconds per buffer in which the bound's program is built
EACH = 1e-3  # CPU seconds for that answer, times the square of the number of buffers

Inside = list[Placement | None]


def solve_to_optimality(search: Search) -> bool:
    """Search; return whether the best answer is optimal, up to the tolerance of the bound."""
    problem, count = search.problem, len(search.problem.buffers)
    if BOUND * count < PART * search.seconds:
        most = bound(problem, "milp", PART * search.seconds, near=0.0).reward
        search.target_reward = most - int(2 * TOLERANCE * problem.total)
    if count > FEW:
        search_by_default(search)
        return search.reward >= search.target_reward
    seconds, seed = min(EACH * count**2, PART * search.seconds), int(search.random.integers(2**32))
    simple = Search(problem, seconds, seed, None, search.engine)
    simple.target_reward = search.target_reward
    search_by_default(simple)
    search.offer(simple.reward, lambda: simple.solution)
    return search_tree(search) or search.reward >= search.target_reward


def search_tree(search: Search) -> bool:
    """Search the tree; return whether all of it was visited, so that the answer is optimal."""
    return _Tree(search).visit([])


class _Tree:
    def __init__(self, search: Search) -> None:
        self.search, self.problem, self.flat = search, search.problem, search.flat
        self.offsets = _sums({b.size for b in self.problem.buffers}, self.problem.fast_size)
        most = [_most(self.problem, t) for t in range(self.problem.steps)]
        self.later = np.cumsum([0, *reversed(most)])[::-1].tolist()  # of all from a step on

    def visit(self, placed: Inside) -> bool:
        if not self.search.running():
            return False
        i, buffers = len(placed), self.problem.buffers
        if i == len(buffers):
            solution = Solution(tuple(placed))
            self.search.offer(solution.reward(self.problem), lambda: solution)
            return True
        step = buffers[i].target_time
        marked = [p is not None for p in placed] + [False] * (len(buffers) - i)
        before = self._gained(step, marked)
        if before + self.later[step] <= self.search.reward:
            return True
        complete = True
        for p in self._options(i, placed):
            complete &= self.visit([*placed, p])
        return complete

    def _gained(self, step: int, marked: list[bool]) -> int:
        """The reward of all instructions before a step."""
        total = 0
        for t in range(step):
            uses = self.problem.uses[t]
            inside = [marked[i] for i in uses]
            total += self.problem.latency(t, [False] * len(uses)) - self.problem.latency(t, inside)
        return total

    def _options(self, index: int, placed: Inside) -> Iterator[Placement | None]:
        """Yield the placements of a buffer that are valid beside the earlier ones."""
        b = self.problem.buffers[index]
        group = self._group(index, placed)
        if group != "slow":
            offsets = [o for o in self.offsets if o + b.size <= self.problem.fast_size]
            for start, end, copied, at in self._intervals(index, placed):
                for offset in offsets if at is None else [at]:
                    p = Placement(offset, start, end, copied)
                    if group in (None, offset) and self._fits(index, p, placed):
                        yield p
        slow = self._slow(b, placed)
        if group in (None, "slow") and (b.is_output or slow < b.target_time):
            yield None

    def _group(self, index: int, placed: Inside) -> int | str | None:
        """The offset of the alias group of a buffer, "slow", or None if it is not placed yet."""
        b = self.problem.buffers[index]
        for j, p in enumerate(placed):
            if b.alias_id is not None and self.problem.buffers[j].alias_id == b.alias_id:
                return "slow" if p is None else p.offset
        return None

    def _earlier(self, buffer: Buffer, placed: Inside) -> list[tuple[Buffer, Placement | None]]:
        pairs = zip(self.problem.buffers, placed, strict=False)
        return [(c, p) for c, p in pairs if c.tensor_id == buffer.tensor_id]

    def _slow(self, buffer: Buffer, placed: Inside) -> int:
        """The step after which the tensor is in slow memory."""
        if buffer.live_range[0] < 0:
            return -1
        for c, p in self._earlier(buffer, placed):
            if c.is_output:
                return c.target_time if p is None else p.end if p.copied else NEVER
        return NEVER

    def _intervals(self, index: int, placed: Inside) -> Iterator[tuple[int, int, bool, int | None]]:
        """Yield start, end, whether it is copied, and the offset if only one is possible."""
        b, t = self.problem.buffers[index], self.problem.buffers[index].target_time
        if b.is_output:
            if b.live_range[1] < self.problem.steps:
                yield t, b.live_range[1], False, None
            for end in range(t, int(self.flat.evict_by[index]) + 1):
                yield t, end, True, None
            return
        for _, q in self._earlier(b, placed):
            if q is not None:
                yield min(t, q.end + 1), t, False, q.offset
        for start in range(t, max(self._slow(b, placed), -1), -1):
            yield start, t, True, None

    def _fits(self, index: int, placement: Placement, placed: Inside) -> bool:
        """Return whether a placement overlaps no other, and all copies can be made in time."""
        b = self.problem.buffers[index]
        for j, q in enumerate(placed):
            if q is None or q.end < placement.start or placement.end < q.start:
                continue
            c = self.problem.buffers[j]
            apart = q.offset + c.size <= placement.offset or placement.offset + b.size <= q.offset
            same = self.flat.storage[index] == self.flat.storage[j] and placement.offset == q.offset
            if not (apart or same):
                return False
        return not placement.copied or self._copies([*placed, placement])

    def _copies(self, placed: Inside) -> bool:
        spans: list[tuple[int, int, int]] = []  # last step, first step, demand
        for b, p in zip(self.problem.buffers, placed, strict=False):
            if p is not None and p.copied and b.is_output:
                spans.append((p.end, b.target_time + 1, b.demand))
            elif p is not None and p.copied:
                spans.append((b.target_time - 1, p.start, b.demand))
        for k, (last, first, _) in enumerate(spans):
            for other_last, other_first, _ in spans[k + 1 :]:
                if min(last, other_last) > max(first, other_first):
                    return False
        supply = [x.supply for x in self.problem.instructions]
        for last, first, demand in sorted(spans):  # earliest deadline first, as early as it may
            for t in range(first, last + 1):
                moved = min(demand, supply[t])
                supply[t] -= moved
                demand -= moved
            if demand:
                return False
        return True


def _sums(sizes: set[int], limit: int) -> list[int]:
    """Return every sum of sizes up to a limit."""
    sums, new = {0}, {0}
    while new:
        new = {x + s for x in new for s in sizes if x + s <= limit} - sums
        sums |= new
    return sorted(sums)


def _most(problem: Problem, step: int) -> int:
    """Bound the gain of an instruction, whatever is in fast memory."""
    x, uses = problem.instructions[step], problem.uses[step]
    if isinstance(x.cost, Latency):
        return x.cost.latencies[0] - min(x.cost.latencies)
    if x.cost is None:
        return sum(max(0, problem.buffers[i].benefit) for i in uses)
    return x.cost.latency([False] * len(uses)) - x.cost.latency([True] * len(uses))
