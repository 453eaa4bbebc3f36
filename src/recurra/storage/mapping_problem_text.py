"""Read and write problems and solutions as JSON, and packing problems as minimalloc's CSV.

`SCHEMA` is the JSON Schema (2020-12) of both files; readers check files against it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any

from recurra.errors import either
from recurra.storage.mapping_problem import (
    Buffer,
    Instruction,
    Latency,
    Placement,
    Problem,
    ProblemError,
    Roofline,
    Solution,
    packing,
)
from recurra.support import json_text

PROBLEM = "recurra-mapping-problem/1"
SOLUTION = "recurra-mapping-solution/1"
COLUMNS = ("size", "is_output", "target_time", "tensor_id", "alias_id", "first", "last")
TIMES = ("demand", "benefit")  # picoseconds
PACKING = ("id", "lower", "upper", "size")

Json = Mapping[str, Any]  # an object of a file
Schema = Mapping[str, Any]  # of JSON Schema
_WHOLE: Schema = {"type": "integer"}
_WHOLES: Schema = {"type": "array", "items": _WHOLE}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _row(*items: Schema) -> Schema:
    n = len(items)
    return {"type": "array", "prefixItems": list(items), "minItems": n, "maxItems": n}


SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {
        PROBLEM: _object(
            {
                "format": {"type": "string", "const": PROBLEM},
                "name": {"type": "string"},
                "fast_size": _WHOLE,
                "instructions": {
                    "type": "array",
                    "items": _object(
                        {"name": {"type": "string"}, "supply": _WHOLE},
                        {
                            "roofline": _object(
                                {"compute": _WHOLE, "slow": _WHOLES, "fast": _WHOLES},
                                {"rest": _WHOLE, "overhead": _WHOLE, "times": _WHOLE},
                            ),
                            "table": _object({"varied": _WHOLES, "latencies": _WHOLES}),
                        },
                    ),
                },
                "buffers": {
                    "type": "array",
                    "description": ", ".join((*COLUMNS, *TIMES)),
                    "items": _row(
                        _WHOLE,
                        {"type": "boolean"},
                        _WHOLE,
                        _WHOLE,
                        {"type": ["integer", "null"]},
                        *(_WHOLE,) * 4,
                    ),
                },
            }
        ),
        SOLUTION: _object(
            {
                "format": {"type": "string", "const": SOLUTION},
                "problem": {"type": "string"},
                "placements": {
                    "type": "array",
                    "description": "buffer, offset, start, end, copied",
                    "items": _row(*(_WHOLE,) * 4, {"type": "boolean"}),
                },
            }
        ),
    },
}


def problem_to_json(problem: Problem) -> str:
    """Return JSON with one line per instruction and buffer: small, and easy to compare."""
    head = {"format": PROBLEM, "name": problem.name, "fast_size": problem.fast_size}
    instructions = [_instruction_to_json(x) for x in problem.instructions]
    buffers = [
        (
            *(b.size, bool(b.is_output), b.target_time, b.tensor_id, b.alias_id),
            *(*b.live_range, b.demand, b.benefit),
        )
        for b in problem.buffers
    ]
    return _lines(head, {"instructions": instructions, "buffers": buffers})


def problem_from_json(text: str, where: str = "the text") -> Problem:
    """Parse a problem; raises `ProblemError` naming the item that is wrong."""
    data = _checked(text, where, PROBLEM)
    instructions = tuple(_instruction_from_json(x) for x in data["instructions"])
    buffers = tuple(
        Buffer(size, out, t, tensor, alias, (first, last), demand, benefit)
        for size, out, t, tensor, alias, first, last, demand, benefit in data["buffers"]
    )
    return Problem(data["name"], data["fast_size"], instructions, buffers)


def solution_to_json(problem: Problem, solution: Solution) -> str:
    """Return JSON with one line per placed buffer."""
    rows = [
        [i, p.offset, p.start, p.end, bool(p.copied)]
        for i, p in enumerate(solution.placements)
        if p is not None
    ]
    return _lines({"format": SOLUTION, "problem": problem.name}, {"placements": rows})


def solution_from_json(problem: Problem, text: str, where: str = "the text") -> Solution:
    """Parse a solution of this problem; `mapping.validate` checks whether it is valid."""
    data = _checked(text, where, SOLUTION)
    placements: list[Placement | None] = [None] * len(problem.buffers)
    for k, (i, offset, start, end, copied) in enumerate(data["placements"]):
        if not 0 <= i < len(placements) or placements[i] is not None:
            raise ProblemError(
                f"{where}: placements[{k}]: buffer {i} is not there or placed twice",
                facts=f"{problem.name} has buffers 0 to {len(placements) - 1}",
            )
        placements[i] = Placement(offset, start, end, copied)
    return Solution(tuple(placements))


def read_problem(path: Path, fast_size: int | None = None) -> Problem:
    """Read a problem from JSON, or from minimalloc's CSV, which needs `fast_size` in bytes."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without the byte order mark of Excel
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path} cannot be read", facts=str(error)) from None
    if path.suffix == ".csv":
        if fast_size is None:
            raise ProblemError(
                f"{path}: a CSV file does not say how much fast memory there is",
                hint="give it, say " + either("--fast-size 1MiB", "fast_size=2**20"),
            )
        return problem_from_csv(text, fast_size, path.stem, str(path))
    problem = problem_from_json(text, str(path))
    return problem if fast_size is None else replace(problem, fast_size=fast_size)


