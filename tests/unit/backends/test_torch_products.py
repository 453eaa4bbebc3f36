"""Contractions of Torch that are products of matrices: the same numbers by a shorter call."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

import recurra as rc
from recurra.backends.torch.products import product, with_products

SIZES = {"a": 3, "b": 4, "k": 5}
OPERANDS = [("k", "k"), ("ak", "k"), ("k", "bk"), ("ak", "kb"), ("a", "b")]
PRODUCTS = [
    (x, y, "".join(out))
    for first, second in OPERANDS
    for x in map("".join, permutations(first))
    for y in map("".join, permutations(second))
    for out in permutations(sorted({*first} ^ {*second}))
]
OTHERS = ["ab,ab->", "ak,ak->a", "ak,kb->a", "ak,kb->", "ak,b->ab", "aa,ab->b", "zak,kb->zab"]


@pytest.mark.parametrize(("first", "second", "out"), PRODUCTS)
def test_a_product_has_the_numbers_of_the_contraction(first: str, second: str, out: str) -> None:
    x, y = (torch.arange(60.0)[:n].reshape(s) for n, s in map(shape, (first, second)))
    text = f"torch.functional.einsum('{first},{second}->{out}', x, y)"
    made = with_products(f"z = {text}")
    assert "einsum" not in made
    scope = {"torch": torch, "x": x, "y": y}
    exec(made, scope)
    assert torch.equal(scope["z"], eval(text, scope))  # pyright: ignore[reportArgumentType]


def shape(labels: str) -> tuple[int, list[int]]:
    """The number of elements, and the sizes, of an operand."""
    sizes = [SIZES[c] for c in labels]
    return torch.Size(sizes).numel(), sizes


@pytest.mark.parametrize("labels", OTHERS)
def test_other_contractions_stay(labels: str) -> None:
    ins, out = labels.split("->")
    first, second = ins.split(",")
    assert product(first, second, out, "x", "y") is None
    text = f"z = torch.functional.einsum('{labels}', x, y)"
    assert with_products(text) == text


def test_a_program_gives_what_it_gave() -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        w, x = rc.input(rc.f32[3, 3]), rc.input(rc.f32[3], (t,))
        h = rc.like(rc.f32[3], (t,))
        h[0] = x[0]
        h[t] = h[t - 1] @ w + x
        (h[T - 1].square()).sum().backward(wrt=[w])
        assert w.grad is not None
        rc.output(h=h, d=w.grad)
    given = {"w": torch.rand(3, 3), "x": torch.rand(5, 3)}
    found = ctx.compile({T: 5}, backend="torch").run(inputs=given)
    want = ctx.compile({T: 5}, backend="numpy").run(inputs={k: v.numpy() for k, v in given.items()})
    for name, value in want.items():
        torch.testing.assert_close(torch.as_tensor(found[name]), torch.as_tensor(value))
