"""Wrong programs are refused with a point and the user's line; right ones are accepted."""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy as np
import pytest

from recurra.analysis.bound_values import known_bounds
from recurra.analysis.proofs import Proof, Unprovable
from recurra.analysis.safety import check_safety
from recurra.errors import DomainError, RecurraError
from recurra.ir.expr import FloorDiv, Sym
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.graph_parser import parse
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Type
from recurra.polyhedral import isl
from wrong_programs import END, PRODUCT, WRONG, X, Y, graph_of


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_program_is_refused_in_the_users_words(case: str) -> None:
    body, kind, message = WRONG[case]

    def compile_it() -> None:
        check_safety(graph_of(body + END), {"T": 4})

    with pytest.raises(kind) as e:
        compile_it()
    assert str(e.value) == message
    assert type(e.value) is kind


def test_the_hint_mends_the_program() -> None:
    for body, _, message in WRONG.values():
        line = re.search(r"--> train.py:(\d+)", message)
        hint = re.search(r"hint: (?:cut it|let it [^:]*): (x\[.*\])$", message)
        if line is None or hint is None:
            continue
        lines = body.splitlines()
        k = int(line[1]) - 2
        lines[k] = re.sub(r"x\[[^\]]*\]", lambda _, h=hint: h[1], lines[k])
        check_safety(graph_of("\n".join(lines) + END), {"T": 4})


RIGHT = [
    X + "y = rc.where(t < T-1, x[t+1], 0.0)",
    X + "y = x[t:rc.min(t+5, T)].sum() + x[rc.max(t-3, 0):t+1].max()",
    X + "y = x[0:t].sum() + x[t+1:T].sum()",
    X + "y = x[t // 2] + x[(t + 3) % 4]",
    X + "y = x[0:T:3].sum() + x[t:T:2].max()",
    X + Y + "z = y * 2.0\ny[0] = x\ny[t+1] = z + x",
    X + Y + "z = rc.like(rc.f32[()], (t,))\n"
    "z[t < 2] = x\nz[t >= 2] = y\ny[t < 2] = z\ny[t >= 2] = x",
    X + Y + "y[T-1] = x\ny[t-1] = y + x",
    X + Y + "y[0] = x\ny[T-1] = x * 2.0\ny[t] = x[0:t].sum()",
    X + "y = rc.constant(np.zeros(200)).cut(t, t + 2) + x",
    X + "y = x[-1]",
    X + "y = x[t+1] * 0.5 + x[t-1]",  # over 1 <= t < T-1
    X + "y = x[t-3:t+1].sum() + x[t:t+4:3].sum()",
    X + Y + "y[0] = x\ny[t] = x[t-1]",
]


@pytest.mark.parametrize("body", RIGHT)
@pytest.mark.parametrize("bound", [4, 100])
def test_a_right_program_is_accepted(body: str, bound: int) -> None:
    check_safety(graph_of(body + END), {"T": bound})


def line_below(mark: str) -> str:
    """How an error shows the line of this file that follows a mark."""
    lines = linecache.getlines(__file__)
    k = next(k for k, line in enumerate(lines) if line.strip() == f"# {mark}")
    return f"  --> test_safety.py:{k + 2}   {lines[k + 1].strip()}\n"


def test_every_bound_has_a_positive_integer() -> None:
    graph = graph_of("x = rc.input(rc.f32[()], (s, t), 'x')\nrc.output(y=x)", "st")
    with pytest.raises(DomainError) as e:
        # missing
        check_safety(graph, {"T": 4})
    assert str(e.value) == (
        "no value is given for the bound S\n" + line_below("missing") + ""
        "  its bounds are S, T; given: T=4\n"
        "  hint: add S: 10"
    )
    with pytest.raises(DomainError) as e:
        # unknown
        check_safety(graph, {"S": 2, "T": 4, "U": 1, "V": 2})
    assert str(e.value) == (
        "the program does not have the bounds U, V\n" + line_below("unknown") + ""
        "  its bounds are S, T; given: S=2, T=4, U=1, V=2\n"
        "  hint: leave out U, V"
    )
    for value in (0, 2.0, True, -3):
        with pytest.raises(DomainError) as e:
            # no count
            check_safety(graph, {"S": 2, "T": value})  # pyright: ignore[reportArgumentType]
        assert str(e.value) == (
            f"the bound T cannot be {value!r}\n" + line_below("no count") + ""
            "  a bound is the number of points of a dim: an integer, at least 1\n"
            "  hint: give it one: T: 10"
        )
    assert known_bounds(graph, {"T": np.int64(4), "S": 2}) == {"S": 2, "T": 4}  # pyright: ignore


