"""Regions as NumPy source: readable, the numbers of the walk to the last bit, nothing shared."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import recurra as rc
from program_checks import Case
from random_cases import QUICK
from random_programs import programs
from recurra.backends.bounded_int import ANY
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.numpy.python_source_writer import Writer
from recurra.backends.numpy.region import written
from recurra.backends.numpy.source_blocks import CodeBlock, Line, text_of
from recurra.backends.numpy.source_machine import WritingMachine
from recurra.backends.numpy.traced_array import StandIn, as_zero_array
from recurra.codegen.host_program import Program
from recurra.compiler.pipeline import compile_graph
from recurra.errors import RecurraError
from recurra.ir.expr import SEED
from recurra.ops.control import Foreign
from recurra.runtime.host_executor import Execution
from samples import OUTSIDE, SAMPLES, Sample
from walked_numpy import WalkedNumpy


def outputs(program: Program, backend: Any) -> dict[str, Any]:
    steps = Execution(program, backend).steps(7)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.slow
@QUICK
@given(programs())
def test_the_source_gives_what_the_walk_gives(case: Case) -> None:
    try:
        program = compile_graph(case.graph, case.sizes).program
    except RecurraError:  # it reads outside of what is there
        return
    want, got = outputs(program, WalkedNumpy()), outputs(program, NumpyBackend())
    assert want.keys() == got.keys()
    for name, x in want.items():
        assert got[name].dtype == x.dtype
        np.testing.assert_array_equal(got[name], x)


def sources(p: Any) -> str:
    program = p.compilation.compiled.program
    with np.errstate(all="ignore"):
        return "\n".join(written(program.plan, r)[0] for r in program.regions)


def test_the_source_is_short_and_plain() -> None:
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        x = rc.input(rc.f32, (t,), name="x")
        h = rc.like(rc.f32, domain=(t,))
        h[0] = x[0]
        h[t + 1] = (h * 0.5 + x[t + 1]).tanh()
        rc.output(h=h)
    text = sources(ctx.compile({T: 9}, backend="numpy"))
    assert text.count("for t in range(1, 9):") == 1
    (line,) = [x for x in text.splitlines() if "np.tanh(" in x]
    assert line.strip().startswith("tanh")
    assert "if t == 0" not in text


def test_what_no_step_changes_is_before_the_loop() -> None:
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        rc.output(x=rc.uniform((t,), (2,)) + rc.value(t))
    text = sources(ctx.compile({T: 500}, backend="numpy", vectorized=False))
    before, _, inside = text.partition("for t in range")
    assert "seed" in before
    assert "seed" not in inside


def test_a_loop_that_nothing_is_left_of_is_left_out() -> None:
    """A line without text is where a value ends."""

    def loop(moves: bool) -> CodeBlock:
        return CodeBlock("for t in range(0, 2):", [Line("y", "f(x)", moves=moves), Line("", "")])

    head, tail = Line("x", "z[0]", is_value=True), Line("", "z[1] = x")
    assert "for" not in text_of("def run(z):", [head, loop(False), tail], "z")
    used = [head, loop(True), Line("", "z[1] = y + y")]
    assert [x.strip() for x in text_of("def run(z):", used, "z").splitlines()] == [
        "def run(z):",
        "x = z[0]",
        "y = f(x)",
        "z[1] = y + y",
        "del y",
        "return z",
    ]


def test_a_function_of_another_library_is_called_as_it_is() -> None:
    jax = pytest.importorskip("jax")
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        x = rc.uniform((t,), (3,))
        rc.output(y=rc.jax_fn(lambda x: jax.numpy.sort(x) * 2)(x), x=x)
    p = ctx.compile({T: 5}, backend="numpy")
    assert "foreign" in sources(p)
    got = p.run(seed=3)
    np.testing.assert_array_equal(got["y"], np.sort(got["x"]) * np.float32(2))


def test_a_function_of_several_results_is_called_once() -> None:
    jax = pytest.importorskip("jax")
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        x = rc.like(rc.f32[2], (t,))
        x[0] = rc.constant([1.0, 2.0])
        total, twice, more = rc.jax_fn(lambda x: (jax.numpy.sum(x), x * 2, x + 1))(x)
        x[t + 1] = twice * 0.5 + more * 0.25 - total * 0.5
        rc.output(total=total, x=x)
    p = ctx.compile({T: 3}, backend="numpy")
    assert len(re.findall(r"= foreign\w*\(", sources(p))) == 1
    got = p.run()
    want = np.array([1.0, 2.0])
    for k in range(3):
        np.testing.assert_array_equal(got["x"][k], want)
        assert got["total"][k] == want.sum()
        want = want + (want + 1) * 0.25 - want.sum() * 0.5


@pytest.mark.parametrize("sample", [x for x in SAMPLES if x.name not in OUTSIDE], ids=str)
@pytest.mark.parametrize("constants", [False, True], ids=["given", "constants"])
@pytest.mark.parametrize("span", [(0, 2), ANY], ids=["few", "any"])
def test_every_operator_is_written_down(
    sample: Sample, constants: bool, span: tuple[int, int]
) -> None:
    """As code of two times and of arrays that are not there yet, or are; with the same numbers."""
    w, xs = Writer(), sample.arrays()
    machine = WritingMachine(w, {k: x for k, x in sample.env.items() if k in ("T", "B")})
    seed = StandIn(w, w.named("seed"), np.zeros((), np.uint32))
    env = {**sample.env, **{n: machine.counter(n, span) for n in ("t", "b")}, SEED: seed}
    takes = [StandIn(w, w.named("x"), as_zero_array(x)) for x in xs]
    args = xs if constants else takes
    with np.errstate(all="ignore"):
        if isinstance(sample.op, Foreign):
            made = machine.foreign(sample.op, args)
        else:
            made = machine.run(sample.op, env, args)
        head = f"def program({', '.join(['t', 'b', 'seed', *(x.name for x in takes)])}):"
        text = text_of(head, w.items, w.owned(made))
        exec(text, scope := {"np": np, **w.scope})
        got = scope["program"](sample.env["t"], sample.env["b"], np.uint32(sample.env[SEED]), *xs)
        want = sample.op.run(np, {**sample.env, SEED: np.uint32(sample.env[SEED])}, *xs)
    assert (made.shape, made.dtype) == (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(got, want)


def test_results_are_the_callers() -> None:
    """What he writes into them is not seen by the next run, also if they are constants."""
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        rc.output(c=rc.constant([1.0, 2.0]), x=rc.uniform((t,), (2,)))
    p = ctx.compile({T: 3}, backend="numpy")
    first = p.run(seed=1)
    kept = {k: x.copy() for k, x in first.items()}
    for x in first.values():
        x[...] = -1
    for name, x in p.run(seed=1).items():
        np.testing.assert_array_equal(x, kept[name])
