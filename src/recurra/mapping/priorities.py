"""`recurra map priorities`: evolve weights for each model of the library, choose them for others.

When vectors of weights are chosen, one that was evolved for a program counts only for programs of
other families ("resnet50_infer" and "resnet50_train" are one family), so that the chosen vectors
are good for unseen programs. A held-out program and its family take no part at all, neither by
their vectors nor by their rewards.

A vector is tried in each unit of its features (`priority_keys.py`): these give the same order in
its own program, but different orders in others.
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
from recurra.mapping.solvers.evolved_priorities import SECONDS, place_by_weights
from recurra.mapping.solvers.priority import best_weights, first_weights
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import ProblemError
from recurra.support import atomic_write

CHOSEN = 24  # the number of chosen vectors


class HeldOut(TypedDict):
    """The quality on one program of weights that were found on others."""

    name: str
    share: float
    """The reward, relative to the best one found for the program"""
    own: float
    """The best reward found for the program, as a share of all there is to gain"""
    tried: int
    ms: float


@dataclass(frozen=True)
class Evolved:
    """Vectors that were evolved for one program each, and their rewards in every program."""

    names: Sequence[str]  # [P] programs
    source: NDArray[np.int64]  # [V] the program that a vector was evolved for; -1: for none
    weights: Floats  # [V, UNITS * FEATURES]
    shares: Floats  # [P, V] rewards, relative to the best found for the program
    best: Sequence[int]  # [P] picoseconds

    @property
    def families(self) -> NDArray[np.str_]:
        """The family of each program [P]."""
        return np.array([name.split("_")[0] for name in self.names])

    def unseen(self, program: int) -> NDArray[np.bool_]:
        """Mark the vectors [V] of other families than a program's."""
        families = np.append(self.families, "")
        return families[self.source] != families[program]


def evolve_all(names: Sequence[str], seconds: float, seeds: int, engine: Engine) -> Evolved:
    """Evolve weights in `seconds` of CPU per program and seed; place each program by all."""
    first = np.eye(len(UNITS))[:, :, None] * first_weights()
    weights, source = [*first.reshape(len(UNITS), -1)], [-1] * len(UNITS)
    for p, name in enumerate(names):
        for seed in range(seeds):
            search = Search(instance(name), seconds, seed, None, engine)
            best = best_weights(search, 1.0, features(search.flat))
            weights += [*shared_weights(search.flat, best)]
            source += [p] * len(UNITS)
            share = search.reward / search.scale
            print(f"{name}, seed {seed}: {share:.4f}", file=sys.stderr, flush=True)
    rewards = np.array([_rewards(name, weights, engine) for name in names])
    best = rewards.max(axis=1)
    shares = rewards / best[:, None]
    return Evolved(names, np.array(source), np.array(weights), shares, best.tolist())


def _rewards(name: str, weights: list[Floats], engine: Engine) -> list[int]:
    f = flat(instance(name))
    arranger, inputs = engine.arranger(f), shared_features(f)
    return [arranger.arrange(ordered(inputs @ w)) for w in weights]


def choose_priorities(evolved: Evolved, count: int, without: int = -1) -> list[int]:
    """Choose vectors greedily, with the family of program `without` held out."""
    families = evolved.families
    held_out = families == families[without] if without >= 0 else np.zeros(len(families), bool)
    usable = np.array([not (s >= 0 and held_out[s]) for s in evolved.source])
    unseen = np.array([evolved.unseen(p) for p in range(len(families))])
    shares = np.where(unseen, evolved.shares, 0)
    shares = shares[~held_out]
    order, best = list[int](), np.zeros(len(shares))
    while len(order) < min(count, int(usable.sum())):
        gains = np.maximum(best[:, None], shares).mean(0) + 1e-3 * shares.mean(0)
        gains[~usable | np.isin(np.arange(len(usable)), order)] = -1
        order.append(int(gains.argmax()))
        best = np.maximum(best, shares[:, order[-1]])
    return order


def held_out(evolved: Evolved, engine: Engine, count: int = CHOSEN) -> list[HeldOut]:
    """Hold out each program: place it with the weights of others, in the time of `learned`."""
    rows: list[HeldOut] = []
    for p, name in enumerate(evolved.names):
        known = evolved.weights[choose_priorities(evolved, count, without=p)]
        search = Search(instance(name), SECONDS, 0, None, engine)
        tried = place_by_weights(search, known)
        spent = search.spent
        share, own = search.reward / evolved.best[p], evolved.best[p] / search.scale
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
        vectors = evolve_all(names, self.seconds, self.seeds, chosen_engine)
        rows = held_out(vectors, chosen_engine)
        for row in rows:
            print(
                f"{row['name']:<18} {row['share']:.4f} of instance-wise search, held out, "
                f"{row['tried']} placements, {row['ms']} ms"
            )
        worst = min(rows, key=lambda row: row["share"])
        mean = sum(row["share"] for row in rows) / len(rows)
        print(f"mean {mean:.4f}, least {worst['share']:.4f} ({worst['name']})")
        if self.out is not None:
            self.write(self.out, vectors, rows, chosen_engine)
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

    def write(self, out: Path, vectors: Evolved, rows: list[HeldOut], engine: Engine) -> None:
        """Write the chosen weights, and the mean held-out share by the number of vectors."""
        counts = {k: held_out(vectors, engine, k) for k in (1, 2, 4, 8, 16, CHOSEN)}
        content = {
            "made_by": f"recurra map priorities --seconds {self.seconds:g} --seeds {self.seeds}",
            "learned_from": list(vectors.names),
            "features": FEATURES,
            "units": UNITS,
            "curve": {k: np.mean([x["share"] for x in some]) for k, some in counts.items()},
            "held_out": rows,
            "weights": vectors.weights[choose_priorities(vectors, CHOSEN)].round(5).tolist(),
        }
        atomic_write.save(out, json.dumps(content, indent=1) + "\n")
