"""Generalized advantage estimation (Schulman et al., 2016), of as many rollouts as PPO has."""

from benchmarks.launch.gae import by_hand, inputs, recurra_program

SIZES = {"B": 256, "T": 128}
SMALL = {"B": 2, "T": 5}

__all__ = ["SIZES", "SMALL", "by_hand", "inputs", "recurra_program"]
