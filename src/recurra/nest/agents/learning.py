"""Learner, the base class of all learners; the training loop; checkpoints.

A checkpoint has everything that the next update depends on: a learner with actors in its own
process continues bit by bit as if it had never stopped. It is an .npz file of arrays by path, such
as "adam/mean/W0", and JSON, with a digest at its end; nothing in it is executed when it is loaded.
"""

from __future__ import annotations

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from recurra.errors import RecurraError
from recurra.nest.agents.actors import Actor, ActorTask, LearnerSettings, PoolSettings, State, pool
from recurra.nest.agents.network import AdamState
from recurra.nest.agents.policy import AnyWeights, GreedyPolicy, initial
from recurra.nest.agents.vector_env import Floats, VectorEnv
from recurra.nest.measured_table import Table
from recurra.support import atomic_write

FORMAT = 1
DIGEST = 32  # bytes at the end of a file
Settings = TypeVar("Settings", bound=LearnerSettings)
Shared = TypeVar("Shared", bound=PoolSettings)


@dataclass(frozen=True)
class LearningPoint:
    """The progress of training, and the policy at that moment."""

    rounds: int
    steps: int
    """Actions of all episodes"""
    reward: float
    """Mean of the episodes since the point before; NaN if there were none"""
    policy: GreedyPolicy


Tell = Callable[[LearningPoint], None]


class Learner(ABC, Generic[Settings]):
    """Weights, and everything else that the next update depends on."""

    def __init__(self, env: VectorEnv, settings: Settings) -> None:
        self.env, self.settings = env, settings
        self.random = np.random.default_rng(settings.seed)
        inputs, outputs = env.observations.shape[1] + 1, env.legal.shape[1]
        self.weights: AnyWeights = initial(inputs, outputs, settings.hidden, settings.seed)
        self.adam = AdamState.zero(self.weights)
        self.steps = 0

    @classmethod
    def of(cls, tables: Sequence[Table], settings: Settings) -> Self:
        return cls(VectorEnv.of(tables), settings)

    @abstractmethod
    def update(self, done: int) -> Floats:
        """Do one update, number `done`; return the rewards of the episodes that ended meanwhile."""

    def state(self) -> dict[str, object]:
        """Return the state that a checkpoint saves."""
        adam = self.adam._asdict()
        return dict(weights=self.weights, adam=adam, random=self.random, steps=self.steps)

    def restore(self, state: State) -> None:
        """Restore the state that a checkpoint has saved."""
        self.weights, self.adam = state["weights"], AdamState(**state["adam"])
        self.random, self.steps = state["random"], state["steps"]

    def close(self) -> None:
        """End the processes of actors."""

    def policy(self) -> GreedyPolicy:
        weights = {k: np.asarray(v, np.float32) for k, v in self.weights.items()}
        return GreedyPolicy(weights, self.env.actions)

    @property
    def about(self) -> dict[str, str]:
        """The facts in which a checkpoint and this run must agree."""
        kind = type(self).__module__.rpartition(".")[2]
        return dict(learner=kind, settings=str(self.settings), tables=self.env.digest)


