"""LLVM, the portable backend and the encoders' differential oracle: the only import of llvmlite.

A vector program of any number of lanes becomes LLVM IR: registers and pointers are SSA values, and
loops carry all of them. LLVM compiles about twenty times slower than our encoders.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

from recurra.errors import BackendError
from recurra.nest.executable_memory import function
from recurra.nest.program import Constant, NestCode
from recurra.nest.target import VectorTarget
from recurra.support.optional_packages import needed_by

NAME = "kernel"


def available() -> bool:
    """Return whether llvmlite is installed."""
    return importlib.util.find_spec("llvmlite") is not None


@cache
def _llvm() -> ModuleType:
    with needed_by("the LLVM backend", BackendError):
        import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@cache
def host() -> VectorTarget:
    """Return the vector registers of this machine, according to LLVM."""
    known = _llvm().get_host_cpu_features()
    if known.get("avx512f") and known.get("avx512vl"):
        size, registers = 64, 32
    else:
        size, registers = 32 if known.get("avx2") else 16, 32 if known.get("neon") else 16
    return VectorTarget("llvm", size, registers, True, frozenset())


def _machine() -> Any:
    """Return a new machine each time, since an execution engine owns its machine."""
    llvm = _llvm()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=1,  # 0 spills everything; above 1 no program was measurably faster
        jit=True,
    )


class LlvmKernel:
    """A NestKernel by LLVM."""

    def __init__(self, program: NestCode) -> None:
        llvm = _llvm()
        self.program = program
        module = llvm.parse_assembly(llvm_text(program))
        self._engine = llvm.create_mcjit_compiler(module, _machine())
        self._engine.finalize_object()
        self.address = self._engine.get_function_address(NAME)
        self.call = function(self.address, program.tensors, self._engine)


def assembled(assembly: str) -> bytes:
    """Assemble lines in Intel's syntax: the oracle of our encoders."""
    llvm = _llvm()
    lines = [".intel_syntax noprefix", *assembly.splitlines(), ".att_syntax"]
    module = llvm.parse_assembly("\n".join(f'module asm "{line}"' for line in lines))
    sections = llvm.ObjectFileRef.from_data(_machine().emit_object(module)).sections()
    return next(s.data() for s in sections if s.is_text())


def llvm_text(program: NestCode) -> str:
    """Return the LLVM IR of a program: one function of its tensors' pointers."""
    return _LlvmWriter(program).module()


