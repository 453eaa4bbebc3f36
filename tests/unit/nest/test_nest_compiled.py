"""recurra.nest.compile on arrays and tensors: nothing is copied, misuse is told."""

from __future__ import annotations

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import RecurraError, ShapeError
from recurra.nest import catalogue, check, compiled
from recurra.nest.check import KernelCheckError, validate_code
from recurra.nest.checked_call import BRIEF, guarded_call
from recurra.nest.codegen import generate
from recurra.nest.default_schedule import standard, tiles
from recurra.nest.dtypes import DTYPES
from recurra.nest.einsum import from_sizes
from recurra.nest.executable_memory import LoadedKernel, encode
from recurra.nest.loops import scheduled, untiled
from recurra.nest.problem import NestProblem
from recurra.nest.reference import evaluate
from recurra.nest.target import AVX2, AVX512, runnable

BF16 = DTYPES["bf16"]
BACKENDS = pytest.mark.parametrize("backend", [*map(str, runnable()), "llvm"])


def integers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@BACKENDS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy(backend: Any, dtype: Any) -> None:
    a, b = integers(40, 30, dtype=dtype), integers(30, 50, dtype=dtype)
    multiply = rc.nest.compile("mk,kn->mn", a, b, backend=backend)
    out = np.empty((40, 50), dtype)
    assert multiply(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(multiply(a, b), a @ b)


@BACKENDS
def test_torch(backend: Any) -> None:
    a, b = torch.from_numpy(integers(40, 30)), torch.from_numpy(integers(30, 50))
    multiply = rc.nest.compile("mk,kn->mn", sizes=(40, 30, 50), backend=backend)
    out = multiply(a, b)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, a @ b)
    assert torch.equal(multiply(a, b, out=torch.empty(40, 50)), a @ b)


@BACKENDS
def test_bf16(backend: Any) -> None:
    """Products of two bf16 are exact in f32; what is added up is as exact as in f32."""
    a, b = integers(40, 30, dtype=BF16), integers(30, 50, dtype=BF16)
    multiply = rc.nest.compile("mk,kn->mn", a, b, backend=backend)
    want = a.astype(np.float32) @ b.astype(np.float32)
    out = multiply(a, b)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, want)
    x, y = (torch.from_numpy(z.view(np.int16)).view(torch.bfloat16) for z in (a, b))
    found = multiply(x, y)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize("backend", [*map(str, runnable()), "llvm"])
def test_bf16_values_are_widened_to_the_bit(backend: Any) -> None:
    """Every bf16 there is, infinities, subnormal numbers and NaN among them."""
    every = np.arange(2**16, dtype=np.uint16).view(BF16)
    widen = rc.nest.compile("a->a", every, backend=backend)
    found = widen(every).view(np.uint32)
    np.testing.assert_array_equal(found, np.arange(2**16, dtype=np.uint32) << 16)


def test_bf16_beside_f32() -> None:
    a, b = integers(4, 30), integers(30, 17, dtype=BF16)
    multiply = rc.nest.compile("mk,kn->mn", a, b)
    np.testing.assert_array_equal(multiply(a, b), a @ b.astype(np.float32))


def test_strides_are_used_as_they_are() -> None:
    a, b = integers(30, 40).T[::2, ::-1], integers(60, 50)[::2]
    out = np.full((50, 20), 9, np.float32).T
    multiply = rc.nest.compile("mk,kn->mn", a, b, out)
    multiply(a, b, out=out)
    np.testing.assert_array_equal(out, a @ b)
    row = np.broadcast_to(integers(1, 30), (20, 30))
    assert row.strides[0] == 0
    times = rc.nest.compile("mk,kn->mn", row, b)
    np.testing.assert_array_equal(times(row, b), row @ b)


def test_strides_of_single_elements_do_not_matter() -> None:
    a, b = integers(4, 7)[1:2], integers(7, 1)
    multiply = rc.nest.compile("mk,kn->mn", sizes=(1, 7, 1))
    x = np.lib.stride_tricks.as_strided(b, (7, 1), (4, 400))
    np.testing.assert_array_equal(multiply(a, x), a @ b)


def test_parts_of_an_output() -> None:
    first, second = catalogue.concatenation(3, 4, 5)
    a, b, out = integers(3, 4), integers(3, 5), np.zeros((3, 9), np.float32)
    rc.nest.compile(first)(a, out=out)
    rc.nest.compile(second)(b, out=out)
    np.testing.assert_array_equal(out, np.concatenate([a, b], axis=1))
    with pytest.raises(ShapeError, match="C has to be given\n  only some of it is written"):
        rc.nest.compile(first)(a)


