"""Agents: what they read, play, keep and plan is right; they learn, and go on from checkpoints."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_mappings import random_problem
from recurra.errors import RecurraError
from recurra.mapping import engine_choice
from recurra.mapping.game import Action, Game
from recurra.mapping.learn import network, network_inputs
from recurra.mapping.learn.acting import (
    Lanes,
    play_preferences,
    preferences_of,
    reference,
    replay_segment,
)
from recurra.mapping.learn.actors import ActorPool, ActorRequest
from recurra.mapping.learn.command import MapTrainCommand
from recurra.mapping.learn.demonstrations import demonstrations
from recurra.mapping.learn.learner import GameLearner
from recurra.mapping.learn.network_inputs import GameView, legal, program_features, view_games
from recurra.mapping.learn.planning import Forest, PlannedActions, mctx_module, planner
from recurra.mapping.learn.replay import Replay, returns, rows_of, segments_of
from recurra.mapping.learn.search_by_learning import play_and_learn
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.search import Search, solver
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.nest.agents.learning import save_checkpoint
from recurra.storage.mapping_problem import Buffer, Instruction, Problem
from small_agents import TINY, playable

PYTHON = engine_choice.engine("python")


def at_random(random: np.random.Generator) -> Any:
    """Decides by dice."""

    def decide(seen: GameView) -> PlannedActions:
        chances = random.random((len(seen.index), 3)) * legal(seen)
        action = chances.argmax(1)
        return PlannedActions(
            action, np.eye(3, dtype=np.float32)[action], random.random(len(action))
        )

    return decide


@pytest.mark.slow
def test_numbers_become_distributions_and_back() -> None:
    x = jnp.array([-1.0, -0.25, -1e-4, 0.0, 1e-6, 0.3, 1.0, 7.0])
    found = network.two_hot(x, 41)
    assert np.allclose(found.sum(-1), 1)
    assert ((found > 0).sum(-1) <= 2).all()
    again = network.expected_value(jnp.log(found + 1e-30))
    assert np.allclose(again, jnp.clip(x, -1, 1), atol=1e-5)
    assert network.two_hot(jnp.array(0.25), 5).tolist() == [0, 0, 0, 1, 0]  # √0.25 = 0.5


@pytest.mark.parametrize(
    ("side", "size", "stride"), [(16, 8, 8), (12, 3, 1), (12, 3, 2), (9, 4, 4)]
)
def test_a_convolution_is_a_sum_over_windows(side: int, size: int, stride: int) -> None:
    random = np.random.default_rng(0)
    w = {"k_w": random.standard_normal((size, size, 2, 5)), "k_b": random.standard_normal(5)}
    x = random.standard_normal((3, side, side, 2))
    out = -(-side // stride)
    missing = max(0, (out - 1) * stride + size - side)
    padded = np.pad(x, ((0, 0), *[(missing // 2, missing - missing // 2)] * 2, (0, 0)))
    found = network.convolved(w, "k", jnp.asarray(x), stride)
    assert found.shape == (3, out, out, 5)
    for i, j in np.ndindex(out, out):
        window = padded[:, i * stride : i * stride + size, j * stride : j * stride + size]
        wanted = np.tensordot(window, w["k_w"], 3) + w["k_b"]
        assert np.allclose(found[:, i, j], wanted, atol=1e-4)


def test_checkpoints_whose_moments_are_apart_are_refused(tmp_path: Path) -> None:
    learner, path = GameLearner(flat(playable(0)), PYTHON, TINY, 0), tmp_path / "old.npz"
    save_checkpoint(path, {**learner.about, "learner": "mapping"}, 0, learner.state())
    with pytest.raises(RecurraError, match="is of mapping\n  it has mapping; this is mapping, A"):
        learner.load(path)
    learner.save(path)
    learner.load(path)


def test_buffers_in_view_are_those_that_come() -> None:
    for k in range(20):
        f = flat(random_problem(Random(k), 20))
        n, near = len(f.size), program_features(f)
        for i in range(n):
            same = [j for j in range(i + 1, n) if f.tensor[j] == f.tensor[i]][: network_inputs.SAME]
            wanted = [*(j if j < n else n for j in range(i, i + 1 + network_inputs.AHEAD)), *same]
            assert near.rows[i].tolist() == wanted + [n] * (near.rows.shape[1] - len(wanted))
        assert np.isfinite(near.table).all()
        assert not near.table[n].any()


def test_lanes_play_whole_games() -> None:
    for k in range(12):
        problem = playable(k)
        f = flat(problem)
        expected = reference(f, PYTHON)
        lanes = Lanes(f, PYTHON, expected, 3, 16)
        pieces, ended = lanes.play(at_random(np.random.default_rng(k)), 60)
        assert ended
        for game in ended:
            assert validate(problem, game.solution) == game.reward
        first = np.argmax(pieces.discount[0] == 0)  # the end of the first lane's first game
        assert pieces.discount[0, first] == 0
        told = float(pieces.reward[0, : first + 1].sum()) * problem.total
        start = int(pieces.views.index[0, 0])
        gained = told + float(expected[-1] - expected[start])
        game = Game(f)
        game.advance()
        begun = game.reward
        for action in pieces.action[0, : first + 1].tolist():
            game.step(Action(action))
            game.advance()
        assert game.done
        assert gained == pytest.approx(game.reward - begun, abs=1e-4 * problem.total)


def test_demonstrations_are_cut_into_pieces() -> None:
    for k in range(12):
        problem = playable(k)
        f = flat(problem)
        expected = reference(f, PYTHON)
        preferences = np.random.default_rng(k).integers(0, 4, len(f.size))
        played = play_preferences(f, PYTHON, preferences)
        game = Game(f)
        assert game.play(preferences) == played.reward
        pieces = replay_segment(f, PYTHON, expected, [played], 3, 16)
        count = -(-played.moves // 3) * 3
        assert pieces.action.ravel().tolist() == np.resize(played.actions, count).tolist()
        assert (pieces.views.index[1:, 0] == pieces.views.index[:-1, -1]).all()
        worth = float(pieces.value[0, 0]) * problem.total
        start = int(pieces.views.index[0, 0])
        game.rewind(0)
        game.advance()
        to_come = played.reward - game.reward - int(expected[-1] - expected[start])
        assert worth == pytest.approx(to_come, abs=1e-4 * problem.total)
        values = returns(pieces.reward, pieces.discount, pieces.value[:, -1])
        assert np.allclose(values, pieces.value, atol=1e-4)
        assert play_preferences(f, PYTHON, preferences_of(played.solution)).reward >= 0


def test_what_is_drawn_is_what_was_played() -> None:
    random = np.random.default_rng(0)
    f = flat(playable(3))
    lanes = Lanes(f, PYTHON, reference(f, PYTHON), 5, 16)
    pieces, _ = lanes.play(at_random(random), 7)
    replay = Replay(1000, 7)
    replay.add(pieces)
    batch = replay.draw(200, 4, 0.9, 0.5, random)
    unknown = 0
    for b in range(200):
        rows = [
            (lane, k)
            for lane in range(5)
            for k in range(7)
            if np.array_equal(pieces.views.numbers[lane, k], batch.views.numbers[b])
            and pieces.action[lane, k] == batch.action[b, 0]
        ]
        lane, k = rows[0]
        if len(rows) > 1:  # games begin alike
            continue
        unknown += 1
        alive = 1.0
        for u in range(5):
            assert batch.alive[b, u] == alive
            if alive and k + u <= 7:
                worth, weight = 0.0, 1.0
                for j in range(k + u, 7):
                    worth += weight * pieces.reward[lane, j]
                    weight *= 0.9 * pieces.discount[lane, j]
                worth += weight * pieces.value[lane, 7]
                assert batch.value[b, u] == pytest.approx(worth, abs=1e-5)
                assert batch.weight[b, u] == (k + u < 7)
            if alive and k + u < 7:
                assert np.array_equal(batch.policy[b, u], pieces.policy[lane, k + u])
            alive *= k + u < 7 and pieces.discount[lane, k + u] > 0
    assert unknown > 50


def test_old_pieces_go() -> None:
    f = flat(playable(1))
    lanes, replay = Lanes(f, PYTHON, reference(f, PYTHON), 2, 16), Replay(8, 4)
    every: list[Any] = []
    for k in range(30):
        last, _ = lanes.play(at_random(np.random.default_rng(k)), 4)
        every.append(last)
        most = 3 if k < 20 else 8
        replay.add_demonstrations(last, most)
        if k == 25:
            again = Replay(8, 4)
            again.restore(replay.state())
            replay = again
        buffer = replay.demonstrations
        assert len(buffer) == min(2 * k + 2, 3 + 2 * max(0, k - 19), most)
        order = (buffer.next - len(buffer) + np.arange(len(buffer))) % buffer.size
        found = segments_of({name: x[order] for name, x in buffer.rows.items()})
        kept = [x for pieces in every for x in pieces.views.numbers][-len(buffer) :]
        assert np.array_equal(found.views.numbers, np.stack(kept))
        assert np.array_equal(found.action[-2:], last.action)
    assert rows_of(found).keys() == buffer.rows.keys()


def test_games_begin_somewhere_in_the_best_one() -> None:
    begun = 0
    for k in range(12):
        problem = playable(k)
        f, random = flat(problem), np.random.default_rng(k)
        lanes = Lanes(f, PYTHON, reference(f, PYTHON), 3, 16, again=1.0)
        for _ in range(60):
            before = [list(x) for x in lanes.actions]
            most, best = lanes.best
            _, ended = lanes.play(at_random(random), 1, random)
            for game in ended:
                assert validate(problem, game.solution) == game.reward <= lanes.best[0]
            for lane, (old, new) in enumerate(zip(before, lanes.actions, strict=True)):
                if new[:-1] != old:  # another game
                    begun += bool(new)
                    assert lane or not new
                    bests = [best, *(g.actions for g in ended if g.reward > most)]
                    assert tuple(new) in [x[: len(new)] for x in bests]
    assert begun > 20


def test_long_games_are_played_by_fewer_at_once() -> None:
    s = AgentSettings(buffers=100, lanes=16, updates=8)
    assert s.scaled_to(100) == s
    assert (s.scaled_to(400).lanes, s.scaled_to(400).updates) == (4, 2)
    assert (s.scaled_to(9000).lanes, s.scaled_to(9000).updates) == (2, 1)
    assert s.scaled_to(400).scaled_to(400) == s.scaled_to(400)


@pytest.mark.slow
def test_demonstrations_are_games_and_the_last_is_the_best() -> None:
    for k in range(6):
        problem = playable(k)
        search = Search(problem, 2.0, k, None, PYTHON)
        games = demonstrations(search, replace(TINY, demonstrate=0.2))
        rewards = [g.reward for g in games]
        assert rewards == sorted(rewards)
        assert [validate(problem, g.solution) for g in games] == rewards
        game = Game(flat(problem))
        assert rewards[-1] >= game.play([1] * len(problem.buffers))


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("search", ["gumbel", "classic"])
def test_planning_with_the_game_finds_what_is_best(search: Any) -> None:
    """The network knows nothing: it is the game that tells. At the root and behind it."""
    problem = playable(5)
    f, s = flat(problem), replace(TINY, planning="true", search=search, simulations=40, trust=1.0)
    games = [Game(f) for _ in range(3)]
    for game in games:
        game.advance()
    most = best_from(games[0], problem)
    forest = Forest(f, s.cells, np.zeros(len(f.size) + 1, np.int64), games)
    near = program_features(f)
    weights = network.initial(s, near, 0)
    plan = planner(s)
    moves = 0
    while not games[0].done:
        before = [(g.index, g.reward) for g in games]
        seen = view_games(games, [moves] * 3, s.cells)
        found = plan(weights, near, seen, jax.random.key(moves), 1e-3, forest.number)
        assert [(g.index, g.reward) for g in games] == before
        assert legal(seen)[np.arange(3), np.asarray(found.action)].all()
        assert np.allclose(np.asarray(found.policy).sum(-1), 1, atol=1e-4)
        action = Action(int(found.policy[0].argmax()))
        for game in games:
            game.step(action)
            game.advance()
        moves += 1
    assert games[0].reward >= 0.8 * most


def best_from(game: Game, problem: Problem, budget: int = 3000) -> int:
    """The largest reward of many games at random."""
    random, best = np.random.default_rng(0), 0
    for _ in range(budget // 10):
        other = Game(flat(problem))
        other.play_random(random.integers(0, 6, 97))
        best = max(best, other.reward)
    return best


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("planning", ["learned", "none"])
def test_planners_keep_to_the_rules(planning: Any) -> None:
    s = replace(TINY, planning=planning)
    f = flat(playable(4))
    lanes, near = Lanes(f, PYTHON, reference(f, PYTHON), s.lanes, s.cells), program_features(f)
    weights, plan = network.initial(s, near, 0), planner(s)
    for k in range(12):
        heat = np.linspace(0, 1, s.lanes, dtype=np.float32)[:, None]
        found = plan(weights, near, lanes.views, jax.random.key(k), heat)
        rows = np.arange(s.lanes)
        assert legal(lanes.views)[rows, np.asarray(found.action)].all()
        assert not np.asarray(found.policy)[~legal(lanes.views)].any()
        lanes.play(lambda _, found=found: found, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_learning_goes_on_from_a_checkpoint_to_the_last_bit(tmp_path: Path) -> None:
    f = flat(playable(4))
    for planning in ("learned", "true", "none"):
        s = replace(TINY, planning=planning)
        path = tmp_path / f"{planning}.npz"
        ours = GameLearner(f, PYTHON, s, 7)
        ours.add_demonstrations([play_preferences(f, PYTHON, np.ones(len(f.size), int))])
        told = [ours.round()]
        ours.save(path)
        theirs = GameLearner(f, PYTHON, s, 7)
        theirs.load(path)
        assert theirs.rounds == 1
        for _ in range(2):
            assert ours.round() == theirs.round()
        for a, b in zip(
            jax.tree.leaves(ours.state()), jax.tree.leaves(theirs.state()), strict=True
        ):
            if not isinstance(a, np.random.Generator):
                assert np.array_equal(a, b)
        assert ours.random.random() == theirs.random.random()
        assert told


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    f, path = flat(playable(4)), tmp_path / "checkpoint.npz"
    ours = GameLearner(f, PYTHON, TINY, 0)
    ours.round()
    ours.save(path)
    with pytest.raises(RecurraError, match="of other settings"):
        GameLearner(f, PYTHON, replace(TINY, unroll=2), 0).load(path)
    with pytest.raises(RecurraError, match="of other problem"):
        GameLearner(flat(playable(6)), PYTHON, TINY, 0).load(path)
    whole, random = path.read_bytes(), Random(0)
    flipped = bytearray(whole)
    flipped[random.randrange(len(whole))] ^= 1
    for content in (b"nothing", b"", whole[:-1], whole[: len(whole) // 2], flipped, whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(RecurraError, match="is no checkpoint"):
            GameLearner(f, PYTHON, TINY, 0).load(path)


@pytest.mark.slow
def test_what_is_shown_is_learned() -> None:
    f = flat(playable(4))
    played = play_preferences(f, PYTHON, np.random.default_rng(1).integers(0, 3, len(f.size)))
    learner = GameLearner(f, PYTHON, TINY, 0)
    learner.add_demonstrations([played])
    piece = segments_of(learner.replay.demonstrations.rows)
    states = GameView(*(x[:, :-1].reshape(-1, *x.shape[2:]) for x in piece.views))

    def right() -> float:
        h = network.represent(TINY, learner.weights, learner.program, states)
        logits = np.where(legal(states), network.predict(learner.weights, h).policy, -1e9)
        return float((logits.argmax(-1) == piece.action.ravel()).mean())

    before = right()
    learner.update(300)
    assert right() > max(0.9, before)


@pytest.mark.slow
def test_fresh_targets_leave_demonstrations_as_they_were() -> None:
    f = flat(playable(4))
    learner = GameLearner(f, PYTHON, TINY, 0)
    learner.add_demonstrations([play_preferences(f, PYTHON, np.ones(len(f.size), int))])
    rows = learner.replay.demonstrations.rows
    value, action = rows["value"].copy(), rows["action"]
    for _ in range(40):
        learner.reanalyse()
    assert np.array_equal(rows["value"], value)
    taken = np.take_along_axis(rows["policy"], action[..., None], -1)
    assert (taken >= 0.25 - 1e-6).all()
    assert (taken < 1).any()
    assert np.allclose(rows["policy"].sum(-1), 1, atol=1e-4)


@pytest.mark.slow
def test_an_actor_that_dies_is_replaced_and_the_best_is_kept() -> None:
    problem = playable(4)
    s = replace(TINY, pool="processes", actors=1, planning="none")
    said: list[str] = []
    pool = ActorPool(problem, None, s, 0, said.append)
    weights = network.initial(s, program_features(flat(problem)), 0)
    try:
        first = pool.answer(ActorRequest(weights, 1.0))
        assert first.segments.action.shape == (s.lanes, s.segment)
        assert first.seconds > 0
        os.kill(pool.crew.workers[0].worker.process.pid, signal.SIGKILL)
        pool.crew.workers[0].worker.process.wait()
        while not said:
            pool.answer(ActorRequest(weights, 1.0))
        assert said == ["actor 0 has died (signal 9): another process takes its place"]
    finally:
        pool.close()


def test_without_actors_the_best_so_far_is_the_answer(monkeypatch: Any, capsys: Any) -> None:
    problem = playable(4)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    s = replace(TINY, pool="processes", actors=1, demonstrate=0.0)

    @solver
    def solve(search: Search) -> None:
        play_and_learn(search, s)

    answer = solve(problem, 30.0, 0, None, PYTHON)
    game = Game(flat(problem))
    assert validate(problem, answer) == max(0, game.play([1] * len(problem.buffers)))
    told = capsys.readouterr().err
    assert "actor 0 has died (code 1), and so did those before it" in told
    assert "the best answer so far is given" in told


@pytest.mark.slow
@pytest.mark.parametrize("planning", ["learned", "true", "none"])
def test_agents_answer_with_their_own_games(planning: Any) -> None:
    problem = playable(4)
    s = replace(TINY, planning=planning)
    told: list[int] = []

    @solver
    def solve(search: Search) -> None:
        play_and_learn(search, s)

    tell = told.append
    answer = solve(problem, 60.0, 0, lambda _, reward, __: tell(reward), PYTHON)
    assert validate(problem, answer) == told[-1]
    assert told == sorted(set(told))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [0, 2])
def test_what_a_short_run_learned_is_kept(rounds: int, tmp_path: Path) -> None:
    problem, path = playable(4), tmp_path / "checkpoint.npz"
    s = replace(TINY, rounds=rounds)

    @solver
    def solve(search: Search) -> None:
        play_and_learn(search, s, path)

    solve(problem, 60.0, 0, None, PYTHON)
    learner = GameLearner(flat(problem), PYTHON, s.scaled_to(len(problem.buffers)), 5)
    learner.load(path)
    assert learner.rounds == rounds


def test_a_game_without_a_choice_is_over_at_once() -> None:
    alone = Buffer(9, False, 0, 0, None, (-1, 0), demand=1, benefit=3)
    problem = Problem("full", 8, (Instruction("i", 0),), (alone,))

    @solver
    def solve(search: Search) -> None:
        play_and_learn(search, TINY)

    assert solve(problem, 60.0, 0, None, PYTHON).placements == (None,)


def test_wrong_wishes_are_told(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(RecurraError, match="somebody must play, not 0 actors"):
        MapTrainCommand("ppo_step", actors=0)()
    with pytest.raises(RecurraError, match="--demonstrate 2 is no part of the time"):
        MapTrainCommand("ppo_step", demonstrate=2)()
    with pytest.raises(RecurraError, match="nothing to go on with"):
        MapTrainCommand("ppo_step", folder=tmp_path / "none", resume=True)()
    (tmp_path / "checkpoint.npz").write_text("of a week")
    lost = "what was learned before is in .*\n  checkpoint.npz .* lost\n  hint: .* --resume; or"
    with pytest.raises(RecurraError, match=lost):
        MapTrainCommand("ppo_step", folder=tmp_path)()
    assert (tmp_path / "checkpoint.npz").read_text() == "of a week"
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(RecurraError, match="an agent that plans needs the package mctx"):
        mctx_module()
