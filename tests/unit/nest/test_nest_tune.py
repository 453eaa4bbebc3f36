"""`recurra tune`: what it prints, writes and refuses, and that it keeps to its time."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recurra import cli
from recurra.nest import catalogue, compiled, measure
from recurra.nest.check import KernelCheckError
from recurra.nest.default_schedule import standard
from recurra.nest.loops import Nest, parse, scheduled
from recurra.nest.problem import NestProblem
from recurra.nest.target import host_target
from recurra.nest.tune import tune_nest

SHORT = ["tune", "mk,kn->mn", "--sizes", "24,16,40", "--seconds", "0.2"]


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "nest.txt"
    assert cli.main([*SHORT, "--json", "--out", str(file), "--search", "random"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problem"].startswith("for m<24 k<16 n<40\n")
    assert {"untiled", "standard", "found", "refined"} <= set(report["nests"])
    assert any(name.startswith("tile ") for name in report["nests"])
    for row in report["nests"].values():
        assert row["gflops"] == pytest.approx(2 * 24 * 16 * 40 / row["seconds"] / 1e9)
        assert row["of_peak"] > 0
    nest = parse(file.read_text())
    assert nest.order == report["nests"][report["best"]]["order"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "seconds", "at_most"),
    [
        (catalogue.matmul(768, 768, 768), 1.0, 3.0),
        (catalogue.convolution(1, 56, 56, 64, 64), 1.0, 3.0),
        (catalogue.matmul(64, 64, 64), 0.5, 1.5),
    ],
    ids=str,
)
def test_seconds_are_a_budget(p: NestProblem, seconds: float, at_most: float) -> None:
    """For all that tuning does; it took ten times as long."""
    begin = time.process_time()
    found = tune_nest(p, seconds=seconds)
    assert time.process_time() - begin < at_most
    assert found.best in found.finalists


def test_no_time_at_all() -> None:
    """The standard nest is measured and checked, whatever the time; small ones beside it, too."""
    problem = catalogue.matmul(1024, 1024, 1024)
    found = tune_nest(problem, seconds=1e-9)
    assert found.finalists
    assert {*found.finalists} <= {"standard", "refined"}  # which are one nest
    assert all(standing.gflops > 0 for _, standing in found.finalists.values())
    packs = standard(problem, host_target()).packs  # a search begins without them
    assert found.measured == (2 if packs else 1)
    short = tune_nest(catalogue.matmul(16, 16, 16), seconds=1e-9)
    assert f"  {short.best}: {short.nest.order}" in str(short).splitlines()[1]
    assert {"untiled", "standard", "found", "refined"} <= set(short.finalists)


def test_a_wrong_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little time there is."""
    wrong = compiled.kernel

    def kernel(nest: Nest, *rest: Any) -> Any:
        return wrong(scheduled(replace(nest.problem, post="negate"), nest.order), *rest)

    monkeypatch.setattr(measure, "kernel", kernel)
    with pytest.raises(KernelCheckError, match="elements differ"):
        tune_nest(catalogue.matmul(24, 16, 40), seconds=1e-9)


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", "mk,kn->mn", "--sizes", "64,16,64", "--seconds", "0.1", "--json"]
    assert cli.main([*arguments, "--threads", "2"]) == 0
    nests = json.loads(capsys.readouterr().out)["nests"]
    assert nests["standard, 2 threads"]["order"].startswith("parallel ")
    assert cli.main([*arguments, "--threads", "0"]) == 2


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--sizes", "h=6,r=3,c=4,k=20", "--post", "relu", "--actions", "paper"]
    code = cli.main(["tune", "(2h+r)c,rck->hk", *sizes, "--seconds", "0.2", "--search", "greedy1"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith(
        "for h<6 r<3 c<4 k<20\n  A: f32[13,4]\n  B: f32[3,4,20]\n  C: f32[6,20]\n"
        "  C[h,k] = relu(sum(A[2*h+r,c] * B[r,c,k]))\ngreedy1: "
    )
    assert "of peak" in out
    assert "T[h,k] += A[2*h+r,c] * B[r,c,k]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mk,kn->mn", "--sizes", "24,16"], "'mk,kn->mn' has 3 sizes: m, k, n"),
        (["mk,kn->mn", "--sizes", "24,x,40"], "not understood: --sizes 24,x,40"),
        (["mk,kn->mn", "--sizes", "m=8,k=8,n=8,n=9"],
         "not understood: --sizes m=8,k=8,n=8,n=9"),
        (["mk,kn->mn", "--sizes", "24,-1,40"], "index k has no points"),
        (["mk,kn", "--sizes", "24,16,40"], "'mk,kn' is not an einsum"),
        (["mk,kn->mn", "--sizes", "8,8,8", "--search", "magic"], "there is no search 'magic'"),
        (["mk,kn->mn", "--sizes", "8,8,8", "--seconds", "0"], "a search needs time"),
        (["mk,kn->mn", "--sizes", "8,8,8", "--seconds", "0.1", "--out", "/none/x"],
         "/none/x cannot be written"),
    ],
)  # fmt: skip
def test_wrong_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == message
    assert shown.out == ""


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", "--help"])
    assert ended.value.code == 0
    assert 'recurra tune "mk,kn->mn" --sizes 128,128,128' in capsys.readouterr().out
