"""Random programs over small types: interpreter, NumPy, JAX and Torch against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from everywhere import interpreted
from fuzzing import each, seeded_at_length
from random_types import EPSILON, Program, Value, Writer

ROUNDINGS = 64  # of a type, that a result may be off by, measured at the largest of its terms


def agree(name: str, v: Value, found: Any, program: Program) -> None:
    """Types are the same, whole numbers equal, floats near, and what is not finite is alike."""
    story = "\n".join([f"{name} is wrong", *program.text])
    assert found.dtype == v.want.dtype, story
    if v.dtype not in EPSILON or v.exact:
        np.testing.assert_array_equal(found.astype("f8"), v.want.astype("f8"), err_msg=story)
        return
    got, want = found.astype("f8"), v.want.astype("f8")
    largest = 65504.0 if v.dtype == "f16" else 3.4e38
    if v.scale * 4 > largest:  # whether it overflows is a matter of the order of sums
        return
    got = np.where(np.isfinite(want), got, want)  # laws of algebra are those of finite numbers
    off = ROUNDINGS * v.epsilon * v.scale
    np.testing.assert_allclose(got, want, rtol=0, atol=off, err_msg=story)


def check(seed: int, backends: tuple[str, ...]) -> None:
    """One program on the interpreter and on some backends."""
    program = Writer(seed, backends).write(steps=6)
    with np.errstate(all="ignore"):
        found = {"interpreter": interpreted(program.ctx, program.bounds, program.inputs)}
        for backend in backends:
            compiled = program.ctx.compile(program.bounds, backend=backend)
            found[backend] = compiled.run(inputs=program.inputs)
    for backend, results in found.items():
        program.text.insert(0, f"seed {seed} on {backend}")
        for name, v in program.values.items():
            agree(name, v, results[name], program)


@pytest.mark.parametrize("seed", range(30))
def test_small_types_on_numpy(seed: int):
    check(seed, ("numpy",))


# 27121000008: a product that was rounded to 8 bits, and then met floats of 32
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(100, 108), 27121000008])
def test_small_types_on_every_backend(seed: int):
    check(seed, ("numpy", "jax", "torch"))


@seeded_at_length()
def test_small_types_long(seeds: range):
    each(seeds, lambda seed: check(seed, ("numpy",) if seed % 4 else ("jax", "torch")))
