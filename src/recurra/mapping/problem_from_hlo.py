"""Turn a scheduled HLO module into a memory-mapping problem for a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recurra.errors import either
from recurra.hlo.cost import Costs
from recurra.hlo.dataflow import FlowStep, FlowValue, ValueFlow, flow, heaviest_loop
from recurra.hlo.module import HloModule, read_module
from recurra.hlo.protobuf import HloError
from recurra.mapping.machine_model import Machine, picoseconds
from recurra.storage.mapping_problem import Buffer, Instruction, Problem, ProblemError, Roofline

Supply = Literal["paper", "idle"]


@dataclass(frozen=True)
class Extraction:
    """A problem, and the module's value for each tensor id."""

    problem: Problem
    values: tuple[FlowValue, ...]  # by tensor id


def extract(
    module: bytes, machine: Machine, *, name: str = "", loop: int = 0, supply: Supply = "paper"
) -> Extraction:
    """Return the problem of a serialized, scheduled `HloModuleProto`.

    `loop`: 0 is the whole program, n one iteration of the heaviest while loop n levels inside.
    `supply`: the time for copies while an instruction runs, either as in the paper's appendix A
    (its latency with everything in fast memory), or only the time in which slow memory is idle with
    everything there. Values that an instruction updates in place are an alias group; parameters
    that XLA may overwrite are none, since that is about slow memory only. Raises `ProblemError` for
    a malformed module, or one with fewer nested loops.
    """
    try:
        m = read_module(module)
        costs = Costs(m)
        f = flow(m, _computation(m, costs, loop), costs)
        if not f.steps:
            raise ProblemError(f"the HLO module {m.name} computes nothing", facts="it has no steps")
        return _Extractor(f, machine, supply).extraction(name or m.name)
    except HloError as error:
        raise ProblemError(error.what, facts=error.facts, hint=error.hint) from None
    except (IndexError, KeyError, OverflowError, RecursionError) as error:
        raise ProblemError(
            "malformed HLO: its parts do not fit together", facts=f"{type(error).__name__}: {error}"
        ) from error


def _computation(module: HloModule, costs: Costs, loop: int) -> int:
    here = module.entry
    for level in range(loop):
        x = heaviest_loop(module, here, costs)
        if x is None:
            raise ProblemError(
                f"the HLO module {module.name} has no loop {level + 1} levels inside",
                facts=f"{loop} levels were asked for",
                hint=either(f"--loop {level}", f"loop={level}"),
            )
        here = x.called[0]
    return here


class _Extractor:
    def __init__(self, flow: ValueFlow, machine: Machine, supply: Supply) -> None:
        self.flow, self.machine, self.supply = flow, machine, supply
        self.results = set(flow.result.values())
        self.last = [v.step for v in flow.values]
        for t, s in enumerate(flow.steps):
            for v in s.reads:
                self.last[v] = max(self.last[v], t)
        self.next: dict[int, int] = {}  # value -> the value that overwrites it
        self.previous: dict[int, int] = {}

    def extraction(self, name: str) -> Extraction:
        for s in self.flow.steps:
            for old, new in s.in_place:
                self.chain(old, new)
        used = [v for s in self.flow.steps for v in (*s.reads, *s.writes) if self.is_placed(v)]
        tensor = {v: k for k, v in enumerate(dict.fromkeys(used))}
        groups = self.groups(tensor)
        instructions: list[Instruction] = []
        buffers: list[Buffer] = []
        for t, s in enumerate(self.flow.steps):
            here = [(v, n, False) for v, n in s.reads.items() if self.is_placed(v)]
            here += [(v, n, True) for v, n in s.writes.items() if self.is_placed(v)]
            cost = self.cost(s, [n for _, n, _ in here])
            instructions.append(Instruction(s.name, self.supply_of(cost), cost))
            all_slow = cost.latency([False] * len(here))
            for k, (v, _, output) in enumerate(here):
                gain = all_slow - cost.latency([j == k for j in range(len(here))])
                buffers.append(self.buffer(v, t, output, tensor[v], groups.get(v), gain))
        problem = Problem(name, self.machine.fast_size, tuple(instructions), tuple(buffers))
        return Extraction(problem, tuple(self.flow.values[v] for v in tensor))

    def is_placed(self, value: int) -> bool:
        """Return whether a value is large enough to be mapped."""
        return self.flow.values[value].nbytes >= self.machine.smallest

    def chain(self, old: int, new: int) -> None:
        """Note that `new` overwrites `old`, where that is certainly safe."""
        values = self.flow.values
        free = old not in self.next and new not in self.previous and old not in self.results
        same_size = values[old].nbytes == values[new].nbytes and self.is_placed(old)
        if free and same_size and self.last[old] <= values[new].step:
            self.next[old], self.previous[new] = new, old

    def groups(self, tensor_of: dict[int, int]) -> dict[int, int]:
        """The alias group of each value that is in one."""
        groups: dict[int, int] = {}
        first = [v for v in tensor_of if v in self.next and v not in self.previous]
        for group, v in enumerate(first):
            at: int | None = v
            while at is not None:
                groups[at] = group
                at = self.next.get(at)
        return groups

    def cost(self, step: FlowStep, moved: list[int]) -> Roofline:
        """The cost of one step; `moved` are the bytes of its buffers."""
        m, uses = self.machine, (*step.reads.items(), *step.writes.items())
        small = sum(n for v, n in uses if not self.is_placed(v))
        compute = max(
            picoseconds(step.work.matrix, m.matrix), picoseconds(step.work.vector, m.vector)
        )
        rest = picoseconds(small, m.fast_bandwidth) + picoseconds(step.local, m.slow_bandwidth)
        slow = tuple(picoseconds(n, m.slow_bandwidth) for n in moved)
        fast = tuple(picoseconds(n, m.fast_bandwidth) for n in moved)
        return Roofline(compute, slow, fast, rest, picoseconds(m.overhead, 1))

    def supply_of(self, cost: Roofline) -> int:
        if self.supply == "paper":
            return cost.latency([True] * len(cost.fast))
        return cost.latency([False] * len(cost.slow)) - sum(cost.slow)

    def buffer(
        self, v: int, step: int, output: bool, tensor: int, group: int | None, gain: int
    ) -> Buffer:
        value, m = self.flow.values[v], self.machine
        last = len(self.flow.steps) if v in self.results else self.last[v]
        demand = picoseconds(value.nbytes, m.copy_bandwidth)
        size = m.aligned(value.nbytes)
        return Buffer(size, output, step, tensor, group, (value.step, last), demand, gain)
