"""A scheduled module of XLA's → a trace: its instructions are kernels, its values segments.

    while (3 trips) { fusion.1  dot.2 }   →   fusion.1  dot.2  fusion.1  dot.2  fusion.1  dot.2

Every value has numbers of its own, unless an instruction updates another in place: memory that is
used again orders nothing. Loops are unrolled. Of a loop whose trips XLA does not know there is one
iteration; the host waits for its condition, as it does for that of a conditional. Times are those
of the analytic model of `gpu`: modules do not have any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recurra.hlo.cost import Costs
from recurra.hlo.dataflow import FlowStep, ValueFlow, flow
from recurra.hlo.module import HloInstruction, HloModule, Path, read_module
from recurra.hlo.protobuf import HloError, Message
from recurra.window.gpu import BLOCK, TILE, Gpu
from recurra.window.kernel import Kernel, Trace
from recurra.window.task import Segment, WindowError

ALIGN = 256  # between the numbers of two values
MOST = 20_000  # kernels of a trace

Given = Mapping[Path, Segment]  # what is at the leaves of a parameter, or of a result


def read_hlo(data: bytes, gpu: Gpu, name: str = "") -> Trace:
    """The trace of a serialized `HloModuleProto`, or of a `HloProto` around one, as XLA dumps it.

    One of more than 20 000 kernels is cut there, and its name says so. Raises WindowError for what
    is no scheduled module, or for one that computes nothing.
    """
    try:
        module = _module(data)
        made = _Unrolled(module, gpu)
        made.entry()
    except HloError as error:
        raise WindowError(error.what, facts=error.facts, hint=error.hint) from None
    except (IndexError, KeyError, OverflowError, RecursionError, StopIteration) as error:
        facts = f"{type(error).__name__}: {error}"
        raise WindowError("malformed HLO: its parts do not fit together", facts=facts) from None
    name = name or module.name
    if not made.kernels:
        raise WindowError(f"the HLO module {name} computes nothing", facts="it has no steps")
    cut = f", first {MOST} kernels" if made.full else ""
    return Trace(f"{name}{cut}", tuple(made.kernels))


def _module(data: bytes) -> HloModule:
    try:
        return read_module(data)
    except HloError as error:
        try:
            return read_module(Message(data).data(1))
        except HloError:
            raise error from None


@dataclass
class _Unrolled:
    module: HloModule
    gpu: Gpu
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    full: bool = False

    def __post_init__(self) -> None:
        self.costs, self.free = Costs(self.module), 0
        self.flows: dict[int, ValueFlow] = {}

    def entry(self) -> None:
        """All of the program."""
        parameters = self.flow(self.module.entry).parameters
        values = self.flow(self.module.entry).values
        given = {
            k: {p: self.fresh(values[v].nbytes) for p, v in leaves.items()}
            for k, leaves in parameters.items()
        }
        self.run(self.module.entry, given)

    def flow(self, computation: int) -> ValueFlow:
        if computation not in self.flows:
            self.flows[computation] = flow(self.module, computation, self.costs)
        return self.flows[computation]

    def fresh(self, size: int) -> Segment:
        """Numbers that nothing else has."""
        at = self.free
        self.free += -(-max(size, 1) // ALIGN) * ALIGN
        return Segment(at, size)

    def run(self, computation: int, given: Mapping[int, Given]) -> Given:
        """A computation once; what is at the leaves of its result."""
        f, where = self.flow(computation), dict[int, Segment]()
        for k, leaves in f.parameters.items():
            where |= {v: given[k][p] for p, v in leaves.items()}
        for v, value in enumerate(f.values):
            if v not in where and value.step < 0:  # a constant
                where[v] = self.fresh(value.nbytes)
        for step in f.steps:
            if len(self.kernels) >= MOST:
                self.full = True
                break
            x = self.module.computations[computation].instructions[step.instruction]
            if x.op == "while":
                self.loop(x, f, where)
            else:
                self.kernel(x, step, f, where)
        return {p: where[v] for p, v in f.result.items() if v in where}

    def loop(self, instruction: HloInstruction, flow: ValueFlow, where: dict[int, Segment]) -> None:
        """Iteration by iteration: what one leaves at the leaves, the next one finds there."""
        body = instruction.called[0]
        carried: Given = {p: where[v] for p, v in flow.leaves(instruction.operands[0]).items()}
        if instruction.trips == 1:  # XLA says nothing of how many there are
            self.awaited(self.run(instruction.called[1], {0: carried}))
        for _ in range(instruction.trips):
            carried = {**carried, **self.run(body, {0: carried})}
            if self.full:
                break
        where |= {v: carried[p] for p, v in flow.leaves(instruction.id).items()}

    def awaited(self, condition: Given) -> None:
        """The host reads it: it waits for the kernel that makes it, if one does."""
        for k in reversed(range(len(self.kernels))):
            if not set(self.kernels[k].writes).isdisjoint(condition.values()):
                self.kernels[k] = replace(self.kernels[k], host=True)
                return

    def kernel(
        self,
        instruction: HloInstruction,
        step: FlowStep,
        flow: ValueFlow,
        where: dict[int, Segment],
    ) -> None:
        """One instruction; what is in it, if it is a fusion, is one with it."""
        if instruction.op == "conditional":
            self.awaited({p: where[v] for p, v in flow.leaves(instruction.operands[0]).items()})
        old = {new: old for old, new in step.in_place}
        for v in step.writes:
            where[v] = where[old[v]] if v in old else self.fresh(flow.values[v].nbytes)
        results = max(1, sum(s.count for _, s in instruction.shape.leaves()))
        matrix = step.work.matrix > 0
        ctas = -(-results // (TILE if matrix else BLOCK))
        moved = sum(step.reads.values()) + sum(step.writes.values()) + step.local
        made = Kernel(
            name=step.name,
            ctas=ctas,
            registers=64 if matrix else 32,
            shared=16384 if matrix else 0,
            us=self.gpu.block_us(ctas, moved, step.work.matrix + step.work.vector),
            reads=tuple(dict.fromkeys(where[v] for v in step.reads if where[v].size)),
            writes=tuple(dict.fromkeys(where[v] for v in step.writes if where[v].size)),
        )
        self.kernels.append(made)
