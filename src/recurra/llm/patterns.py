"""Attention patterns, the earlier positions that one reads: `window:256` is SlidingWindow(256).

A pattern says nothing of masks, caches or their lengths: `model` turns it into reads like
`k[b, max(t - 255, 0) : t + 1]`, and the compiler derives the store from those.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from recurra.errors import RecurraError, here


@dataclass(frozen=True)
class Causal:
    """All positions up to its own"""


@dataclass(frozen=True)
class SlidingWindow:
    """A position attends to itself and the `width - 1` before it (Beltagy et al., 2020)."""

    width: int


@dataclass(frozen=True)
class Chunk:
    """A position attends to its own chunk of `size` positions, up to itself."""

    size: int


@dataclass(frozen=True)
class Sinks:
    """The first `count` of all, and a window of `width` (Xiao et al., 2023), all at their places"""

    count: int
    width: int


@dataclass(frozen=True)
class Dilated:
    """A position attends to itself and every `step`-th before it."""

    step: int


@dataclass(frozen=True)
class Prefix:
    """Positions before `length` see each other, later ones the past (Raffel et al., 2020)."""

    length: int


@dataclass(frozen=True)
class LinearAttention:
    """All up to its own, weighted by φ(q)·φ(k), φ = elu + 1 (Katharopoulos et al., 2020)"""


Pattern = Causal | SlidingWindow | Chunk | Sinks | Dilated | Prefix | LinearAttention
PATTERNS: dict[str, type[Pattern]] = {
    "causal": Causal,
    "window": SlidingWindow,
    "chunk": Chunk,
    "sinks": Sinks,
    "dilated": Dilated,
    "prefix": Prefix,
    "linear": LinearAttention,
}
FORMS = "causal, window:W, chunk:C, sinks:K+W, dilated:D, prefix:P, linear"


def parse(text: str) -> Pattern:
    """`sinks:4+252` → Sinks(4, 252). Raises RecurraError."""
    name, _, numbers = text.strip().partition(":")
    kind = PATTERNS.get(name)
    given = numbers.split("+") if numbers else []
    fit = kind is not None and len(given) == len(fields(kind))
    if kind is None or not fit or not all(n.isascii() and n.isdecimal() and int(n) for n in given):
        raise _no_pattern(text)
    return kind(*map(int, given))


def _no_pattern(given: object) -> RecurraError:
    return RecurraError(
        f"{given!r:.60} is no attention pattern",
        facts=f"there are {FORMS}; numbers are at least 1",
        hint='"window:256", or several in one text: "window:256,causal"',
        loc=here(),
    )


def parse_mix(text: str, layers: int) -> tuple[Pattern, ...]:
    """One pattern per layer: `window:256,window:256,causal` is repeated over the layers.

    Raises RecurraError for what is no text of patterns, or has more than there are layers.
    """
    mix: Any = text
    if not isinstance(mix, str):
        raise _no_pattern(mix)
    given = [parse(part) for part in text.split(",")]
    if len(given) > layers:
        raise RecurraError(
            f"there are {len(given)} attention patterns for {layers} layers",
            facts=f"they are {text}",
            hint=f"name {layers} at most; fewer are repeated",
        )
    return tuple(given[layer % len(given)] for layer in range(layers))


def text(pattern: Pattern) -> str:
    """Sinks(4, 252) → `sinks:4+252`; the inverse of `parse`"""
    numbers = "+".join(str(getattr(pattern, f.name)) for f in fields(pattern))
    (name,) = (name for name, kind in PATTERNS.items() if kind is type(pattern))
    return name + (f":{numbers}" if numbers else "")
