"""Reinforcement learning: environments as recurrences, and what algorithms share."""

from recurra.rl import env
from recurra.rl.returns import normalise

__all__ = ["env", "normalise"]
