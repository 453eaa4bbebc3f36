"""Games that an agent plays, several at once, decision by decision, as segments to learn from.

Forced moves are played automatically, and Drop-backup happens between two decisions: its price is
in the reward. Rewards are relative to those of a reference game at the same buffer, a potential (Ng
et al., 1999): the best game stays the same, and the values to learn are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from recurra.mapping.engine_choice import Engine
from recurra.mapping.game import PREFERENCES, Action, Game
from recurra.mapping.learn.network_inputs import GameView, view_games
from recurra.mapping.learn.planning import PlannedActions
from recurra.mapping.learn.replay import ReplaySegment, returns
from recurra.mapping.native import NativeGame
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.nest.agents.actors import State
from recurra.storage.mapping_problem import Solution

PATIENCE = 4  # a game is restarted after this number of moves per buffer


@dataclass(frozen=True)
class FinishedGame:
    """A game that is over."""

    reward: int  # picoseconds
    moves: int  # the number of decisions
    actions: tuple[int, ...]  # the decisions
    solution: Solution


Decide = Callable[[GameView], PlannedActions]


def reference(flat: FlatProblem, engine: Engine) -> Ints:
    """Return [N + 1]: the picoseconds gained before each buffer in the game that prefers NoCopy."""
    game = engine.game(flat)
    game.play(np.ones(len(flat.size), np.uint8))
    rewards = np.zeros(len(flat.size) + 1, np.int64)
    while True:
        rewards[game.index] = game.reward
        if not game.index:
            return rewards
        game.undo()


class Lanes:
    """Games that are played side by side; each lane begins a new game when one is over.

    `again`: the share of new games that begin somewhere in the best game so far. Those of the first
    lane always begin at the start.
    """

    def __init__(
        self,
        flat: FlatProblem,
        engine: Engine,
        expected: Ints,
        count: int,
        cells: int,
        again: float = 0.0,
    ) -> None:
        self.flat, self.cells, self.expected, self.again = flat, cells, expected, again
        self.best: tuple[int, tuple[int, ...]] = (-1, ())  # reward and decisions of a whole game
        self.games = [engine.game(flat) for _ in range(count)]
        self.actions: list[list[int]] = [[] for _ in range(count)]
        for g in self.games:
            g.advance()
        self.views = self._view()
        self.playable = not self.games[0].done  # there is a decision

    def _view(self) -> GameView:
        return view_games(self.games, [len(x) for x in self.actions], self.cells)

    def play(
        self, decide: Decide, count: int, random: np.random.Generator | None = None
    ) -> tuple[ReplaySegment, list[FinishedGame]]:
        """Play so many decisions of each game; return them, and the games that ended.

        `random` draws where new games begin.
        """
        segment, ended = self.play_while(lambda: True, decide, count, random)
        assert segment is not None, "it always runs to the end"
        return segment, ended

    def play_while(
        self,
        running: Callable[[], bool],
        decide: Decide,
        count: int,
        random: np.random.Generator | None = None,
    ) -> tuple[ReplaySegment | None, list[FinishedGame]]:
        """Do the same, but return None for the decisions if `running` is false before one."""
        rows: list[tuple[GameView, PlannedActions, tuple[float, ...], tuple[float, ...]]] = []
        ended: list[FinishedGame] = []
        for _ in range(count):
            if not running():
                return None, ended
            plan = PlannedActions(*(np.asarray(x) for x in decide(self.views)))
            before = self.views
            steps = [self._step(k, int(a), ended, random) for k, a in enumerate(plan.action)]
            rewards, discounts = zip(*steps, strict=True)
            self.views = self._view()
            rows.append((before, plan, rewards, discounts))
        last = PlannedActions(*(np.asarray(x) for x in decide(self.views)))
        views = [row[0] for row in rows] + [self.views]
        values = [row[1].value for row in rows] + [last.value]
        return ReplaySegment(
            views=GameView(*(np.stack(x, 1) for x in zip(*views, strict=True))),
            action=np.stack([row[1].action for row in rows], 1).astype(np.int32),
            reward=np.array([row[2] for row in rows], np.float32).T,
            discount=np.array([row[3] for row in rows], np.float32).T,
            policy=np.stack([row[1].policy for row in rows], 1),
            value=np.stack(values, 1).astype(np.float32),
        ), ended

    def _step(
        self, lane: int, action: int, ended: list[FinishedGame], random: np.random.Generator | None
    ) -> tuple[float, float]:
        """Play an action; return reward and discount. A finished game is noted, and replaced."""
        g, actions = self.games[lane], self.actions[lane]
        actions.append(action)
        reward = play_action(g, action, self.expected)
        endless = len(actions) > PATIENCE * len(self.flat.size)
        if not (g.done or endless):
            return reward, 1.0
        if g.done:
            ended.append(FinishedGame(g.reward, len(actions), tuple(actions), g.solution()))
            self.best = max(self.best, (g.reward, tuple(actions)), key=lambda x: x[0])
        self._begin(lane, self._opening(lane, random))
        return reward, 0.0

    def _opening(self, lane: int, random: np.random.Generator | None) -> Sequence[int]:
        """The first decisions of a lane's next game."""
        best = self.best[1]
        if random is None or not lane or not best or random.random() >= self.again:
            return ()
        return best[: int(random.integers(len(best)))]

    def _begin(self, lane: int, decisions: Sequence[int]) -> None:
        """Begin a new game with these decisions."""
        g = self.games[lane]
        g.reset()
        g.advance()
        for action in decisions:
            play_action(g, action, self.expected)
        self.actions[lane] = list(decisions)

    def state(self) -> dict[str, object]:
        """The decisions of each running game and of the best one, for a checkpoint."""
        lanes = {str(k): np.array(x, np.int8) for k, x in enumerate(self.actions)}
        return {**lanes, "best": np.array(self.best[1], np.int8), "reward": self.best[0]}

    def restore(self, state: State) -> None:
        self.best = (int(state["reward"]), tuple(state["best"].tolist()))
        for k in range(len(self.games)):
            self._begin(k, state[str(k)].tolist())
        self.views = self._view()


