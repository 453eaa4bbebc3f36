"""A scheduled module of XLA → a trace: its instructions are kernels, its values segments.

    while (3 trips) { fusion.1  dot.2 }   →   fusion.1  dot.2  fusion.1  dot.2  fusion.1  dot.2

Every value has its own address range, unless an instruction updates another in place: reuse of
memory orders nothing. Loops are unrolled; a loop without a known trip count has one iteration, and
the host waits for its condition, as for that of a conditional. Times are those of the analytic
model of `gpu`, since modules have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recurra.hlo.cost import Costs
from recurra.hlo.dataflow import FlowStep, ValueFlow, flow
from recurra.hlo.module import HloInstruction, HloModule, Path, read_module
from recurra.hlo.protobuf import HloError, Message
from recurra.window.gpu import BLOCK, TILE, Gpu
from recurra.window.task import Segment, WindowError
from recurra.window.trace import Kernel, Trace

ALIGN = 256  # of the addresses of values
MOST = 20_000  # kernels of a trace

Leaves = Mapping[Path, Segment]  # the segments of a parameter, or of a result


def read_hlo(data: bytes, gpu: Gpu, name: str = "") -> Trace:
    """Return the trace of a serialized `HloModuleProto`, or of a `HloProto` around one.

    It is cut after 20 000 kernels, with a note in its name. Raises WindowError for what is no
    scheduled module, or for one that computes nothing.
    """
    try:
        module = _module(data)
        unrolled = _Unroller(module, gpu)
        unrolled.entry()
    except HloError as error:
        raise WindowError(error.what, facts=error.facts, hint=error.hint) from None
    except (IndexError, KeyError, OverflowError, RecursionError, StopIteration) as error:
        facts = f"{type(error).__name__}: {error}"
        raise WindowError("malformed HLO: its parts do not fit together", facts=facts) from None
    name = name or module.name
    if not unrolled.kernels:
        raise WindowError(f"the HLO module {name} computes nothing", facts="it has no steps")
    cut = f", first {MOST} kernels" if unrolled.full else ""
    return Trace(f"{name}{cut}", tuple(unrolled.kernels))


def _module(data: bytes) -> HloModule:
    try:
        return read_module(data)
    except HloError as error:
        try:
            return read_module(Message(data).data(1))
        except HloError:
            raise error from None


@dataclass
class _Unroller:
    """Appends the kernels of computations to one list."""

    module: HloModule
    gpu: Gpu
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    full: bool = False

    def __post_init__(self) -> None:
        self.costs, self.free = Costs(self.module), 0
        self.flows: dict[int, ValueFlow] = {}

    def entry(self) -> None:
        """Unroll the whole program."""
        parameters = self.flow(self.module.entry).parameters
        values = self.flow(self.module.entry).values
        arguments = {
            k: {p: self.new_segment(values[v].nbytes) for p, v in leaves.items()}
            for k, leaves in parameters.items()
        }
        self.run(self.module.entry, arguments)

    def flow(self, computation: int) -> ValueFlow:
        if computation not in self.flows:
            self.flows[computation] = flow(self.module, computation, self.costs)
        return self.flows[computation]

    def new_segment(self, size: int) -> Segment:
        """Allocate addresses."""
        at = self.free
        self.free += -(-max(size, 1) // ALIGN) * ALIGN
        return Segment(at, size)

    def run(self, computation: int, arguments: Mapping[int, Leaves]) -> Leaves:
        """Unroll a computation once; return the segments of its result."""
        f, where = self.flow(computation), dict[int, Segment]()
        for k, leaves in f.parameters.items():
            where |= {v: arguments[k][p] for p, v in leaves.items()}
        for v, value in enumerate(f.values):
            if v not in where and value.step < 0:  # a constant
                where[v] = self.new_segment(value.nbytes)
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
        """Unroll a loop; the result of an iteration is the argument of the next one."""
        body = instruction.called[0]
        carried: Leaves = {p: where[v] for p, v in flow.leaves(instruction.operands[0]).items()}
        if instruction.trips == 1:  # perhaps an unknown number
            self.wait_for(self.run(instruction.called[1], {0: carried}))
        for _ in range(instruction.trips):
            carried = {**carried, **self.run(body, {0: carried})}
            if self.full:
                break
        where |= {v: carried[p] for p, v in flow.leaves(instruction.id).items()}

    def wait_for(self, condition: Leaves) -> None:
        """Let the host wait for the kernel that computes a condition, if one does."""
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
        """Append the kernel of one instruction, such as a whole fusion."""
        if instruction.op == "conditional":
            self.wait_for({p: where[v] for p, v in flow.leaves(instruction.operands[0]).items()})
        old = {new: old for old, new in step.in_place}
        for v in step.writes:
            where[v] = where[old[v]] if v in old else self.new_segment(flow.values[v].nbytes)
        results = max(1, sum(s.count for _, s in instruction.shape.leaves()))
        matrix = step.work.matrix > 0
        ctas = -(-results // (TILE if matrix else BLOCK))
        moved = sum(step.reads.values()) + sum(step.writes.values()) + step.local
        kernel = Kernel(
            name=step.name,
            ctas=ctas,
            registers=64 if matrix else 32,
            shared=16384 if matrix else 0,
            us=self.gpu.block_us(ctas, moved, step.work.matrix + step.work.vector),
            reads=tuple(dict.fromkeys(where[v] for v in step.reads if where[v].size)),
            writes=tuple(dict.fromkeys(where[v] for v in step.writes if where[v].size)),
        )
        self.kernels.append(kernel)
