"""VectorTarget: the vector registers that code is generated for, and those of this machine."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recurra.errors import BackendError
from recurra.nest.problem import ITEM_BYTES


@dataclass(frozen=True)
class VectorTarget:
    """A set of vector instructions: `bytes` per register, and how many registers there are."""

    name: str
    bytes: int
    registers: int
    masked: bool
    """Whether there are mask registers; otherwise masks and blends cost vector registers."""
    needs: frozenset[str]
    """The features of the processor, as Linux names them, that the instructions need."""

    def lanes(self, dtype: str) -> int:
        return self.bytes // ITEM_BYTES[dtype]

    def __str__(self) -> str:
        return self.name


AVX512 = VectorTarget(
    "avx512", 64, 32, True, frozenset({"avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"})
)
AVX2 = VectorTarget("avx2", 32, 16, False, frozenset({"avx2", "fma"}))
TARGETS: Mapping[str, VectorTarget] = {t.name: t for t in (AVX512, AVX2)}


@cache
def features() -> frozenset[str]:
    """Return the features of processor and operating system; none where there is no Linux."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    info = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return frozenset(flags[1].split()) if flags else frozenset()


def runnable() -> tuple[VectorTarget, ...]:
    """Return the targets that this machine can run, widest first."""
    return tuple(t for t in TARGETS.values() if t.needs <= features())


def host_target(name: str | None = None) -> VectorTarget:
    """Return the target of that name, or the widest; raise BackendError if it cannot run here."""
    if name is None:
        if not runnable():
            raise BackendError(
                "no code can be generated for this machine",
                facts=f"it is {platform.system()} on {platform.machine()}; "
                "known are x86-64 processors with AVX2 or AVX-512 under Linux",
                hint='the portable way is backend="llvm" (pip install "recurra[nest]")',
            )
        return runnable()[0]
    if name not in TARGETS:
        raise BackendError(f"there is no target {name!r}", facts=f"there are: {', '.join(TARGETS)}")
    if missing := TARGETS[name].needs - features():
        raise BackendError(
            f"this machine does not run {name}",
            facts=f"its processor lacks {', '.join(sorted(missing))}",
            hint=f"it runs {', '.join(map(str, runnable())) or 'none of the targets'}",
        )
    return TARGETS[name]
