"""Prices of work on one core of a machine, under one backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recurra.config import environment
from recurra.errors import RecurraError
from recurra.support import atomic_write, cpu, json_text

SCHEMA = "recurra-prices/3"
AGAIN = "`recurra calibrate --out {path}` measures this machine"
ELEMENTS: dict[str, float] = {  # operators whose elements cost more than plain ones somewhere
    "tanh": 0.6,
    "exp": 0.6,
    "log": 0.8,
    "sin": 4.0,
    "cos": 4.0,
    "sigmoid": 0.6,
    "pow": 8.0,
    "softmax": 0.9,
    "log_softmax": 0.9,
    "cumsum": 6.0,
    "cumprod": 6.0,
    "cummax": 6.0,
    "scatter": 6.0,
    "take": 0.5,
    "sort": 150.0,
    "argsort": 150.0,
    "topk": 2.5,
    "where": 0.06,
    "uniform": 2.6,
    "permutation": 16.0,
    "foreign": 50.0,
}


@dataclass(frozen=True)
class Prices:
    """Prices in nanoseconds; the defaults were measured on a server's core with AVX-512, under XLA.

    Args:
        flops_per_ns: of small matrix products.
        traffic: of a byte written and read of a store that does not fit the cache.
        statement: of any equation, whatever its size.
        fused: of an equation that works element by element, in one kernel with its readers.
        plain: of an element of an operator that is not in `elements`.
        host, disk: of a byte that is moved there, or back.
    """

    flops_per_ns: float = 75.0
    traffic: float = 0.33
    statement: float = 17.0
    fused: float = 1.7
    plain: float = 0.06
    host: float = 0.2
    disk: float = 2.0
    elements: Mapping[str, float] = field(default_factory=lambda: ELEMENTS)

    def of(self, operator: str) -> float:
        """The price of an element of an operator."""
        return self.elements.get(operator, self.plain)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The prices, as rows of a table."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "elements"}
        return [{"price": k, "value": round(v, 4)} for k, v in (flat | {**self.elements}).items()]


PRICES = Prices()
UNFUSED: Mapping[str, Prices] = {
    "numpy": Prices(statement=430.0, fused=430.0, plain=0.13, elements=ELEMENTS | {"where": 0.8}),
    "torch": Prices(statement=1100.0, fused=1100.0, plain=0.1, elements=ELEMENTS | {"where": 0.7}),
}
"""Prices of backends on which every equation is a call (AMD EPYC; elements: Intel Xeon)."""


def of_machine(backend: str) -> Prices:
    """Return a backend's prices: from the file RECURRA_PRICES, if set, or the defaults.

    Raises RecurraError if the file lacks them.
    """
    path = environment().prices
    if path is None:
        return UNFUSED.get(backend, PRICES)
    prices = read(path, cpu.name())
    if backend not in prices:
        facts = f"it has those of {', '.join(prices) or 'none'}"
        hint = f"`recurra calibrate --backend {backend} --out {path}` adds them"
        raise RecurraError(f"{path} has no prices of {backend}", facts=facts, hint=hint)
    return prices[backend]


def write(path: Path, machine: str, prices: Mapping[str, Prices]) -> None:
    """Write a machine's prices by backend; raises NotWrittenError."""
    by_backend = {name: asdict(p) for name, p in prices.items()}
    text = json.dumps({"schema": SCHEMA, "machine": machine, "prices": by_backend}, indent=1)
    atomic_write.save(path, text)


def read(path: Path, machine: str) -> dict[str, Prices]:
    """Read prices by backend; raises RecurraError if they are of another machine."""
    hint = AGAIN.format(path=path)
    try:
        data = json_text.parse(path.read_text())
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA!r}")
        prices = {name: _prices(p) for name, p in data["prices"].items()}
        theirs = str(data["machine"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RecurraError(f"{path} holds no prices", facts=why, hint=hint) from None
    if theirs != machine:
        facts = f"they are of {theirs}; this is {machine}"
        raise RecurraError(f"{path} holds prices of another machine", facts=facts, hint=hint)
    return prices


def _prices(data: Mapping[str, Any]) -> Prices:
    elements = {str(k): _positive(k, v) for k, v in data["elements"].items()}
    names = (f.name for f in fields(Prices) if f.name != "elements")
    return Prices(**{name: _positive(name, data[name]) for name in names}, elements=elements)


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}, not a positive number")
    return float(value)
