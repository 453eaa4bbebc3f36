"""The command line: help, exit codes, and what is printed where."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.core import suite
from benchmarks.harness import Disagreement
from recurra import cli
from recurra.cli import commands
from recurra.report.runs import RunFolder

GRAPH = """\
dims t<T
x[t<T]: f32[] = value(expr=t, dtype='f32')
one: f32[] = const(value=1.0)
y[t<T]: f32[] = mul(x, one)
z[t<T]: f32[] = exp(y)
return z
"""

SCRIPT = """\
import recurra as rc
ctx = rc.Context(num_dims=1)
with ctx as ((t, T),):
    x = rc.like(rc.f32[2], domain=(t,))
    x[0] = rc.constant([1.0, 2.0])
    x[t + 1] = x * 2.0
    rc.log(last=x.sum())
print(ctx.compile({T: 4}).run()["last"].tolist())
"""


def recurra(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "recurra.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def code_of(words: list[str]) -> Any:
    """The exit code of a command, whoever ends it."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return stop.code


def test_help_is_fast_and_needs_nothing():
    code = "import sys, recurra; from recurra.cli import main; main(['--help'])\n"
    code += "heavy = ('numpy', 'jax', 'gymnasium', 'tyro', 'rich', 'islpy')\n"
    code += "print([m for m in heavy if m in sys.modules])"
    start = time.perf_counter()
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert time.perf_counter() - start < 2  # 0.05 s on an idle machine
    assert out.startswith("usage: recurra COMMAND")
    assert out.endswith("[]\n")
    assert all(name in out for name in cli.COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capfd: pytest.CaptureFixture[str]):
    assert code_of([*name.split(), "--help"]) == 0
    assert f"Example: recurra {name}" in capfd.readouterr().out


def test_parsing_imports_no_compiler():
    code = "import sys\nfrom recurra.cli import main\n"
    code += "try: main(['train', 'reinforce', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('jax', 'gymnasium', 'islpy') if m in sys.modules])"
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.endswith("[]\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--version", 0, ""),
        ("", 2, ""),
        ("train", 2, ""),
        ("train --help", 0, ""),
        ("trian", 2, "there is no command `recurra trian`\n"),
        ("train reinforcee", 2, "perhaps you meant reinforce"),
        ("train reinforce --lrr 1", 2, "--lrr"),
        ("train reinforce --env NoSuch-v0", 2, "cannot make NoSuch-v0"),
        ("train reinforce --resume nowhere", 2, "there is no run at nowhere"),
        ("run nowhere.py", 2, "there is no file nowhere.py"),
        ("view nowhere", 2, "there is no run at nowhere"),
        ("view .", 2, ". is not the folder of a run"),
        ("opt nowhere.txt", 2, "there is no file nowhere.txt"),
        ("bench nothing", 2, "there is no bench 'nothing'"),
    ],
)
def test_exit_codes(
    arguments: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    got = code_of(arguments.split())
    said = capfd.readouterr()
    assert got == code
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    return file


def test_opt(graph: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["opt", str(graph)]) == 0
    assert capsys.readouterr().out == GRAPH
    assert cli.main(["opt", str(graph), "-p", "canonicalize", "--sizes", "T=4"]) == 0
    simplified = capsys.readouterr().out
    assert "mul" not in simplified
    assert "exp(x)" in simplified
    assert cli.main(["opt", str(graph), "-p", "canonicalize", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] + "\n" == simplified
    (row,) = found["passes"]
    assert (row["name"], row["before"], row["after"]) == ("canonicalize", 4, 2)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["-p", "canonicalize,nothing"], "there is no pass 'nothing'\n  passes: canonicalize, "),
        (["--sizes", "T"], "'T' is no size"),
    ],
)
def test_opt_mistakes(
    graph: Path, extra: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["opt", str(graph), *extra]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["not a graph", "y: f32[] = nothing(x)\nreturn y", "x: f32[2] = const(value=1.0)"]
)
def test_opt_refuses_what_is_no_graph(text: str):
    done = recurra("opt", "-", input=text)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_run_interpreted(tmp_path: Path):
    script = tmp_path / "doubling.py"
    script.write_text(SCRIPT)
    done = recurra("run", script, "--interpret", "--statements", "2")
    assert (done.returncode, done.stderr) == (0, "")
    *shown, last = done.stdout.splitlines()
    assert last == "[3.0, 6.0, 12.0, 24.0]"
    assert len(shown) == 4
    assert "= data(" in shown[0]
    assert shown[1].strip() == "[1., 2.]"


def test_run_shows_the_script_s_own_traceback(tmp_path: Path):
    script = tmp_path / "fails.py"
    script.write_text("def f(x):\n    return 1 // x\n\nf(0)\n")
    done = recurra("run", script)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: integer division or modulo by zero"
    assert "recurra" not in done.stderr.replace(str(tmp_path), "")


def test_run_tells_a_mistake_in_the_language(tmp_path: Path):
    script = tmp_path / "mistake.py"
    script.write_text(SCRIPT.replace("x[t + 1] = x * 2.0", "x[t + 1] = x + rc.constant([1.0] * 3)"))
    done = recurra("run", script)
    assert done.returncode == 2
    assert "--> mistake.py:6" in done.stderr
    assert "Traceback" not in done.stderr


