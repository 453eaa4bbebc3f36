"""The work of every program of this bench: PPO, or REINFORCE, on pictures of a falling ball.

    picture [3, side, side] u8 → convolution of side/8 by side/8 → 16 × 8 × 8 → 64 → actor, critic

A game on 16 by 16 cells, drawn `side` pixels wide: a ball falls a cell a step, a paddle moves left,
stays or moves right, and what the ball falls on decides the reward. Nothing is drawn by chance but
the actions. The same arithmetic in NumPy and JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GAMMA, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE = 0.2, 0.01, 0.5
NORM, ADVANTAGE_EPS = 0.5, 1e-8
LR, BETA1, BETA2, EPS = 2.5e-4, 0.9, 0.999, 1e-5
ACTIONS, CELLS, PLACES, CHANNELS, HIDDEN = 3, 16, 8, 16, 64
SAMPLE, SEED = 1, 7  # the number of the random statement, and the seed of every draw
Theta = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Work:
    """B rows, T steps, pictures `side` wide; returns over `n` steps, 0: PPO, T: Monte Carlo.

    PPO learns from all samples in each of its `epochs`, in shuffled `minibatches`, or at once.
    Ours is compiled for a budget of `memory`, or to `offload`, where they are given.
    """

    side: int = 64
    B: int = 16
    T: int = 128
    n: int = 0
    epochs: int = 1
    minibatches: int = 1
    memory: str = ""
    offload: str = ""

    def __str__(self) -> str:
        how = "Monte Carlo" if self.n >= self.T else f"{self.n} steps" if self.n else "PPO"
        how += f", {self.epochs} epochs of {self.minibatches}" if self.shuffled else ""
        return f"3x{self.side}x{self.side} T={self.T} B={self.B} {how}"

    @property
    def shuffled(self) -> bool:
        """Is it learned from samples in another order than they were made in?"""
        return self.epochs * self.minibatches > 1

    @property
    def observations(self) -> int:
        """Bytes of those of one iteration, a byte a number."""
        return 3 * self.side**2 * self.B * self.T

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters: weights [out, in, height, width] and [in, out], biases [out]."""
        size = self.side // PLACES
        inputs = CHANNELS * PLACES**2
        return {
            "eye_W": (CHANNELS, 3, size, size),
            "eye_b": (CHANNELS,),
            "body_W": (inputs, HIDDEN),
            "body_b": (HIDDEN,),
            "actor_W": (HIDDEN, ACTIONS),
            "actor_b": (ACTIONS,),
            "critic_W": (HIDDEN, 1),
            "critic_b": (1,),
        }


def initial(work: Work) -> Theta:
    """Weights of variance 2 / inputs, a hundredth of that deviation for the actor; zero biases."""
    rng = np.random.default_rng(SEED)
    theta: Theta = {}
    for name, shape in work.shapes.items():
        inputs = int(np.prod(shape[1:] if len(shape) == 4 else shape[:1]))
        gain = (0.01 if name == "actor_W" else 1.0) * np.sqrt(2 / inputs)
        x = rng.standard_normal(shape) * gain if name.endswith("W") else np.zeros(shape)
        theta[name] = x.astype(np.float32)
    return theta


class Game(NamedTuple):
    """Columns of balls and paddles, and rows of balls: i32 [B]."""

    ball: Any
    row: Any
    paddle: Any


def begin(xp: Any, b: Any) -> Game:
    """Where rows `b` [B] start: no two of them alike."""
    return Game((5 * b + 2) % CELLS, b % (CELLS - 1), xp.zeros_like(b) + CELLS // 2)


def step(xp: Any, game: Game, a: Any) -> tuple[Game, Any, Any]:
    """The next state, rewards f32 [B], and whether the ball has come down, bool [B]."""
    paddle = xp.clip(game.paddle + a - 1, 0, CELLS - 1)
    row = game.row + 1
    done = row == CELLS - 1
    near = xp.abs(paddle - game.ball) <= 1
    reward = xp.where(done, xp.where(near, 1.0, -1.0), 0.0).astype(np.float32)
    ball = xp.where(done, (7 * game.ball + 3) % CELLS, game.ball)
    return Game(ball, xp.where(done, 0, row), paddle), reward, done


@cache
def ground(side: int) -> NDArray[np.uint8]:
    """What is behind everything, [3, side, side]."""
    y, x = np.mgrid[:side, :side]
    return np.stack([40 + 3 * x, 30 + 5 * y, 20 + x + y]).astype(np.uint8) // 4


def picture(xp: Any, game: Game, side: int) -> Any:
    """[B, 3, side, side] u8: the ball is red, the paddle green."""
    cell = xp.arange(side) * CELLS // side

    def at(y: Any, x: Any) -> Any:
        return (cell == y[:, None])[:, :, None] & (cell == x[:, None])[:, None, :]

    floor = xp.full_like(game.row, CELLS - 1)
    no = xp.zeros((len(game.row), side, side), bool)
    lit = xp.stack([at(game.row, game.ball), at(floor, game.paddle), no], axis=1)
    return xp.where(lit, np.uint8(255), xp.asarray(ground(side)))


def answers(
    work: Work, reward: Any, norm: Any, m: Mapping[str, Any], theta: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """What all programs agree on after their first iteration.

    The mean reward, the gradient before its norm is held (read back from Adam's first moment), the
    new parameters, and how many steps were made.
    """
    scale = max(1.0, float(norm) / NORM) / (1 - BETA1)
    return {
        "reward": np.asarray([reward], np.float32),
        **{f"d_{k}": np.asarray(m[k]) * scale for k in work.shapes},
        **{k: np.asarray(theta[k]) for k in work.shapes},
        "env_steps": np.array(work.B * work.T),
    }
