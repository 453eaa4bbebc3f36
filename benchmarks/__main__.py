"""The command `python -m benchmarks NAME`: a table on standard output, progress beside it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys

from recurra.bench import harness, machine
from recurra.bench.parts import named
from recurra.errors import RecurraError

SUITES = ("host", "launch", "programs")


def main(arguments: list[str]) -> int:
    """Run a suite and print what it found; 1 if one of its programs has no time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", help="names of programs, separated by commas")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--clock",
        choices=("cpu", "wall"),
        default="cpu",
        help="seconds of the process on all cores, or of the day",
    )
    asked = parser.parse_args(arguments)
    os.environ["RECURRA_CACHE"] = "0"  # whoever starts first compiles, and so does everybody here
    suite = importlib.import_module(f"benchmarks.{asked.suite}.suite")
    load = machine.load()
    rows = suite.suite(named(asked.suite, suite.NAMES, asked.only), asked.quick, asked.clock)
    report = harness.report(asked.suite, rows, load)
    if asked.json:
        print(json.dumps(report))
    else:
        at = report["machine"]
        print(suite.table(rows))
        print(f"\n{at['cpu']}, {at['cores']} cores, load {load:.1f}; jax {at['jax']}; ", end="")
        print(f"commit {report['commit']}; medians by the clock '{asked.clock}'")
    return 1 if harness.failures(rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RecurraError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
