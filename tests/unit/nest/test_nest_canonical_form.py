"""Canonical forms: problems that differ in names and order alone have one, and share nests."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from random_nests import address, laid_out, random_nest, random_problem
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.canonical_form import canonical_form
from recurra.nest.compiled import compile as compiled
from recurra.nest.einsum import from_layouts, from_sizes
from recurra.nest.loops import scheduled
from recurra.nest.problem import Affine, NestProblem, TensorAccess


def disguised(p: NestProblem, r: Random) -> tuple[NestProblem, list[int]]:
    """The same with other letters and names, and axes, sums and inputs in another order."""
    letters = dict(
        zip((i for i, _ in p.sizes), r.sample("abcdefghijkmnpqrstxyz", 10), strict=False)
    )
    order = r.sample(range(len(p.inputs)), len(p.inputs))
    names = r.sample("EFGHPQRS", len(p.inputs))

    def changed(t: TensorAccess, name: str) -> TensorAccess:
        axes = r.sample(range(len(t.at)), len(t.at))
        at = [
            Affine(tuple((letters[i], c) for i, c in r.sample(x.terms, len(x.terms))), x.offset)
            for x in (t.at[k] for k in axes)
        ]
        shape, strides = (tuple(x[k] for k in axes) for x in (t.shape, t.strides))
        return TensorAccess(name, t.dtype, shape, strides, tuple(at))

    sizes = [(letters[i], n) for i, n in p.sizes]
    inputs = tuple(changed(p.inputs[k], name) for k, name in zip(order, names, strict=True))
    other = replace(
        p, sizes=tuple(r.sample(sizes, len(sizes))), output=changed(p.output, "Y"), inputs=inputs
    )
    return other, order


@pytest.mark.parametrize("seed", range(200))
def test_what_is_alike_shares_nests(seed: int) -> None:
    """A nest found for one is legal for the other, and its code gives the same numbers."""
    r = Random(seed)
    p = random_problem(r, points=4000)
    other, order = disguised(p, r)
    form, there = canonical_form(p), canonical_form(other)
    assert canonical_form(form.problem).problem == form.problem
    nest = random_nest(r, p, Actions(), 6)
    if r.random() < 0.5:
        nest = scheduled(p, f"[{r.choice(p.inputs).name}] {nest.order}")
    assert form.to_original(form.to_canonical(nest)) == nest
    if form.problem != there.problem:  # what is reduced in all the same places has no order
        assert len(p.reduced) > 1 or len(p.inputs) > 1
        return
    found = there.to_original(form.to_canonical(nest))
    inputs = [laid_out(t, r) for t in p.inputs]
    at = [address(x) for x, _ in inputs]
    (out, ours), (_, theirs) = (laid_out(p.output, Random(1)) for _ in range(2))
    start = (address(out) - address(ours)) // ours.itemsize
    compiled(p, schedule=nest).kernel.call(*at, address(ours[start:]))
    compiled(other, schedule=found).kernel.call(*(at[k] for k in order), address(theirs[start:]))
    np.testing.assert_array_equal(ours, theirs)


def test_nearly_all_are_recognized() -> None:
    """Names that only a tie in the layout could give are the exception."""
    alike = 0
    for seed in range(200):
        r = Random(seed)
        p = random_problem(r, points=4000)
        alike += canonical_form(disguised(p, r)[0]).problem == canonical_form(p).problem
    assert alike >= 190


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (from_sizes("bmk,bkn->bmn", (8, 4, 5, 6)), from_sizes("bij,bjk->bik", (8, 4, 5, 6))),
        (from_sizes("mk,kn->mn", (4, 5, 6)), from_sizes("kn,mk->mn", dict(m=4, k=5, n=6))),
        (from_sizes("h(w+s),s->hw", (4, 5, 3)), from_sizes("a(q+p),q->ap", dict(a=4, p=5, q=3))),
        (
            from_sizes("mk,kn->mn", (4, 5, 6)),
            from_layouts("xz,xy->zy", [((5, 4), (1, 5)), ((5, 6), (6, 1))]),
        ),
        (catalogue.matmul(4, 5, 6), from_sizes("zx,xy->zy", (4, 5, 6))),
    ],
)
def test_alike(one: NestProblem, other: NestProblem) -> None:
    assert canonical_form(one).problem == canonical_form(other).problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (from_sizes("mk,kn->mn", (4, 5, 6)), from_sizes("mk,kn->mn", (4, 6, 5))),
        (from_sizes("mk,kn->mn", (5, 5, 5)), from_sizes("km,kn->mn", (5, 5, 5))),
        (from_sizes("mk,kn->mn", (5, 5, 5)), from_sizes("mk,kn->nm", (5, 5, 5))),
        (from_sizes("mk,kn->mn", (4, 5, 6)), from_sizes("mk,kn->mn", (4, 5, 6), post="relu")),
        (from_sizes("mk,kn->mn", (4, 5, 6)), from_sizes("mk,kn->mn", (4, 5, 6), dtype="f64")),
    ],
)
def test_not_alike(one: NestProblem, other: NestProblem) -> None:
    assert canonical_form(one).problem != canonical_form(other).problem