class Distributed(Learner[Shared]):
    """A learner with a pool of actors."""

    actor: ClassVar[Callable[[VectorEnv, ActorTask[Any]], Actor]]

    def __init__(self, env: VectorEnv, settings: Shared) -> None:
        self.actors = pool(type(self).actor, env, settings)  # before JAX has threads: Ray forks
        super().__init__(env, settings)

    def state(self) -> dict[str, object]:
        return {**super().state(), "actors": self.actors.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.actors.restore(state.get("actors", {}), self.steps)

    def close(self) -> None:
        self.actors.close()


def run_learner(
    learner: Learner[Settings],
    *,
    tell: Tell | None = None,
    every: int = 1000,
    checkpoint: Path | None = None,
) -> GreedyPolicy:
    """Return the policy after `settings.rounds` updates.

    After `every` so many, calls `tell` and writes the checkpoint. Learning continues from a
    checkpoint if there is one. Raises RecurraError for one of another learner, other settings or
    other tables.
    """
    past = 0
    if checkpoint is not None and checkpoint.exists():
        past, state = load_checkpoint(checkpoint, learner.about)
        learner.restore(state)
    rewards = list[float]()
    try:
        while past < learner.settings.rounds:
            rewards += learner.update(past).tolist()
            past += 1
            if past % every and past < learner.settings.rounds:
                continue
            mean = float(np.mean(rewards)) if rewards else float("nan")
            rewards.clear()
            if tell:
                tell(LearningPoint(past, learner.steps, mean, learner.policy()))
            if checkpoint is not None:
                save_checkpoint(checkpoint, learner.about, past, learner.state())
    finally:
        learner.close()
    return learner.policy()


@dataclass(frozen=True)
class Trainer(Generic[Settings]):
    """The function `train` of a learner's module: from tables to a policy for their actions.

    The same tables and settings give the same policy, unless actors are processes. Settings are by
    default the learner's own.
    """

    learner: Callable[[Sequence[Table], Settings], Learner[Settings]]
    settings: type[Settings]
    every: int
    """Default of the updates between two calls of `tell`"""

    def __call__(
        self,
        tables: Sequence[Table],
        settings: Settings | None = None,
        *,
        tell: Tell | None = None,
        every: int | None = None,
        checkpoint: Path | None = None,
    ) -> GreedyPolicy:
        learner = self.learner(tables, settings or self.settings())
        return run_learner(learner, tell=tell, every=every or self.every, checkpoint=checkpoint)


def save_checkpoint(path: Path, about: Mapping[str, str], past: int, state: State) -> None:
    """Write a checkpoint in place of the one before."""
    arrays, words = dict[str, np.ndarray](), dict[str, object]()
    _flatten(state, "", arrays, words)
    head = {"format": FORMAT, "done": past, "about": dict(about), "words": words}
    packed = io.BytesIO()
    np.savez(packed, head=json.dumps(head), **arrays)  # pyright: ignore[reportArgumentType]
    content = packed.getvalue()
    atomic_write.save(path, content + hashlib.sha256(content).digest())


def checkpoint_rounds(path: Path) -> int:
    """Return the number of updates before a checkpoint."""
    return _read(path)[0]["done"]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read head and arrays of a checkpoint; raise RecurraError if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecurraError(f"{path} is no checkpoint", facts=str(error)) from None
    content, digest = content[:-DIGEST], content[-DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise RecurraError(
            f"{path} is no checkpoint",
            facts="its content does not give the digest at its end: it is damaged, or of another "
            "version",
            hint="learn anew, in another folder",
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    head = json.loads(str(arrays.pop("head")))
    if head["format"] != FORMAT:
        raise RecurraError(
            f"{path} is no checkpoint of this version",
            facts=f"format {head['format']}, not {FORMAT}",
        )
    return head, arrays


def load_checkpoint(path: Path, about: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return (updates done, state) of a checkpoint of the same facts."""
    head, arrays = _read(path)
    for name, ours in about.items():
        if (theirs := head["about"].get(name)) != ours:
            raise RecurraError(
                f"{path} is of other {name}" if name != "learner" else f"{path} is of {theirs}",
                facts=f"it has {theirs}; this is {ours}",
                hint="go on with what it was made with, or learn in another folder",
            )
    state = dict[str, Any]()
    for path_, value in {**arrays, **head["words"]}.items():
        _insert(state, path_.split("/"), value)
    return head["done"], state


def _flatten(
    state: State, prefix: str, arrays: dict[str, np.ndarray], words: dict[str, object]
) -> None:
    for name, value in state.items():
        if isinstance(value, Mapping):
            _flatten(value, f"{prefix}{name}/", arrays, words)
        elif isinstance(value, np.random.Generator):
            words[f"{prefix}{name}"] = {"random": value.bit_generator.state}
        elif isinstance(value, int):
            words[f"{prefix}{name}"] = value
        else:
            arrays[f"{prefix}{name}"] = np.asarray(value)


def _insert(state: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        state = state.setdefault(name, {})
    if isinstance(value, dict):
        random = np.random.default_rng()
        random.bit_generator.state = value["random"]
        value = random
    state[path[-1]] = value
