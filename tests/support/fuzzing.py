"""Random programs at length, `make fuzz PROGRAMS=2000 SEED=7`: other ones at every seed.

How many each test has run without a difference is kept in a file, and adds up over runs.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.errors import UnsatisfiedAssumption

from documents import ROOT

PROGRAMS = int(os.environ.get("PROGRAMS") or 1000)
SEED = int(os.environ.get("SEED") or 0)
KEPT = ROOT / ".fuzz.jsonl"
MAX_SECONDS = 60  # of CPU, which a program of a few equations never takes, on a busy machine either
MAX_WAIT_SECONDS = 20 * MAX_SECONDS  # of wall clock, in case that it waits for ever
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
TIMERS = {signal.ITIMER_PROF: MAX_SECONDS, signal.ITIMER_REAL: MAX_WAIT_SECONDS}
ran: Counter[str] = Counter()
failed: set[str] = set()


def drawn_at_length(share: float = 1.0) -> Callable[[Any], Any]:
    """Make a test of `@given` a fuzz test, of a share of the programs that are asked for."""

    def wrap(test: Any) -> Any:
        inner = test.hypothesis.inner_test

        @functools.wraps(inner)
        def counted(*args: Any, **more: Any) -> None:
            _counted(lambda: inner(*args, **more))

        test.hypothesis.inner_test = counted
        most = max(int(PROGRAMS * share), 1)
        how = settings(max_examples=most, derandomize=False, database=None, deadline=None,
                       suppress_health_check=list(HealthCheck))  # fmt: skip
        return pytest.mark.fuzz(seed(SEED)(how(test)))

    return wrap


def seeded_at_length(share: float = 1.0, chunk: int = 50) -> Callable[[Any], Any]:
    """Make a test of `seeds` a fuzz test, in chunks of a share of the seeds that are asked for."""
    first, most = SEED * 1_000_000, max(int(PROGRAMS * share), 1)
    parts = [range(first + k, first + min(k + chunk, most)) for k in range(0, most, chunk)]
    given = pytest.mark.parametrize("seeds", parts, ids=[str(x.start) for x in parts])
    return lambda test: pytest.mark.fuzz(given(test))


def each(seeds: Iterable[int], check: Callable[[int], Any]) -> None:
    """Check the program of every seed; then raise what those that went wrong have raised."""
    wrong: list[Exception] = []
    for k in seeds:
        try:
            _counted(lambda k=k: check(k))
        except Exception as e:
            e.add_note(f"seed {k}")
            wrong.append(e)
    if wrong:
        raise ExceptionGroup("programs that went wrong", wrong)


def _counted(check: Callable[[], Any]) -> None:
    """Count a program of the test at hand, up to the first that goes wrong."""
    name, _, args = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)").partition("[")
    words = [x for x in re.split(r"[-\]]", args) if x and not x.isdigit()]
    test = f"{name}[{'-'.join(words)}]" if words else name
    for of_timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(of_timer, _too_long)
    for timer, limit in TIMERS.items():
        signal.setitimer(timer, limit)
    try:
        check()
    except UnsatisfiedAssumption:
        raise
    except Exception:
        failed.add(test)
        raise
    finally:
        for timer in TIMERS:
            signal.setitimer(timer, 0)
    ran[test] += test not in failed


def _too_long(*_: Any) -> NoReturn:
    raise TimeoutError(f"the program takes longer than {MAX_SECONDS} s of CPU, or waits for ever")


def keep_counts() -> None:
    """Add what this process has run to the file."""
    if ran:
        lines = [{"test": t, "seed": SEED, "run": RUN, "programs": n} for t, n in ran.items()]
        with KEPT.open("a") as f:
            f.write("".join(f"{json.dumps(x)}\n" for x in lines))


def counts(kept: Path = KEPT) -> dict[str, tuple[int, int]]:
    """The programs that each test has run, and of how many seeds; a seed counts once."""
    if not kept.exists():
        return {}
    runs: Counter[tuple[str, int, str]] = Counter()
    for x in map(json.loads, kept.read_text().splitlines()):
        runs[x["test"], x["seed"], x["run"]] += x["programs"]
    most: dict[tuple[str, int], int] = {}
    for (test, s, _), n in runs.items():
        most[test, s] = max(n, most.get((test, s), 0))
    tests = sorted({test for test, _ in most})
    found = {t: [n for (test, _), n in most.items() if test == t] for t in tests}
    return {t: (sum(n), len(n)) for t, n in found.items()}
