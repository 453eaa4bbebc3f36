"""`recurra map priorities`: weights evolved for each model of the library, chosen for the others.

A vector of weights that was evolved for one program counts, when vectors are chosen, only for
programs of other families ("resnet50_infer" and "resnet50_train" are of one): what is chosen is
good for programs that it has not seen. A program held out takes no part at all, nor does its
family: neither its vectors nor its rewards.

Weights are told apart by the units of their features (`priority_keys.py`): a vector that orders one
program in each of them alike orders another one in as many ways, and they all are tried.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
from numpy.typing import NDArray
from tyro.conf import arg

from recurra.errors import RecurraError
from recurra.mapping.engine_choice import Engine, Which, engine
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.priority_keys import (
    FEATURES,
    UNITS,
    Floats,
    features,
    ordered,
    shared_features,
    shared_weights,
)
from recurra.mapping.search import Search
from recurra.mapping.solvers.learned import SECONDS, place_by_weights
from recurra.mapping.solvers.priority import best_weights, first_weights
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import ProblemError
from recurra.support import atomic_write

CHOSEN = 24  # vectors


class HeldOut(TypedDict):
    """The quality on one program of weights that were found on others."""

    name: str
    share: float
    """Of the best found for it"""
    own: float
    """The best found for it, of all that there is to gain"""
    tried: int
    ms: float


@dataclass(frozen=True)
class Evolved:
    """Vectors for one program each, and what every vector gains for every program."""

    names: Sequence[str]  # [P] programs
    source: NDArray[np.int64]  # [V] the program that a vector was evolved for; -1: for none
    weights: Floats  # [V, UNITS * FEATURES]
    shares: Floats  # [P, V] of the best found for the program
    best: Sequence[int]  # [P] picoseconds

    @property
    def families(self) -> NDArray[np.str_]:
        """[P]"""
        return np.array([name.split("_")[0] for name in self.names])

    def unseen(self, program: int) -> NDArray[np.bool_]:
        """[V] which vectors are of other families than program p."""
        families = np.append(self.families, "")
        return families[self.source] != families[program]


def evolved(names: Sequence[str], seconds: float, seeds: int, engine: Engine) -> Evolved:
    """Evolves weights for each program, `seconds` of CPU per seed; places all by all."""
    first = np.eye(len(UNITS))[:, :, None] * first_weights()
    weights, source = [*first.reshape(len(UNITS), -1)], [-1] * len(UNITS)
    for p, name in enumerate(names):
        for seed in range(seeds):
            search = Search(instance(name), seconds, seed, None, engine)
            found = best_weights(search, 1.0, features(search.flat))
            weights += [*shared_weights(search.flat, found)]
            source += [p] * len(UNITS)
            share = search.reward / search.scale
            print(f"{name}, seed {seed}: {share:.4f}", file=sys.stderr, flush=True)
    every = np.array(weights)
    rewards = np.array([_placed(name, every, engine) for name in names])
    best = rewards.max(axis=1)
    return Evolved(names, np.array(source), every, rewards / best[:, None], best.tolist())


def _placed(name: str, weights: Floats, engine: Engine) -> list[int]:
    """Rewards of all vectors."""
    f = flat(instance(name))
    arranger, seen = engine.arranger(f), shared_features(f)
    return [arranger.arrange(ordered(seen @ w)) for w in weights]


def choose_priorities(found: Evolved, count: int, without: int = -1) -> list[int]:
    """Vectors, the one that adds most to the others first; programs like `without` held out."""
    families = found.families
    held_out = families == families[without] if without >= 0 else np.zeros(len(families), bool)
    usable = np.array([not (s >= 0 and held_out[s]) for s in found.source])
    shares = np.array([np.where(found.unseen(p), found.shares[p], 0) for p in range(len(families))])
    shares = shares[~held_out]
    order, best = list[int](), np.zeros(len(shares))
    while len(order) < min(count, int(usable.sum())):
        gains = np.maximum(best[:, None], shares).mean(0) + 1e-3 * shares.mean(0)
        gains[~usable | np.isin(np.arange(len(usable)), order)] = -1
        order.append(int(gains.argmax()))
        best = np.maximum(best, shares[:, order[-1]])
    return order


def held_out(found: Evolved, engine: Engine, count: int = CHOSEN) -> list[HeldOut]:
    """Hold out each program: what `learned` reaches with others' weights, in its 50 ms."""
    rows: list[HeldOut] = []
    for p, name in enumerate(found.names):
        known = found.weights[choose_priorities(found, count, without=p)]
        search = Search(instance(name), SECONDS, 0, None, engine)
        tried = place_by_weights(search, known)
        spent = search.spent
        share, own = search.reward / found.best[p], found.best[p] / search.scale
        rows.append(HeldOut(name=name, share=share, own=own, tried=tried, ms=round(1e3 * spent, 1)))
    return rows


@dataclass(frozen=True)
class Priorities:
    """Learn priorities over the library's models; say how good they are for those held out.

    Example: recurra map priorities --seconds 5 --seeds 3 --out priorities.json
    """

    names: Annotated[tuple[str, ...], arg(metavar="NAME ..")] = ()
    """Instances to learn from; all of the library if none is named."""
    seconds: float = 5.0
    """CPU time of evolution for each of them and each seed."""
    seeds: int = 3
    """How many times each, with random numbers 0, 1, .."""
    engine: Which = "auto"
    """auto: the native one where it can be built."""
    out: Path | None = None
    """Where weights, how they were made, and the table go, as JSON."""

    def __call__(self) -> int:
        names = self.names or tuple(LIBRARY)
        self.check(names)
        chosen_engine = engine(self.engine)
        found = evolved(names, self.seconds, self.seeds, chosen_engine)
        rows = held_out(found, chosen_engine)
        for row in rows:
            print(
                f"{row['name']:<18} {row['share']:.4f} of instance-wise search, held out, "
                f"{row['tried']} placements, {row['ms']} ms"
            )
        worst = min(rows, key=lambda row: row["share"])
        mean = sum(row["share"] for row in rows) / len(rows)
        print(f"mean {mean:.4f}, least {worst['share']:.4f} ({worst['name']})")
        if self.out is not None:
            self.write(self.out, found, rows, chosen_engine)
        return 0

    def check(self, names: Sequence[str]) -> None:
        if unknown := [name for name in names if name not in LIBRARY]:
            raise ProblemError(
                f"the library has no {unknown[0]}", facts=f"there are: {', '.join(LIBRARY)}"
            )
        if len({name.split("_")[0] for name in names}) < 2 or self.seeds < 1:
            raise RecurraError(
                "to learn from programs for others takes two families of them and a seed",
                facts=f"{len(names)} programs, {self.seeds} seeds",
            )

    def write(self, out: Path, found: Evolved, rows: list[HeldOut], engine: Engine) -> None:
        """Weights for all; and the curve: mean share held out, by how many vectors are chosen."""
        order = choose_priorities(found, CHOSEN)
        known = {k: held_out(found, engine, k) for k in (1, 2, 4, 8, 16, CHOSEN)}
        made = f"recurra map priorities --seconds {self.seconds:g} --seeds {self.seeds}"
        text = json.dumps(
            {
                "made_by": made,
                "learned_from": list(found.names),
                "features": FEATURES,
                "units": UNITS,
                "curve": {k: np.mean([x["share"] for x in some]) for k, some in known.items()},
                "held_out": rows,
                "weights": found.weights[order].round(5).tolist(),
            },
            indent=1,
        )
        atomic_write.save(out, text + "\n")