def test_initial_and_post() -> None:
    a, b, c = integers(8, 9), integers(9, 20), integers(8, 20)
    add = rc.nest.compile("mk,kn->mn", a, b, post="relu", initial=True)
    want = np.maximum(c + a @ b, 0)
    np.testing.assert_array_equal(add(a, b, out=c), want)
    with pytest.raises(ShapeError, match="C has to be given\n  it takes part in the result"):
        add(a, b)


def test_convolution_like_torch() -> None:
    x, w = integers(2, 9, 9, 5), integers(3, 3, 5, 7)
    ours = rc.nest.compile("n(2h+r)(2w+s)c,rsck->nhwk", x, w, sizes={"h": 4, "w": 4})
    theirs = torch.nn.functional.conv2d(
        torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w).permute(3, 2, 0, 1), stride=2
    )
    np.testing.assert_array_equal(ours(x, w), theirs.permute(0, 2, 3, 1).numpy())


STANDARD = [
    catalogue.matmul(128, 128, 128),
    catalogue.matmul(100, 30, 7),
    catalogue.matmul(1, 30, 7),
    catalogue.matvec(50, 70),
    catalogue.vecmat(50, 70),
    catalogue.convolution(1, 7, 7, 5, 40),
    catalogue.depthwise(2, 6, 5, 20),
    catalogue.max_pooling(5, 6, 20),
    catalogue.reduction(20, 70),
    catalogue.transposition(40, 33),
    catalogue.broadcast(9, 100),
    catalogue.matmul(1, 1, 1),
    from_sizes("ab,cb->ac", (70, 20, 90)),
    from_sizes("zab,zcb->zac", (2, 70, 20, 33)),
    from_sizes("zab,cb->azc", (3, 40, 7, 50)),
]


def test_tiles_are_few_and_some_are_packed() -> None:
    found = list(tiles(catalogue.matmul(240, 128, 256), AVX2))
    assert [nest.order for nest in found[:2]] == [
        "n/24 m/4 k m n | m n",
        "n/24 [B] m/4 k m n | m n",
    ]
    assert len({nest.order for nest in found}) == 6
    assert len(list(tiles(catalogue.reduction(20, 70), AVX2))) <= 3


@BACKENDS
@pytest.mark.parametrize("p", STANDARD, ids=lambda p: p.statement)
def test_the_standard_schedule(p: NestProblem, backend: Any) -> None:
    inputs = [integers(*t.shape, seed=k) for k, t in enumerate(p.inputs)]
    want = np.zeros(p.output.shape, np.float32)
    evaluate(p, inputs, want)
    np.testing.assert_array_equal(rc.nest.compile(p, backend=backend)(*inputs), want)


def test_standard_orders() -> None:
    orders = {p.statement: standard(p, AVX512).order for p in STANDARD[4:11]}
    assert standard(STANDARD[0], AVX512).order == "n/64 m/5 k m n | m n"
    assert standard(STANDARD[0], AVX2).order == "n/16 [B] m/5 k m n | m n"
    assert standard(catalogue.matmul(208, 128, 176), AVX2).packs == ()  # rows lie in all sets
    assert standard(catalogue.matmul(32, 128, 128), AVX2).packs == ()  # too seldom read again
    far = catalogue.matmul(512, 2**17, 128)
    assert standard(far, AVX2).packs == ()  # too large
    across = [standard(p, AVX512).order for p in STANDARD[12:]]
    assert across == [
        "c/48 [B] a/7 b a c | a c",
        "z [B] a/7 b a c | z a c",
        "[B] z a/5 b a c | z a c",
    ]
    few = from_sizes("ab,cb->ac", (8, 200, 90))
    assert standard(few, AVX512).packs == ()
    assert orders == {
        "C[n] = sum(A[k] * B[k,n])": "n/48 k n | n",
        "C[n,h,w,k] = sum(A[n,h+r,w+s,c] * B[r,s,c,k])": "n h r s c w k | n h w k",
        "C[n,h,w,c] = sum(A[n,h+r,w+s,c] * B[r,s,c])": "n w r s h c | n h w c",
        "C[h,w,c] = max(A[2*h+i,2*w+j,c])": "h i j w c | h w c",
        "C[r] = sum(A[r,c])": "c/16 r c | r",
        "C[c,r] = A[r,c]": "c/7 c r | r c",
        "C[r,c] = A[r]": "c/64 r/3 r c | r c",
    }


