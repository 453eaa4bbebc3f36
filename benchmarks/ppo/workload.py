"""The work that every PPO program of this bench does: sizes, constants, parameters, counts.

Two separate networks of tanh layers, an actor and a critic; T steps of B environments, advantages
by GAE, one epoch of one minibatch, clipped losses, a global norm, one step of Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

GAMMA, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE = 0.2, 0.01, 0.5
NORM, ADVANTAGE_EPS = 0.5, 1e-8
LR, BETA1, BETA2, EPS = 2.5e-4, 0.9, 0.999, 1e-5
ACTIONS = 4
RESET, SAMPLE = 1, 2  # the numbers of the two random statements: part of the random key
SEED = 7  # of the parameters and of every draw

Net = Literal["actor", "critic"]
NETS: tuple[Net, Net] = ("actor", "critic")
Theta = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Work:
    """The sizes of one iteration; the defaults are those of the paper (TEMPO, section 7.3)."""

    B: int = 512
    T: int = 250
    width: int = 64
    depth: int = 2
    features: int = 48

    def __str__(self) -> str:
        usual = Work()
        odd = [f"{k}={getattr(self, k)}" for k in ("width", "depth", "features")
               if getattr(self, k) != getattr(usual, k)]  # fmt: skip
        return " ".join([f"T={self.T} B={self.B}", *odd])

    def layers(self, net: Net) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer of a network, the head last."""
        widths = [self.features, *[self.width] * self.depth, ACTIONS if net == "actor" else 1]
        return list(pairwise(widths))

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum((i + 1) * o for net in NETS for i, o in self.layers(net))

    def flops(self, keep: bool) -> float:
        """Of the matrix products of one iteration; 2 per multiplication and addition.

        2 B T Σ over the layers of inputs · outputs · k, where k counts forward (twice if it is not
        kept), the weight's gradient, and the input's gradient for all but the first layer.
        """
        forward = 1 if keep else 2
        return (
            2.0
            * self.B
            * self.T
            * sum(
                i * o * (forward + 1 + (layer > 0))
                for net in NETS
                for layer, (i, o) in enumerate(self.layers(net))
            )
        )

    def tanhs(self, keep: bool) -> float:
        """How many tanh one iteration evaluates."""
        return (1.0 if keep else 2.0) * 2 * self.B * self.T * self.width * self.depth

    def bytes(self, keep: bool) -> float:
        """Written to stores by acting and read back by the learner, f32 and i32.

        Per step and row: an observation, ACTIONS logits, a value, an action, a reward, an end, an
        advantage; with `keep` every activation as well.
        """
        kept = 2 * self.width * self.depth if keep else 0
        return 2 * 4.0 * self.B * self.T * (self.features + ACTIONS + 5 + kept)


def initial(work: Work, seed: int = SEED, dtype: DTypeLike = np.float32) -> Theta:
    """Orthogonal weights [inputs, outputs], gains √2, 0.01 (policy) and 1 (value); zero biases."""
    rng = np.random.default_rng(seed)
    theta: Theta = {}
    for net in NETS:
        layers = work.layers(net)
        for k, (inputs, outputs) in enumerate(layers, 1):
            head = 0.01 if net == "actor" else 1.0
            gain = head if k == len(layers) else np.sqrt(2)
            theta[f"{net}_W{k}"] = (gain * _orthogonal(rng, inputs, outputs)).astype(dtype)
            theta[f"{net}_b{k}"] = np.zeros(outputs, dtype)
    return theta


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Orthonormal columns, or rows where there are fewer of them."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T


def answers(
    work: Work, reward: Any, norm: Any, m: Mapping[str, Any], theta: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """What all programs agree on after their first iteration.

    The mean reward, the gradient before its norm is held (`d_actor_W1` ..; read back from Adam's
    first moment, which started at zero), the new parameters, and counts of work.
    """
    scale = max(1.0, float(norm) / NORM) / (1 - BETA1)
    gradient = {f"d_{k}": np.asarray(x) * scale for k, x in m.items()}
    counts = dict(env_steps=work.B * work.T, parameters=sum(np.size(x) for x in theta.values()))
    return {
        "reward": np.asarray([reward]),
        **gradient,
        **{k: np.asarray(x) for k, x in theta.items()},
        **{k: np.array(n) for k, n in counts.items()},
    }