def test_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with RunFolder.create(tmp_path, "CartPole-v1", "reinforce", 3) as run:
        run.log(1, **{"charts/episodic_return": 21.5})
    assert cli.main(["view", str(run.path)]) == 0
    assert capsys.readouterr().out.strip() == str(run.report)
    assert "21.5" in run.report.read_text()
    assert cli.main(["view", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["last"]["charts/episodic_return"] == 21.5


def test_a_bench_reports_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(suite, "suite", lambda quick: [])
    assert benchmarks_main(["core", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out)["bench"] == "core"

    def disagree(quick: bool) -> list[Any]:
        raise Disagreement("a and b do not agree")

    monkeypatch.setattr(suite, "suite", disagree)
    assert benchmarks_main(["core"]) == 1
    assert capsys.readouterr().err == "a and b do not agree\n"


@pytest.mark.parametrize("command", ["bench", "tune figures"])
def test_benchmarks_run_where_they_are(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """In the package's checkout, else in the current folder; else it is told where they are."""
    installed, checkout = tmp_path / "site", tmp_path / "checkout"
    (checkout / "src" / "recurra").mkdir(parents=True)
    (checkout / "benchmarks" / "looptune").mkdir(parents=True)
    echo = "import sys; print(__spec__.parent, sys.argv[1:]); sys.exit(7)"
    for package in ("benchmarks", "benchmarks/looptune"):
        (checkout / package / "__init__.py").write_text("")
        (checkout / package / "__main__.py").write_text(echo)
    monkeypatch.setattr(
        commands, "__file__", str(installed / "lib" / "recurra" / "cli" / "commands.py")
    )
    words = [*command.split(), "core", "--only", "1T"]

    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    told = capfd.readouterr().err
    assert told.startswith("the benchmarks are not here: ")
    assert str(installed) in told

    monkeypatch.chdir(checkout)
    assert cli.main(words) == 7
    package = cli.COMMANDS[command][0]
    assert capfd.readouterr().out == f"{package} ['core', '--only', '1T']\n"

    other = tmp_path / "other"  # a project with benchmarks of its own
    (other / "benchmarks").mkdir(parents=True)
    (other / "benchmarks" / "__main__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(other)
    assert cli.main(words) == 2
    monkeypatch.setattr(
        commands, "__file__", str(checkout / "src" / "recurra" / "cli" / "commands.py")
    )
    assert cli.main(words) == 7


def test_a_closed_pipe_is_no_error(tmp_path: Path):
    read, write = os.pipe()
    os.close(read)
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    command = [sys.executable, "-m", "recurra.cli", "opt", str(file)]
    with os.fdopen(write, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_that_is_closed_or_full_is_no_traceback(tmp_path: Path):
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    command = f"{sys.executable} -m recurra.cli opt {file}"
    for to, code, said in ((">&-", 0, ""), (">/dev/full", 1, "the system says: No space left")):
        done = subprocess.run(
            f"{command} {to}", shell=True, stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == code
        assert done.stderr.startswith(said)
        assert "Traceback" not in done.stderr


def test_letters_that_the_output_cannot_show(tmp_path: Path):
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    code = "import sys, recurra.cli as c; sys.exit(c.main(['opt', sys.argv[1]]) or print('日'))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[-2:], done.stderr) == (0, "?\n", "")


@pytest.mark.slow
def test_an_interrupt_that_python_ignores_comes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As one during a callback of the garbage collector, of which JAX has one."""
    fired: list[str] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if not fired:
            fired.append(phase)
            signal.raise_signal(signal.SIGINT)

    def busy(given: list[str]) -> int:
        gc.callbacks.append(collected)
        gc.collect()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.01)
        return 0

    monkeypatch.setattr(cli, "dispatch", busy)
    try:
        assert cli.main(["busy"]) == 130
    finally:
        gc.callbacks.remove(collected)
    assert fired == ["start"]
    assert capsys.readouterr().err == "interrupted\n"


def test_a_path_that_the_system_refuses_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    long = tmp_path / ("x" * 300)
    assert cli.main(["view", str(long)]) == 2
    assert f"the system says: File name too long: {long}" in capsys.readouterr().err
    taken = tmp_path / "taken"
    taken.mkdir()

    def command() -> int:
        (tmp_path / ".part").touch()
        (tmp_path / ".part").replace(taken)
        return 0

    assert cli.exit_code(command) == 2
    assert capsys.readouterr().err == f"the system says: Is a directory: {taken}\n"


def test_memory_that_does_not_suffice_is_told(capsys: pytest.CaptureFixture[str]):
    def command() -> int:
        raise MemoryError("Unable to allocate 149. GiB")

    assert cli.exit_code(command) == 1
    assert capsys.readouterr().err == "there is not enough memory: Unable to allocate 149. GiB\n"


class Named:
    """Python 3.11 makes a RuntimeError of what is raised while a class names its attributes."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGINT)


def made_another() -> int:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:  # as a library does while it is imported
        raise ValueError("half of it is there") from None
    return 0


def named() -> int:
    type("Class", (), {"attribute": Named()})
    return 0


@pytest.mark.parametrize("command", [made_another, named])
def test_an_interrupt_that_others_made_another_error_of(
    command: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "dispatch", lambda _: command())
    before = signal.getsignal(signal.SIGINT)
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_after_no_interrupt_is_ours(monkeypatch: pytest.MonkeyPatch):
    def fails(_: list[str]) -> int:
        raise ValueError("ours")

    monkeypatch.setattr(cli, "dispatch", fails)
    with pytest.raises(ValueError, match="ours"):
        cli.main([])


def test_the_package_is_a_command_too():
    done = subprocess.run(
        [sys.executable, "-m", "recurra", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "recurra", "")
