"""`recurra map run`: map a program, run it, and compare the times with simulated ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from recurra.errors import RecurraError
from recurra.mapping.commands import function_of
from recurra.mapping.engine_choice import Which
from recurra.storage.mapping_problem import Problem, Solution, nothing
from recurra.support import byte_units

if TYPE_CHECKING:
    from recurra.mapping.execute.compare import ComparedProblem
    from recurra.mapping.execute.cost_measurement import Gauge
    from recurra.mapping.execute.latency_tables import Tables
    from recurra.mapping.execute.memories import Memory


@dataclass(frozen=True)
class MapRunCommand:
    """Run a program with a small fast memory of RAM, and a file of a disk as slow memory; or with
    that of a GPU, and RAM as slow memory.

    Example: recurra map run rnn_train --fast-size 16MiB --folder /var/tmp
    """

    program: Positional[str]
    """A model of the library, or FILE.py:NAME, called for (function, arguments)."""
    fast_size: str
    """Fast memory, say 16MiB: all that buffers of 64 KiB and more may take of it."""
    solver: Annotated[str, arg(metavar="NAME")] = "default"
    """As of `recurra map solve`."""
    seconds: float = 5.0
    """CPU time of the search."""
    seed: int = 0
    """Of all random numbers."""
    engine: Which = "auto"
    """auto: the native one where it can be built."""
    rounds: int = 5
    """How often the step is run; times are medians."""
    costs: Literal["sums", "tables", "mixed"] = "sums"
    """sums: what an instruction computes and what it moves, added up; tables: measured for every
    subset of its buffers in fast memory, the largest eight, which takes some minutes; mixed: sums
    for instructions of more than eight buffers."""
    samples: int = 3
    """With tables: rounds of measuring them, each of 16 runs of the step."""
    folder: Path | None = None
    """Where the file of the slow memory goes; if left out, where temporary files go."""
    device: str | None = None
    """One of PyTorch's, say cuda: fast memory is its own, slow memory pinned RAM."""
    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> int:
        from recurra.mapping.execute.compare import compare
        from recurra.mapping.execute.jax_workloads import from_jax, workload_of

        if self.rounds < 1:
            raise RecurraError(f"a step is run once at least, not {self.rounds} times")
        if self.samples < 1:
            raise RecurraError(f"tables take one round of measuring at least, not {self.samples}")
        size, memory = byte_units.parse(self.fast_size), self.memory()
        if ":" in self.program:
            function, arguments, _ = function_of(self.program)
            workload = from_jax(function, *arguments, name=self.program.rpartition(":")[2])
        else:
            workload = workload_of(self.program)
        print(workload, file=sys.stderr)
        tabulate = None if self.costs == "sums" else self.tabulate
        result = compare(
            workload, size, self.answers, rounds=self.rounds, memory=memory, tabulate=tabulate
        )
        if self.json:
            found = {"problem": workload.name, "slow": result.slow, "answers": _report(result)}
            print(json.dumps(found))
            return 0
        print(result.problem, result.slow, result.prices, sep="\n")
        if result.tables is not None:
            print(result.tables)
        for name, x in result.comparisons.items():
            print(f"{name}: {x.answer}, {x.share:.3f} of all there is to gain\n  {x}")
        print("results are those of the unmapped run, to the last bit")
        return 0

    def memory(self) -> Memory:
        """The fast memory: RAM, or that of the device."""
        if self.device is None:
            from recurra.mapping.execute.ram import Ram

            return Ram(self.folder)
        if self.folder is not None:
            raise RecurraError(
                "slow memory is RAM or a file, not both",
                facts=f"--device {self.device} and --folder {self.folder}",
                hint="leave out one of them",
            )
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # most of a GPU, else
        from recurra.mapping.execute.device import Device

        return Device(self.device)

    def tabulate(self, gauge: Gauge) -> Tables:
        """Measure the tables, with a progress bar."""
        from recurra.mapping.execute.table_measurement import RUNS, measure_tables
        from recurra.report.progress import track

        with track(self.samples * RUNS, "measuring tables") as bar:
            wide = "largest" if self.costs == "tables" else "sums"
            return measure_tables(gauge, self.samples, bar.update, wide)

    def answers(self, problem: Problem) -> Mapping[str, Solution]:
        """Everything in slow memory, and the solver's solution."""
        from recurra.mapping.engine_choice import engine
        from recurra.mapping.solvers import solver_of

        solve = solver_of(self.solver)
        solution = solve(problem, self.seconds, self.seed, None, engine(self.engine))
        return {"everything slow": nothing(problem), self.solver: solution}


def _report(result: ComparedProblem) -> dict[str, dict[str, object]]:
    return {
        name: {
            "share": x.share,
            "measured_ms": x.medians[0],
            "simulated_ms": x.medians[1],
            "ratio": x.ratio,
            "spread_ms": x.spread,
            "by_sums": x.without_tables,  # simulated_ms and ratio without the tables
        }
        for name, x in result.comparisons.items()
    }
