"""`recurra map ..` as a user meets it, what it draws, and the bench."""

from __future__ import annotations

import base64
import ctypes
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from benchmarks.__main__ import main
from benchmarks.mapping import learning, runs, suite
from benchmarks.mapping.runs import Contest, Found
from benchmarks.mapping.tables import beside
from recurra import cli
from recurra.mapping import bounds, engine_choice, model_library, native
from recurra.mapping.model_library import instance
from recurra.mapping.pictures import color, layout, page, png
from recurra.mapping.solvers import solver_of
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, nothing
from recurra.storage.mapping_problem_text import problem_to_json, read_problem, solution_from_json
from recurra.support.notices import tell_once

PYTHON = engine_choice.engine("python")


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is built, and nothing can be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    for known in (engine_choice._find_library, tell_once):
        known.cache_clear()
    yield
    engine_choice._find_library.cache_clear()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["map", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.slow
def test_solving_writes_what_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = instance("ppo_step")
    file = tmp_path / "p.json"
    file.write_text(problem_to_json(problem))
    out, html, image = (tmp_path / n for n in ("s.json", "s.html", "s.png"))
    words = ["solve", str(file), "--seconds", "0.3", "--out", str(out), "--html", str(html)]
    code, shown, told = run(capsys, *words, "--png", str(image), "--json")
    found = json.loads(shown)
    assert code == 0
    assert "the native one, far faster, cannot be built: there is no C++ compiler" in told
    assert "engine: Python" in told
    solution = solution_from_json(problem, out.read_text())
    assert validate(problem, solution) == found["reward_ps"]
    assert found["share"] <= found["bound"] < 0.79
    assert found["placed"] == sum(p is not None for p in solution.placements)
    assert html.read_text().count('<rect class="b"') == found["placed"]
    assert image.read_bytes().startswith(b"\x89PNG")
    code, shown, _ = run(capsys, "solve", "ppo_step", "--solver", "greedy", "--seconds", "1")
    assert code == 0
    assert re.search(r"gains 0\.\d{4} of all there is to gain; no mapping gains more than", shown)


def test_who_does_not_wait_for_the_bound_has_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / n for n in ("s.json", "s.png", "s.html")]

    def interrupted(*_: object, **__: object) -> None:
        assert [x.exists() for x in files] == [True, True, False]
        raise KeyboardInterrupt

    monkeypatch.setattr(bounds, "bound", interrupted)
    out = [w for x in files for w in (f"--{x.suffix[1:]}", str(x))]
    words = ["solve", "ppo_step", "--solver", "greedy", "--seconds", "0.2"]
    code, shown, told = run(capsys, *words, "--out", *out[1:])
    assert (code, "no mapping gains more" in shown) == (0, False)
    assert "interrupted: without it" in told
    assert files[2].read_text().startswith("<!")
    solution_from_json(instance("ppo_step"), files[0].read_text())


