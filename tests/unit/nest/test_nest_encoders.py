"""Encoders against LLVM's assembler: every vector instruction, byte for byte."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from recurra.nest.executable_memory import encoder
from recurra.nest.llvm import assembled
from recurra.nest.target import runnable

POINTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10")
ROOM = 512  # bytes per instruction in the assembled text


def in_bits(bits: int, r: int) -> str:
    return {512: "zmm", 256: "ymm", 128: "xmm"}[bits] + str(r)


def avx512(dtype: str, word: str, *x: Any) -> list[str]:  # noqa: C901, a case per word
    """The instruction in Intel's syntax."""
    s, wide = ("s", False) if dtype == "f32" else ("d", True)
    item, scalar = (8, "vmovsd") if wide else (4, "vmovss")

    def z(r: int) -> str:
        return in_bits(512, r)

    def at(t: int, o: int) -> str:
        return f"[{POINTERS[t]}{o:+d}]"

    def masked(m: int, zero: str = "") -> str:
        return f"{{k{m}}}{zero}" if m else ""

    def slot(k: int) -> str:
        return f"[r11+{64 * (6 + k)}]"

    def maximum(r: int, a: int, bits: int, m: int = 0) -> list[str]:
        r_, a_ = in_bits(bits, r), in_bits(bits, a)
        return [
            f"vcmpunordp{s} k7{masked(m)}, {a_}, {a_}",
            f"{{evex}} vmaxp{s} {r_}{masked(m)}, {a_}, {r_}",
            f"vmovap{s} {r_}{{k7}}, {a_}",
        ]

    def add(r: int, a: int, bits: int) -> list[str]:
        r_, a_ = in_bits(bits, r), in_bits(bits, a)
        return [f"{{evex}} vaddp{s} {r_}, {r_}, {a_}"]

    def across(r: int, a: int, combine: Any) -> list[str]:
        lines = [f"vextractf64x4 {in_bits(256, a)}, {z(r)}, 1", *combine(r, a, 256)]
        lines += [f"vextractf32x4 {in_bits(128, a)}, {in_bits(256, r)}, 1", *combine(r, a, 128)]
        for order in (1,) if wide else (0b01001110, 0b10110001):
            lines.append(f"{{evex}} vpermilp{s} {in_bits(128, a)}, {in_bits(128, r)}, {order}")
            lines += combine(r, a, 128)
        return lines

    def apart(word: str, r: int, t: int, o: int, m: int, slot_: int, w: int, d: int) -> list[str]:
        index = in_bits(256 if wide else 512, 31)
        place = f"[{POINTERS[t]}+{index}*{item}{o:+d}]"
        lines = [f"vmovups zmm31, {slot(slot_)}", f"kmovw k7, k{m}" if m else "kxnorw k7, k7, k7"]
        if word == "gather":
            return [f"vpxord {z(r)}, {z(r)}, {z(r)}", *lines, f"vgatherdp{s} {z(r)}{{k7}}, {place}"]
        return [*lines, f"vscatterdp{s} {place}{{k7}}, {z(r)}"]

    q = "q" if wide else "d"
    match word, x:
        case "zero", (r,):
            return [f"vpxord {z(r)}, {z(r)}, {z(r)}"]
        case "constant", (r, k):
            return [f"vmovup{s} {z(r)}, {slot(k)}"]
        case "load", (r, t, o, m):
            return [f"vmovup{s} {z(r)}{masked(m, '{z}')}, {at(t, o)}"]
        case "store", (r, t, o, m):
            return [f"vmovup{s} {at(t, o)}{masked(m)}, {z(r)}"]
        case "splat", (r, t, o):
            return [f"vbroadcasts{s} {z(r)}, {at(t, o)}"]
        case "load16", (r, t, o, m, _):
            return [f"vpmovzxwd {z(r)}{masked(m, '{z}')}, {at(t, o)}", f"vpslld {z(r)}, {z(r)}, 16"]
        case "splat16", (r, t, o):
            return [f"vpbroadcastw {z(r)}, {at(t, o)}", f"vpslld {z(r)}, {z(r)}, 16"]
        case "gather16", (r, t, o, w, d):
            lines = [f"vpxord {z(x)}, {z(x)}, {z(x)}" for x in ([r, 31] if w > 8 else [r])]
            for lane in range(w):
                x = in_bits(128, r if lane < 8 else 31)
                lines.append(
                    f"{{evex}} vpinsrw {x}, {x}, word ptr {at(t, o + lane * d)}, {lane % 8}"
                )
            if w > 8:
                low = in_bits(256, r)
                lines.append(f"vinserti32x4 {low}, {low}, xmm31, 1")
            return [*lines, f"vpmovzxwd {z(r)}, {in_bits(256, r)}", f"vpslld {z(r)}, {z(r)}, 16"]
        case "first", (r, t, o):
            return [f"{{evex}} {scalar} {in_bits(128, r)}, {at(t, o)}"]
        case "single", (r, t, o):
            return [f"{{evex}} {scalar} {at(t, o)}, {in_bits(128, r)}"]
        case (("gather" | "scatter"), _):
            return apart(word, *x)
        case "fma", (r, a, b, m):
            return [f"vfmadd231p{s} {z(r)}{masked(m)}, {z(a)}, {z(b)}"]
        case "add", (r, a, m):
            return [f"vaddp{s} {z(r)}{masked(m)}, {z(r)}, {z(a)}"]
        case "max", (r, a, m):
            return maximum(r, a, 512, m)
        case "mul", (r, a, b):
            return [f"vmulp{s} {z(r)}, {z(a)}, {z(b)}"]
        case "square", (r,):
            return [f"vmulp{s} {z(r)}, {z(r)}, {z(r)}"]
        case "sum", (r, a):
            return across(r, a, add)
        case "top", (r, a):
            return across(r, a, maximum)
        case "relu", (r, a):
            return [
                f"vpxord {z(a)}, {z(a)}, {z(a)}",
                f"vmaxp{s} {z(r)}, {z(a)}, {z(r)}",
            ]
        case "abs", (r, k):
            return [f"vpand{q} {z(r)}, {z(r)}, {slot(k)}"]
        case "negate", (r, k):
            return [f"vpxor{q} {z(r)}, {z(r)}, {slot(k)}"]
    raise AssertionError(word)


