"""One measurement in a process of its own, pinned before any thread pool exists.

    python -m benchmarks.worker package.module:function '{"B": 64, "T": 250}'

Calls the function with these arguments and prints its result as JSON; everything that the function
prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import recurra
from benchmarks.machine import pinned
from recurra.errors import RecurraError

SOURCES = (Path(__file__).parents[1], Path(recurra.__file__).parents[1])


def in_worker(function: Callable[..., Any], arguments: Mapping[str, Any], threads: int) -> Any:
    """`function(**arguments)`, run in a new process on `threads` cores; both go by JSON."""
    command = [sys.executable, "-m", __name__, name_of(function), json.dumps(arguments)]
    with pinned(threads):  # the child inherits the cores with its first instruction
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    out, _ = child.communicate()
    if child.returncode:
        raise RecurraError(
            f"the bench stopped in {name_of(function)}",
            facts=f"its process ended with code {child.returncode}; the reason is printed above",
        )
    return json.loads(out)


def environment(**more: str) -> dict[str, str]:
    """The variables of a new process, which finds these benchmarks and this package."""
    paths = [*map(str, SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, by which another process finds it."""
    name = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ == "__main__" or not function.__qualname__.isidentifier():
        raise RecurraError(
            f"{name} cannot be called from another process",
            hint="make it a function at the top of a module that can be imported",
        )
    return name


def find(name: str) -> Callable[..., Any]:
    """The function that `name_of` named."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def main(name: str, arguments: str) -> int:
    """Print the result as JSON; 2 is the code for a user's mistake."""
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        value = find(name)(**json.loads(arguments))
    except RecurraError as error:
        print(error, file=sys.stderr)
        return 2
    with result:
        json.dump(value, result)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
