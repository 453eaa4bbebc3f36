"""Agents that learn the mapping game beside evolution and chance, at equal CPU time (table 2).

And beside what is left of them without learning (`mcts`), without planning (`policy`), and with the
game in place of learned dynamics (`alphazero`): figure 7. Their time includes demonstrations and
compiling, which each run does anew; only games that they played themselves count.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recurra.bench import mapping
from recurra.bench.harness import Row, progress
from recurra.bench.pairs import ratio
from recurra.mapping.bounds import bound
from recurra.mapping.engines import Engine, engine
from recurra.mapping.library import instance

KINDS = ("alexnet_train", "wavenet", "alphatensor", "transformer_train")  # of table 2
OURS = "muzero"
PEERS = ("evolution", "random", "mcts", "policy", "alphazero")
SECONDS, QUICK_SECONDS = 300.0, 100.0
SEEDS, QUICK_SEEDS = 5, 1
QUICK_BUFFERS = 800


def suite(quick: bool = False, out: Path | None = None) -> list[Row]:
    """Rows per instance and peer; `quick`: small instances, one seed.

    `out`: a folder for the learning curves.
    """
    from recurra.bench.mapping_figures import expect_room, write_learning

    if out is not None:
        expect_room(out)
    chosen = engine()
    progress(chosen.told)
    rows: list[Row] = []
    contests: list[mapping.Contest] = []
    for name in KINDS:
        if quick and len(instance(name).buffers) > QUICK_BUFFERS:
            continue
        contests.append(contest(name, chosen, quick))
        rows += compared(contests[-1])
        if out is not None:  # also what there is of a bench that is cut short
            write_learning(out, contests, rows, (OURS, *PEERS))
    return rows


def contest(name: str, chosen: Engine, quick: bool) -> mapping.Contest:
    """Runs everybody, once per seed."""
    import jax

    problem, found = instance(name), dict[str, list[mapping.Found]]()
    seconds, seeds = (QUICK_SECONDS, QUICK_SEEDS) if quick else (SECONDS, SEEDS)
    for who in (OURS, *PEERS):
        found[who] = []
        for seed in range(seeds):
            jax.clear_caches()  # every run pays for its own compiling
            found[who].append(mapping.run_of(problem, who, seconds, seed, chosen))
            share = found[who][-1].answer.reward(problem) / max(1, problem.total)
            progress(f"{name} {who} seed {seed}: {share:.4f}")
    limit = bound(problem).reward / max(1, problem.total)
    return mapping.Contest(problem, seconds, limit, found)


def compared(c: mapping.Contest) -> list[Row]:
    """A row per peer; a pair per seed."""
    rows: list[Row] = []
    mine = float(np.median(c.shares(OURS)))
    for peer in PEERS:
        middle, ci95 = ratio(c.shares(peer), c.shares(OURS))  # more is better
        theirs = float(np.median(c.shares(peer)))
        rows.append(Row(str(c), "reward_share", mine, peer, theirs, middle, ci95, c.limit, "exact"))
    return rows
