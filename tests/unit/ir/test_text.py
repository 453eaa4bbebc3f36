"""The text of a graph is the graph."""

from __future__ import annotations

import pytest

import recurra.ops as _ops  # noqa: F401  (fills the registry)
from recurra.errors import ShapeError
from recurra.ir.dims import Dim
from recurra.ir.graph import Slice
from recurra.ir.graph_parser import parse
from recurra.ir.op import Op
from recurra.ir.types import Range
from recurra.ir.verify import verify
from recurra.ops.source import Const

RECURRENCE = """
dims b<B, t<T
x0[b<B]: f32[4] = uniform(id=1, counter=(b,), shape=(4,))
c: f32[] = const(value=0.5)
x[b<B,t<T]: f32[4] = merge(x0, d[b,t-1], when=(t == 0, t > 0))
d[b<B,t<T]: f32[4] = mul(x, c, labels='a,->a')
h[b<B,t<T]: f32[4] = tanh(d)
y[b<B,t<T]: f32[T-t] = sum(h[b,t:T], axes=(1,))
return y, x
""".strip()


def test_round_trip() -> None:
    graph = parse(RECURRENCE)
    assert str(graph) == RECURRENCE
    assert parse(str(graph)) == graph
    assert verify(graph) is graph
    assert graph.outputs == ("y", "x")
    assert str(graph["x"].domain["t"]) == "t<T"


@pytest.mark.parametrize(
    "equation",
    [
        "y: f32[] = const(value=0.0)",
        "y: f32[] = const(value=-0.5)",
        "y: f32[] = const(value=1e-08)",
        "y: f32[] = const(value=inf)",
        "y: f32[] = const(value=-inf)",
        "y: bool[] = const(value=True, dtype='bool')",
        "y: i32[3,T,T-1] = const(value=-7, dtype='i32', shape=(3, T, T-1))",
        "y: f32[B*T] = const(value=1.0, shape=(B*T,))",
        "y[t<T]: f32[min(t+5,T)-t] = const(value=1.0, shape=(min(t+5,T)-t,))",
        "y[1<=t<T-1]: i32[] = value(expr=-(t//4)+5)",
        "y[t<T]: bool[] = value(expr=(t%4 == 0) | ((t >= 2) & (t < T-1)), dtype='bool')",
        "y[b<B]: f32[T] = value(expr=t, dtype='f32', bind=((t, T, 0),))",
        "y[b<B,i<I,t<T]: f32[] = uniform(id=3, key=(i,), counter=(b, t))",
        "y: bool[] = value(expr=true, dtype='bool')",
        "y: bool[] = value(expr=false, dtype='bool')",
        "y[l<L+1]: f32[2] = input(dtype='f32', shape=(2,))",
        "y[k<max(T-3,1)]: f32[] = input(dtype='f32')",
        "y: (f32[B,4], bool[B]) = call(fn='step#1', results=(('f32', (B, 4)), ('bool', (B,))))",
        "y: i32[2] = foreign(fn='f', out=0, dtype='i32', shape=(), vmaps=(((True,), True, 2),))",
        "y: f32[] = merge(when=())",
    ],
)
def test_every_kind_of_attribute(equation: str) -> None:
    graph = parse(equation + "\nreturn y")
    assert str(graph) == equation + "\nreturn y"
    assert parse(str(graph)) == graph


@pytest.mark.parametrize(
    ("read", "index"),
    [
        ("x[0:T]", "Slice(lo=0, hi=T, step=1, pad=None, loose=False)"),
        ("x[t:min(t+5,T)]", "Slice(lo=t, hi=min(t+5,T), step=1, pad=None, loose=False)"),
        ("x[0:T:2]", "Slice(lo=0, hi=T, step=2, pad=None, loose=False)"),
        ("x[0:t+1:pad(8)]", "Slice(lo=0, hi=t+1, step=1, pad=8, loose=False)"),
        ("x[0:t+1:pad(T//2, 2)]", "Slice(lo=0, hi=t+1, step=2, pad=T//2, loose=False)"),
        ("x[0:t+1:room]", "Slice(lo=0, hi=t+1, step=1, pad=None, loose=True)"),
        ("x[0:t+1:room(8)]", "Slice(lo=0, hi=t+1, step=1, pad=8, loose=True)"),
        ("x[max(t-3,0)]", "max(t-3,0)"),
        ("x[5]", "5"),
    ],
)
def test_every_kind_of_index(read: str, index: str) -> None:
    text = f"x[t<T]: f32[] = input(dtype='f32')\ny[t<T]: f32[] = detach({read})\nreturn y"
    graph = parse(text)
    assert repr(graph["y"].args[0].index[0]) == index
    assert str(graph) == text


