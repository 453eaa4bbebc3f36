"""Agents that learn the mapping game beside evolution and chance, at equal CPU time (table 2).

And beside what is left of them without learning (`mcts`), without planning (`policy`), and with the
game in place of learned dynamics (`alphazero`): figure 7. Their time includes demonstrations and
compiling, which each run does anew; only games that they played themselves count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, progress
from benchmarks.mapping.runs import Contest, Found, Runs, Wanted
from benchmarks.mapping.tables import learned
from benchmarks.pairs import ratio
from recurra.mapping.engine_choice import engine
from recurra.mapping.model_library import instance

KINDS = ("alexnet_train", "wavenet", "alphatensor", "transformer_train")  # of table 2
OURS = "muzero"
PEERS = ("evolution", "random", "mcts", "policy", "alphazero")
SECONDS, QUICK_SECONDS = 300.0, 100.0
SEEDS, QUICK_SEEDS = 5, 1
QUICK_BUFFERS = 800


def suite(quick: bool = False, out: Path | None = None, wanted: Wanted | None = None) -> list[Row]:
    """Rows per instance and peer; `quick`: small instances, one seed.

    `out`: a folder for the learning curves, and for every run: a bench that was stopped goes on.
    `wanted`: instances, peers, CPU seconds of a run, how many runs.
    """
    from benchmarks.mapping.figures import expect_room, write_learning

    if out is not None:
        expect_room(out)
    wanted = wanted or Wanted()
    kinds, peers = wanted.among(KINDS, QUICK_BUFFERS if quick else None), wanted.beside(PEERS)
    players = (OURS, *peers)
    seconds, seeds = wanted.effort(*((QUICK_SECONDS, QUICK_SEEDS) if quick else (SECONDS, SEEDS)))
    runs = Runs(engine(), seconds, out)
    progress(runs.chosen.description)
    found: dict[str, dict[str, list[Found]]] = {k: {who: [] for who in players} for k in kinds}
    rows: list[Row] = []
    for seed in range(seeds):
        for kind in kinds:
            play(kind, players, seed, runs, found[kind])
            contests = [
                Contest(instance(k), seconds, runs.limit(instance(k)), found[k])
                for k in kinds
                if found[k][OURS]
            ]
            rows = [row for c in contests for row in compared(c)]
            if out is not None:  # also what there is of a bench that is cut short
                (out / "learning.md").write_text(learned(contests, (OURS, *PEERS)))
                write_learning(out, contests, rows, (OURS, *PEERS))
    return rows


def play(
    kind: str, players: Sequence[str], seed: int, runs: Runs, found: dict[str, list[Found]]
) -> None:
    """A run of everybody; each pays for its own compiling."""
    import jax

    for who in players:
        jax.clear_caches()
        found[who].append(runs.of(instance(kind), who, seed))


def compared(contest: Contest) -> list[Row]:
    """A row per peer; a pair per seed."""
    rows: list[Row] = []
    mine = float(np.median(contest.shares(OURS)))
    for peer in [who for who in contest.found if who != OURS]:
        middle, ci95 = ratio(contest.shares(peer), contest.shares(OURS))  # more is better
        theirs = float(np.median(contest.shares(peer)))
        rows.append(
            Row(
                str(contest),
                "reward_share",
                mine,
                peer,
                theirs,
                middle,
                ci95,
                contest.limit,
                "exact",
            )
        )
    return rows
