"""Problems: their text, their meaning, and how wrong ones are told."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_nests import laid_out, random_problem
from recurra.errors import ShapeError
from recurra.nest import catalogue
from recurra.nest.einsum import from_layouts, from_sizes
from recurra.nest.problem import Affine, NestProblem, TensorAccess
from recurra.nest.reference import evaluate
from recurra.nest.text import parse

POST = {
    None: lambda x: x,
    "relu": lambda x: max(x, 0),
    "abs": abs,
    "negate": lambda x: -x,
    "square": lambda x: x * x,
}
CATALOGUE = [
    catalogue.matmul(5, 6, 7, post="relu"),
    catalogue.matvec(5, 6),
    catalogue.vecmat(5, 6, dtype="f64"),
    catalogue.convolution(2, 4, 5, 3, 6),
    catalogue.convolution(1, 3, 3, 2, 4, stride=2),
    catalogue.depthwise(1, 4, 4, 5),
    catalogue.max_pooling(3, 4, 5),
    catalogue.reduction(4, 9),
    catalogue.transposition(4, 9),
    catalogue.broadcast(4, 9),
    *catalogue.concatenation(3, 4, 5),
]


def place(access: TensorAccess, point: dict[str, int]) -> tuple[int, ...]:
    return tuple(a.offset + sum(c * point[i] for i, c in a.terms) for a in access.at)


def point_by_point(p: NestProblem, inputs: list[np.ndarray], out: np.ndarray) -> None:
    """The meaning once more, in plain Python: what a textbook would write."""
    sums: dict[tuple[int, ...], float] = {}
    for values in product(*(range(n) for _, n in p.sizes)):
        point = dict(zip([i for i, _ in p.sizes], values, strict=True))
        term = 1.0
        for access, x in zip(p.inputs, inputs, strict=True):
            term *= float(x[place(access, point)])
        to = place(p.output, point)
        before = sums.get(to, float(out[to]) if p.initial else None)
        if before is not None:
            term = before + term if p.combine == "sum" else max(before, term)
        sums[to] = term
    for to, value in sums.items():
        out[to] = POST[p.post](value)


@pytest.mark.parametrize("p", CATALOGUE, ids=lambda p: p.statement)
def test_round_trip(p: NestProblem) -> None:
    assert parse(str(p)) == p


@given(st.randoms(use_true_random=False))
def test_random_problems(r: Random) -> None:
    p = random_problem(r, points=300)
    assert parse(str(p)) == p
    inputs = [laid_out(t, r)[0] for t in p.inputs]
    out, _ = laid_out(p.output, r)
    want, got = out.copy(), out.copy()
    point_by_point(p, inputs, want)
    evaluate(p, inputs, got)
    np.testing.assert_array_equal(got, want)


def test_large_problems_are_evaluated_in_parts() -> None:
    p = catalogue.matmul(200, 300, 100)
    a, b = (np.random.default_rng(0).integers(-4, 5, t.shape) for t in p.inputs)
    out = np.zeros(p.output.shape)
    evaluate(p, [a, b], out)
    np.testing.assert_array_equal(out, a @ b)


def test_closed_forms() -> None:
    x = np.arange(24.0).reshape(4, 6)
    pooled = np.zeros((2, 3, 1))
    evaluate(catalogue.max_pooling(2, 3, 1), [x[..., None]], pooled)
    assert pooled[..., 0].tolist() == [[7, 9, 11], [19, 21, 23]]
    turned = np.zeros((6, 4))
    evaluate(catalogue.transposition(4, 6), [x], turned)
    assert (turned == x.T).all()
    joined = np.full((4, 8), -1.0)
    for p, part in zip(catalogue.concatenation(4, 6, 2), (x, x[:, :2]), strict=True):
        evaluate(p, [part], joined)
    assert (joined == np.concatenate([x, x[:, :2]], axis=1)).all()


def test_text() -> None:
    assert str(catalogue.convolution(1, 8, 8, 3, 4, stride=2)) == (
        "for n<1 h<8 r<3 w<8 s<3 c<3 k<4\n"
        "A: f32[1,17,17,3]\n"
        "B: f32[3,3,3,4]\n"
        "C: f32[1,8,8,4]\n"
        "C[n,h,w,k] = sum(A[n,2*h+r,2*w+s,c] * B[r,s,c,k])"
    )


def test_layouts_of_arrays() -> None:
    p = from_layouts("mk,kn->mn", [((4, 5), (5, 1)), ((5, 6), (1, 5))], post="relu", initial=True)
    assert str(p) == (
        "for m<4 k<5 n<6\nA: f32[4,5]\nB: f32[5,6] strides (1,5)\nC: f32[4,6]\n"
        "C[m,n] = relu(sum(A[m,k] * B[k,n], initial=C))"
    )


WRONG = {
    "mk,kn": "'mk,kn' is not an einsum\n  there is no -> before the output\n"
    '  hint: as in "mk,kn->mn" or "(2h+r),r->h"',
    "mk,kn->mz": "'mk,kn->mz' is not an einsum\n  z is in the output, but in no input\n"
    '  hint: as in "mk,kn->mn" or "(2h+r),r->h"',
    "m(h+,k->m": "'m(h+,k->m' is not an einsum\n  'm(h+' is not made of letters a to z and "
    'bracketed sums\n  hint: as in "mk,kn->mn" or "(2h+r),r->h"',
    "mk,,kn->mn": "'mk,,kn->mn' is not an einsum\n  an input has no axis\n"
    '  hint: as in "mk,kn->mn" or "(2h+r),r->h"',
    "(h*r),r->h": "not understood: 'h*r'\n  an axis is an affine sum of indices, as in 2*h+r",
}


@pytest.mark.parametrize("words", WRONG)
def test_malformed_words(words: str) -> None:
    with pytest.raises(ShapeError) as refused:
        from_sizes(words, {i: 4 for i in "mknhrz"})
    assert str(refused.value) == WRONG[words]


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ((4, 0, 6), "index k has no points"),
        ((4, -2, 6), "index k has no points"),
        ((4, 5), "'mk,kn->mn' has 3 sizes: m, k, n"),
        ((4, 5.5, 6), "the size of k is no integer"),
        ({"m": 4, "k": 5}, "index n of 'mk,kn->mn' has no size"),
        ({"m": 4, "k": 5, "n": 6, "z": 1}, "'mk,kn->mn' has no index z"),
        ((2**12, 2**16, 2**16), "A is too large"),
    ],
)
def test_wrong_sizes(sizes: dict[str, int], what: str) -> None:
    with pytest.raises(ShapeError) as refused:
        from_sizes("mk,kn->mn", sizes)
    assert refused.value.what == what or refused.value.what == what.replace("A is", "B is")


@pytest.mark.parametrize(
    ("layouts", "what"),
    [
        ([((4, 5), (5, 1)), ((6, 7), (7, 1))], "index k of 'mk,kn->mn' has two sizes"),
        ([((4, 5), (5, 1))], "'mk,kn->mn' has 2 inputs"),
        ([((4, 5, 1), (5, 1, 1)), ((5, 7), (7, 1))], "an array does not fit 'mk,kn->mn'"),
        (
            [((4, 5), (5, 1)), ((5, 7), (7, 1)), ((4, 7), (0, 1))],
            "elements of C lie on top of each other",
        ),
    ],
)
def test_wrong_layouts(layouts: list[tuple[tuple[int, ...], tuple[int, ...]]], what: str) -> None:
    with pytest.raises(ShapeError) as refused:
        from_layouts("mk,kn->mn", layouts)
    assert refused.value.what == what


MATMUL = "for m<4 k<5 n<6\nA: f32[4,5]\nB: f32[5,6]\nC: f32[4,6]\nC[m,n] = sum(A[m,k] * B[k,n])"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("B: f32[5,6]", "B: f16[5,6]", "B has type f16, which is not supported"),
        ("B: f32[5,6]", "B: f64[5,6]", "all tensors of a contraction have one type"),
        ("B: f32[5,6]", "B: f32[4,6]", "B[k,n] reaches past axis 0 of B"),
        ("k<5", "k<5 z<3", "index z has a size, but no tensor uses it"),
        ("k<5 ", "", "index k of A[m,k] has no size"),
        (
            "C: f32[4,6]\nC[m,n]",
            "C: f32[9,6]\nC[m+n,n]",
            "C[m+n,n] is written more than once at some element",
        ),
        ("sum(", "mean(", "not understood: 'C[m,n] = mean(A[m,k] * B[k,n])'"),
        ("for m", "over m", "not understood: 'over m<4 k<5 n<6'"),
        ("B[k,n])", "D[k,n])", "not understood: 'C[m,n] = sum(A[m,k] * D[k,n])'"),
        ("A[m,k]", "A[m+,k]", "not understood: 'm+'"),
    ],
)
def test_wrong_text(old: str, new: str, what: str) -> None:
    assert parse(MATMUL)
    with pytest.raises(ShapeError) as refused:
        parse(MATMUL.replace(old, new))
    assert refused.value.what == what


def test_too_many() -> None:
    with pytest.raises(ShapeError, match="index a is too long"):
        from_layouts("a->", [((2**40,), (0,))])
    with pytest.raises(ShapeError, match="too many loops"):
        from_sizes("abcdefghijk->", [1] * 11)
    with pytest.raises(ShapeError, match="a contraction has 1 to 6 inputs"):
        from_sizes("a,a,a,a,a,a,a->a", [3])
    with pytest.raises(ShapeError, match="there is no post 'gelu'"):
        from_sizes("a->a", [3], post="gelu")  # pyright: ignore[reportArgumentType]


def test_affine_text() -> None:
    assert str(Affine((("h", 2), ("r", -1)), 3)) == "2*h-r+3"