class _LlvmWriter:
    def __init__(self, program: NestCode) -> None:
        self.p = program
        self.scalar, self.suffix, self.item = (
            ("float", "f32", 4) if program.dtype == "f32" else ("double", "f64", 8)
        )
        self.vector = f"<{program.lanes} x {self.scalar}>"
        self.integers = f"<{program.lanes} x i{8 * self.item}>"
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.names = 0
        self.registers: dict[int, str] = {}
        self.pointers = [f"%t{t}" for t in range(program.tensors + len(program.buffers))]
        self.block = "entry"
        self.loops: list[tuple[Any, ...]] = []

    def module(self) -> str:
        for word, *rest in self.p.code:
            getattr(self, f"do_{word}")(*rest)
        arguments = ", ".join(f"ptr %t{t}" for t in range(self.p.tensors))
        allocated, freed = list[str](), list[str]()
        for t, size in enumerate(self.p.buffers, self.p.tensors):
            self.declared |= {"declare ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)"}
            whole = -(-size // 64) * 64
            allocated.append(f"%t{t} = call ptr @aligned_alloc(i64 64, i64 {whole})")
            freed.append(f"call void @free(ptr %t{t})")
        body = "\n".join(["entry:", *allocated, *self.lines, *freed, "ret void"])
        return "\n".join(
            [*sorted(self.declared), f"define void @{NAME}({arguments}) {{", body, "}"]
        )

    def new(self, value: str) -> str:
        self.names += 1
        self.lines.append(f"%v{self.names} = {value}")
        return f"%v{self.names}"

    def call(self, result: str, name: str, *arguments: str) -> str:
        types = ", ".join(
            a.rsplit(" ", 1)[0] if not a.startswith("<") else _type(a) for a in arguments
        )
        self.declared.add(f"declare {result} @{name}({types})")
        code = f"call {result} @{name}({', '.join(arguments)})"
        if result == "void":
            self.lines.append(code)
            return ""
        return self.new(code)

    def at(self, t: int, offset: int) -> str:
        return self.new(f"getelementptr i8, ptr {self.pointers[t]}, i64 {offset}")

    def typed(self, register: int) -> str:
        return f"{self.vector} {self.registers[register]}"

    def mask(self, mask: int) -> str:
        width = self.p.widths[mask - 1] if mask else self.p.lanes
        bits = ", ".join(f"i1 {int(k < width)}" for k in range(self.p.lanes))
        return f"<{self.p.lanes} x i1> <{bits}>"

    def assign(self, register: int, value: str, mask: int) -> None:
        if mask:
            value = self.new(
                f"select {self.mask(mask)}, {self.vector} {value}, {self.typed(register)}"
            )
        self.registers[register] = value

    # Instructions

    def do_zero(self, register: int) -> None:
        self.registers[register] = "zeroinitializer"

    def constant(self, slot: int) -> str:
        c: Constant = self.p.pool[slot]
        bits = c.lanes(self.p.dtype, 1)
        kind = f"i{8 * self.item}"
        value = int.from_bytes(bits, "little")
        return f"<{', '.join([f'{kind} {value}'] * self.p.lanes)}>"

    def bitcast(self, register: int, integers: str) -> None:
        self.registers[register] = self.new(f"bitcast {self.integers} {integers} to {self.vector}")

    def do_constant(self, register: int, slot: int) -> None:
        self.bitcast(register, self.constant(slot))

    def do_load(self, register: int, tensor: int, offset: int, mask: int) -> None:
        pointer = self.at(tensor, offset)
        if not mask:
            self.registers[register] = self.new(
                f"load {self.vector}, ptr {pointer}, align {self.item}"
            )
            return
        self.registers[register] = self.call(
            self.vector, f"llvm.masked.load.v{self.p.lanes}{self.suffix}.p0",
            f"ptr {pointer}", f"i32 {self.item}", self.mask(mask), f"{self.vector} zeroinitializer",
        )  # fmt: skip

    def do_store(self, register: int, tensor: int, offset: int, mask: int) -> None:
        pointer = self.at(tensor, offset)
        if not mask:
            self.lines.append(f"store {self.typed(register)}, ptr {pointer}, align {self.item}")
            return
        self.call(
            "void", f"llvm.masked.store.v{self.p.lanes}{self.suffix}.p0",
            self.typed(register), f"ptr {pointer}", f"i32 {self.item}", self.mask(mask),
        )  # fmt: skip

    def element(self, tensor: int, offset: int) -> str:
        return self.new(f"load {self.scalar}, ptr {self.at(tensor, offset)}, align {self.item}")

    def widen(self, register: int, halves: str) -> None:
        """Convert lanes of bf16, as i16, to f32: they are its upper halves."""
        n = self.p.lanes
        wide = self.new(f"zext <{n} x i16> {halves} to {self.integers}")
        sixteen = f"<{', '.join(['i32 16'] * n)}>"
        self.bitcast(register, self.new(f"shl {self.integers} {wide}, {sixteen}"))

    def do_load16(self, register: int, tensor: int, offset: int, mask: int, width: int) -> None:
        if mask:
            return self.do_gather16(register, tensor, offset, width, 2)
        pointer = self.at(tensor, offset)
        self.widen(register, self.new(f"load <{self.p.lanes} x i16>, ptr {pointer}, align 2"))

    def do_splat16(self, register: int, tensor: int, offset: int) -> None:
        n, kind = self.p.lanes, f"<{self.p.lanes} x i16>"
        one = self.new(f"load i16, ptr {self.at(tensor, offset)}, align 2")
        first = self.new(f"insertelement {kind} poison, i16 {one}, i32 0")
        lanes = f"<{n} x i32> zeroinitializer"
        self.widen(register, self.new(f"shufflevector {kind} {first}, {kind} poison, {lanes}"))

    def do_gather16(self, register: int, tensor: int, offset: int, width: int, stride: int) -> None:
        value, kind = "zeroinitializer", f"<{self.p.lanes} x i16>"
        for lane in range(width):
            one = self.new(f"load i16, ptr {self.at(tensor, offset + lane * stride)}, align 2")
            value = self.new(f"insertelement {kind} {value}, i16 {one}, i32 {lane}")
        self.widen(register, value)

    def insert(self, vector: str, value: str, lane: int) -> str:
        return self.new(f"insertelement {self.vector} {vector}, {self.scalar} {value}, i32 {lane}")

    def do_first(self, register: int, tensor: int, offset: int) -> None:
        self.registers[register] = self.insert("zeroinitializer", self.element(tensor, offset), 0)

    def do_splat(self, register: int, tensor: int, offset: int) -> None:
        one = self.insert("poison", self.element(tensor, offset), 0)
        lanes = f"<{self.p.lanes} x i32> zeroinitializer"
        self.registers[register] = self.new(
            f"shufflevector {self.vector} {one}, {self.vector} poison, {lanes}"
        )

    def do_gather(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> None:
        value = "zeroinitializer"
        for lane in range(width):
            value = self.insert(value, self.element(tensor, offset + lane * stride), lane)
        self.registers[register] = value

    def do_single(self, register: int, tensor: int, offset: int, lane: int = 0) -> None:
        value = self.new(f"extractelement {self.typed(register)}, i32 {lane}")
        self.lines.append(
            f"store {self.scalar} {value}, ptr {self.at(tensor, offset)}, align {self.item}"
        )

    def do_scatter(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> None:
        for lane in range(width):
            self.do_single(register, tensor, offset + lane * stride, lane)

    def intrinsic(self, name: str, *arguments: str) -> str:
        return self.call(self.vector, f"llvm.{name}.v{self.p.lanes}{self.suffix}", *arguments)

    def do_fma(self, register: int, left: int, right: int, mask: int) -> None:
        self.assign(
            register, self.intrinsic("fma", *map(self.typed, (left, right, register))), mask
        )

    def do_add(self, register: int, source: int, mask: int) -> None:
        self.assign(
            register, self.new(f"fadd {self.typed(register)}, {self.registers[source]}"), mask
        )

    def do_mul(self, register: int, left: int, right: int) -> None:
        self.registers[register] = self.new(f"fmul {self.typed(left)}, {self.registers[right]}")

    def do_square(self, register: int) -> None:
        self.do_mul(register, register, register)

    def do_max(self, register: int, source: int, mask: int) -> None:
        self.assign(
            register, self.intrinsic("maximum", self.typed(register), self.typed(source)), mask
        )

    def do_relu(self, register: int, spare: int) -> None:
        self.do_zero(spare)
        self.do_max(register, spare, 0)

    def do_sum(self, register: int, spare: int) -> None:
        name = f"llvm.vector.reduce.fadd.v{self.p.lanes}{self.suffix}"
        value = self.call(self.scalar, name, f"{self.scalar} 0.0", self.typed(register))
        self.lines[-1] = self.lines[-1].replace("call ", "call reassoc ", 1)
        self.registers[register] = self.insert("zeroinitializer", value, 0)

    def do_top(self, register: int, spare: int) -> None:
        name = f"llvm.vector.reduce.fmaximum.v{self.p.lanes}{self.suffix}"
        self.registers[register] = self.insert(
            "zeroinitializer", self.call(self.scalar, name, self.typed(register)), 0
        )

    def bits(self, word: str, register: int, slot: int) -> None:
        value = self.new(f"bitcast {self.typed(register)} to {self.integers}")
        value = self.new(f"{word} {self.integers} {value}, {self.constant(slot)}")
        self.bitcast(register, value)

    def do_abs(self, register: int, slot: int) -> None:
        self.bits("and", register, slot)

    def do_negate(self, register: int, slot: int) -> None:
        self.bits("xor", register, slot)

    def do_move(self, tensor: int, distance: int) -> None:
        self.pointers[tensor] = self.at(tensor, distance)

    # Loops: every register and pointer is a phi; LLVM drops those that do not change.

    def do_repeat(self, count: int) -> None:
        self.names += 1
        head = f"loop{self.names}"
        self.lines += [f"br label %{head}", f"{head}:"]
        before = (self.block, dict(self.registers), list(self.pointers))
        self.loops.append((count, head, len(self.lines), *before))
        self.lines.append("")
        self.registers = {r: f"%{head}.r{r}" for r in self.registers}
        self.pointers = [f"%{head}.t{t}" for t in range(len(self.pointers))]
        self.block = head

    def do_end(self) -> None:
        n, head, line, block, registers, pointers = self.loops.pop()
        count = self.new(f"add i64 %{head}.i, 1")
        more = self.new(f"icmp ult i64 {count}, {n}")
        last = self.block
        phis = [_phi(f"%{head}.i", "i64", ("0", block), (count, last))]
        for r, value in registers.items():
            values = (value, block), (self.registers[r], last)
            phis.append(_phi(f"%{head}.r{r}", self.vector, *values))
        for t, (value, moved) in enumerate(zip(pointers, self.pointers, strict=True)):
            phis.append(_phi(f"%{head}.t{t}", "ptr", (value, block), (moved, last)))
        self.lines[line] = "\n".join(phis)
        self.lines += [f"br i1 {more}, label %{head}, label %{head}.done", f"{head}.done:"]
        self.block = f"{head}.done"


def _phi(name: str, kind: str, *values: tuple[str, str]) -> str:
    return f"{name} = phi {kind} " + ", ".join(f"[{value}, %{block}]" for value, block in values)


def _type(argument: str) -> str:
    """Return `<16 x float>` of `<16 x float> %v1`."""
    return argument[: argument.index(">") + 1]
