"""The learner: demonstrations, games of its actors, fresh targets for old ones, gradients.

A round takes an actor's answer, plans anew for as many old pieces, and updates the weights so many
times. A checkpoint has all that the next round depends on: with actors in turns, learning goes on
from it as if it had never stopped, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from recurra.mapping.engine_choice import Engine
from recurra.mapping.learn.acting import Played, reference, replay_segment
from recurra.mapping.learn.actors import ActorPool, ActorRequest, Actors, Here
from recurra.mapping.learn.network import (
    Weights,
    dynamics,
    initial,
    number,
    predict,
    represent,
    two_hot,
)
from recurra.mapping.learn.network_inputs import (
    AnyArray,
    GameView,
    Surroundings,
    legal,
    surroundings,
)
from recurra.mapping.learn.planning import NEVER, PlannedActions, planner
from recurra.mapping.learn.replay import Batch, Replay, ReplaySegment, pieces_of
from recurra.mapping.learn.settings import COMPILING, AgentSettings
from recurra.mapping.struct_of_arrays import FlatProblem
from recurra.nest.agents.actors import State
from recurra.nest.agents.learning import load_checkpoint, save_checkpoint
from recurra.nest.agents.network import AdamState, clip_by_norm
from recurra.nest.agents.replay import ReplayBuffer

VALUE, REWARD = 0.25, 1.0  # weights of losses beside the policy's
LEARNER = "mapping, Adam of one vector"  # what a checkpoint is of
LONGEST_GRADIENT = 1.0
KEEN = 3.0  # without planning: how much an action that did better than expected counts, per spread

FIRST_ANSWER = 1.5 * COMPILING  # CPU seconds in which a search is compiled, and played with

Train = Callable[[Weights, AdamState, Surroundings, Batch], tuple[Weights, AdamState]]


def _unlimited() -> float:
    return float("inf")


class GameLearner:
    """An agent for one program."""

    def __init__(
        self,
        flat: FlatProblem,
        engine: Engine,
        settings: AgentSettings,
        seed: int,
        left: Callable[[], float] = _unlimited,
    ) -> None:
        """`left`: how many CPU seconds there are."""
        self.flat, self.engine, self.settings, self.seed = flat, engine, settings, seed
        self.left = left
        self.random = np.random.default_rng((seed, 1))
        self.near = surroundings(flat)
        self.weights: Weights = initial(settings, self.near, seed)
        self.adam = AdamState.zero(_as_one(self.weights))
        self.replay = Replay(settings.replay, settings.segment)
        self.rounds = self.updates = 0
        self.owed = 0  # updates that there was no time for
        self.best = 0  # picoseconds, of the games that were shown
        self.elsewhere = 0.0  # CPU seconds of actors in other processes
        self.actors: Actors = (
            Here(flat, engine, settings, seed)
            if settings.pool == "turns"
            else ActorPool(flat.problem, engine.library, settings, seed)
        )
        self.plan = planner(settings) if settings.planning == "learned" else None  # of old states
        self.train = trainer(settings)

    def show(self, games: Sequence[Played]) -> None:
        """Demonstrations, the best last; games without a decision teach nothing.

        As many are kept as `settings.shown` games like the longest of these are long.
        """
        some = [g for g in games if g.actions]
        if some:
            s, expected = self.settings, reference(self.flat, self.engine)
            pieces = -(-max(g.moves for g in some) // s.segment)
            new = replay_segment(self.flat, self.engine, expected, some, s.segment, s.cells)
            self.replay.show(new, max(len(new.action), s.shown * pieces))
            self.best = max(self.best, *(g.reward for g in some))
            if not self.rounds and not self.updates:
                self.owed = s.warmup

    @property
    def heat(self) -> float:
        """The temperature of now."""
        s = self.settings
        done = min(1.0, self.updates / max(1, s.temperature_decay))
        return s.temperature + (s.final_temperature - s.temperature) * done

    def round(self) -> list[Played]:
        """The games that ended meanwhile; raises `ActorsLost` where no actor answers any more.

        A round is not counted if the time was over before its answer.
        """
        self._update_owed(spare=0.0 if self.rounds else FIRST_ANSWER)
        answer = self.actors.answer(ActorRequest(self.weights, self.heat, self.left()))
        self.elsewhere += answer.seconds
        if answer.pieces is not None:
            self.replay.add(answer.pieces)
            self.reanalyse()
            self.owed += self.settings.updates
            self.rounds += 1
            self._update_owed()
        return answer.ended

    def _update_owed(self, spare: float = 0.0) -> None:
        """The updates that are due, while more time is left than this; the others remain due."""
        while self.owed and self.left() > spare:
            self.update(1)
            self.owed -= 1

    def reanalyse(self) -> None:
        """Plans anew for a few old pieces, those of demonstrations included."""
        if self.plan is None or not self.settings.reanalyse:
            return
        buffers = [x for x in (self.replay.own, self.replay.shown) if len(x)]
        buffer = buffers[int(self.random.integers(len(buffers)))]
        lane = int(self.random.integers(len(buffer)))
        old = pieces_of({name: x[lane] for name, x in buffer.rows.items()})
        self._renew(buffer, lane, *self._planned(old.seen), old)

    def _planned(self, seen: GameView) -> tuple[np.ndarray, np.ndarray]:
        """Policies and values of a piece's states, as many at once as actors have: one program."""
        assert self.plan is not None
        at, width = np.arange(len(seen.index)), self.settings.lanes
        heat = np.full((width, 1), self.heat, np.float32)
        found: list[PlannedActions] = []
        for start in range(0, len(at), width):
            key = jax.random.key(int(self.random.integers(2**32)))
            some = np.resize(at[start : start + width], width)
            found.append(self.plan(self.weights, self.near, seen.at(some), key, heat, 0))
        policy, value = (np.concatenate([np.asarray(p[k]) for p in found]) for k in (1, 2))
        return policy[: len(at)], value[: len(at)]

    def _renew(
        self,
        buffer: ReplayBuffer,
        lane: int,
        policy: np.ndarray,
        value: np.ndarray,
        old: ReplaySegment,
    ) -> None:
        new = policy[:-1]
        if buffer is self.replay.shown:  # the values of demonstrations are those of their games
            part = self.settings.imitate
            new = part * np.eye(new.shape[-1], dtype=np.float32)[old.action] + (1 - part) * new
        else:
            buffer.rows["value"][lane] = value
        buffer.rows["policy"][lane] = new

    def update(self, count: int) -> None:
        """Make so many gradient steps."""
        s = self.settings
        for _ in range(count):
            batch = self.replay.draw(s.batch, s.unroll, s.discount, s.reanalyse, self.random)
            self.weights, self.adam = self.train(self.weights, self.adam, self.near, batch)
            self.updates += 1

    def state(self) -> dict[str, object]:
        """The state that a checkpoint saves."""
        return {
            "weights": self.weights,
            "adam": self.adam._asdict(),
            "random": self.random,
            "replay": self.replay.state(),
            "actors": self.actors.state(),
            "updates": self.updates,
            "owed": self.owed,
            "best": self.best,
        }

    def restore(self, rounds: int, state: State) -> None:
        """Restore the state that a checkpoint has saved."""
        self.rounds, self.updates, self.random = rounds, state["updates"], state["random"]
        self.weights = {k: jnp.asarray(x) for k, x in state["weights"].items()}
        self.adam = jax.tree.map(jnp.asarray, AdamState(**state["adam"]))
        self.best, self.owed = state["best"], state["owed"]
        self.replay.restore(state["replay"])
        self.actors.restore(state["actors"])

    @property
    def about(self) -> dict[str, str]:
        """The facts on which a checkpoint and this run must agree."""
        problem = self.flat.problem
        named = f"{problem.name}, {len(problem.buffers)} buffers, {problem.fast_size} B"
        return {"learner": LEARNER, "settings": str(self.settings), "problem": named}

    def save(self, path: Path) -> None:
        """Writes a checkpoint."""
        save_checkpoint(path, self.about, self.rounds, self.state())

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint; `RecurraError` where it is of something else."""
        self.restore(*load_checkpoint(path, self.about))

    def close(self) -> None:
        """Ends what it has started."""
        self.actors.close()


@cache
def trainer(settings: AgentSettings) -> Train:
    """(weights, Adam, surroundings, batch) → weights, Adam; compiled once per settings."""
    return jax.jit(partial(_trained, settings))


def _trained(
    settings: AgentSettings,
    weights: Weights,
    adam: AdamState,
    near: Surroundings,
    batch: Batch,
) -> tuple[Weights, AdamState]:
    slope = clip_by_norm(
        _as_one(jax.grad(partial(loss, settings))(weights, near, batch)), LONGEST_GRADIENT
    )
    new, adam = adam.step(slope, _as_one(weights), settings.learning_rate, settings.weight_decay)
    return ravel_pytree(weights)[1](new["all"]), adam


def _as_one(weights: Weights) -> dict[str, Array]:
    """All weights as one vector: the update is compiled in a quarter of the time."""
    return {"all": ravel_pytree(weights)[0]}


def loss(
    settings: AgentSettings, weights: Weights, near: Surroundings, batch: Batch
) -> Array | float:
    """Cross entropies of policies, values and rewards, along the learned dynamics."""
    h = represent(settings, weights, near, batch.seen)
    eager = _eagerness(weights, h, batch) if settings.planning == "none" else 1.0
    unroll = settings.unroll if settings.planning == "learned" else 0
    total = 0.0
    for u in range(unroll + 1):
        found = predict(weights, h)
        logits = jnp.where(legal(batch.seen), found.policy, NEVER) if u == 0 else found.policy
        policy = _cross(logits, batch.policy[:, u]) * batch.weight[:, u] * eager
        value = _cross(found.value, two_hot(batch.value[:, u], settings.bins)) * batch.alive[:, u]
        some = (policy + VALUE * value).mean()
        if u < unroll:
            h, reward = dynamics(weights, h, batch.action[:, u])
            h = 0.5 * h + 0.5 * jax.lax.stop_gradient(h)
            told = _cross(reward, two_hot(batch.reward[:, u], settings.bins)) * batch.alive[:, u]
            some += REWARD * told.mean() / unroll
        total += some if u == 0 else some / unroll
    return total


def _cross(logits: Array, target: AnyArray) -> Array:
    return -(target * jax.nn.log_softmax(logits)).sum(-1)


def _eagerness(weights: Weights, hidden: Array, batch: Batch) -> Array:
    """[B] advantage-weighted regression (Peng et al., 2019): the policy follows what did well."""
    better = batch.value[:, 0] - number(predict(weights, hidden).value)
    spread = better.std() + 1e-6
    weight = jnp.exp(jnp.clip(KEEN * better / spread / 3, -3, 3))
    return jax.lax.stop_gradient(weight / weight.mean())