def problem_from_csv(
    text: str, fast_size: int, name: str = "packing", where: str = "the text"
) -> Problem:
    """Parse minimalloc's CSV: live ranges `lower` ≤ t < `upper`, all to be placed without copies.

    A step lasts from one lower or upper to the next. Each buffer gains 1 ps, so the reward counts
    the placed ones.
    """
    rows = list(csv.reader(io.StringIO(text)))
    head = [c.strip() for c in rows[0]] if rows else []
    if sorted(head) != sorted(PACKING):
        raise ProblemError(
            f"{where}:1: the columns are {', '.join(head) or 'missing'}",
            facts=f"there must be {', '.join(PACKING)}",
        )
    lives: list[tuple[int, int, int]] = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) > len(head):
            raise ProblemError(f"{where}:{line}: {len(row)} values for {len(head)} columns")
        if row:
            lives.append(
                _live_range(dict(zip(head, row, strict=False)), fast_size, f"{where}:{line}")
            )
    times = sorted({x for lower, upper, _ in lives for x in (lower, upper)})
    step = {time: t for t, time in enumerate(times)}
    lengths = [*(b - a for a, b in pairwise(times)), 0]
    rows = [(step[lower], step[upper] - 1, size) for lower, upper, size in lives]
    names = [(str(x), n) for x, n in zip(times, lengths, strict=bool(times))]
    return packing(name, rows, fast_size, names)


def problem_to_csv(problem: Problem) -> str:
    """Return a row for each tensor: the packing that keeps every value in fast memory all its life.

    An alias group has one row, from the first tensor's start to the last one's end.
    """
    lines = [",".join(PACKING)]
    for k, storage in enumerate(problem.storages):
        members = [problem.buffers[i] for i in storage]
        first = max(0, min(b.live_range[0] for b in members))
        last = min(problem.steps - 1, max(b.live_range[1] for b in members))
        lines.append(f"{k},{first},{last + 1},{members[0].size}")
    return "\n".join(lines) + "\n"


