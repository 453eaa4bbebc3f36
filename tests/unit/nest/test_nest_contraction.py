"""A compiled contraction as an object of Python: signature, copies, pickles, kinds of arrays."""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError, ScheduleError, ShapeError
from recurra.nest.target import runnable

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(20, dtype=np.float32).reshape(4, 5)


def test_signature() -> None:
    multiply = rc.nest.compile("mk,kn->mn", A, B)
    assert str(inspect.signature(multiply)) == "(A, B, /, *, out=None)"
    bound = inspect.signature(multiply).bind(A, B, out=None)
    np.testing.assert_array_equal(multiply(*bound.args, **bound.kwargs), A @ B)
    with pytest.raises(TypeError):
        inspect.signature(multiply).bind(A, B, A)
    assert "nest" in inspect.signature(rc.nest.Contraction).parameters
    dot = rc.nest.compile("k,k,k->", sizes=(8,))
    assert str(inspect.signature(dot)) == "(A, B, D, /, *, out=None)"


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {k}": lambda f, k=k: pickle.loads(pickle.dumps(f, k)) for k in range(6)},
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("backend", [*map(str, runnable()), "llvm"])
def test_copies(how: str, backend: Any) -> None:
    """A copy is compiled anew, of the same nest; the first one may go."""
    multiply = rc.nest.compile(
        "mk,kn->mn", A, B, schedule="parallel m/2 [B] k m n", backend=backend, threads=2
    )
    twin = COPIES[how](multiply)
    assert repr(twin) == repr(multiply)
    assert (twin.nest, twin.target, twin.threads) == (multiply.nest, multiply.target, 2)
    assert twin.kernel is not multiply.kernel
    del multiply
    np.testing.assert_array_equal(twin(A, B), A @ B)
    out = np.empty((3, 5), np.float32)
    assert twin(A, B, out=out) is out


def test_a_pickle_is_read_by_another_process(tmp_path: Path) -> None:
    multiply = rc.nest.compile("mk,kn->mn", A, B, post="relu")
    file = tmp_path / "multiply.pickle"
    file.write_bytes(pickle.dumps({"multiply": multiply, "arrays": (A, B)}))
    words = "import pickle, sys; x = pickle.load(open(sys.argv[1], 'rb'))"
    words += "; print(x['multiply'](*x['arrays']).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", words, str(file)],
        env={**os.environ, "PYTHONPATH": str(Path(rc.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str((A @ B).tolist())


def test_arrays_of_two_kinds_are_refused() -> None:
    """Whichever operand is of the other kind, in a call and where a layout is taken from arrays."""
    torch = pytest.importorskip("torch")
    multiply = rc.nest.compile("mk,kn->mn", A, B)
    out = np.full((3, 5), 7, np.float32)
    for kinds in itertools.product((np.asarray, torch.from_numpy), repeat=3):
        a, b, c = (kind(x.copy()) for kind, x in zip(kinds, (A, B, out), strict=True))
        for given in ((a, b), (a, b, c)):
            other = given[2] if len(given) == 3 else None
            if len({type(x) for x in given}) == 1:
                assert type(multiply(a, b, out=other)) is type(a)
                continue
            with pytest.raises(ShapeError, match="all arrays of a call are of one kind\n  given: "):
                multiply(a, b, out=other)
            with pytest.raises(ShapeError, match="all arrays of a call are of one kind\n  given: "):
                rc.nest.compile("mk,kn->mn", *given)
            assert (np.asarray(c) == 7).all()


def test_arrays_that_are_not_all_there_are_refused() -> None:
    """Neither what a mask hides nor what a sparse tensor leaves out may be computed with."""
    import torch

    multiply = rc.nest.compile("mk,kn->mn", A, B)
    masked, sparse = np.ma.array(A, mask=A > 3), torch.from_numpy(A).to_sparse()
    for x, y, said in (
        (masked, B, "is a masked array\n  kernels read every element, masked or not"),
        (sparse, torch.from_numpy(B), "has layout torch.sparse_coo\n  kernels read every element"),
    ):
        with pytest.raises(ShapeError, match=f"A {said}"):
            multiply(x, y)
        with pytest.raises(ShapeError, match=f"argument 0 {said}"):
            rc.nest.compile("mk,kn->mn", x, y)
    one = rc.nest.compile("k,k->", sizes=(1,))
    with pytest.raises(ShapeError, match="A has layout"):
        one(torch.ones(1).to_sparse(), torch.ones(1), out=torch.empty(()))


@pytest.mark.parametrize("sizes", [None, {64, 32}, "123", np.array([3, 4, 5]), (), 5])
def test_sizes_that_are_none(sizes: Any) -> None:
    with pytest.raises(ShapeError, match=r"hint: sizes=\{'m': 64, 'k': 64, 'n': 64\}"):
        rc.nest.contraction("mk,kn->mn", sizes)


def test_words_are_no_problem_yet() -> None:
    for of_problem in (rc.nest.tune_nest, rc.nest.untiled, rc.nest.proposed):
        with pytest.raises(
            ShapeError, match=r"is given 'mk,kn->mn'.*\n.*\n.*NestProblem.*\n.*make one"
        ):
            of_problem(cast("Any", "mk,kn->mn"))
    with pytest.raises(ShapeError, match="5 is not an einsum"):
        rc.nest.contraction(cast("Any", 5), (3, 4, 5))


def test_what_is_no_nest_and_no_time() -> None:
    problem = rc.nest.contraction("mk,kn->mn", (4, 4, 4))
    with pytest.raises(ScheduleError, match="it takes a Nest, not a int"):
        rc.nest.improve_nest(cast("Any", 3))
    for search in (
        rc.nest.tune_nest,
        lambda p, seconds: rc.nest.improve_nest(rc.nest.untiled(p), seconds=seconds),
    ):
        with pytest.raises(ShapeError, match=r"is given seconds='a'(.*\n)+.*a number"):
            search(problem, seconds=cast("Any", "a"))


WRONG: dict[str, Any] = {"sizes": 5, "schedule": 5, "threads": 1.5}


@pytest.mark.parametrize("option", WRONG)
def test_options_of_other_types_are_refused(option: str) -> None:
    options: Any = {"sizes": (3, 4, 5), option: WRONG[option]}
    with pytest.raises(RecurraError, match=r"5"):
        rc.nest.compile("mk,kn->mn", **options)
