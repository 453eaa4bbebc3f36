"""Planning in a state: a search through `mctx`, with learned or true dynamics; or no search.

With true dynamics a node is the path of actions that leads there from the root. The native engine
goes that way and back again: its games undo exactly, which costs far less than copying the boards
of the JAX twin into every node (docs/mapping.md has both measured).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from recurra.mapping.game import Action, Game
from recurra.mapping.learn.network import ACTIONS, Weights, dynamics, number, predict, represent
from recurra.mapping.learn.network_inputs import (
    NUMBERS,
    AnyArray,
    GameView,
    ProgramFeatures,
    legal,
    view,
)
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.native import NativeGame
from recurra.mapping.observation import GRID
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.support.optional_packages import needed_by

NEVER = -1e9  # the logit of what is not legal
LOST = -1.0  # what an action that is not legal costs: all there is to gain
LEAST_HEAT = 1e-4


class PlannedActions(NamedTuple):
    """The plans of B states: an action [B], the policy to learn [B, 3], the state's worth [B]."""

    action: AnyArray
    policy: AnyArray
    value: AnyArray


Planner = Callable[..., PlannedActions]
"""(weights, program_features, states, random key, temperature: one, or [B, 1], number of a forest)"""

Node = tuple[Array, Array, Array]
"""Of each game, with true dynamics: the path from the root, its length, is it over"""
Given = tuple[Weights, ProgramFeatures, Array | int]
Step = Callable[[Given, Array, Array, Any], tuple[object, object]]
PathResults = tuple[np.ndarray, np.ndarray, GameView]


def mctx_module() -> ModuleType:
    """`mctx`; raises `RecurraError` where it is not installed."""
    with needed_by("an agent that plans"):
        import mctx
    return mctx


@cache
def planner(settings: AgentSettings) -> Planner:
    """The planner of the settings; compiled once if actors and old states are as many."""
    if settings.planning == "none":
        return jax.jit(partial(_plan_by_policy, settings))
    mctx = mctx_module()
    step = _played if settings.planning == "true" else _imagined
    return jax.jit(partial(_searched, mctx, settings, partial(step, mctx, settings)))


def _plan_by_policy(
    settings: AgentSettings,
    weights: Weights,
    near: ProgramFeatures,
    seen: GameView,
    key: Array,
    heat: Array,
    _: int = 0,
) -> PlannedActions:
    """Plan by the policy alone."""
    found = predict(weights, represent(settings, weights, near, seen))
    logits = jnp.where(legal(seen), found.policy, NEVER)
    action = jax.random.categorical(key, logits / jnp.maximum(heat, LEAST_HEAT))
    return PlannedActions(action, jax.nn.one_hot(action, ACTIONS), number(found.value))


def _searched(
    mctx: ModuleType, settings: AgentSettings, step: Step, weights: Weights, near: ProgramFeatures,
    seen: GameView, key: Array, heat: Array, forest: Array | int = 0,
) -> PlannedActions:  # fmt: skip
    h = represent(settings, weights, near, seen)
    found, possible = predict(weights, h), legal(seen)
    place = h
    if settings.planning == "true":
        batch = len(seen.index)
        path = jnp.full((batch, settings.simulations), -1, jnp.int8)
        place = (path, jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool))
    logits = jnp.where(possible, found.policy, NEVER)
    root = mctx.RootFnOutput(prior_logits=logits, value=number(found.value), embedding=place)
    given = ((weights, near, forest), key, root, step, settings.simulations, ~possible)
    if settings.search == "classic":
        noise = dict(
            dirichlet_fraction=settings.noise_fraction, dirichlet_alpha=settings.noise_alpha
        )
        out = mctx.muzero_policy(*given, temperature=heat, **noise)
    else:
        values = partial(mctx.qtransform_completed_by_mix_value, value_scale=settings.trust)
        out = mctx.gumbel_muzero_policy(
            *given, qtransform=values, gumbel_scale=heat, max_num_considered_actions=ACTIONS
        )
    return PlannedActions(out.action, out.action_weights, out.search_tree.summary().value)


