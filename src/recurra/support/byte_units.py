"""Amounts of memory as text: 2GiB → 2147483648, and back."""

from __future__ import annotations

import re

from recurra.errors import RecurraError

_BINARY = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS = {**_BINARY, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse(text: str | int) -> int:
    """Return the bytes of an amount, `64MiB` → 67108864. Raises RecurraError."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B|)", str(text).strip())
    if match is None or not isinstance(text, str):
        short = re.fullmatch(r"(\d+) ?([KMGT])", str(text).strip().upper())
        raise RecurraError(
            f"{text!r} is no amount of memory",
            facts="it is a number of bytes, KiB, MiB or GiB",
            hint=f"write {short[1]}{short[2]}iB" if short else "write 64MiB",
        )
    return int(float(match[1]) * _UNITS[match[2]])


def rounded_up(count: int) -> str:
    """Return an amount rounded up to a unit, 53248 → 52KiB, for `parse` to read."""
    unit = next((u for u in ("GiB", "MiB", "KiB") if count >= 100 * _UNITS[u]), "KiB")
    return f"{-(-count // _UNITS[unit])}{unit}"