A, B = np.zeros((4, 5), np.float32), np.zeros((5, 6), np.float32)
HALF, OTHER = np.zeros((3, 3), np.float16), untiled(catalogue.matmul(2, 2, 2))
MISALIGNED = np.zeros(81, np.uint8)[1:].view(np.float32).reshape(4, 5)
READ_ONLY = np.zeros((4, 6), np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("inputs", "out", "message"),
    [
        ((A,), None, "C[m,n] = sum(A[m,k] * B[k,n]) has 2 inputs\n  1 are given"),
        ((A, B.T), None, "B has shape (6, 5)\n  compiled for (5, 6)"),
        (
            (A, np.zeros((6, 5), np.float32).T),
            None,
            "B has strides (1, 5)\n  compiled for (6, 1) elements\n"
            "  hint: compile for this layout, compile(words, *arrays), or copy the array",
        ),
        (
            (A, B.astype(np.float64)),
            None,
            "B has type float64\n  compiled for float32\n"
            "  hint: convert it, or compile for it: compile(words, *arrays)",
        ),
        ((A, B.astype(">f4")), None, "B has type >f4\n  compiled for float32\n"
         "  hint: convert it, or compile for it: compile(words, *arrays)"),
        ((A, [1.0]), None, "B is neither a NumPy array nor a Torch tensor\n  it is list"),
        ((MISALIGNED, B), None, "A is misaligned\n  its address is no multiple of 4 bytes\n"
         "  hint: copy it"),
        ((A, B), READ_ONLY, "C is read-only\n  hint: out=array.copy()"),
        ((A, B), torch.zeros(4, 6), "all arrays of a call are of one kind\n"
         "  given: NumPy, NumPy, Torch\n"
         "  hint: convert them: torch.from_numpy(array), or tensor.numpy()"),
        (
            (torch.zeros(4, 5, requires_grad=True), torch.zeros(5, 6)),
            None,
            "A wants a gradient\n  kernels have none\n  hint: a.detach()",
        ),
        (
            (torch.zeros(4, 5), torch.zeros(5, 6, dtype=torch.bfloat16)),
            None,
            "B has type torch.bfloat16\n  compiled for torch.float32\n"
            "  hint: convert it, or compile for it: compile(words, *arrays)",
        ),
        ((torch.zeros(4, 5), torch.zeros(5, 6, device="meta")), None,
         "B is on meta\n  kernels run on the CPU\n  hint: .cpu()"),
    ],
)  # fmt: skip
def test_misuse(inputs: tuple[Any, ...], out: Any, message: str) -> None:
    multiply = rc.nest.compile("mk,kn->mn", sizes=(4, 5, 6), backend=str(runnable()[-1]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError) as refused:
        multiply(*inputs, out=out)
    assert str(refused.value) == message


def test_the_output_shares_no_memory() -> None:
    a = integers(6, 6)
    multiply = rc.nest.compile("mk,kn->mn", sizes=(6, 6, 6))
    with pytest.raises(ShapeError, match="C shares memory with B"):
        multiply(integers(6, 6), a, out=a)


@pytest.mark.parametrize(
    ("arguments", "options", "what"),
    [
        (("mk,kn->mn",), {}, "nothing tells the sizes of 'mk,kn->mn'"),
        (("mk,kn->mn", A), {}, "'mk,kn->mn' has 2 inputs"),
        (("mk,kn->mn", A, B.astype(np.float16)), {}, "all tensors of a contraction have one type"),
        (("mk,km->m", HALF, HALF), {}, "A has type float16, which is not supported"),
        (("mk,kn->mn", A.astype(BF16), B.astype(np.float64)), {},
         "all tensors of a contraction have one type"),
        (("mk,km->m", A.astype(BF16), A.T.astype(BF16), np.zeros(4, BF16)), {}, "C would be bf16"),
        (("mk,kn->mn", A, B), {"schedule": "m n"}, "the compute nest misses points"),
        (("mk,kn->mn", A, B), {"schedule": OTHER}, "the schedule is of another problem"),
        (("mk,kn->mn", A, B), {"backend": "sse"}, "there is no target 'sse'"),
        (("mk,kn->mn", A, B), {"sizes": (1, 2)}, "beside arrays, sizes are given by letter"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: Any, options: Any, what: str) -> None:
    with pytest.raises(RecurraError) as refused:
        rc.nest.compile(*arguments, **options)
    assert refused.value.what == what


MULTIPLY = rc.nest.compile("mk,kn->mn", sizes=(4, 5, 6))
FIT = (integers(4, 5), integers(5, 6), np.zeros((4, 6), np.float32))


class Odd(np.ndarray):
    """A subclass of arrays."""


OPERATIONS = pytest.mark.parametrize("operations", [0, 2**30])


def door(operations: int) -> Any:
    """To the kernel of MULTIPLY; what does not fit is refused."""
    found = guarded_call(
        MULTIPLY.kernel.address, MULTIPLY._layouts, operations, lambda *_, **__: "refused", MULTIPLY
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("which", "x", "fits"),
    [
        (0, integers(4, 5, seed=3), True),
        (0, integers(8, 10)[::2, ::2], False),
        (0, integers(5, 4).T, False),
        (0, integers(4, 5, 1), False),
        (0, integers(4, 5, dtype=np.float64), False),
        (0, integers(4, 5).astype(">f4"), False),
        (0, integers(4, 5).view(Odd), False),
        (0, torch.zeros(4, 5), False),
        (0, MISALIGNED, False),
        (0, None, False),
        (1, integers(5, 7)[:, :6], False),
        (1, integers(4, 6), False),
        (2, READ_ONLY, False),
        (2, integers(4, 6, seed=4), True),
        (2, FIT[0].base if FIT[0].base is not None else FIT[0], False),
    ],
)
@OPERATIONS
def test_the_door(operations: int, which: int, x: Any, fits: bool) -> None:
    """Machine code looks at arrays as NumPy does, and touches nothing that does not fit."""
    arrays: list[Any] = list(FIT)
    arrays[which] = x
    before = [np.array(y) for y in arrays if isinstance(y, np.ndarray)]
    *inputs, out = arrays
    references = sys.getrefcount(out)
    for _ in range(3):
        given = door(operations)(*inputs, out=out)
        assert given is out if fits else given == "refused"
    del given
    assert sys.getrefcount(out) == references
    if fits:
        np.testing.assert_array_equal(arrays[2], arrays[0] @ arrays[1])
    else:
        for y, z in zip((y for y in arrays if isinstance(y, np.ndarray)), before, strict=True):
            np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("offset", range(-40, 41, 5))
@OPERATIONS
def test_the_door_sees_shared_memory(operations: int, offset: int) -> None:
    """The output begins `offset` elements from an input of 30: they overlap in between."""
    memory = integers(120)
    b, out = memory[40:70].reshape(5, 6), memory[40 + offset :][:24].reshape(4, 6)
    given = door(operations)(FIT[0], b, out=out)
    assert given is out if not np.shares_memory(b, out) else given == "refused"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), {}),
        (FIT[:2], {}),
        (FIT, {}),
        (FIT[:1], {"out": FIT[2]}),
        (FIT, {"out": FIT[2]}),
        (FIT[:2], {"into": FIT[2]}),
        (FIT[:2], {"out": None}),
        (FIT[:2], {"out": FIT[2], "more": 1}),
    ],
)
def test_the_door_passes_other_calls_on(arguments: Any, named: Any) -> None:
    given: Any = guarded_call(
        MULTIPLY.kernel.address, MULTIPLY._layouts, 0, lambda *x, **y: (x, y), MULTIPLY.kernel
    )
    found = given(*arguments, **named)
    assert len(found[0]) == len(arguments)
    assert all(x is y for x, y in zip(found[0], arguments, strict=True))
    assert found[1] == named


