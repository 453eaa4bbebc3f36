"""Games that an agent plays, several at once, decision by decision, as pieces to learn from.

What leaves no choice is played by itself, and Drop-backup happens between two decisions: its price
is in the reward. Rewards are beside those of a reference game at the same buffer, a potential (Ng
et al., 1999): which game is best stays the same, and what is to be learned is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.engine_choice import Engine
from recurra.mapping.game import PREFERENCES, Action, Game
from recurra.mapping.learn.network_inputs import GameView, view
from recurra.mapping.learn.planning import PlannedActions
from recurra.mapping.learn.replay import ReplaySegment
from recurra.mapping.native import NativeGame
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.nest.agents.actors import State
from recurra.storage.mapping_problem import Solution

PATIENCE = 4  # a game of more moves than so many times the buffers is begun anew


@dataclass(frozen=True)
class FinishedGame:
    """A game that is over."""

    reward: int  # picoseconds
    moves: int  # that left a choice
    actions: tuple[int, ...]  # of those
    solution: Solution


Decide = Callable[[GameView], PlannedActions]


def reference(flat: FlatProblem, engine: Engine) -> Ints:
    """[N + 1] picoseconds gained before each buffer by the game that stays where it can."""
    game = engine.game(flat)
    game.play(np.ones(len(flat.size), np.uint8))
    found = np.zeros(len(flat.size) + 1, np.int64)
    while True:
        found[game.index] = game.reward
        if not game.index:
            return found
        game.undo()


class Lanes:
    """Games side by side; a lane's next game follows on the one that is over.

    `again`: the part of these that begins somewhere in the best game so far. The first lane's games
    always begin at the start.
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
        self.seen = self._view()
        self.playable = not self.games[0].done  # somewhere there is a choice

    def _view(self) -> GameView:
        return view(self.games, [len(x) for x in self.actions], self.cells)

    def play(
        self, decide: Decide, count: int, random: np.random.Generator | None = None
    ) -> tuple[ReplaySegment, list[FinishedGame]]:
        """Play so many decisions of each game; return them, and the games that ended.

        `random` decides where games begin.
        """
        played, ended = self.play_while(lambda: True, decide, count, random)
        assert played is not None, "nothing has ended it"
        return played, ended

    def play_while(
        self,
        running: Callable[[], bool],
        decide: Decide,
        count: int,
        random: np.random.Generator | None = None,
    ) -> tuple[ReplaySegment | None, list[FinishedGame]]:
        """The same, but None in place of decisions if it is not running before each of them."""
        rows: list[tuple[GameView, PlannedActions, tuple[float, ...], tuple[float, ...]]] = []
        ended: list[FinishedGame] = []
        for _ in range(count):
            if not running():
                return None, ended
            plan = PlannedActions(*(np.asarray(x) for x in decide(self.seen)))
            before = self.seen
            steps = [self._step(k, int(a), ended, random) for k, a in enumerate(plan.action)]
            rewards, discounts = zip(*steps, strict=True)
            self.seen = self._view()
            rows.append((before, plan, rewards, discounts))
        last = PlannedActions(*(np.asarray(x) for x in decide(self.seen)))
        views = [row[0] for row in rows] + [self.seen]
        values = [row[1].value for row in rows] + [last.value]
        return ReplaySegment(
            seen=GameView(*(np.stack(x, 1) for x in zip(*views, strict=True))),
            action=np.stack([row[1].action for row in rows], 1).astype(np.int32),
            reward=np.array([row[2] for row in rows], np.float32).T,
            discount=np.array([row[3] for row in rows], np.float32).T,
            policy=np.stack([row[1].policy for row in rows], 1),
            value=np.stack(values, 1).astype(np.float32),
        ), ended

    def _step(
        self, lane: int, action: int, ended: list[FinishedGame], random: np.random.Generator | None
    ) -> tuple[float, float]:
        """Reward and discount; a game that is over is told, and begun anew."""
        g, done = self.games[lane], self.actions[lane]
        done.append(action)
        reward = play_action(g, action, self.expected)
        endless = len(done) > PATIENCE * len(self.flat.size)
        if not (g.done or endless):
            return reward, 1.0
        if g.done:
            ended.append(FinishedGame(g.reward, len(done), tuple(done), g.solution()))
            self.best = max(self.best, (g.reward, tuple(done)), key=lambda x: x[0])
        self._begin(lane, self._opening(lane, random))
        return reward, 0.0

    def _opening(self, lane: int, random: np.random.Generator | None) -> Sequence[int]:
        """The decisions that a lane's next game begins with."""
        best = self.best[1]
        if random is None or not lane or not best or random.random() >= self.again:
            return ()
        return best[: int(random.integers(len(best)))]

    def _begin(self, lane: int, decisions: Sequence[int]) -> None:
        """A new game, in which this was decided."""
        g = self.games[lane]
        g.reset()
        g.advance()
        for action in decisions:
            play_action(g, action, self.expected)
        self.actions[lane] = list(decisions)

    def state(self) -> dict[str, object]:
        """The decisions of each game that is not over, and of the best one."""
        lanes = {str(k): np.array(x, np.int8) for k, x in enumerate(self.actions)}
        return {**lanes, "best": np.array(self.best[1], np.int8), "reward": self.best[0]}

    def restore(self, state: State) -> None:
        self.best = (int(state["reward"]), tuple(state["best"].tolist()))
        for k in range(len(self.games)):
            self._begin(k, state[str(k)].tolist())
        self.seen = self._view()


def play_action(game: Game | NativeGame, action: int, expected: Ints) -> float:
    """Plays an action and what it leaves no choice about; the reward, of all there is to gain."""
    before, index = game.reward, game.index
    game.step(Action(action))
    game.advance()
    gained = game.reward - before - int(expected[game.index] - expected[index])
    return float(gained) / max(1, game.flat.problem.total)


def preferences_of(answer: Solution) -> Ints:
    """[N] preferences that play toward a mapping: copied, kept or dropped as there."""
    kinds = [2 if p is None else 0 if p.copied else 1 for p in answer.placements]
    return np.array(kinds, np.int64)


def play_preferences(flat: FlatProblem, engine: Engine, preferences: Ints) -> FinishedGame:
    """The game that preferences play."""
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
    """Games as pieces, from the first on again to fill the last; policies are their actions."""
    decisions = [a for g in games for a in g.actions]
    length = len(decisions)
    count = -(-length // segment) * segment
    played = np.resize(decisions, count)
    plans = iter([*played, 0])

    def decide(view: GameView) -> PlannedActions:
        a = [next(plans)]
        return PlannedActions(np.array(a), np.eye(len(Action), dtype=np.float32)[a], np.zeros(1))

    whole, _ = Lanes(flat, engine, expected, 1, cells).play(decide, count)
    worth = _worth(whole, 0.0, length)[count % length]  # the state behind the last piece
    value = _worth(whole, float(worth), count)
    at = np.arange(0, count, segment)[:, None] + np.arange(segment + 1)
    before = at[:, :-1]
    return ReplaySegment(
        seen=GameView(*(x[0][at] for x in whole.seen)),
        action=whole.action[0][before],
        reward=whole.reward[0][before],
        discount=whole.discount[0][before],
        policy=whole.policy[0][before],
        value=value[at],
    )


def _worth(whole: ReplaySegment, last: float, count: int) -> NDArray[np.float32]:
    """[count + 1] what was still to come in the states of demonstrated games."""
    worth = np.zeros(count + 1, np.float32)
    worth[count] = last
    for k in reversed(range(count)):
        worth[k] = whole.reward[0, k] + whole.discount[0, k] * worth[k + 1]
    return worth
