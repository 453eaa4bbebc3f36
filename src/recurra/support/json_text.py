"""JSON from files that other programs may have written or damaged."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Parse JSON; raises ValueError for every mistake in it, deep nesting included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
