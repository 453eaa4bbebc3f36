"""A deliberately wrong rule is found: by the oracle after its pass, by bisection, by reduction."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import recurra as rc
from recurra import cli
from recurra.compiler.pass_manager import PassManager
from recurra.compiler.pipeline import PASSES, compile_context
from recurra.config import Config
from recurra.errors import PassError, RecurraError, ShapeError
from recurra.ir import verify as verify_module
from recurra.ir.graph import Graph, Node
from recurra.ir.graph_parser import parse
from recurra.ir.types import Type
from recurra.ir.verify import verify
from recurra.ops.elementwise import Maximum
from recurra.reference.interpreter import run
from recurra.tools import graph_reducer
from recurra.transforms.canonicalize import canonicalize
from recurra.transforms.canonicalize.canonicalize import CANONICALIZE
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting

SIZES = {"I": 3, "T": 5}
ORACLE = "recurra: RECURRA_CHECK: passes are not compared; I=500, T=500 asks for "


@rule(Maximum)
def wrong(n: Node, g: Rewriting) -> object:
    """max(x, y) → x"""
    return n.args[0] if g.type(n.args[0]) == n.type else None


def program() -> rc.Context:
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        u = rc.uniform((i, t), (3,))
        x = rc.like(rc.f32[3], (i, t))
        x[i, 0] = u * 1.0 + 0.0
        x[i, t + 1] = x * 0.5 + u
        best = rc.maximum(x - 0.6, u - u.mean())
        far = best[i, t:T].sum(axis=0) + rc.call(np.sin, rc.f32[3], x)
        rc.output(best=best, total=far.sum())
    return ctx


def compiled(ctx: rc.Context) -> rc.Context:
    bounds = dict(zip("IT", SIZES.values(), strict=True))
    ctx.compile(bounds, backend="numpy")
    return ctx


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonicalize, "ALGEBRA", (*canonicalize.ALGEBRA, wrong))


@pytest.mark.usefixtures("planted")
def test_the_oracle_names_the_pass_the_output_and_the_point(monkeypatch: pytest.MonkeyPatch):
    compiled(program())
    monkeypatch.setenv("RECURRA_CHECK", "1")
    with pytest.raises(PassError) as e:
        compiled(program())
    ctx = program()
    before = run(ctx.graph, SIZES, seed=3)[dict(ctx.builder.logs)["best"]]
    message = str(e.value)
    assert message.startswith("the pass canonicalize changes the answer: best at i=0, t=")
    assert "--> test_debugging.py:" in message
    found = re.search(r"at i=(\d), t=(\d), element \[(\d)\]", message)
    assert found is not None
    i, t, k = map(int, found.groups())
    x = f"before it is {before[i, t, k].item()}, after it "
    assert x in message
    assert "for I=3, T=5" in message


CHAIN = """
dims t<T
a[t<T]: f32[3] = uniform(id=1, counter=(t,), shape=(3,))
b[t<T]: f32[3] = neg(a)
c[t<T]: f32[3] = neg(b)
d[t<T]: f32[3] = neg(c)
return d
"""


def test_what_has_changed_is_verified_and_who_reads_it(monkeypatch: pytest.MonkeyPatch):
    graph, seen, real = parse(CHAIN), list[str](), verify_module._verify_type

    def noted(graph: Graph, node: Node) -> None:
        seen.append(node.name)
        real(graph, node)

    monkeypatch.setattr(verify_module, "_verify_type", noted)
    verify(graph)
    assert seen == ["a", "b", "c", "d"]
    seen.clear()
    verify(Graph({**graph.nodes, "b": replace(graph["b"])}, graph.outputs, graph.dims), graph)
    assert seen == ["b", "c"]
    short = Type("f32", (2,))
    a = replace(graph["a"], op=replace(graph["a"].op, shape=(2,)), type=short)
    with pytest.raises(ShapeError, match=r"b is declared f32\[3\], its equation gives f32\[2\]"):
        verify(Graph({**graph.nodes, "a": a}, graph.outputs, graph.dims), graph)


def test_right_passes_keep_the_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RECURRA_CHECK", "1")
    compiled(program())


def test_bounds_too_large_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RECURRA_CHECK", "1")
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        rc.output(y=rc.value(t) + rc.value(i))
    ctx.compile({I: 500, T: 500}, backend="numpy")
    assert ORACLE in capsys.readouterr().err


def last_rewrite(
    n: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setenv("RECURRA_FUEL", str(n))
    compiled(program())
    return capsys.readouterr().err


@pytest.mark.usefixtures("planted")
def test_bisection_finds_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Wrong with n rewrites and right with n - 1: the n-th is the wrong one."""
    text = last_rewrite(100_000, monkeypatch, capsys)
    found = re.search(r"there are only (\d+) rewrites", text)
    assert found is not None
    monkeypatch.setenv("RECURRA_CHECK", "1")
    right, bad = 0, int(found[1])
    while bad - right > 1:
        n = (right + bad) // 2
        try:
            last_rewrite(n, monkeypatch, capsys)
            right = n
        except PassError:
            bad = n
    monkeypatch.delenv("RECURRA_CHECK")
    text = last_rewrite(bad, monkeypatch, capsys)
    assert f"out of fuel in canonicalize; rewrite {bad} is max(x, y) → x, at best\n" in text


