"""Weights of priorities, evolved for the programs of several families together.

What a vector of weights does for programs that had no part in it says what it is worth for others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from recurra.mapping.engines import Engine
from recurra.mapping.flat import flat
from recurra.mapping.keys import Floats, ordered
from recurra.mapping.library import instance
from recurra.mapping.search import Search
from recurra.mapping.solvers.priority import evolution, evolve
from recurra.mapping.traits import first_traits, traits

GROUP = 0.7  # of the families: what a vector is evolved for
ENOUGH = 1.02  # of the best found for a program: more of it does not make up for another one


@dataclass(frozen=True)
class Evolved:
    """Vectors for some programs each, and what every vector gains for every program."""

    names: Sequence[str]  # [P] programs
    taught: Any  # [V, P] the programs that a vector was evolved for
    weights: Floats  # [V, TRAITS]
    shares: Floats  # [P, V] of the best found for the program
    best: Sequence[int]  # [P] picoseconds

    @property
    def families(self) -> Any:
        """[P]"""
        return families_of(self.names)

    def unseen(self, p: int) -> Any:
        """[V] which vectors are of other families than program p."""
        return ~self.taught[:, self.families == self.families[p]].any(axis=1)


def families_of(names: Sequence[str]) -> Any:
    """[P]"""
    return np.array([name.split("_")[0] for name in names])


@dataclass(frozen=True)
class Course:
    """A program to learn from: what places it, its traits [S, TRAITS], the best found for it."""

    arranger: Any
    seen: Floats
    best: int

    def placed(self, weights: Floats) -> float:
        """What these weights gain, as a part of the best."""
        return self.arranger.arrange(ordered(self.seen @ weights)) / max(1, self.best)


@dataclass(frozen=True)
class Effort:
    """How long, in CPU seconds: for each program and each of some seeds; for each group."""

    seconds: float = 5.0
    seeds: int = 2
    groups: int = 40
    together: float = 10.0


def evolved(names: Sequence[str], effort: Effort, engine: Engine) -> Evolved:
    """The best of each program, alone; then weights for groups of families together."""
    courses = [_course(name, effort, engine) for name in names]
    families = families_of(names)
    some = np.unique(families)
    weights, taught = [first_traits()], [np.zeros(len(names), bool)]
    for group in range(effort.groups):
        random = np.random.default_rng(group)
        in_it = random.permutation(some)[: max(1, round(GROUP * len(some)))]
        taught.append(np.isin(families, in_it))
        weights.append(_together([courses[p] for p in np.nonzero(taught[-1])[0]], effort, random))
        told = ", ".join(in_it.tolist())
        print(f"group {group} of {effort.groups}: {told}", file=sys.stderr, flush=True)
    every = np.array(weights)
    shares = np.array([[course.placed(w) for w in every] for course in courses])
    return Evolved(names, np.array(taught), every, shares, [course.best for course in courses])


def _course(name: str, effort: Effort, engine: Engine) -> Course:
    best, f = 0, flat(instance(name))
    for seed in range(effort.seeds):
        search = Search(f.problem, effort.seconds, seed, None, engine)
        evolve(search, 1.0)
        best = max(best, search.reward)
        share = search.reward / search.scale
        print(f"{name}, seed {seed}: {share:.4f}", file=sys.stderr, flush=True)
    return Course(engine.arranger(f), traits(f), best)


def _together(courses: Sequence[Course], effort: Effort, random: Generator) -> Floats:
    """Weights that are good for all of them: the mean counts, and no program more than `ENOUGH`."""
    start = time.process_time()
    return evolution(
        first_traits(),
        lambda weights: float(np.mean([min(ENOUGH, x.placed(weights)) for x in courses])),
        random,
        lambda: time.process_time() - start < effort.together,
    )
