"""Planning: a search by `mctx` with learned or true dynamics, or no search.

With true dynamics a node is the path of actions from the root. The native engine plays the path and
undoes it, which costs far less than copying the boards of the JAX twin into every node
(docs/mapping.md has measurements of both).
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
from recurra.mapping.learn.network import (
    ACTIONS,
    Weights,
    dynamics,
    expected_value,
    predict,
    represent,
)
from recurra.mapping.learn.network_inputs import (
    NUMBERS,
    AnyArray,
    GameView,
    ProgramFeatures,
    legal,
    view_games,
)
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.native import NativeGame
from recurra.mapping.observation import GRID
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.support.optional_packages import needed_by

NEVER = -1e9  # the logit of an illegal action
LOST = -1.0  # the reward of an illegal action: all there is to gain is lost
LEAST_TEMPERATURE = 1e-4


class PlannedActions(NamedTuple):
    """The plans of B states: actions [B], policies to learn [B, 3] and values [B]."""

    action: AnyArray
    policy: AnyArray
    value: AnyArray


Planner = Callable[..., PlannedActions]
"""(weights, program features, views, random key, temperature: one or [B, 1], number of a forest)"""

Node = tuple[Array, Array, Array]
"""For each game, with true dynamics: the path from the root, its length, whether it is over"""
Context = tuple[Weights, ProgramFeatures, Array | int]
Step = Callable[[Context, Array, Array, Any], tuple[object, object]]
PathResults = tuple[np.ndarray, np.ndarray, GameView]


def mctx_module() -> ModuleType:
    """Import `mctx`; raises `RecurraError` if it is not installed."""
    with needed_by("an agent that plans"):
        import mctx
    return mctx


@cache
def planner(settings: AgentSettings) -> Planner:
    """Return the planner of the settings; it is compiled once for each batch size."""
    if settings.planning == "none":
        return jax.jit(partial(_plan_by_policy, settings))
    mctx = mctx_module()
    step = _true_step if settings.planning == "true" else _learned_step
    return jax.jit(partial(_plan_by_search, mctx, settings, partial(step, mctx, settings)))


def _plan_by_policy(
    settings: AgentSettings,
    weights: Weights,
    program: ProgramFeatures,
    views: GameView,
    key: Array,
    temperature: Array,
    _: int = 0,
) -> PlannedActions:
    """Plan by the policy alone."""
    out = predict(weights, represent(settings, weights, program, views))
    logits = jnp.where(legal(views), out.policy, NEVER)
    action = jax.random.categorical(key, logits / jnp.maximum(temperature, LEAST_TEMPERATURE))
    return PlannedActions(action, jax.nn.one_hot(action, ACTIONS), expected_value(out.value))


def _plan_by_search(
    mctx: ModuleType, settings: AgentSettings, step: Step,
    weights: Weights, program: ProgramFeatures, views: GameView, key: Array, temperature: Array,
    forest: Array | int = 0,
) -> PlannedActions:  # fmt: skip
    h = represent(settings, weights, program, views)
    out, possible = predict(weights, h), legal(views)
    node = h
    if settings.planning == "true":
        batch = len(views.index)
        path = jnp.full((batch, settings.simulations), -1, jnp.int8)
        node = (path, jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool))
    logits = jnp.where(possible, out.policy, NEVER)
    root = mctx.RootFnOutput(prior_logits=logits, value=expected_value(out.value), embedding=node)
    search = ((weights, program, forest), key, root, step, settings.simulations, ~possible)
    if settings.search == "classic":
        plan = mctx.muzero_policy(
            *search,
            temperature=temperature,
            dirichlet_fraction=settings.noise_fraction,
            dirichlet_alpha=settings.noise_alpha,
        )
    else:
        values = partial(mctx.qtransform_completed_by_mix_value, value_scale=settings.trust)
        plan = mctx.gumbel_muzero_policy(
            *search, qtransform=values, gumbel_scale=temperature, max_num_considered_actions=ACTIONS
        )
    return PlannedActions(plan.action, plan.action_weights, plan.search_tree.summary().value)


def _learned_step(
    mctx: ModuleType,
    settings: AgentSettings,
    context: Context,
    key: Array,
    action: Array,
    hidden: Array,
) -> tuple[object, Array]:
    """Take one step with the learned dynamics."""
    weights, _, _ = context
    hidden, reward = dynamics(weights, hidden, action)
    out = predict(weights, hidden)
    return mctx.RecurrentFnOutput(
        reward=expected_value(reward),
        discount=jnp.full(action.shape, settings.discount),
        prior_logits=out.policy,
        value=expected_value(out.value),
    ), hidden


def _true_step(
    mctx: ModuleType, settings: AgentSettings, context: Context, _: Array, action: Array, at: Node
) -> tuple[object, Node]:
    """Take one step in the game itself."""
    weights, program, forest = context
    path, length, over = at
    lanes = jnp.arange(len(action))
    path = path.at[lanes, length].set(action.astype(jnp.int8))
    shapes = _shapes(len(action), settings)
    reward, ends, views = jax.pure_callback(_follow, shapes, forest, path, length + 1)
    out = predict(weights, represent(settings, weights, program, views))
    alive = ~(over | ends)
    logits = jnp.where(legal(views), out.policy, NEVER)
    return mctx.RecurrentFnOutput(
        reward=jnp.where(over, 0.0, reward),
        discount=jnp.where(alive, settings.discount, 0.0),
        prior_logits=jnp.where(alive[:, None], logits, 0.0),
        value=jnp.where(alive, expected_value(out.value), 0.0),
    ), (path, length + 1, ~alive)


class Forest:
    """Games whose current states are the roots of searches, which leave them unchanged.

    In a search, a state without a legal action is the end, and costs the reward that Drop-backup
    would take back.
    """

    def __init__(
        self, flat: FlatProblem, cells: int, reference: Ints, games: Sequence[Game | NativeGame]
    ) -> None:
        self.flat, self.cells, self.reference, self.games = flat, cells, reference, games
        self.number = next(_NUMBERS)
        _FORESTS[self.number] = self

    def follow(self, paths: AnyArray, lengths: AnyArray) -> PathResults:
        """Play the path from each root; return the last reward, whether it ended, and the view."""
        paths, lengths = np.asarray(paths), np.asarray(lengths)
        assert len(paths) == len(self.games), "a path per game"
        roots = [g.index for g in self.games]
        walked = [
            self._walk(g, path[:n].tolist())
            for g, path, n in zip(self.games, paths, lengths, strict=True)
        ]
        views = view_games(self.games, [g.index for g in self.games], self.cells)
        for g, root in zip(self.games, roots, strict=True):
            g.rewind(root)
        rewards, ends = zip(*walked, strict=True)
        return np.array(rewards, np.float32), np.array(ends), views

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


# A compiled search refers to a forest by number, so that it is not compiled for each forest.
_NUMBERS = count()
_FORESTS: WeakValueDictionary[int, Forest] = WeakValueDictionary()


def _follow(forest: AnyArray | int, paths: AnyArray, lengths: AnyArray) -> PathResults:
    return _FORESTS[int(forest)].follow(paths, lengths)


def _shapes(batch: int, settings: AgentSettings) -> tuple[object, ...]:
    """Return the shapes of the results of `Forest.follow`."""

    def of(kind: DTypeLike, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), kind)

    grid, profile = of(np.uint8, GRID * GRID // 8), of(np.uint8, settings.cells // 8)
    views = GameView._make((of(np.int32), grid, profile, of(np.float32, NUMBERS)))
    return of(np.float32), of(np.bool_), views
