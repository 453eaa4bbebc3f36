"""The peak of a program: the most bytes that it holds at once, when, and in which tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recurra.errors import RecurraError
from recurra.memory_model.amount import Amount
from recurra.report.html import size, table_html

KINDS = {
    "state": "parameters and state",  # carried from one step of the outermost loop to the next
    "store": "stores",  # points of equations that later steps read
    "temporary": "temporaries",
    "input": "inputs",
    "output": "outputs",
}
LARGEST = 8


@dataclass(frozen=True)
class Held:
    """A tensor that is alive at the peak, of a kind of `KINDS`."""

    name: str
    kind: str
    nbytes: int
    amount: Amount
    buffers: int


@dataclass(frozen=True)
class PeakPoint:
    """The highest moment while one statement or launch runs: bytes of each kind."""

    at: str
    kinds: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Peak:
    """The peak; for other bounds, under the same schedule, it is the largest of `amounts`."""

    nbytes: int
    at: str
    held: tuple[Held, ...]
    amounts: tuple[Amount, ...]
    sizes: Mapping[str, int]
    history: tuple[PeakPoint, ...] = ()
    arena: str = ""  # of the stores, if they share one
    fixed: bool = False  # it has bytes of launches that the backend knows for these bounds only

    def of(self, **bounds: int) -> int:
        """The peak for other bounds, under the same schedule and plan.

        Raises RecurraError if the bytes of launches are known for the compiled bounds only.
        """
        other = {k: v for k, v in bounds.items() if v != self.sizes.get(k)}
        if self.fixed and other:
            raise RecurraError.at_user_line(
                f"the peak for {', '.join(f'{k}={v}' for k, v in other.items())} is not known",
                facts="what launches take inside is told by the backend's compiler, for the bounds "
                f"it compiled for: {', '.join(f'{k}={v}' for k, v in self.sizes.items())}",
                hint="compile for the others, or ask the same program with backend='numpy'",
            )
        return max((x.at({**self.sizes, **bounds}) for x in self.amounts), default=0)

    @property
    def amount(self) -> Amount:
        """The peak as an expression, for bounds near those that it was compiled for."""
        return max(self.amounts, key=lambda x: x.at(self.sizes), default=Amount())

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak: state, store, temporary, input, output."""
        return {k: sum(h.nbytes for h in self.held if h.kind == k) for k in KINDS}

    @property
    def rows(self) -> list[dict[str, object]]:
        """The largest tensors at the peak."""
        return [
            {
                "tensor": h.name,
                "kind": KINDS[h.kind],
                "bytes": h.nbytes,
                "for any bounds": str(h.amount),
            }
            for h in self.held[:LARGEST]
        ]

    def __str__(self) -> str:
        head = f"peak {self.nbytes:,} B ({size(self.nbytes)}), at {self.at}"
        kinds = ", ".join(f"{KINDS[k]} {n:,}" for k, n in self.by_kind.items() if n)
        rows = [
            f"{h.nbytes:>14,}  {h.name}: {h.amount}  ({KINDS[h.kind]})" for h in self.held[:LARGEST]
        ]
        arena = [f"  {self.arena}"] if self.arena else []
        amount = f"  = {self.amount}" + ", for these bounds alone" * self.fixed
        return "\n".join([head, amount, f"  {kinds}", *arena, *rows])

    def _repr_html_(self) -> str:
        return table_html(self.rows, {"tensor": "peak", "bytes": self.nbytes})