def test_a_name_that_is_equal_but_another_object() -> None:
    """Names of arguments are compared by identity: one that is not interned goes the longer way."""
    name = "".join(["o", "ut"])
    out = np.zeros_like(FIT[2])
    assert MULTIPLY(*FIT[:2], **{name: out}) is out
    np.testing.assert_array_equal(out, FIT[0] @ FIT[1])


def test_threads_call_at_a_time() -> None:
    """Long kernels let other threads of Python run, and come back to where they were called."""
    x = integers(128, 128)
    multiply = rc.nest.compile("mk,kn->mn", x, x)
    assert multiply.problem.flops >= BRIEF
    outs = [np.zeros_like(x) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            assert all(
                given is out
                for given, out in zip(
                    pool.map(lambda o: multiply(x, x, out=o), outs), outs, strict=True
                )
            )
    for out in outs:
        np.testing.assert_array_equal(out, x @ x)


def test_a_contraction_is_freed() -> None:
    """It and its function know each other; the collector sees that."""
    multiply = rc.nest.compile("mk,kn->mn", FIT[0], FIT[1])
    gone, run = weakref.ref(multiply), multiply.run
    del multiply
    gc.collect()
    assert gone() is not None  # the function knows whom to ask for words
    assert run(*FIT[:2], out=FIT[2]) is FIT[2]
    del run
    gc.collect()
    assert gone() is None


def test_without_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "guarded_call", lambda *_: None)
    a, b = integers(4, 5), integers(5, 6)
    np.testing.assert_array_equal(rc.nest.compile("mk,kn->mn", a, b)(a, b), a @ b)


