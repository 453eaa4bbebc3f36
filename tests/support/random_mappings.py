"""Random memory-mapping problems: small, with everything that can collide colliding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from recurra.storage.mapping_problem import Buffer, Instruction, Latency, Problem, Roofline


@dataclass
class _Tensor:
    size: int
    first: int
    alias: int | None = None
    wanted: bool = False  # after the program
    uses: list[int] = field(default_factory=list)


def random_problem(random: Random, steps: int = 10, fast_size: int | None = None) -> Problem:
    """Parameters, values, values updated in place, outputs; rooflines, tables and plain benefits.

    At most `steps` instructions; `random.Random` or hypothesis's.
    """
    steps = random.randint(1, steps)
    tensors = _tensors(random, steps)
    buffers = _buffers(random, tensors, steps)
    instructions = [Instruction(f"i{t}", random.randint(0, 6)) for t in range(steps)]
    for t in range(steps):
        here = [i for i, b in enumerate(buffers) if b.target_time == t]
        kind = random.choice(["none", "roofline", "roofline", "table"])
        if kind == "none":
            continue
        cost = (_roofline if kind == "roofline" else _table)(random, len(here))
        instructions[t] = replace(instructions[t], cost=cost)
        none = cost.latency([False] * len(here))
        for k, i in enumerate(here):
            gain = none - cost.latency([j == k for j in range(len(here))])
            buffers[i] = replace(buffers[i], benefit=gain)
    size = random.randint(0, 16) if fast_size is None else fast_size
    return Problem("random", size, tuple(instructions), tuple(buffers))


def _tensors(random: Random, steps: int) -> list[_Tensor]:
    tensors = [_Tensor(random.randint(1, 6), -1) for _ in range(random.randint(1, 3))]
    groups = 0
    for t in range(steps):
        alive = [x for x in tensors if x.first < t]
        for x in random.sample(alive, min(len(alive), random.randint(0, 3))):
            if x.alias is None or x is _latest(tensors, x):
                x.uses.append(t)
        old = [x for x in alive if x is _latest(tensors, x) and not x.wanted]
        if old and random.random() < 0.35:  # t updates one of them in place
            x = random.choice(old)
            if x.alias is None:
                x.alias, groups = groups, groups + 1
            if t not in x.uses:
                x.uses.append(t)
            tensors.append(_Tensor(x.size, t, x.alias))
        elif random.random() < 0.8:
            tensors.append(_Tensor(random.randint(1, 6), t))
    for x in tensors:
        x.wanted = x is _latest(tensors, x) and random.random() < 0.2
    if not any(x.uses or x.first >= 0 for x in tensors):
        tensors[0].uses.append(0)
    return tensors


def _latest(tensors: list[_Tensor], x: _Tensor) -> _Tensor:
    """The one that holds the place of x now."""
    return x if x.alias is None else [y for y in tensors if y.alias == x.alias][-1]


def _buffers(random: Random, tensors: list[_Tensor], steps: int) -> list[Buffer]:
    found: list[Buffer] = []
    for k, x in enumerate(tensors):
        last = max([x.first, *x.uses])
        later = min(steps - 1, last + random.randint(0, 2)) if x.alias is None else last
        live = (x.first, steps if x.wanted else max(later, 0))
        demand = random.choice([0, x.size, x.size, 2 * x.size])
        made = Buffer(x.size, True, x.first, k, x.alias, live, demand, random.randint(0, 9))
        if x.first >= 0:
            found.append(made)
        for t in x.uses:
            benefit = random.randint(0, 9)
            found.append(replace(made, is_output=False, target_time=t, benefit=benefit))
    return sorted(found, key=lambda b: (b.target_time, b.is_output))


def _roofline(random: Random, n: int) -> Roofline:
    fast = [random.randint(0, 2) for _ in range(n)]
    slow = [f + random.randint(0, 6) for f in fast]
    rest = [random.randint(0, 6) for _ in range(3)]
    return Roofline(rest[0], tuple(slow), tuple(fast), rest[1], rest[2], random.randint(1, 3))


def _table(random: Random, n: int) -> Latency:
    varied = random.sample(range(n), min(n, random.randint(0, 3)))
    return Latency(tuple(varied), tuple(random.randint(5, 15) for _ in range(1 << len(varied))))