def play_action(game: Game | NativeGame, action: int, expected: Ints) -> float:
    """Play an action and the forced moves after it; return the reward relative to the reference."""
    before, index = game.reward, game.index
    game.step(Action(action))
    game.advance()
    gained = game.reward - before - int(expected[game.index] - expected[index])
    return float(gained) / max(1, game.flat.problem.total)


def preferences_of(answer: Solution) -> Ints:
    """Return the preferences [N] that play toward a mapping: Copy, NoCopy or Drop as there."""
    kinds = [2 if p is None else 0 if p.copied else 1 for p in answer.placements]
    return np.array(kinds, np.int64)


def play_preferences(flat: FlatProblem, engine: Engine, preferences: Ints) -> FinishedGame:
    """Play the game of these preferences."""
    game, actions = engine.game(flat), list[int]()
    while game.advance():
        order = PREFERENCES[int(preferences[game.index])]
        action = next(a for a in order if game.move(a) is not None)
        actions.append(int(action))
        game.step(action)
    return FinishedGame(game.reward, len(actions), tuple(actions), game.solution())


def replay_segment(
    flat: FlatProblem,
    engine: Engine,
    expected: Ints,
    games: Sequence[FinishedGame],
    segment: int,
    cells: int,
) -> ReplaySegment:
    """Cut games into segments; their actions are the policies, and repeat to fill the last."""
    decisions = [a for g in games for a in g.actions]
    length = len(decisions)
    count = -(-length // segment) * segment
    plans = iter([*np.resize(decisions, count), 0])

    def decide(view: GameView) -> PlannedActions:
        a = [next(plans)]
        return PlannedActions(np.array(a), np.eye(len(Action), dtype=np.float32)[a], np.zeros(1))

    whole, _ = Lanes(flat, engine, expected, 1, cells).play(decide, count)
    reward, discount = whole.reward[0], whole.discount[0]
    after = returns(reward[:length], discount[:length], 0.0)[count % length]
    value = returns(reward, discount, float(after))
    at = np.arange(0, count, segment)[:, None] + np.arange(segment + 1)
    before = at[:, :-1]
    return ReplaySegment(
        views=GameView(*(x[0][at] for x in whole.views)),
        action=whole.action[0][before],
        reward=reward[before],
        discount=discount[before],
        policy=whole.policy[0][before],
        value=value[at],
    )
