"""Every environment variable, in one table.

| variable | means |
|---|---|
| `RECURRA_LOG=passes,rules` | topics on standard error, a line each: `passes` equations before and after, ms · `rules` the laws that fired · `decisions` what is stored, tiled, made an axis · `memory` stores and their bytes · `launches` the iterations of every launch, ms |
| `RECURRA_DUMP=dir` | stages as text: 00-trace.txt, 01-canonicalize.txt, .., schedule, plan, program |
| `RECURRA_CHECK=1` | after every pass the oracle compares the answers and names the guilty pass, output and point; the plan is run with points for values (small bounds); kernels of `nest` run in a child process first |
| `RECURRA_FUEL=n` | only the first n rewrites are applied, and the n-th is named: a wrong one is found by bisection |
| `RECURRA_CACHE=dir` | compiled programs are kept in `dir/recurra/programs` and found at the next start (backend jax, one worker; not with the four above); by default in the user's cache folder; 0: they are not kept. Native extensions are in `dir/recurra/native`, tuned nests in `dir/recurra/kernels` |
| `RECURRA_KERNELS=dir` | where `recurra tune` keeps the nests that it finds, and `recurra.nest.compile` looks for them; by default in `RECURRA_CACHE` |
| `RECURRA_PRICES=prices.json` | what choices by cost are made with: `recurra calibrate` measures this machine |
| `RECURRA_TVM_PYTHON=path` | a Python with apache-tvm: another peer in `recurra bench nest` |
| `RECURRA_BLESS=1` | tests rewrite their expected texts |
"""  # noqa: E501

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from recurra.errors import RecurraError
from recurra.support.notices import tell_once
from recurra.support.private_files import cache_folder

TOPICS = ("passes", "rules", "decisions", "memory", "launches")


@dataclass(frozen=True)
class Config:
    """The settings that the environment asks for."""

    log: frozenset[str] = frozenset()
    dump: Path | None = None
    check: bool = False
    fuel: int | None = None
    cache: Path | None = None
    """Compiled programs are kept below this folder; None: they are not kept"""
    kernels: Path | None = None
    prices: Path | None = None

    @property
    def watches(self) -> bool:
        """Is there something to see or to change in the passes, so that they must run?"""
        return bool(self.log or self.dump or self.check or self.fuel is not None)


def environment() -> Config:
    """Read anew at every compilation; raises RecurraError where a variable says nothing known."""
    log = frozenset(x.strip() for x in os.environ.get("RECURRA_LOG", "").split(",") if x.strip())
    strange = sorted(log - set(TOPICS))
    if strange:
        raise _meaningless("RECURRA_LOG", ",".join(strange), f"its topics are {', '.join(TOPICS)}")
    check, fuel = os.environ.get("RECURRA_CHECK", ""), os.environ.get("RECURRA_FUEL", "")
    if check not in ("", "0", "1"):
        raise _meaningless("RECURRA_CHECK", check, "it is 0 or 1")
    if fuel and not fuel.isdecimal():
        raise _meaningless("RECURRA_FUEL", fuel, "it is a number of rewrites, such as 100")
    dump = os.environ.get("RECURRA_DUMP")
    kept, kernels = os.environ.get("RECURRA_CACHE"), os.environ.get("RECURRA_KERNELS")
    prices = os.environ.get("RECURRA_PRICES")
    return Config(
        log=log,
        dump=Path(dump) if dump else None,
        check=check == "1",
        fuel=int(fuel) if fuel else None,
        cache=None if kept == "0" else _cache(),
        kernels=Path(kernels) if kernels else None,
        prices=Path(prices) if prices else None,
    )


def _cache() -> Path | None:
    """Return the folder of caches, or tell that there is none and go on without."""
    try:
        return cache_folder()
    except RecurraError as error:
        tell_once(f"compiled programs are not kept: {error.facts}")
        return None


def _meaningless(variable: str, value: str, facts: str) -> RecurraError:
    return RecurraError(f"{variable}={value} means nothing", facts=facts)
