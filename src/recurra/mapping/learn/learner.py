"""The learner: demonstrations, games of its actors, fresh targets for old games, gradients.

A round takes an actor's answer, plans an old segment again, and updates the weights several times.
A checkpoint has everything that the next round depends on: with an actor in turns, learning
continues from it in exactly the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from recurra.mapping.engine_choice import Engine
from recurra.mapping.learn.acting import FinishedGame, reference, replay_segment
from recurra.mapping.learn.actors import ActorPool, ActorRequest, Actors, LocalActor
from recurra.mapping.learn.network import (
    Weights,
    dynamics,
    expected_value,
    initial,
    predict,
    represent,
    two_hot,
)
from recurra.mapping.learn.network_inputs import (
    AnyArray,
    GameView,
    ProgramFeatures,
    legal,
    program_features,
)
from recurra.mapping.learn.planning import NEVER, PlannedActions, planner
from recurra.mapping.learn.replay import Batch, Replay, segments_of
from recurra.mapping.learn.settings import COMPILING, AgentSettings
from recurra.mapping.struct_of_arrays import FlatProblem
from recurra.nest.agents.actors import State
from recurra.nest.agents.learning import load_checkpoint, save_checkpoint
from recurra.nest.agents.network import AdamState, clip_by_norm

VALUE, REWARD = 0.25, 1.0  # weights of losses beside the policy's
LEARNER = "mapping, Adam of one vector"  # identifies checkpoints of this learner
LONGEST_GRADIENT = 1.0
KEEN = 3.0  # without planning: the weight of an advantage of one standard deviation

FIRST_ANSWER = 1.5 * COMPILING  # CPU seconds of the first answer, compiling included

Train = Callable[[Weights, AdamState, ProgramFeatures, Batch], tuple[Weights, AdamState]]


class GameLearner:
    """An agent for one program."""

    def __init__(
        self,
        flat: FlatProblem,
        engine: Engine,
        settings: AgentSettings,
        seed: int,
        left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`left`: the CPU seconds that are left."""
        self.flat, self.engine, self.settings, self.seed = flat, engine, settings, seed
        self.left = left
        self.random = np.random.default_rng((seed, 1))
        self.program = program_features(flat)
        self.weights: Weights = initial(settings, self.program, seed)
        self.adam = AdamState.zero(_as_one(self.weights))
        self.replay = Replay(settings.replay, settings.segment)
        self.rounds = self.updates = 0
        self.pending_updates = 0  # due updates for which there was no time
        self.best = 0  # picoseconds of the best demonstration
        self.worker_seconds = 0.0  # CPU seconds of actors in other processes
        self.actors: Actors = (
            LocalActor(flat, engine, settings, seed)
            if settings.pool == "turns"
            else ActorPool(flat.problem, engine.library, settings, seed)
        )
        self.plan = planner(settings) if settings.planning == "learned" else None  # for old states
        self.train = trainer(settings)

    def add_demonstrations(self, games: Sequence[FinishedGame]) -> None:
        """Add games with decisions as demonstrations, the best last.

        The replay buffer keeps `settings.shown` games of the length of the longest one.
        """
        games = [g for g in games if g.actions]
        if games:
            s, expected = self.settings, reference(self.flat, self.engine)
            longest = -(-max(g.moves for g in games) // s.segment)
            new = replay_segment(self.flat, self.engine, expected, games, s.segment, s.cells)
            self.replay.add_demonstrations(new, max(len(new.action), s.shown * longest))
            self.best = max(self.best, *(g.reward for g in games))
            if not self.rounds and not self.updates:
                self.pending_updates = s.warmup

    @property
    def temperature(self) -> float:
        """The temperature after so many updates."""
        s = self.settings
        done = min(1.0, self.updates / max(1, s.temperature_decay))
        return s.temperature + (s.final_temperature - s.temperature) * done

    def round(self) -> list[FinishedGame]:
        """Run one round; return the games that ended in it.

        A round is not counted if the time was over before its answer. Raises `ActorsLost` if no
        actor answers.
        """
        self._update_pending(reserve=0.0 if self.rounds else FIRST_ANSWER)
        answer = self.actors.answer(ActorRequest(self.weights, self.temperature, self.left()))
        self.worker_seconds += answer.seconds
        if answer.segments is not None:
            self.replay.add(answer.segments)
            self.reanalyse()
            self.pending_updates += self.settings.updates
            self.rounds += 1
            self._update_pending()
        return answer.ended

    def _update_pending(self, reserve: float = 0.0) -> None:
        """Make the due updates while more time is left than the reserve."""
        while self.pending_updates and self.left() > reserve:
            self.update(1)
            self.pending_updates -= 1

    def reanalyse(self) -> None:
        """Plan one old segment again, from own games or demonstrations."""
        if self.plan is None or not self.settings.reanalyse:
            return
        buffers = [x for x in (self.replay.own, self.replay.demonstrations) if len(x)]
        buffer = buffers[int(self.random.integers(len(buffers)))]
        lane = int(self.random.integers(len(buffer)))
        old = segments_of({name: x[lane] for name, x in buffer.rows.items()})
        policy, value = self._planned(old.views)
        new = policy[:-1]
        if buffer is self.replay.demonstrations:  # their values are the returns of their games
            part = self.settings.imitate
            new = part * np.eye(new.shape[-1], dtype=np.float32)[old.action] + (1 - part) * new
        else:
            buffer.rows["value"][lane] = value
        buffer.rows["policy"][lane] = new

    def _planned(self, views: GameView) -> tuple[np.ndarray, np.ndarray]:
        """The policies and values of a segment's states.

        They are planned in the batches of actors, so that the planner is compiled once.
        """
        assert self.plan is not None
        at, width = np.arange(len(views.index)), self.settings.lanes
        temperature = np.full((width, 1), self.temperature, np.float32)
        plans: list[PlannedActions] = []
        for start in range(0, len(at), width):
            key = jax.random.key(int(self.random.integers(2**32)))
            batch = views.at(np.resize(at[start : start + width], width))
            plans.append(self.plan(self.weights, self.program, batch, key, temperature, 0))
        policy, value = (np.concatenate([np.asarray(p[k]) for p in plans]) for k in (1, 2))
        return policy[: len(at)], value[: len(at)]

    def update(self, count: int) -> None:
        """Make so many gradient steps."""
        s = self.settings
        for _ in range(count):
            batch = self.replay.draw(s.batch, s.unroll, s.discount, s.reanalyse, self.random)
            self.weights, self.adam = self.train(self.weights, self.adam, self.program, batch)
            self.updates += 1

    def state(self) -> dict[str, object]:
        return {
            "weights": self.weights,
            "adam": self.adam._asdict(),
            "random": self.random,
            "replay": self.replay.state(),
            "actors": self.actors.state(),
            "updates": self.updates,
            "owed": self.pending_updates,
            "best": self.best,
        }

    def restore(self, rounds: int, state: State) -> None:
        self.rounds, self.updates, self.random = rounds, state["updates"], state["random"]
        self.weights = {k: jnp.asarray(x) for k, x in state["weights"].items()}
        self.adam = jax.tree.map(jnp.asarray, AdamState(**state["adam"]))
        self.best, self.pending_updates = state["best"], state["owed"]
        self.replay.restore(state["replay"])
        self.actors.restore(state["actors"])

    @property
    def about(self) -> dict[str, str]:
        """The description in which a checkpoint and this run must agree."""
        problem = self.flat.problem
        named = f"{problem.name}, {len(problem.buffers)} buffers, {problem.fast_size} B"
        return {"learner": LEARNER, "settings": str(self.settings), "problem": named}

    def save(self, path: Path) -> None:
        save_checkpoint(path, self.about, self.rounds, self.state())

    def load(self, path: Path) -> None:
        """Restore a checkpoint; raises `RecurraError` if it is of another learner or problem."""
        self.restore(*load_checkpoint(path, self.about))

    def close(self) -> None:
        self.actors.close()


@cache
def trainer(settings: AgentSettings) -> Train:
    """(weights, Adam, program features, batch) → weights, Adam; compiled once per settings."""
    return jax.jit(partial(_train, settings))


def _train(
    settings: AgentSettings,
    weights: Weights,
    adam: AdamState,
    program: ProgramFeatures,
    batch: Batch,
) -> tuple[Weights, AdamState]:
    slope = clip_by_norm(
        _as_one(jax.grad(partial(loss, settings))(weights, program, batch)), LONGEST_GRADIENT
    )
    new, adam = adam.step(slope, _as_one(weights), settings.learning_rate, settings.weight_decay)
    return ravel_pytree(weights)[1](new["all"]), adam


def _as_one(weights: Weights) -> dict[str, Array]:
    """Join all weights to one vector, so that the update compiles in a quarter of the time."""
    return {"all": ravel_pytree(weights)[0]}


def loss(
    settings: AgentSettings, weights: Weights, program: ProgramFeatures, batch: Batch
) -> Array | float:
    """Return the cross entropies of policies, values and rewards, along the learned dynamics."""
    h = represent(settings, weights, program, batch.views)
    advantage = _advantage_weight(weights, h, batch) if settings.planning == "none" else 1.0
    unroll = settings.unroll if settings.planning == "learned" else 0
    total = 0.0
    for u in range(unroll + 1):
        out = predict(weights, h)
        logits = jnp.where(legal(batch.views), out.policy, NEVER) if u == 0 else out.policy
        policy = _cross(logits, batch.policy[:, u]) * batch.weight[:, u] * advantage
        value = _cross(out.value, two_hot(batch.value[:, u], settings.bins)) * batch.alive[:, u]
        step = (policy + VALUE * value).mean()
        if u < unroll:
            h, reward = dynamics(weights, h, batch.action[:, u])
            h = 0.5 * h + 0.5 * jax.lax.stop_gradient(h)
            error = _cross(reward, two_hot(batch.reward[:, u], settings.bins)) * batch.alive[:, u]
            step += REWARD * error.mean() / unroll
        total += step if u == 0 else step / unroll
    return total


def _cross(logits: Array, target: AnyArray) -> Array:
    return -(target * jax.nn.log_softmax(logits)).sum(-1)


def _advantage_weight(weights: Weights, hidden: Array, batch: Batch) -> Array:
    """Return weights [B] of advantage-weighted regression (Peng et al., 2019)."""
    better = batch.value[:, 0] - expected_value(predict(weights, hidden).value)
    spread = better.std() + 1e-6
    weight = jnp.exp(jnp.clip(KEEN * better / spread / 3, -3, 3))
    return jax.lax.stop_gradient(weight / weight.mean())