def _imagined(
    mctx: ModuleType,
    settings: AgentSettings,
    given: Given,
    key: Array,
    action: Array,
    hidden: Array,
) -> tuple[object, Array]:
    """One step of the learned dynamics."""
    weights, _, _ = given
    hidden, reward = dynamics(weights, hidden, action)
    found = predict(weights, hidden)
    return mctx.RecurrentFnOutput(
        reward=number(reward),
        discount=jnp.full(action.shape, settings.discount),
        prior_logits=found.policy,
        value=number(found.value),
    ), hidden


def _played(
    mctx: ModuleType, settings: AgentSettings, given: Given, _: Array, action: Array, at: Node
) -> tuple[object, Node]:
    """One step of the game itself."""
    weights, near, forest = given
    path, length, over = at
    lanes = jnp.arange(len(action))
    path = path.at[lanes, length].set(action.astype(jnp.int8))
    shapes = _shapes(len(action), settings)
    reward, ends, seen = jax.pure_callback(_follow, shapes, forest, path, length + 1)
    found = predict(weights, represent(settings, weights, near, seen))
    alive = ~(over | ends)
    logits = jnp.where(legal(seen), found.policy, NEVER)
    return mctx.RecurrentFnOutput(
        reward=jnp.where(over, 0.0, reward),
        discount=jnp.where(alive, settings.discount, 0.0),
        prior_logits=jnp.where(alive[:, None], logits, 0.0),
        value=jnp.where(alive, number(found.value), 0.0),
    ), (path, length + 1, ~alive)


class Forest:
    """Games whose current states are the roots of searches; each search leaves them there.

    In a search a state without a legal action is the end, and costs what Drop-backup would take
    back.
    """

    def __init__(
        self, flat: FlatProblem, cells: int, reference: Ints, games: Sequence[Game | NativeGame]
    ) -> None:
        self.flat, self.cells, self.reference, self.games = flat, cells, reference, games
        self.number = next(_NUMBERS)
        _FORESTS[self.number] = self

    def follow(self, paths: AnyArray, lengths: AnyArray) -> PathResults:
        """Walk from each root along its path: the last reward, if it ended, and the view."""
        paths, lengths = np.asarray(paths), np.asarray(lengths)
        assert len(paths) == len(self.games), "a path per game"
        roots = [g.index for g in self.games]
        walked = [
            self._walk(g, path[:n].tolist())
            for g, path, n in zip(self.games, paths, lengths, strict=True)
        ]
        seen = view(self.games, [g.index for g in self.games], self.cells)
        for g, root in zip(self.games, roots, strict=True):
            g.rewind(root)
        rewards, ends = zip(*walked, strict=True)
        return np.array(rewards, np.float32), np.array(ends), seen

    def _walk(self, game: Game | NativeGame, path: list[int]) -> tuple[float, bool]:
        total = max(1, self.flat.problem.total)
        for k, action in enumerate(path):
            if game.move(Action(action)) is None:
                return LOST, True
            before, index = game.reward, game.index
            game.step(Action(action))
            choices = game.advance(backed=False)
            if k == len(path) - 1 or not choices:
                lost = not game.done and not choices
                gained = game.reward - before - (game.price() if lost else 0)
                expected = self.reference[game.index] - self.reference[index]
                return float(gained - expected) / total, not choices
        raise AssertionError("a path has an action")


# A compiled search knows its forest by number: one that knew the object were compiled for each.
_NUMBERS = count()
_FORESTS: WeakValueDictionary[int, Forest] = WeakValueDictionary()


def _follow(forest: AnyArray | int, paths: AnyArray, lengths: AnyArray) -> PathResults:
    return _FORESTS[int(forest)].follow(paths, lengths)


def _shapes(batch: int, settings: AgentSettings) -> tuple[object, ...]:
    """The shapes of what `Forest.follow` gives."""

    def of(kind: DTypeLike, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), kind)

    grid, profile = of(np.uint8, GRID * GRID // 8), of(np.uint8, settings.cells // 8)
    seen = GameView._make((of(np.int32), grid, profile, of(np.float32, NUMBERS)))
    return of(np.float32), of(np.bool_), seen
