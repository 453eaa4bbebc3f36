"""Programs that step an environment, one at a time: what a step costs beside a loop by hand."""

from __future__ import annotations

from typing import Any

NAMES = ("acting", "dqn")
EPISODE = "CartPole-v1"  # every step of it gives a reward of 1


def environment() -> Any:
    """One environment, which is reset in the step that ends an episode."""
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    return SyncVectorEnv([lambda: gymnasium.make(EPISODE)], autoreset_mode=AutoresetMode.SAME_STEP)