def avx2(dtype: str, word: str, *x: Any) -> list[str]:
    """The instruction in Intel's syntax; three-byte prefixes throughout."""
    return ["{vex3} " + line for line in _avx2(dtype, word, *x)]


def _avx2(dtype: str, word: str, *x: Any) -> list[str]:  # noqa: C901, a case per word
    s, wide = ("s", False) if dtype == "f32" else ("d", True)
    item, scalar = (8, "vmovsd") if wide else (4, "vmovss")

    def y(r: int) -> str:
        return in_bits(256, r)

    def at(t: int, o: int) -> str:
        return f"[{POINTERS[t]}{o:+d}]"

    def slot(k: int) -> str:
        return f"[r11+{64 * (6 + k)}]"

    def mask(m: int) -> str:
        return f"vmovups ymm15, [r11+{64 * (m - 1)}]"

    def maximum(r: int, a: int, bits: int = 256) -> list[str]:
        r_, a_ = in_bits(bits, r), in_bits(bits, a)
        return [
            f"vmaxp{s} {r_}, {a_}, {r_}",
            f"vcmpunordp{s} {in_bits(bits, 15)}, {a_}, {a_}",
            f"vblendvp{s} {r_}, {r_}, {a_}, {in_bits(bits, 15)}",
        ]

    def add(r: int, a: int, bits: int) -> list[str]:
        r_, a_ = in_bits(bits, r), in_bits(bits, a)
        return [f"vaddp{s} {r_}, {r_}, {a_}"]

    def blended(r: int, m: int) -> list[str]:
        return [mask(m), f"vblendvp{s} {y(r)}, {y(r)}, ymm14, ymm15"]

    def across(r: int, a: int, combine: Any) -> list[str]:
        lines = [f"vextractf128 {in_bits(128, a)}, {y(r)}, 1", *combine(r, a, 128)]
        for order in (1,) if wide else (0b01001110, 0b10110001):
            lines.append(f"vpermilp{s} {in_bits(128, a)}, {in_bits(128, r)}, {order}")
            lines += combine(r, a, 128)
        return lines

    def scattered(r: int, t: int, o: int, w: int, d: int) -> list[str]:
        lines: list[str] = []
        half = 16 // item
        for lane in range(w):
            if lane == half:
                lines.append(f"vextractf128 xmm14, {y(r)}, 1")
            source, place = in_bits(128, r if lane < half else 14), at(t, o + lane * d)
            if wide:
                lines.append(f"{'vmovhpd' if lane % half else 'vmovlpd'} {place}, {source}")
            else:
                lines.append(f"vextractps {place}, {source}, {lane % half}")
        return lines

    match word, x:
        case "zero", (r,):
            return [f"vxorps {y(r)}, {y(r)}, {y(r)}"]
        case "constant", (r, k):
            return [f"vmovup{s} {y(r)}, {slot(k)}"]
        case "load", (r, t, o, m):
            plain = [f"vmovup{s} {y(r)}, {at(t, o)}"]
            return [mask(m), f"vmaskmovp{s} {y(r)}, ymm15, {at(t, o)}"] if m else plain
        case "store", (r, t, o, m):
            plain = [f"vmovup{s} {at(t, o)}, {y(r)}"]
            return [mask(m), f"vmaskmovp{s} {at(t, o)}, ymm15, {y(r)}"] if m else plain
        case "splat", (r, t, o):
            return [f"vbroadcasts{s} {y(r)}, {at(t, o)}"]
        case "load16", (r, t, o, 0, _):
            return [f"vpmovzxwd {y(r)}, {at(t, o)}", f"vpslld {y(r)}, {y(r)}, 16"]
        case "load16", (r, t, o, _, w):
            return _avx2(dtype, "gather16", r, t, o, w, 2)
        case "splat16", (r, t, o):
            return [f"vpbroadcastw {y(r)}, {at(t, o)}", f"vpslld {y(r)}, {y(r)}, 16"]
        case "gather16", (r, t, o, w, d):
            low = in_bits(128, r)
            lines = [f"vxorps {y(r)}, {y(r)}, {y(r)}"]
            for lane in range(w):
                lines.append(f"vpinsrw {low}, {low}, word ptr {at(t, o + lane * d)}, {lane}")
            return [*lines, f"vpmovzxwd {y(r)}, {low}", f"vpslld {y(r)}, {y(r)}, 16"]
        case "first", (r, t, o):
            return [f"{scalar} {in_bits(128, r)}, {at(t, o)}"]
        case "single", (r, t, o):
            return [f"{scalar} {at(t, o)}, {in_bits(128, r)}"]
        case "gather", (r, t, o, m, k, _, _):
            index = in_bits(128 if wide else 256, 14)
            return [
                f"vxorps {y(r)}, {y(r)}, {y(r)}",
                f"vmovups ymm14, {slot(k)}",
                mask(m) if m else "vpcmpeqd ymm15, ymm15, ymm15",
                f"vgatherdp{s} {y(r)}, [{POINTERS[t]}+{index}*{item}{o:+d}], ymm15",
            ]
        case "scatter", (r, t, o, _, _, w, d):
            return scattered(r, t, o, w, d)
        case "fma", (r, a, b, m):
            if not m:
                return [f"vfmadd231p{s} {y(r)}, {y(a)}, {y(b)}"]
            first = [f"vmovap{s} ymm14, {y(r)}", f"vfmadd231p{s} ymm14, {y(a)}, {y(b)}"]
            return [*first, *blended(r, m)]
        case "add", (r, a, m):
            if not m:
                return add(r, a, 256)
            return [f"vaddp{s} ymm14, {y(r)}, {y(a)}", *blended(r, m)]
        case "max", (r, a, m):
            if not m:
                return maximum(r, a)
            return [f"vmovap{s} ymm14, {y(r)}", *maximum(14, a), *blended(r, m)]
        case "mul", (r, a, b):
            return [f"vmulp{s} {y(r)}, {y(a)}, {y(b)}"]
        case "square", (r,):
            return [f"vmulp{s} {y(r)}, {y(r)}, {y(r)}"]
        case "sum", (r, a):
            return across(r, a, add)
        case "top", (r, a):
            return across(r, a, maximum)
        case "relu", (r, a):
            return [f"vxorps {y(a)}, {y(a)}, {y(a)}", f"vmaxp{s} {y(r)}, {y(a)}, {y(r)}"]
        case "abs", (r, k):
            return [f"vandp{s} {y(r)}, {y(r)}, {slot(k)}"]
        case "negate", (r, k):
            return [f"vxorp{s} {y(r)}, {y(r)}, {slot(k)}"]
    raise AssertionError(word)