def test_identity_reads_are_bare() -> None:
    head = "x[b<B,t<T]: f32[] = input(dtype='f32')\n"
    bare = parse(head + "y[b<B,t<T]: f32[] = tanh(x)\nreturn y")
    full = parse(head + "y[b<B,t<T]: f32[] = tanh(x[b,t])\nreturn y")
    assert bare == full
    assert "tanh(x)" in str(full)


def test_comments_blank_lines_and_names() -> None:
    graph = parse("""
        # a comment
        dims t<T   # the dims
        returns: f32[] = const(value=1.0)

        dims_2: f32[] = tanh(returns)  # 'quoted'
        return dims_2
    """)
    assert list(graph.nodes) == ["returns", "dims_2"]
    assert graph.dims == (Dim(Range("t", graph.dims[0].hi)),)
    assert parse(str(graph)) == graph


def test_no_output() -> None:
    graph = parse("x: f32[] = const(value=1.0)\nreturn ")
    assert graph.outputs == ()
    assert parse(str(graph)) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x f32[] = const(value=1.0)", "not an equation"),
        ("x: f32[] = 3", "the right side is not an op"),
        ("x: f32[] = const(value=", "was never closed"),
        ("x: f32[] = nosuch()", "x: there is no op 'nosuch'"),
        ("x: f32[] = const(walue=1.0)", "x: const: .*walue"),
        ("x: f99[] = const(value=1.0)", "there is no element type 'f99'"),
        ("x: f32[] = tanh(y)", "y is read, but y has no equation"),
        ("x: f32[] = tanh(x + 1)", "an operand is name or name"),
        ("x[t<T]: f32[] = tanh(x[t,t])", r"x\[t, t\]: the domain of x is \[t<T\]"),
        ("x[t<T]: f32[] = tanh(x[t:])", "a range needs both ends"),
        ("x[t<T]: f32[] = tanh(x[t**2])", "not an index expression: t [*][*] 2"),
        ("x[t<T]: f32[] = tanh(x[t//0])", "// needs a positive constant, got 0"),
        ("x[t<=T]: f32[] = const(value=1.0)", "a range is dim<hi or lo<=dim<hi"),
        ("x: f32[] = const(value=1.0)\nx: f32[] = const(value=1.0)", "x is defined twice"),
        ("x: f32[] = const(value=1.0)\nreturn y", "the output y has no equation"),
    ],
)  # fmt: skip
def test_malformed_text(text: str, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        parse(text)


def test_slice_counts_its_points() -> None:
    for lo in range(3):
        for hi in range(lo, 9):
            for step in range(1, 4):
                assert Slice(lo, hi, step).count == len(range(lo, hi, step))


def test_attributes_that_are_defaults_are_left_out() -> None:
    assert str(Const(value=1.0)) == "const(value=1.0)"
    assert str(Op.registry["pad"](axis=0, before=1, after=0)) == "pad(axis=0, before=1, after=0)"


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("y[t<T]: f32[3] = tanh(x)", r"y is declared f32\[3\], its equation gives f32\[2\]"),
        ("y[t<T]: f32[2] = add(x, i)", "operands have types f32, i32"),
        ("y: f32[2] = tanh(x[t])", r"y reads x\[t\], which mentions {'t'}"),
        ("y: i32[] = value(expr=t+1)", "y: its attributes mention {'t'}"),
        ("y: f32[t,2] = const(value=0.0, shape=(t, 2))", "its attributes mention {'t'}"),
        ("y[t<T]: f32[2] = merge(x, x, when=(t == 0,))", "2 branches have 1 conditions"),
    ],
)
def test_what_is_no_legal_graph(equation: str, message: str) -> None:
    x, i = (f"{d}[2] = input(dtype='{d}', shape=(2,))" for d in ("f32", "i32"))
    given = f"x[t<T]: {x}\ni: {i}"
    graph = parse(f"dims t<T\n{given}\n{equation}\nreturn y")
    with pytest.raises((AssertionError, ShapeError), match=message):
        verify(graph)