def test_nothing_but_answers_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = scipy.optimize.milp

    def told(*words: Any, **named: Any) -> Any:
        ctypes.CDLL(None).puts(b"a remark of HiGHS")
        return whole(*words, **named)

    monkeypatch.setattr(scipy.optimize, "milp", told)
    words = ["map", "solve", "ppo_step", "--solver", "greedy", "--seconds", "0.2", "--json"]
    assert cli.main(words) == 0
    shown = capfd.readouterr()
    json.loads(shown.out)
    assert "a remark of HiGHS" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["solve", "nothing.json"], 2, "there is no file nothing.json\n  nor is it an instance"),
        (["solve", "ppo_step", "--solver", "magic"], 2, "there is no solver 'magic'"),
        (["solve", "ppo_step", "--fast-size", "much"], 2, "'much' is no amount of memory"),
        (["solve", "ppo_step", "--seconds", "-1"], 2, "a search needs time, not -1.0 seconds"),
        (["solve", "ppo_step", "--engine", "native"], 1, "there is no C++ compiler"),
        (["solve", "empty.json"], 2, "empty.json:1: not JSON"),
        (["solve", "some.csv"], 2, "how much fast memory there is"),
        (["solve", "some.csv", "--fast-size", "1KiB"], 2, "some.csv:2: buffer a of 4096 B"),
        (["solve", "ppo_step", "--solver", "greedy", "--out", "no/where"], 2, "cannot be written"),
        (["pack", "--fast-size", "8B"], 2, "there is nothing to pack"),
        (["pack", "some.csv", "--fast-size", "1KiB"], 2, "some.csv:2: buffer a of 4096 B"),
        (["pack", "full.csv", "--fast-size", "8B"], 2, "full cannot be packed"),
        (["library", "lenet"], 2, "there is no instance 'lenet'"),
        (["library", "lenet", "--write"], 2, "there is no instance 'lenet'"),
        (["import", "nothing"], 2, "nothing is nothing to import"),
        (["import", "none.py:make"], 2, "none.py cannot be read"),
        (["import", "model.py:other"], 2, "model.py has no function other"),
        (["import", "model.py:wrong"], 2, "wrong in model.py gives int"),
        (["import", "broken.pb"], 2, "malformed HLO"),
        (["import", "ppo_step", "--machine", "abacus"], 2, "there is no machine 'abacus'"),
        (["import", "ppo_step", "--loop", "2"], 2, "--loop is of no matter for ppo_step"),
        (["import", "some.csv", "--supply", "idle"], 2, "--supply is of no matter for some.csv"),
        (["import", "model.py:make", "--loop", "-1"], 2, "--loop -1 is negative"),
        (["import", "model.py:alone"], 2, "alone in model.py gives int for arguments"),
        (["import", "model.py:fails"], 2, "model.py:12: ZeroDivisionError: division by zero"),
        (["import", "empty.py:make"], 2, "empty.py:1: SyntaxError"),
        (["solve", "ppo_step", "--seed", "-1"], 2, "seed -1 is negative"),
        (["solve", "ppo_step", "--fast-size", "9999999999GiB"], 2, "2^60 bytes or picoseconds"),
        (["pack", "full.csv", "--fast-size", "16B", "--out", "."], 2, "full.csv would be written"),
        (
            ["pack", "full.csv", "sub/full.csv", "--fast-size", "16B", "--out", "new"],
            2,
            "full.csv would be written over",
        ),
        (
            ["pack", "full.csv", "--fast-size", "16B", "--out", "empty.json"],
            2,
            "empty.json cannot be written",
        ),
    ],
)
def test_mistakes_are_told(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("")
    Path("some.csv").write_text("id,lower,upper,size\na,0,2,4096\n")
    Path("full.csv").write_text("id,lower,upper,size\na,0,2,6\nb,1,3,6\n")
    Path("broken.pb").write_bytes(b"\x0a\xff")
    Path("model.py").write_text(MODEL)
    Path("empty.py").write_text("def make(:")
    Path("sub").mkdir()
    Path("sub/full.csv").write_text("id,lower,upper,size\na,0,2,6\n")
    found, _, told = run(capsys, *words)
    assert found == code
    assert message in told
    assert "Traceback" not in told


MODEL = """
import jax, jax.numpy as jnp

def make():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return (lambda a, b: jnp.tanh(a @ b) @ b), (x, x)

def wrong():
    return 1

def fails():
    return 1 / 0

def alone():
    return jnp.tanh, 1
"""


def test_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    code, shown, _ = run(capsys, "import", "model.py:make", "--fast-size", "64KiB")
    assert (code, shown.splitlines()[-1]) == (0, "written to problem.json")
    problem = read_problem(Path("problem.json"))
    assert (problem.name, problem.fast_size, len(problem.buffers) > 4) == ("make", 65536, True)
    Path("pack.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,4\n")
    assert run(capsys, "import", "pack.csv", "--fast-size", "8B", "--out", "pack.json")[0] == 0
    assert read_problem(Path("pack.json")).total == 2


def test_packing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    Path("a.csv").write_text("id,lower,upper,size\nx,5,9,4\ny,0,6,4\nz,0,5,4\n")
    Path("b.csv").write_text("lower,id,size,upper\n0,x,8,1\n")
    words = ["pack", "a.csv", "b.csv", "--fast-size", "8B"]
    code, shown, _ = run(capsys, *words, "--out", "out")
    assert code == 0
    assert [line.rpartition(",")[0] for line in shown.splitlines()] == [
        "a.csv: 3 buffers, packed",
        "b.csv: 1 buffers, packed",
    ]
    rows = [line.split(",") for line in Path("out/a.csv").read_text().splitlines()]
    assert rows[0] == ["id", "lower", "upper", "size", "offset"]
    at = {row[0]: int(row[4]) for row in rows[1:]}
    assert at["x"] == at["z"] != at["y"]
    assert {at["x"], at["y"]} == {0, 4}
    code, shown, _ = run(capsys, *words, "--json")
    found = [json.loads(line) for line in shown.splitlines()]
    assert [(x["file"], x["placed"], x["packed"]) for x in found] == [
        ("a.csv", 3, True),
        ("b.csv", 1, True),
    ]


def test_the_library_is_shown_and_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, _ = run(capsys, "library", "ppo_step")
    assert (code, shown) == (0, f"{instance('ppo_step')}\n")
    monkeypatch.setattr(model_library, "FOLDER", tmp_path / "made")
    code, shown, _ = run(capsys, "library", "ppo_step", "--write")
    assert (code, shown.startswith("ppo_step: ")) == (0, True)
    assert instance("ppo_step").total == pytest.approx(10**6 * 243, rel=0.5)
    monkeypatch.undo()
    instance.cache_clear()


def test_building(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "build", lambda: tmp_path / "engine.so")
    assert run(capsys, "build")[:2] == (0, f"built {tmp_path}/engine.so\n")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, told = run(capsys, "build")
    assert (code, "there is no no-such-compiler on the path" in told) == (1, True)


def test_pictures() -> None:
    problem = instance("ppo_step")
    solution = solver_of("greedy")(problem, 1, engine=PYTHON)
    drawn = layout(problem, solution)
    placed = [p for p in solution.placements if p is not None]
    assert drawn.count("<title>") == len(placed)
    assert drawn.count("copied in") + drawn.count("copied out") == sum(p.copied for p in placed)
    whole = page(problem, solution, [(0.1, 10**7), (0.5, 10**8)], 10**8)
    assert "http" not in whole
    assert "bound 0.4112" in whole
    image = png(problem, solution, 50, 40)
    at = image.index(b"IDAT")
    length = int.from_bytes(image[at - 4 : at], "big")
    pixels = zlib.decompress(image[at + 4 : at + 4 + length])
    assert len(pixels) == 40 * (1 + 3 * 50)
    assert len({color(k) for k in range(1000)}) > 900


@pytest.mark.slow
def test_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "LIBRARY", {"ppo_step": None})
    monkeypatch.setattr(suite, "QUICK_SECONDS", 0.05)
    out = tmp_path / "figures"
    words = ["mapping", "--json", "--quick", "--only", "solve", "--out", str(out)]
    assert main(words) == 0
    report: Any = json.loads(capsys.readouterr().out)
    shares = [row for row in report["rows"] if row["metric"] == "reward_share"]
    assert [row["peer"] for row in shares] == list(suite.PEERS)
    assert all(0 < row["ours"] <= row["limit"] for row in shares)
    (prod,) = (row for row in report["rows"] if "prod" in row["peer"])
    assert prod["ratio"] >= 1
    (told,) = (row for row in report["rows"] if row["metric"] == "correlation")
    assert -1 <= told["ours"] < -0.5
    files = ["correlation.png", "mapping.html", "mapping.md", "reward.png", "runs"]
    assert sorted(p.name for p in out.iterdir()) == files
    first, second = (out / "mapping.md").read_text().split("\n\n")
    assert (first.count("\n"), second.count("\n")) == (3, 3)
    head, _, row = second.splitlines()
    assert head.split(" | ")[1:-1] == ["default", *suite.PEERS]
    assert row.split(" | ")[1].strip("*") == f"{shares[0]['ours']:.4f}"
    for name in ("correlation.png", "reward.png"):
        data = (out / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert base64.b64encode(data).decode() in (out / "mapping.html").read_text()


def test_who_is_above_ours_has_a_star() -> None:
    problem = instance("ppo_step")
    answers = {"greedy": solver_of("greedy")(problem, 0.5, engine=PYTHON), "none": nothing(problem)}

    def row(ours: str, peer: str) -> list[str]:
        found = {"default": [Found(answer=answers[ours])], "random": [Found(answer=answers[peer])]}
        last = beside([Contest(problem, 0.5, 1.0, found)]).splitlines()[-1]
        return last.strip("| ").split(" | ")[1:3]

    share = f"{answers['greedy'].reward(problem) / problem.total:.4f}"
    assert row("none", "greedy") == ["0.0000", f"{share}*"]
    assert row("greedy", "none") == [share, "0.0000"]
    assert row("greedy", "greedy") == [share, share]


@pytest.mark.slow
def test_a_bench_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[tuple[str, int]] = []

    def run_of(problem: Problem, who: str, seconds: float, seed: int, *rest: Any) -> Any:
        searched.append((who, seed))
        if (who, seed) == ("xla-like", 1) and len(searched) == 4:
            raise KeyboardInterrupt
        return as_it_is(problem, who, seconds, seed, *rest)

    as_it_is = runs.run_of
    monkeypatch.setattr(runs, "run_of", run_of)
    words = ["mapping", "--only", "solve", "--instances", "ppo_step", "--out"]
    words += [str(tmp_path), "--solvers", "xla-like", "--seconds", "0.05", "--seeds"]
    assert main([*words, "2"]) == 130
    every = [(who, seed) for seed in (0, 1) for who in ("default", "xla-like")]
    assert searched == every
    assert main([*words, "2"]) == 0
    assert searched == [*every, every[-1]]
    table = (tmp_path / "mapping.md").read_text()
    assert main([*words, "2"]) == 0  # nothing is searched again, and the same is said
    assert (len(searched), (tmp_path / "mapping.md").read_text()) == (5, table)
    # of another problem: searched again
    found = as_it_is(instance("ppo_step"), "random", 0.05, 0, PYTHON)
    kept = tmp_path / "runs" / "ppo_step-default-0.05s-0.npz"
    runs.write(kept, instance("ppo_step"), "other", found)
    assert main([*words, "1"]) == 0
    assert searched[5:] == every[:1]
    capsys.readouterr()
    assert main([*words, "0"]) == 2
    assert "a bench needs a seed, not 0 of them" in capsys.readouterr().err


def test_what_is_kept_is_what_was_found(tmp_path: Path) -> None:
    problem = instance("ppo_step")
    found = runs.run_of(problem, "random", 0.1, 3, PYTHON)
    runs.write(tmp_path / "one.npz", problem, "this", found)
    again = runs.read(tmp_path / "one.npz", problem, "this")
    assert again == found
    assert runs.read(tmp_path / "one.npz", problem, "that") is None
    assert found.last[-1] == found.answer
    near = found.nearly()
    least = min(reward for spent, reward in found.curve if spent >= near)
    assert least >= 0.97 * found.curve[-1][1]


def test_a_folder_that_cannot_be_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["mapping", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "x cannot be written" in capsys.readouterr().err


def test_stages_are_apart() -> None:
    problem = instance("ppo_step")
    both = [runs.run_of(problem, "random", 0.2, seed, PYTHON) for seed in (0, 1)]
    contest = runs.Contest(problem, 0.2, 1.0, {"random": both})
    rewards = [s.reward(problem) for s in contest.stages()]
    assert 1 < len(rewards) <= runs.STAGES
    gaps = np.diff(rewards)
    assert (gaps >= runs.APART * problem.total).all()
    assert both[0].curve[-1][1] == both[0].answer.reward(problem)


def test_parts_of_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mapping", "--only", "play"]) == 2
    assert "its parts are solve, steps, execute" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bench_counts_steps() -> None:
    rows = suite.steps(instance("ppo_step"), PYTHON)
    assert [row.metric for row in rows] == ["steps_per_s"]
    assert 0.2 < rows[0].ratio < 5  # one engine beside itself


@pytest.mark.slow
def test_the_bench_of_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evolution and chance in the place of agents: these take long to compile."""
    monkeypatch.setattr(learning, "KINDS", ("ppo_step", "lstm"))
    monkeypatch.setattr(learning, "OURS", "evolution")
    monkeypatch.setattr(learning, "PEERS", ("random", "mcts"))
    monkeypatch.setattr(learning, "QUICK_SECONDS", 0.05)
    out = tmp_path / "figures"
    words = ["mapping", "--learn", "--json", "--quick", "--out", str(out)]
    assert main(words) == 0
    report: Any = json.loads(capsys.readouterr().out)
    assert [row["peer"] for row in report["rows"]] == ["random", "mcts"]  # the small one alone
    assert all(0 < row["ours"] <= row["limit"] for row in report["rows"])
    assert (out / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert "Agents that learn" in (out / "learning.html").read_text()
    assert main(["core", "--learn"]) == 2
    assert "--learn is for the bench mapping, not core" in capsys.readouterr().err
