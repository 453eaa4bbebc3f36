"""Attention patterns, the positions that each position attends to: `window:256`, ..

A pattern has no masks, caches or cache lengths: `attention` turns it into reads such as
`k[b, max(t - 255, 0) : t + 1]`, from which the compiler derives the store.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from recurra.errors import RecurraError


@dataclass(frozen=True)
class Causal:
    """A position attends to all positions up to itself."""


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
    """A position attends to the first `count` ones and a window (Xiao et al., 2023), all rotated by
    their own places."""

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
    """A position attends to all up to itself by weights φ(q)·φ(k), φ = elu + 1 (Katharopoulos et
    al., 2020)."""


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
    """Parse a pattern: `sinks:4+252` → Sinks(4, 252). Raises RecurraError."""
    name, _, numbers = text.strip().partition(":")
    kind = PATTERNS.get(name)
    args = numbers.split("+") if numbers else []
    legal = all(n.isascii() and n.isdecimal() and int(n) for n in args)
    if kind is None or len(args) != len(fields(kind)) or not legal:
        raise _no_pattern(text)
    return kind(*map(int, args))


def _no_pattern(text: object) -> RecurraError:
    return RecurraError.at_user_line(
        f"{text!r:.60} is no attention pattern",
        facts=f"there are {FORMS}; numbers are at least 1",
        hint='"window:256", or several in one text: "window:256,causal"',
    )


def parse_mix(text: str, layers: int) -> tuple[Pattern, ...]:
    """Parse one pattern per layer: `window:256,window:256,causal` is repeated over the layers.

    Raises RecurraError for other text, or more patterns than layers.
    """
    mix: Any = text
    if not isinstance(mix, str):
        raise _no_pattern(mix)
    patterns = [parse(part) for part in text.split(",")]
    if len(patterns) > layers:
        raise RecurraError(
            f"there are {len(patterns)} attention patterns for {layers} layers",
            facts=f"they are {text}",
            hint=f"name {layers} at most; fewer are repeated",
        )
    return tuple(patterns[layer % len(patterns)] for layer in range(layers))
