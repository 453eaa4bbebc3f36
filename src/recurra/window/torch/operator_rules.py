"""The table of the rule in native/rule.hpp, which decides for every operator if it is deferred.

print(recurra.window.torch.operator_rules.table())

aten::add.Tensor   defers   it gives new tensors
aten::view         passes   a view
aten::bernoulli    caller   it draws
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recurra.window.native.native_build import TORCH
from recurra.window.native.native_window import load

Way = Literal["unknown", "passes", "shapes", "caller", "defers"]  # kWays in native/rule.hpp
WAYS: dict[Way, str] = {
    "unknown": "waits for everything in flight, and runs in the caller",
    "passes": "is not seen: a view, or the operators that it consists of, which are seen",
    "shapes": "runs at once: it looks at the shapes of its arguments only",
    "caller": "waits for what touches its arguments, and runs in the caller",
    "defers": "runs later",
}


@dataclass(frozen=True)
class OperatorRule:
    """The rule of an operator: one of `WAYS`, and why."""

    way: Way
    why: str


@dataclass(frozen=True)
class OperatorTable:
    """The rules of PyTorch's own operators, by name; all others are unknown."""

    entries: dict[str, OperatorRule]

    def __getitem__(self, name: str) -> OperatorRule:
        unknown = OperatorRule("unknown", "it is not one of PyTorch's own operators")
        return self.entries.get(name, unknown)

    def __str__(self) -> str:
        width = max(map(len, self.entries))
        return "\n".join(f"{n:<{width}}  {e.way:<7}  {e.why}" for n, e in self.entries.items())


def table(folder: Path | None = None) -> OperatorTable:
    """Return the rule of every operator; raise BuildError where the native part cannot be built."""
    rows = sorted(load(folder, TORCH).table().items())
    return OperatorTable({name: OperatorRule(way, why) for name, (way, why) in rows})