def packing_to_csv(text: str, problem: Problem, solution: Solution) -> str:
    """Add a column `offset` to the text that `problem_from_csv` read: minimalloc's output."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    lower = [c.strip() for c in rows[0]].index("lower")
    order = sorted(range(1, len(rows)), key=lambda k: int(rows[k][lower]))  # that of the problem
    out = [[*rows[0], "offset"], *rows[1:]]
    for k, placed in zip(order, solution.placements, strict=True):
        assert placed is not None, "everything is packed"
        out[k] = [*rows[k], str(placed.offset)]
    assert len(order) == len(problem.buffers)
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(out)
    return stream.getvalue()


def _live_range(row: Mapping[str, str], fast_size: int, where: str) -> tuple[int, int, int]:
    numbers: list[int] = []
    for column in PACKING[1:]:
        try:
            numbers.append(int(row.get(column, "")))
        except ValueError:
            raise ProblemError(
                f"{where}: {column} is {row.get(column, 'missing')!r}", facts="not a whole number"
            ) from None
    lower, upper, size = numbers
    if upper <= lower:
        raise ProblemError(f"{where}: the live range ends before it starts: {lower}..{upper}")
    if not 0 < size <= fast_size:
        raise ProblemError(
            f"{where}: buffer {row.get('id', '')} of {size} B cannot be packed",
            facts=f"sizes are positive, and there are {fast_size} B of fast memory",
        )
    return lower, upper, size


def _instruction_to_json(instruction: Instruction) -> dict[str, object]:
    out: dict[str, object] = {"name": instruction.name, "supply": instruction.supply}
    c = instruction.cost
    if isinstance(c, Roofline):
        out["roofline"] = {"compute": c.compute, "slow": c.slow, "fast": c.fast}
        out["roofline"] |= {"rest": c.rest, "overhead": c.overhead, "times": c.times}
    elif isinstance(c, Latency):
        out["table"] = {"varied": c.varied, "latencies": c.latencies}
    return out


def _instruction_from_json(x: Json) -> Instruction:
    cost: Roofline | Latency | None = None
    if "roofline" in x:
        cost = Roofline(**x["roofline"])
    elif "table" in x:
        cost = Latency(**x["table"])
    return Instruction(x["name"], x["supply"], cost)


def _lines(head: Mapping[str, object], lists: Mapping[str, Sequence[object]]) -> str:
    def one(value: object) -> str:
        return json.dumps(value, separators=(",", ":"), default=index)  # NumPy's integers

    parts = [f"{one(k)}: {one(v)}" for k, v in head.items()]
    parts += [f"{one(k)}: [\n" + ",\n".join(map(one, v)) + "\n]" for k, v in lists.items()]
    return "{" + ",\n".join(parts) + "}\n"


def _checked(text: str, where: str, kind: str) -> Json:
    try:
        data = json_text.parse(text)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{where}:{error.lineno}: not JSON", facts=f"{error.msg} at column {error.colno}"
        ) from None
    except ValueError as error:
        raise ProblemError(f"{where}: not JSON that we read", facts=str(error)) from None
    if wrong := _mismatch(data, SCHEMA["$defs"][kind], ""):
        raise ProblemError(f"{where}: {wrong}", facts=f"it should be {kind}")
    return data


_TYPES: Mapping[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def _is(data: object, kind: str) -> bool:
    return isinstance(data, _TYPES[kind]) and (kind == "boolean" or not isinstance(data, bool))


def _mismatch(data: Any, schema: Schema, at: str) -> str:
    """Describe the first mismatch with the parts of JSON Schema that `SCHEMA` uses; '' if none."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    here = at or "the whole"
    if not any(_is(data, k) for k in kinds):
        return f"{here} is {json.dumps(data)[:40]}, not {' or '.join(kinds)}"
    if "const" in schema and data != schema["const"]:
        return f"{here} is {data!r}, not {schema['const']!r}"
    if isinstance(data, dict):
        return _mismatch_object(data, schema, at)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(data, list):
        return _mismatch_array(data, schema, at)  # pyright: ignore[reportUnknownArgumentType]
    return ""


def _mismatch_object(data: Json, schema: Schema, at: str) -> str:
    known = schema["properties"]
    for key in schema["required"]:
        if key not in data:
            return f"{at or 'the whole'} has no {key!r}"
    for key, value in data.items():
        if key not in known:
            return f"{at or 'the whole'} has {key!r}, which is none of {', '.join(known)}"
        if wrong := _mismatch(value, known[key], f"{at}.{key}" if at else key):
            return wrong
    return ""


def _mismatch_array(data: list[Any], schema: Schema, at: str) -> str:
    fixed = schema.get("prefixItems")
    if fixed is not None and len(data) != len(fixed):
        return f"{at} has {len(data)} items, not {len(fixed)}"
    for k, x in enumerate(data):
        if wrong := _mismatch(x, fixed[k] if fixed is not None else schema["items"], f"{at}[{k}]"):
            return wrong
    return ""