@pytest.mark.parametrize("n", [0, 1, 5, 12, 20, 30, 40])
def test_any_amount_of_fuel_is_right(n: int, monkeypatch: pytest.MonkeyPatch):
    ctx = program()
    want = run(ctx.graph, SIZES)
    monkeypatch.setenv("RECURRA_FUEL", str(n))
    got = ctx.compile(dict(zip("IT", SIZES.values(), strict=True)), backend="numpy").run()
    for name, o in ctx.builder.logs.items():
        np.testing.assert_allclose(got[name], want[o], rtol=1e-5, atol=1e-6)


def test_topics_of_the_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("RECURRA_LOG", "passes,rules,decisions,memory,launches")
    compiled(program()).run(dict(zip("IT", SIZES.values(), strict=True)), backend="numpy")
    lines = capsys.readouterr().err.splitlines()
    assert all(x.startswith("recurra: ") for x in lines)
    text = "\n".join(lines)
    assert re.search(r"canonicalize +\d+ → \d+ +[\d.]+ ms", text)
    assert re.search(r"canonicalize +1 × x · 1 → x", text)
    assert re.search(r"plan +best: ", text)
    assert re.search(r"rematerialize +stored best", text)
    assert re.search(r"i 2..2: [\d.]+ ms", text)


@pytest.mark.parametrize(
    ("variable", "value", "fact"),
    [
        ("RECURRA_LOG", "pases", "its topics are passes, rules"),
        ("RECURRA_FUEL", "all", "a number of rewrites"),
        ("RECURRA_CHECK", "nan", "it is 0 or 1"),
    ],
)
def test_settings_that_mean_nothing(
    variable: str, value: str, fact: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(RecurraError, match=f"{variable}={value} means nothing") as e:
        compiled(program())
    assert fact in str(e.value)


# ---- reduction


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(f"{program().graph}\n")
    return path


@pytest.mark.usefixtures("planted")
def test_reduce_by_pass(file: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["reduce", str(file), "--pass", "canonicalize", "--sizes", "I=3", "T=5"]) == 0
    said = capsys.readouterr()
    assert "it fails: PassError in pass_manager.py, compare" in said.err
    graph = parse(said.out)
    assert len(graph.nodes) <= 3, said.out
    assert [n.op.name for n in graph.nodes.values() if n.args] == ["maximum"]
    assert not graph.dims
    assert failing(graph)


def failing(graph: Graph) -> bool:
    return graph_reducer.by_pass(CANONICALIZE)(graph_reducer.Case(graph, {})) is not None


@pytest.mark.slow
def test_reduce_by_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The command fails where a graph has a sum that reads a range of t."""
    script = tmp_path / "check.py"
    script.write_text(
        "import re, sys\n"
        "text, size = open(sys.argv[1]).read(), int(sys.argv[3].partition('=')[2])\n"
        "sys.exit(3 if re.search(r'= sum\\(.*\\[i,t:T\\]', text) and size > 1 else 0)\n"
    )
    command = f"python3 {script} {{}} {{sizes}}"
    arguments = ["reduce", str(file), "--check", command, "--sizes", "I=3", "T=5"]
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert "it fails: exit code 3" in said.err
    assert "# I=1 T=2" in said.out
    assert sorted(n.op.name for n in parse(said.out).nodes.values()) == ["input", "sum"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pass", "nothing"], "there is no pass 'nothing'"),
        (["--pass", "incrementalize"], "no size is given for I, T"),
        (["--pass", "incrementalize", "--sizes", "I=2", "T=3"], "the graph does not fail"),
        ([], "how the graph fails is told by --pass or by --check"),
        (["--check", "/no/such/command"], "/no/such/command cannot be run"),
    ],
)
def test_reduce_mistakes(
    file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["reduce", str(file), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_opt_is_checked_too(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RECURRA_CHECK", "1")
    everything = ["opt", str(file), "-p", ",".join(dict.fromkeys(step.name for step in PASSES))]
    assert cli.main([*everything, "--sizes", "I=3", "T=5"]) == 0
    assert cli.main(everything) == 2
    assert "no size is given for I, T" in capsys.readouterr().err
    monkeypatch.setattr(canonicalize, "ALGEBRA", (*canonicalize.ALGEBRA, wrong))
    assert cli.main([*everything, "--sizes", "I=3", "T=5"]) == 1
    assert "the pass canonicalize changes the answer" in capsys.readouterr().err


def test_stages_are_counted_beyond_a_hundred(tmp_path: Path) -> None:
    stages = PassManager(compile_context({}), config=Config(dump=tmp_path))
    for k in range(102):
        stages.dump("stage", k)
    told = {x.name: x.read_text().strip() for x in tmp_path.iterdir()}
    assert told == {f"{k:02d}-stage.txt": str(k) for k in range(102)}