def random_instruction(r: Random, word: str, registers: int, lanes: int) -> tuple[Any, ...]:
    a, b, c = r.sample(range(registers), 3)
    t = r.randrange(7)
    o = r.choice([0, 4, 8, 64, 256, -4, -64, 8064, 8192, -8192, 100, 4096, -(2**20), 2**28 + 4])
    m, k = r.randrange(7), r.randrange(3)
    w, d = r.randint(1, lanes), r.choice([8, 12, 400, -16, 4096])
    return {
        "zero": (a,), "constant": (a, k), "load": (a, t, o, m), "splat": (a, t, o),
        "first": (a, t, o), "single": (a, t, o), "store": (a, t, o, m),
        "load16": (a, t, o, m, min(w, 8)), "splat16": (a, t, o),
        "gather16": (a, t, o, w if lanes > 8 else min(w, 8), d),
        "gather": (a, t, o, m, k, w, d), "scatter": (a, t, o, m, k, w, d),
        "fma": (a, b, c, m), "add": (a, b, m), "max": (a, b, m), "mul": (a, b, c),
        "sum": (a, b), "top": (a, b), "relu": (a, b), "square": (a,), "abs": (a, k),
        "negate": (a, k),
    }[word]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("name", "syntax", "registers"),
    [("avx512", avx512, 31), ("avx2", avx2, 14)][0 if len(runnable()) > 1 else 1 :],
)
def test_bytes_are_those_of_the_assembler(
    name: str, syntax: Any, registers: int, dtype: str
) -> None:
    ours = encoder(name, dtype)
    r = Random(11)
    lanes = {"avx512": 64, "avx2": 32}[name] // ours.item
    some = [(w, *random_instruction(r, w, registers, lanes)) for w in ours.words for _ in range(12)]
    text = "\n".join("\n".join([*syntax(dtype, *i), f".balign {ROOM}, 0xcc"]) for i in some)
    code = assembled(text)
    for k, (word, *operands) in enumerate(some):
        want = code[k * ROOM : (k + 1) * ROOM].rstrip(b"\xcc").hex(" ")
        assert ours.methods[word](*operands).rstrip(b"\xcc").hex(" ") == want, (word, *operands)