def test_seven_arrays_take_the_longer_way() -> None:
    arrays = [integers(3, 4, seed=k) for k in range(6)]
    multiply = rc.nest.compile("ab,ab,ab,ab,ab,ab->ab", *arrays)
    assert multiply.run == multiply._checked_call
    np.testing.assert_array_equal(multiply(*arrays), np.prod(arrays, axis=0))


@BACKENDS
def test_new_kernels_run_in_a_child_first(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECURRA_CHECK", "1")
    a, b = integers(9, 7), integers(7, 21)
    multiply = rc.nest.compile("mk,kn->mn", a, b, backend=backend, schedule="n/16 k m n")
    np.testing.assert_array_equal(multiply(a, b), a @ b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ("load past the end", "it died of SIGSEGV"),
        ("forget the last product", "elements differ; C[0, 0] is "),
        ("loop forever", "it did not end within 3 s"),
    ],
)
def test_wrong_code_is_found_out(change: str, facts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of a right program: what a bug in the generator would make."""
    nest = scheduled(catalogue.matmul(8, 8, 8), "m k n")
    right = generate(nest, runnable()[0])
    code = list(right.code)
    match change:
        case "load past the end":
            at = [k for k, i in enumerate(code) if i[0] == "load"][-1]
            code[at] = (*code[at][:3], code[at][3] + 256, *code[at][4:])
        case "forget the last product":
            code.pop([k for k, i in enumerate(code) if i[0] == "fma"][-1])
        case _:
            monkeypatch.setattr(check, "TIMEOUT_S", 3.0)
            code = [("repeat", 2**31 - 1), ("repeat", 2**31 - 1), ("zero", 0), ("end",), ("end",)]
    mutant = encode(type(right)(**{**vars(right), "code": tuple(code)}))
    with pytest.raises(KernelCheckError) as found:
        validate_code(nest, str(runnable()[0]), mutant)
    assert facts in str(found.value)
    assert found.value.exit_code == 1


def test_large_problems_are_checked_in_some_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at every place: right code passes, a product less or a store too much does not."""
    monkeypatch.setattr(check, "MANY", 0)
    nest = scheduled(catalogue.matmul(9, 8, 21), "m k n")
    right = generate(nest, runnable()[0])

    def told(code: list[Any]) -> str:
        mutant = type(right)(**{**vars(right), "code": tuple(code)})
        return check.compare(nest, LoadedKernel(mutant).call, at_end=False)

    assert told(list(right.code)) == ""
    fma = [k for k, i in enumerate(right.code) if i[0] == "fma"][-1]
    assert "elements differ" in told([i for k, i in enumerate(right.code) if k != fma])
    part = catalogue.concatenation(5, 9, 20)[0]
    wide = LoadedKernel(generate(scheduled(part, "r c"), runnable()[0])).call
    assert check.compare(scheduled(part, "r c"), wide, at_end=True) == ""


def test_shown_in_a_notebook() -> None:
    multiply = rc.nest.compile("mk,kn->mn", sizes=(4, 5, 6), schedule="m k n", backend="llvm")
    assert repr(multiply) == (
        "<C[m,n] = sum(A[m,k] * B[k,n]) for m<4 k<5 n<6, order 'm k n | m n' on llvm>"
    )
    assert multiply._repr_html_().startswith("<pre>for m&lt;4 k&lt;5 n&lt;6")
