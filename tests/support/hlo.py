"""Reads XLA's optimized HLO text: what do the bodies of its loops do to arrays of given shapes?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
LINE = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition)=%?([\w.-]+)|branch_computations=\{(.*?)\}"
)
SHAPE = re.compile(r"\b[a-z]+\d*\[([\d,]*)\]")
Shape = tuple[int, ...]

# These hand an array on, or change part of it in place; everything else writes it whole.
IN_PLACE = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "while",
    "conditional",
    "call",
    "opt-barrier",
    "dynamic-update-slice",
}


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    root: bool
    shapes: tuple[Shape, ...]  # of its result: one, or those of a tuple
    op: str
    rest: str

    @property
    def called(self) -> list[str]:
        found = CALLED.findall(self.rest)
        return [n.strip(" %") for one, many in found for n in (one or many).split(",")]

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.-]+)", self.rest.split(")")[0])


def computations(text: str) -> dict[str, list[Instruction]]:
    """Every computation of a module, by name."""
    out: dict[str, list[Instruction]] = {}
    here: list[Instruction] = []
    for line in text.splitlines():
        if head := HEAD.match(line):
            here = out.setdefault(head[1], [])
        elif m := LINE.match(line):
            shapes = tuple(tuple(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(m[3]))
            here.append(Instruction(m[2], m[1] is not None, shapes, m[4], m[5]))
    return out


def inside_loops(text: str) -> Iterator[Instruction]:
    """Every instruction that a while body runs, fused ones aside."""
    parts = computations(text)
    todo = [
        body
        for instructions in parts.values()
        for x in instructions
        if x.op == "while"
        for body in re.findall(r"body=%?([\w.-]+)", x.rest)
    ]
    assert todo, "the module has no loop"
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for x in parts[name]:
            yield x
            if x.op != "fusion":
                todo += [c for c in x.called if c in parts]


def written_whole(text: str, stores: Collection[Shape]) -> list[str]:
    """The instructions inside loops that make a whole new array of a store's shape."""
    parts = computations(text)
    wanted = set(stores)

    def whole(x: Instruction) -> bool:
        if not wanted & set(x.shapes):
            return False
        return fused(parts[x.called[0]]) if x.op == "fusion" else x.op not in IN_PLACE

    def fused(body: list[Instruction]) -> bool:
        """Only an update of a parameter is done in place by a fusion."""
        by = {y.name: y for y in body}
        (root,) = (y for y in body if y.root)
        made = [by[n] for n in root.operands] if root.op == "tuple" else [root]
        for y in (y for y in made if wanted & set(y.shapes)):
            old = by[y.operands[0]] if y.op == "dynamic-update-slice" else y
            while old.op == "bitcast":
                old = by[old.operands[0]]
            if old.op != "parameter":
                return True
        return False

    return [f"{x.op} {x.name} {x.shapes}" for x in inside_loops(text) if whole(x)]


def aliased(text: str) -> int:
    """How many results live in the memory of an argument."""
    return len(re.findall(r"-alias\)", text.split("\n", 1)[0]))
