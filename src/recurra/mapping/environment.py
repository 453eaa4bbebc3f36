"""MMapGame as a Gymnasium environment, with the observations of section 4.3.1.

Rewards are shares of all there is to gain. An illegal action loses the game, so that the return is
at most zero; `info["action_mask"]` marks the legal ones. A state without a legal action is backed
up (section 4.3.2), and the reward of the actions taken back is lost; or the game is, if `backup` is
off.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from recurra.mapping.game import Action, Game
from recurra.mapping.observation import GRID, observe
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem, ProblemError

AHEAD = 5  # later buffers in the observation
FEATURES = 9

Observation = dict[str, np.ndarray]


class MapGame(gymnasium.Env[Any, np.int64]):
    """Actions 0, 1, 2 are Copy, NoCopy, Drop; one step per buffer.

    `buffers` [1 + AHEAD, FEATURES]: table 1, scaled; `memory` [GRID, GRID]: addresses × the steps
    around the target time, 1 where a buffer is; `profile` [GRID]: addresses at the target time;
    `supply` [GRID]: what is left in the same steps; `actions` [3, 4]: legal, start, end, offset;
    `progress` [2]: buffers decided, reward so far.
    """

    def __init__(self, problem: Problem, *, backup: bool = True) -> None:
        if problem.total <= 0:
            raise ProblemError(f"{problem.name}: there is nothing to gain")
        self.problem, self.backed = problem, backup
        self.game = Game(flat(problem))
        self._features = _features(problem)
        self._most_supply = max(1, *(x.supply for x in problem.instructions))
        self.action_space = Discrete(3)
        self.observation_space = Dict(
            {
                "buffers": Box(-1.0, 1.0, (1 + AHEAD, FEATURES), np.float32),
                "memory": Box(0, 1, (GRID, GRID), np.uint8),
                "profile": Box(0, 1, (GRID,), np.uint8),
                "supply": Box(0.0, 1.0, (GRID,), np.float32),
                "actions": Box(0.0, 1.0, (3, 4), np.float32),
                "progress": Box(-1.0, 1.0, (2,), np.float32),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        super().reset(seed=seed)
        self.game.reset()
        return self._observe()

    def step(
        self, action: int | np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        before = self.game.reward
        if self.game.done or self.game.move(Action(action)) is None:
            return self._lost()
        self.game.step(Action(action))
        while not self.game.done and not self.game.legal():
            if not self.backed:
                return self._lost()
            self.game.backup()
        observation, info = self._observe()
        reward = (self.game.reward - before) / self.problem.total
        return observation, reward, self.game.done, False, info

    def _lost(self) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        observation, info = self._observe()
        reward = -max(0, self.game.reward) / self.problem.total
        return observation, reward, True, False, {**info, "lost": True}

    def _observe(self) -> tuple[Observation, dict[str, object]]:
        raw, i = observe(self.game, GRID), self.game.index
        scales = (1, self.problem.steps, self.problem.steps, max(1, self.problem.fast_size))
        share = float(np.clip(self.game.reward / self.problem.total, -1, 1))
        observation = {
            "buffers": self._features[i : i + 1 + AHEAD].copy(),
            "memory": raw.grid,
            "profile": raw.profile,
            "supply": (raw.supply / self._most_supply).astype(np.float32),
            "actions": (np.maximum(0, raw.moves) / scales).astype(np.float32),
            "progress": np.array([i / len(self.problem.buffers), share], np.float32),
        }
        mask = raw.moves[:, 0].astype(np.int8)
        return observation, {"action_mask": mask, "reward_ps": self.game.reward}


def _features(problem: Problem) -> np.ndarray:
    """Return [N + 1 + AHEAD, FEATURES], zero behind the last buffer."""
    steps, size = problem.steps, max(1, problem.fast_size)
    supply = max(1, sum(x.supply for x in problem.instructions))
    tensors = 1 + max(b.tensor_id for b in problem.buffers)
    out = np.zeros((len(problem.buffers) + 1 + AHEAD, FEATURES), np.float32)
    for i, b in enumerate(problem.buffers):
        first, last = b.live_range
        out[i] = (
            min(1.0, b.size / size),
            b.is_output,
            b.target_time / steps,
            b.tensor_id / tensors,
            b.alias_id is not None,
            first / steps,
            last / steps,
            min(1.0, b.demand / supply),
            np.clip(b.benefit / problem.total, -1, 1),
        )
    return np.clip(out, -1, 1)
