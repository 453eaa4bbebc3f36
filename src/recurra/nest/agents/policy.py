"""GreedyPolicy: a network that values actions of a nest, in NumPy, and its episodes.

An observation is `state.vector` on a logarithmic scale and the share of the episode that is left,
since the goal is the nest at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from recurra.errors import RecurraError
from recurra.nest import kernel_store
from recurra.nest.actions import Actions
from recurra.nest.einsum import from_sizes
from recurra.nest.loops import Nest, untiled
from recurra.nest.observation import WIDTH, Vector, vector
from recurra.nest.problem import NestProblem, expect_problem
from recurra.nest.target import VectorTarget, host_target
from recurra.support import safetensors_file
from recurra.support.renamed_names import old_names

if TYPE_CHECKING:
    import jax

SMALL = from_sizes("mk,kn->mn", (8, 8, 8))
Weights = Mapping[str, NDArray[np.float32]]
"""W0, b0 .. of hidden layers; Wv, bv of the value of a state; Wa, ba of the actions' advantages"""
Array = TypeVar("Array", "np.ndarray", "jax.Array")
AnyWeights = Mapping[str, "np.ndarray"] | Mapping[str, "jax.Array"]
"""The same, of NumPy or JAX"""


def features(vectors: Vector) -> NDArray[np.float16]:
    """Return [states, loops · 20] of [states, loops, 20]: sizes and tails as logarithms."""
    scaled = vectors.astype(np.float32)
    scaled[..., 1:3] = np.log2(1 + scaled[..., 1:3]) / 8
    scaled[..., 4:] /= 4
    return scaled.reshape(len(scaled), -1).astype(np.float16)


def dueling_heads(
    weights: Mapping[str, Array], observations: Array, xp: ModuleType = np
) -> tuple[Array, Array]:
    """Return the network's outputs: values [n] and advantages of actions [n, actions].

    For policies that sample, advantages are logits; the best action has the largest advantage
    either way.
    """
    x: Array = observations
    for layer in range(len(weights) // 2 - 2):
        x = xp.maximum(x @ weights[f"W{layer}"] + weights[f"b{layer}"], 0)
    return (x @ weights["Wv"] + weights["bv"])[:, 0], x @ weights["Wa"] + weights["ba"]


def q_values(weights: Mapping[str, Array], observations: Array, xp: ModuleType = np) -> Array:
    """Return the values of actions [n, actions] of the dueling network (Wang et al., 2016)."""
    value, advantages = dueling_heads(weights, observations, xp)
    centered: Any = advantages - advantages.mean(axis=1, keepdims=True)
    return value[:, None] + centered


@dataclass(frozen=True, eq=False)
class GreedyPolicy:
    """The greedy policy of a dueling network (Wang et al., 2016), or of an actor and a critic."""

    weights: Weights
    actions: Actions
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its origin: command, seed, sizes that were learned from, held out, and so on"""

    def values(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [states, actions] of [states, loops · 20 + 1], the last being the share left."""
        return q_values(self.weights, observations)

    def path(self, problem: NestProblem, most: int | None = None) -> list[Nest]:
        """Return the nests of one episode of at most `most` actions, without measurements."""
        nests, steps = [untiled(problem)], self.actions.steps
        for done in range(steps if most is None else most):
            nest = nests[-1]
            x = features(vector(nest, self.actions.max_loops)[None]).astype(np.float32)
            left = np.full((1, 1), 1 - done / steps, np.float32)
            values = self.values(np.concatenate([x, left], axis=1))[0]
            legal = np.array(self.actions.legal(nest))
            if not legal.any():
                break
            name = self.actions.names[int(np.where(legal, values, -np.inf).argmax())]
            nests.append(self.actions.apply(nest, name))
        return nests

    def save(self, path: Path) -> None:
        """Write a safetensors file, with the actions and the origin."""
        words = {"actions": json.dumps(asdict(self.actions)), "about": json.dumps(self.about)}
        safetensors_file.write(path, self.weights, words)


def load(path: Path) -> GreedyPolicy:
    """Load a policy that was saved; raise RecurraError where the file is none."""
    try:
        weights, words = safetensors_file.read(path)
        actions = Actions.from_json(json.loads(words["actions"]))
        about: dict[str, Any] = json.loads(words.get("about", "{}"))
        inputs, names = actions.max_loops * WIDTH + 1, actions.names
        policy = GreedyPolicy(weights, actions, about)
        fits = len(weights["W0"]) == inputs and weights["Wa"].shape[1] == len(names)
        if fits:  # other mistakes show in the first steps
            values = policy.values(np.zeros((1, inputs), np.float32))
            if values.shape != (1, len(names)) or not all(
                np.isfinite(array).all() for array in weights.values()
            ):
                raise ValueError("its weights give no values")
            policy.path(SMALL, most=2)
    except Exception as error:
        facts = f"it says nothing of {error}" if isinstance(error, KeyError) else str(error)
        facts = error.facts if isinstance(error, RecurraError) else facts
        raise RecurraError(f"{path} is no policy", facts=" ".join(facts.split())) from None
    if not fits:
        raise RecurraError(
            f"{path} does not fit its actions",
            facts=f"its first layer takes {len(weights['W0'])} numbers, not {inputs}",
        )
    return policy


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"shipped": "bundled_policy"})


def bundled_policy(on: VectorTarget) -> Path | None:
    """Return the file of the policy that comes with the package for a target."""
    path = Path(__file__).parent / f"matmul-{on.name}.safetensors"
    return path if path.exists() else None


def proposed(problem: NestProblem, on: VectorTarget | None = None) -> Nest:
    """Return the stored nest of a problem, or the last one of the shipped policy's episode.

    Nothing is measured: it takes milliseconds. The policy was trained on matrix products. Raises
    RecurraError where there is none for this target, or the problem has more loops than it knows.
    """
    expect_problem(problem, "proposed")
    on = on or host_target()
    if (known := kernel_store.load(problem, on.name)) is not None:
        return known.nest
    if (path := bundled_policy(on)) is None:
        raise RecurraError(
            f"no policy for {on} comes with the package",
            hint=f"train one: recurra tune train --backend {on}",
        )
    policy = _load_policy(path)
    if (n := len(untiled(problem).loops)) > policy.actions.max_loops:
        raise RecurraError(
            f"{problem.statement} has too many loops for the policy",
            facts=f"{n} untiled, at most {policy.actions.max_loops}",
            hint="search for one, recurra.nest.tune_nest(problem), or take the standard one,"
            " recurra.nest.compile(problem)",
        )
    return policy.path(problem)[-1]


@cache
def _load_policy(path: Path) -> GreedyPolicy:
    return load(path)


def initial(
    inputs: int, actions: int, hidden: Sequence[int], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Return random weights (He et al., 2015)."""
    random, weights = np.random.default_rng(seed), dict[str, NDArray[np.float32]]()
    sizes = [inputs, *hidden]
    for k, (n, m) in enumerate(pairwise(sizes)):
        weights[f"W{k}"] = (random.standard_normal((n, m)) * np.sqrt(2 / n)).astype(np.float32)
        weights[f"b{k}"] = np.zeros(m, np.float32)
    for name, m in (("v", 1), ("a", actions)):
        weights[f"W{name}"] = (random.standard_normal((sizes[-1], m)) * 0.01).astype(np.float32)
        weights[f"b{name}"] = np.zeros(m, np.float32)
    return weights
