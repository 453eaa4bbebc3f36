"""TVM's matrix product, in a Python of its own: TVM's packages do not agree with ours.

    $RECURRA_TVM_PYTHON peers_tvm.py FOLDER LANES ACCUMULATORS

reads FOLDER/A.npy and B.npy, builds the schedule of TVM's tutorial (blocking, permutation,
vectorization, a cache for the block that is written) with blocks that divide the sizes, keeps the
fastest of a few, and then answers lines: `run 20` runs 20 times and tells the seconds of process
CPU, `answer` writes FOLDER/C.npy.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "RECURRA_TVM_PYTHON"


class Tvm:
    """The process of one matrix product; lives as long as this object."""

    def __init__(self, a: NDArray[Any], b: NDArray[Any], room: tuple[int, int]) -> None:
        """`room`: f32 lanes of a register, and how many of them hold what is added up."""
        self.folder = tempfile.TemporaryDirectory()
        for name, x in (("A", a), ("B", b)):
            np.save(Path(self.folder.name) / f"{name}.npy", x)
        self.process = subprocess.Popen(
            [os.environ[VARIABLE], str(Path(__file__)), self.folder.name, *map(str, room)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait()

    def _wait(self) -> float:
        assert self.process.stdout is not None
        word, _, seconds = self.process.stdout.readline().partition(" ")
        if word != "done":
            from recurra.errors import RecurraError  # not where TVM is: this file runs there, too

            raise RecurraError("TVM's process has ended", facts="the reason is printed above")
        return float(seconds)

    def _ask(self, line: str) -> float:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self._wait()

    def run(self, count: int) -> float:
        """Seconds of process CPU of `count` runs."""
        return self._ask(f"run {count}")

    def answer(self) -> Mapping[str, NDArray[Any]]:
        self._ask("answer")
        return {"C": np.load(Path(self.folder.name) / "C.npy").astype(np.float64)}

    def end(self) -> None:
        """Ends the process and removes its folder."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def available() -> bool:
    """Is there a Python with TVM?"""
    return bool(os.environ.get(VARIABLE))


def main(folder: str, lanes: int, room: int) -> None:
    tvm = importlib.import_module("tvm")
    a, b = (np.load(Path(folder) / f"{name}.npy") for name in "AB")
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    x, y, z = (tvm.runtime.tensor(v, tvm.cpu()) for v in (a, b, c))
    m, k, n = *a.shape, b.shape[1]
    function = min(
        (_built(tvm, m, k, n, *at) for at in blocks(m, n, lanes, room)),
        key=lambda f: _time(f, x, y, z),
    )
    print("done 0", flush=True)
    for line in sys.stdin:
        word, *count = line.split()
        start = time.process_time()
        for _ in range(int(count[0]) if count else 1):
            function(x, y, z)
        seconds = time.process_time() - start
        if word == "answer":
            np.save(Path(folder) / "C.npy", z.numpy())
        print(f"done {seconds}", flush=True)


def blocks(m: int, count: int, lanes: int, room: int) -> Sequence[tuple[int, int]]:
    """Rows and columns of a block: divisors, columns in whole vectors, their sums in registers."""
    columns = [d for d in (lanes * k for k in range(1, 5)) if count % d == 0] or [count]
    return [
        (max(d for d in range(1, max(1, room * lanes // c) + 1) if m % d == 0), c) for c in columns
    ]


def _built(tvm: Any, m: int, index: int, count: int, rows: int, columns: int) -> Any:
    te = importlib.import_module("tvm.te")
    a, b = (
        te.placeholder(s, "float32", name=t) for s, t in (((m, index), "A"), ((index, count), "B"))
    )
    r = te.reduce_axis((0, index), name="r")
    c = te.compute((m, count), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    s = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = s.get_sblock("C")
    written = s.cache_write(block, 0, "local")
    i, j, inner = s.get_loops(block)
    (i0, i1), (j0, j1) = s.split(i, [None, rows]), s.split(j, [None, columns])
    k0, k1 = s.split(inner, [None, max(d for d in (1, 2, 4) if index % d == 0)])
    s.reorder(i0, j0, k0, k1, i1, j1)
    s.reverse_compute_at(written, j0)
    s.vectorize(j1)
    s.unroll(i1)
    s.unroll(k1)
    s.decompose_reduction(block, k0)
    s.vectorize(s.get_loops(written)[-1])
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.compile(s.mod, target={"kind": "llvm", "mcpu": cpu})["main"]


def _time(function: Any, x: Any, y: Any, z: Any) -> float:
    times: list[float] = []
    for _ in range(10):
        start = time.perf_counter()
        function(x, y, z)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
