"""Random damage to files: bytes that flip, are cut, swapped or put in, and JSON of other shapes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e999, 2**70, 0.5, "", "x", "\0", "\ud800", [], {}, [None], {"a": 1},
)  # fmt: skip


def damaged_bytes(data: bytes, r: Random) -> bytes:
    """The same with up to four faults, half of them near the beginning."""
    changed = bytearray(data)
    for _ in range(r.randint(1, 4)):
        reach = r.choice([50, 600, len(changed)])
        at = r.randrange(min(len(changed), reach) + 1)
        match r.choice(["flip", "set", "cut", "swap", "put", "drop"]):
            case "flip" if at < len(changed):
                changed[at] ^= 1 << r.randrange(8)
            case "set":
                changed[at : at + 1] = r.randbytes(1)
            case "cut" if r.random() < 0.5:
                del changed[at:]
            case "swap":
                size = r.randint(1, 9)
                one, other = changed[at : at + size], changed[at + size : at + 2 * size]
                changed[at : at + 2 * size] = other + one
            case "put":
                changed[at:at] = r.randbytes(r.randint(1, 9))
            case _:
                del changed[at : at + r.randint(1, 40)]
    return bytes(changed)


def damaged_json(value: Any, r: Random) -> Any:
    """The same with one part of another shape, or without it."""
    if r.random() < 0.05 or not isinstance(value, (dict, list)) or not value:
        return r.choice(ODD)
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    parts: list[tuple[Any, Any]] = list(inside)
    at = r.randrange(len(parts))
    key, part = parts[at]
    if isinstance(part, (dict, list)) and part and r.random() < 0.6:
        parts[at] = (key, damaged_json(part, r))
    elif r.random() < 0.3:
        del parts[at]
    else:
        parts[at] = (key, r.choice(ODD))
    return dict(parts) if isinstance(value, dict) else [x for _, x in parts]


def damaged_text(text: bytes, r: Random) -> bytes:
    """A text of JSON, damaged as JSON or as bytes."""
    if r.random() < 0.6:
        return json.dumps(damaged_json(json.loads(text), r)).encode()
    return damaged_bytes(text, r)


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """What is in a folder, without some files and those whose names begin with a dot."""
    files = (x for x in sorted(folder.rglob("*")) if x.is_file() and x.name not in but)
    return {str(x.relative_to(folder)): x.read_bytes() for x in files if x.name[0] != "."}