def refused(graph: Graph, **bounds: int) -> str:
    with pytest.raises(RecurraError) as e:
        check_safety(graph, bounds)
    return str(e.value)


def test_a_graph_as_text_is_held_to_the_same() -> None:
    x = "dims t<T\nx[t<T]: f32[] = input(dtype='f32')\n"
    assert refused(parse(x + "y[t<T]: f32[] = neg(x[t*T])\nreturn y"), T=4) == (
        f"an index of x[T*t] multiplies two unknowns: T*t\n  {PRODUCT}"
    )
    padded = parse(x + "y[t<T]: f32[2] = neg(x[t:T:pad(2)])\nreturn y")
    check_safety(padded, {"T": 2})
    assert refused(padded, T=4) == (
        "x[t:T:pad(2)] reads more points than its padded length\n"
        "  it is padded to 2 and holds T-t points; at t=0, T=4 these are 2 and 4\n"
        "  hint: pad it to the largest number of points"
    )
    ragged = parse(x + "y[t<T]: f32[t*t-1] = expand(x, labels='->a', sizes=(t*t-1,))\nreturn y")
    assert "a size of y multiplies two unknowns: t*t" in refused(ragged, T=4)
    one = "u: f32[] = neg(v)\nv: f32[] = neg(u)\nreturn v"
    assert refused(parse(one)) == (
        "u depends on itself at the same point\n"
        "  u needs v\n  v needs u\n  no order of them is right\n"
        "  hint: take one of these reads away"
    )
    zero = Node(
        "y", Op.registry["neg"](), (Ref("x", (FloorDiv(Sym("t"), 0),)),), T_DOMAIN, Type("f32")
    )
    assert refused(parse(x + "return x").update([zero], ("y",)), T=4) == (
        "an index of x[t//0] is divided by 0: t//0\n"
        "  the right side of // is a positive constant: reads are inverted exactly\n"
        "  hint: use a constant, or read the dim as a number: rc.value(...)"
    )


T_DOMAIN = Domain((Range("t", Sym("T")),))


def test_points_that_are_never_read_are_no_reads() -> None:
    x = "dims s<S, t<T\nx[s<S,t<T]: f32[] = input(dtype='f32')\n"
    check_safety(parse(x + "y[t<T]: f32[] = sum(x[7,t:t], axes=(0,))\nreturn y"), {"S": 2, "T": 4})
    check_safety(parse(x + "y[2<=t<T]: f32[] = neg(x[1,t-2])\nreturn y"), {"S": 2, "T": 1})
    never = "y[t<T]: f32[] = merge(x[0,t], x[9,t], when=(t >= 0, t < 0))\nreturn y"
    check_safety(parse(x + never), {"S": 2, "T": 4})


def test_reads_at_the_identity_ask_isl_nothing() -> None:
    body = X + "y = x\nfor k in range(50):\n    y = y * 2.0 + x[t:T].sum()\n"
    isl.first.cache_clear()
    check_safety(graph_of(body + END), {"T": 200})
    assert isl.first.cache_info().misses == 0


def test_a_product_of_dims_is_unprovable_not_wrong() -> None:
    proof = Proof(parse("return "), {})
    e: Any = Sym("s") * Sym("t") - 3
    with pytest.raises(Unprovable):
        proof.first_below(e, 0, {"s": (0, 3), "t": (0, 3)})
