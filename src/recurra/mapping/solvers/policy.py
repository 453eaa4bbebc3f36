"""Learning without planning, the paper's ablation (figure 7): plays by its policy alone."""

from __future__ import annotations

from recurra.mapping.search import Search, solver


@solver
def solve(search: Search) -> None:
    """The preset for one CPU; `recurra map train` has more to choose."""
    from recurra.mapping.learn.search_by_learning import play_and_learn
    from recurra.mapping.learn.settings import AgentSettings

    play_and_learn(search, AgentSettings(planning="none"))
