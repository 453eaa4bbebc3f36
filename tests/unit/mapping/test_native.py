"""The native engine is the Python one, step by step; where there is none, nothing breaks."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapping.test_game import random_rounds
from random_mappings import random_problem
from recurra.mapping import engine_choice, native
from recurra.mapping.game import Action, Game
from recurra.mapping.model_library import instance
from recurra.mapping.order_free_placer import OrderFreePlacer
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem
from recurra.support.notices import tell_once
from recurra.support.private_files import NotPrivateError

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
)
randoms = st.integers(0, 2**32).map(Random)


def play_both(engine: engine_choice.Engine, problem: Problem, random: Random, steps: int) -> None:
    """Random actions, undos and backups; after each, legal moves and rewards are the same."""
    ours, theirs = Game(flat(problem)), engine.game(flat(problem))
    for _ in range(steps):
        assert (ours.index, ours.reward) == (theirs.index, theirs.reward)
        if ours.done:
            assert ours.solution() == theirs.solution()
            ours.reset()
            theirs.reset()
        legal = ours.legal()
        assert legal == theirs.legal()
        if not legal:
            assert ours.backup() == theirs.backup()
        elif ours.index and random.random() < 0.2:
            assert ours.undo() == theirs.undo()
        else:
            action = random.choice(list(legal))
            assert ours.step(action) == theirs.step(action)


@pytest.mark.slow
@needs_compiler
def test_games_are_equal(native_engine: engine_choice.Engine) -> None:
    random = Random(1)
    for _ in range(100):  # 20,000 steps in all
        play_both(
            native_engine, random_problem(random, 40, random.choice([8, 16, 40])), random, 200
        )


@pytest.mark.fuzz
@needs_compiler
def test_games_are_equal_for_a_million_steps(native_engine: engine_choice.Engine) -> None:
    random = Random(2)
    for _ in range(1000):
        play_both(native_engine, random_problem(random, 60), random, 1000)


@pytest.mark.slow
@needs_compiler
@settings(max_examples=150)
@given(randoms)
def test_whole_games_are_equal(native_engine: engine_choice.Engine, random: Random) -> None:
    problem = random_problem(random, 20)
    ours, theirs = Game(flat(problem)), native_engine.game(flat(problem))
    preferences = [random.randrange(4) for _ in problem.buffers]
    assert ours.play(preferences) == theirs.play(preferences)
    assert ours.solution() == theirs.solution()
    ours.rewind(3)
    theirs.rewind(3)
    assert (ours.index, ours.reward) == (theirs.index, theirs.reward)
    ours.reset()
    theirs.reset()
    assert ours.play_on(preferences) == theirs.play_on(preferences)
    assert ours.index == theirs.index
    ours.reset()
    theirs.reset()
    draws = [random.randrange(6) for _ in range(7)]
    assert ours.play_random(draws, 9) == theirs.play_random(draws, 9)
    assert ours.play_random(draws) == theirs.play_random(draws)
    assert ours.solution() == theirs.solution()


@pytest.mark.slow
@needs_compiler
def test_wishes_of_large_programs_are_there_while_they_are_played(
    native_engine: engine_choice.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = flat(instance("transformer_infer"))
    game, preferences = native_engine.game(f), [k % 4 for k in range(len(f.size))]
    assert isinstance(game, native.NativeGame)
    read: list[list[int]] = []

    def reading(_: object, at: int) -> int:
        read.append(list(ctypes.string_at(at, len(preferences))))
        return 1

    with monkeypatch.context() as patch:
        patch.setattr(game, "_library", SimpleNamespace(game_play=reading, game_play_on=reading))
        game.play(preferences)
        game.play_on(preferences)
    assert read == [preferences, preferences]
    assert game.play(preferences) == Game(f).play(preferences)


@needs_compiler
@settings(max_examples=150)
@given(randoms)
def test_arrangements_are_equal(native_engine: engine_choice.Engine, random: Random) -> None:
    problem = random_problem(random, 20)
    ours, theirs = OrderFreePlacer(flat(problem)), native_engine.arranger(flat(problem))
    order = random.sample(range(len(problem.storages)), len(problem.storages))
    assert ours.arrange(order) == theirs.arrange(order)
    for _ in range(3):
        rounds = random_rounds(random, len(problem.storages), 10)
        assert ours.improve(rounds) == theirs.improve(rounds)
        assert (ours.reward, ours.best) == (theirs.reward, theirs.best)
        assert ours.current() == theirs.current()
        assert ours.solution() == theirs.solution()


@needs_compiler
def test_what_is_not_legal_is_not_played(native_engine: engine_choice.Engine) -> None:
    problem = random_problem(Random(0), fast_size=0)
    for game in (Game(flat(problem)), native_engine.game(flat(problem))):
        with pytest.raises(AssertionError, match="COPY is not legal for buffer 0"):
            game.step(Action.COPY)


@pytest.fixture
def nothing_is_known() -> Iterator[None]:
    """No engine has been looked for, and nothing told."""
    for known in (engine_choice._find_library, tell_once):
        known.cache_clear()
    yield
    engine_choice._find_library.cache_clear()


@pytest.mark.usefixtures("nothing_is_known")
def test_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The native engine is refused; whoever asks for neither has the one in Python, aloud."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    for ask in (lambda: native.build(tmp_path), lambda: engine_choice.engine("native")):
        with pytest.raises(native.BuildError, match="there is no no-such-compiler on the path"):
            ask()
    assert engine_choice.engine("python").description == "engine: Python, as asked"
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert engine_choice.engine().description == "engine: Python"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "recurra: the engine is Python; the native one, far faster, cannot be built: "
        "there is no C++ compiler: "
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("nothing_is_known")
def test_it_is_built_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = engine_choice.engine()
    assert engine.library is not None
    assert engine.library.is_relative_to(tmp_path / "recurra" / "native")
    assert engine.description == f"engine: native, {engine.library}"
    assert capsys.readouterr().err == "recurra: building the engine of memory mapping, once\n"
    assert engine_choice.engine("native").library == engine.library
    engine.library.chmod(0o720)
    with pytest.raises(NotPrivateError, match="other users can write it, its mode is 720"):
        native.load.__wrapped__(engine.library)
    other = tmp_path / "a" / "b" / "mapping.so"
    other.parent.mkdir(mode=0o700, parents=True)
    other.parent.parent.chmod(0o700)
    other.write_bytes(b"not a library")
    with pytest.raises(native.BuildError, match="is not a native engine"):
        native.load(other)
