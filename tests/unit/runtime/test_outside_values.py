"""What comes from outside is what it was, or refused: inputs, constants, calls, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import recurra as rc
from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError, ShapeError
from recurra.ir.types import NUMPY_NAME
from recurra.ir.value_conversion import fitted

MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
REFUSED: list[tuple[str, Any, str]] = [
    ("i32", np.array([1, 2**40, 3]), r"i32 cannot hold\n  at \[1\] it is 1099511627776; "),
    (
        "u8",
        np.array([[3, 5], [0, -1]]),
        r"u8 cannot hold\n  at \[1, 1\] it is -1; u8 holds whole numbers from 0 to 255",
    ),
    ("i8", np.array([255], np.uint8), "i8 holds whole numbers from -128 to 127"),
    ("i64", np.array([2**63], np.uint64), "it is 9223372036854775808; i64 holds"),
    ("i64", [2**70], "it is 1180591620717411303424"),
    ("u32", np.array([-1]), "u32 holds whole numbers from 0 to 4294967295"),
    ("bool", np.array([0, 1, 2]), r"at \[2\] it is 2; bool holds whole numbers from 0 to 1"),
    ("f32", np.array([1.0, 1e300]), r"at \[1\] it is 1e\+300; the largest number of f32 is"),
    ("f16", np.array([7e4], np.float32), "the largest number of f16 is 65504"),
    ("f16", np.array([65504, 65536]), r"at \[1\] it is 65536"),
    ("bf16", np.array([257]), "bf16 holds all from -256 to 256"),
    ("f32", np.array([2**24, 2**24 + 1]), r"at \[1\] it is 16777217; of whole numbers f32"),
    ("f32", np.array([-(2**24) - 1]), "it is -16777217"),
    ("f64", np.array([2**53 + 1]), "it is 9007199254740993"),
    (
        "f32",
        np.array([1 + 2j, 0]),
        r"at \[0\] it is .*1\+2j.* of complex128; f32 holds real numbers",
    ),
    ("f32", ["1.0"], "f32 holds real numbers only"),
    ("f32", np.array(["2020-01-01"], "datetime64[D]"), "f32 holds real numbers only"),
    ("i32", np.array([1.0, 1.5]), r"at \[1\] it is 1.5; i32 holds whole numbers"),
    ("i64", np.array([2.0**63]), "it is 9.22337203685477[0-9]*e"),
    ("i32", np.array([0.0, np.nan]), r"at \[1\] it is nan"),
    ("bool", np.array([1.0, 0.5], np.float16), "it is 0.5"),
    ("f32", MASKED, r"a masked value\n  at \[1\] it is masked"),
    ("f64", MASKED, "a masked value"),
    ("f32", [[1.0, 2.0, 3.0], MASKED], r"a masked value\n  at \[1, 1\] it is masked"),
    ("f32", [1.0, np.ma.masked], r"a masked value\n  at \[1\] it is masked"),
    ("f32", [[1.0], [1.0, 2.0]], r"x\[1\] has the shape \(2,\), x\[0\] has \(1,\)"),
    ("f32", [[[1.0]], [[1.0], [2.0, 3.0]]], r"x\[1\]\[1\] has the shape \(2,\), x\[1\]\[0\] has"),
]
TAKEN: list[tuple[str, Any]] = [
    ("i32", np.array([2**31 - 1, -(2**31)])),
    ("u8", np.array([0, 255])),
    ("i64", np.array([2**32 - 1], np.uint32)),
    ("bool", np.array([0, 1])),
    ("u8", np.array([True, False])),
    ("f32", np.array([np.inf, -np.inf, np.nan, 0.1, 1e-300])),
    ("f32", np.array([2**24, -(2**24), 2**40, 3 * 2**61, 0, -(2**63)])),
    ("f32", np.array([2**63], np.uint64)),
    ("f16", np.array([2048, 65504, 65500.3])),
    ("bf16", np.array([3e38, np.nan])),
    ("f16", np.array([1.0], ml_dtypes.bfloat16)),
    ("f64", np.ma.array([1.0, 2.0])),
    ("f32", np.array([1, 2.5, True], object)),
    ("i32", []),
    ("i32", np.array([0.0, -(2.0**31), 2.0**31 - 1])),
    ("i64", np.array([-(2.0**63)])),
    ("bool", np.array([1.0, 0.0])),
    ("f32", 3),
]


@pytest.mark.parametrize(("dtype", "given", "text"), REFUSED)
def test_what_does_not_fit_is_refused(dtype: str, given: Any, text: str):
    with pytest.raises(ShapeError, match=text):
        fitted(given, dtype, "the input x")


@pytest.mark.parametrize(("dtype", "given"), TAKEN)
def test_what_fits_is_taken(dtype: str, given: Any):
    found = fitted(given, dtype, "the input x")
    assert found.dtype == NUMPY_NAME[dtype]
    want = np.asarray(given).astype(found.dtype)
    np.testing.assert_array_equal(found.astype("f8"), want.astype("f8"))


def test_an_array_of_the_type_is_not_looked_at():
    given = np.full(3, np.nan, np.float32)
    assert fitted(given, "f32", "the input x") is given


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_inputs(backend: str):
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=rc.input(rc.i32, (t,), name="x"))
    program = ctx.compile({T: 3}, backend=backend)
    with pytest.raises(RecurraError, match=r"the input x has a value that i32.*\n.*\n  at \[1\]"):
        program.run(inputs={"x": np.array([1, 2**40, 3])})
    np.testing.assert_array_equal(program.run(inputs={"x": [1, 2, 3]})["y"], [1, 2, 3])


def test_weights():
    with rc.Context(dims="i") as (i, _):
        net = rc.nn.Linear(3, 1, domain=(i,))
        with pytest.raises(ShapeError, match=r"weight has a masked value\n.*\n  at \[1, 0\]"):
            net.load({"weight": MASKED[:, None], "bias": np.zeros(1)})
        with pytest.raises(ShapeError, match="has a value that f32 cannot hold"):
            net.load({"weight": np.full((3, 1), 1e300), "bias": np.zeros(1)})
        with pytest.raises(ShapeError, match="has a masked value"):
            rc.import_jax(lambda params, x: params["w"] * x, params={"w": MASKED}, domain=(i,))


def test_constants():
    with rc.Context(dims="t"):
        text = r"the constant has a value that i32 cannot hold\n  --> test_outside.*\n  at \[0\]"
        with pytest.raises(ShapeError, match=text + r".*\n  hint: rc.constant\(x, \"i64\"\)"):
            rc.constant(np.array([2**40]))
        with pytest.raises(ShapeError, match="the number has a value that i32 cannot hold"):
            rc.constant(2**40)
        with pytest.raises(ShapeError, match="the number has a value that u8 cannot hold"):
            _ = rc.constant(1, "u8") + 300
        with pytest.raises(ShapeError, match=r"\[0\] it is 0.5"):
            rc.constant([0.5], "i32")
        assert rc.constant(2**40, "i64").dtype == "i64"
        assert rc.constant([1, 2], "f32").dtype == "f32"


def test_an_array_is_as_precise_as_the_tensor_that_it_meets():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=rc.value(t, "f64") + np.array([0.1]))
    np.testing.assert_array_equal(ctx.run({T: 1}, backend="numpy")["y"], [[0.1]])


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_results_of_calls(backend: str):
    ctx = rc.Context(dims="t")

    def count(t: np.ndarray) -> Any:
        return 2**40 * int(t)

    with ctx as ((t, T),):
        rc.output(y=rc.call(count, rc.i32, rc.value(t)))
    with pytest.raises(RecurraError, match=r"what count gives has .*\n.*\n  it is 1099511627776"):
        ctx.run({T: 3}, backend=backend)
    assert ctx.run({T: 1}, backend=backend)["y"] == 0


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_checkpoints(tmp_path: Path, backend: str):
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        line = rc.nn.Linear(2, 1, domain=(i,))
        line(rc.constant([1.0, 2.0])).square().sum().backward()
        rc.optim.SGD(line.params, lr=0.1).step()
        line[i == 2].checkpoint(tmp_path / "run")
        rc.output(w=line.weight)
    program = ctx.compile({I: 4}, backend=backend)
    whole = program.run()["w"]
    found = checkpoint.load(tmp_path / "run" / "checkpoints")
    name = next(n for n in found.arrays if n.startswith("state/"))
    doubles = {n: x.astype("f8") for n, x in found.arrays.items()}
    checkpoint.save(tmp_path / "f64", doubles, found.meta, number=2)
    np.testing.assert_array_equal(program.run(resume=tmp_path / "f64")["w"], whole[2:])
    doubles[name][0] = 1e300
    checkpoint.save(tmp_path / "large", doubles, found.meta, number=2)
    with pytest.raises(ShapeError, match=r" of .*00000002.* has a value that f32 cannot"):
        program.run(resume=tmp_path / "large")


class Lends:
    """What has no more than the protocol by which libraries lend their arrays."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


