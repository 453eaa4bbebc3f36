"""Small Gymnasium environments with every autoreset mode, and with none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Walk(gym.Env):
    """A walk that ends at ±1.5 (terminated) or after 9 steps (truncated)."""

    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.uniform(-0.5, 0.5), 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.at += 0.5 * int(action) + self.np_random.uniform(-0.1, 0.1)
        self.steps += 1
        return self._seen(), 1.0 + self.at, abs(self.at) > 1.5, self.steps >= 9, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.at, self.steps])


class Walks(VectorEnv):
    """Walks side by side, in one autoreset mode; overwrites its observation buffer."""

    seeds: tuple[int, ...] = ()
    final_obs, obeys_mask = True, True

    def __init__(self, num_envs: int, mode: Any):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs, self.walks = num_envs, [Walk() for _ in range(num_envs)]
        self.single_observation_space = Walk.observation_space
        self.single_action_space = Walk.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.obs = np.zeros((num_envs, 2))
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if seed is not None:
            Walks.seeds = (*Walks.seeds, seed)
        for k in np.flatnonzero(mask) if self.obeys_mask else range(self.num_envs):
            self.obs[k] = self.walks[k].reset(seed=None if seed is None else seed + int(k))[0]
        self.ended[mask] = False
        return self.obs, {}

    def step(self, actions: np.ndarray) -> Any:
        assert self.action_space.contains(actions)
        mode = self.metadata["autoreset_mode"]
        rewards, term, trunc = np.zeros((3, self.num_envs))
        final = np.full(self.num_envs, None, object)
        for k, walk in enumerate(self.walks):
            if mode == AutoresetMode.NEXT_STEP and self.ended[k]:
                self.obs[k], self.ended[k] = walk.reset()[0], False
                continue
            assert not self.ended[k]
            self.obs[k], rewards[k], term[k], trunc[k], _ = walk.step(actions[k])
            self.ended[k] = term[k] or trunc[k]
            if mode == AutoresetMode.SAME_STEP and self.ended[k]:
                final[k], self.ended[k] = self.obs[k].copy(), False
                self.obs[k] = walk.reset()[0]
        info = {"final_obs": final} if self.final_obs and any(f is not None for f in final) else {}
        return self.obs, rewards, term.astype(bool), trunc.astype(bool), info


class Odd(gym.Env):
    observation_space = spaces.Dict(x=spaces.Text(2))
    action_space = spaces.Discrete(2)


class OddAction(Walk):
    action_space = spaces.Sequence(spaces.Discrete(2))


@contextmanager
def registered() -> Iterator[None]:
    """`Walk-v0`, `Odd-v0`, `OddAction-v0`; native `Walks-NEXT_STEP-v0` .. `Walks-NONE-v0`."""
    single = {"Walk-v0": Walk, "Odd-v0": Odd, "OddAction-v0": OddAction}
    native: dict[str, Any] = {f"Walks-{m.name}-v0": m for m in AutoresetMode}
    native["Walks-NONE-v0"] = None
    for id, entry in single.items():
        gym.register(id, entry)
    for id, mode in native.items():
        gym.register(id, vector_entry_point=lambda num_envs, mode=mode: Walks(num_envs, mode))
    yield
    for id in (*single, *native):
        del gym.registry[id]