GIVEN = np.arange(6, dtype=np.float32).reshape(3, 2) - 2.0
OTHERS = {
    "the imaginary part": lambda x: torch.complex(torch.zeros(3, 2), torch.tensor(-x)).conj().imag,
    "with a gradient": lambda x: torch.tensor(x, requires_grad=True),
    "nothing masked": lambda x: np.ma.array(x, mask=np.zeros_like(x, bool)),
    "no mask": lambda x: np.ma.array(x),
    "lent": Lends,
    "objects": lambda x: x.astype(object),
    "big-endian": lambda x: x.astype(">f4"),
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("kind", OTHERS)
def test_arrays_of_every_kind(kind: str, backend: str) -> None:
    """They hold the same numbers, as inputs and as constants."""
    ctx = rc.Context(dims="t")
    made = OTHERS[kind](GIVEN)
    with ctx as (t, T):
        x = rc.input(rc.f32[2], (t,), name="x")
        rc.output(y=x[0 : t + 1].sum(axis=0), z=rc.constant(made, "f32") * 1.0)
    found = ctx.compile({T: 3}, backend=backend).run(inputs={"x": OTHERS[kind](GIVEN)})
    np.testing.assert_array_equal(found["y"], np.cumsum(GIVEN, axis=0))
    np.testing.assert_array_equal(found["z"], GIVEN)


@pytest.mark.parametrize("given", [(r for r in GIVEN), {1, 2}, None, np.ndarray, len])
def test_what_is_no_array_is_told_by_its_kind(given: Any) -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=rc.input(rc.f32[2], (t,), name="x"))
    with pytest.raises(ShapeError, match=f"is no array: it is of {type(given).__name__}"):
        ctx.compile({T: 3}, backend="numpy").run(inputs={"x": given})


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_type_that_holds_the_bits_of_another_is_not_that_type(backend: str):
    """PyTorch keeps u32 in tensors of i32: one that is given is looked at all the same."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=rc.input(rc.u32, (t,), name="x").cast("i64"))
    program = ctx.compile({T: 2}, backend=backend)
    with pytest.raises(ShapeError, match="it is -1; u32 holds whole numbers"):
        program.run(inputs={"x": torch.tensor([1, -1], dtype=torch.int32)})
    assert program.run(inputs={"x": torch.tensor([1, 2], dtype=torch.int32)})["y"].tolist() == [
        1,
        2,
    ]
