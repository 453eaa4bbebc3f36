"""recurra.nest.compile: a contraction as a function of NumPy arrays or Torch CPU tensors.

The kernel reads and writes the arrays in place, without copies, with the strides it was compiled
for. A call never compiles: other shapes, strides or types are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from inspect import Parameter, Signature
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeGuard, TypeVar

import numpy as np

from recurra.config import environment
from recurra.errors import ScheduleError, ShapeError
from recurra.nest import kernel_store
from recurra.nest.checked_call import guarded_call
from recurra.nest.codegen import generate
from recurra.nest.default_schedule import standard
from recurra.nest.dtypes import DTYPES, named
from recurra.nest.einsum import axes_of, from_layouts, from_sizes
from recurra.nest.executable_memory import LoadedKernel, NestKernel
from recurra.nest.loops import Nest, scheduled
from recurra.nest.problem import ITEM_BYTES, Combine, NestProblem, Post, TensorAccess, contiguous
from recurra.nest.program import NestCode
from recurra.nest.target import VectorTarget, host_target
from recurra.nest.threads import Team, parallelize
from recurra.support import cpu
from recurra.support.notices import tell_once

Backend = Literal["avx512", "avx2", "llvm"]
TORCH = {"f32": "float32", "f64": "float64", "bf16": "bfloat16"}


class TorchDevice(Protocol):
    """A device of Torch."""

    @property
    def type(self) -> str: ...


class TorchTensor(Protocol):
    """The attributes of Torch's tensors that are used: Torch itself is never imported."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def layout(self) -> object: ...
    @property
    def dtype(self) -> object: ...
    @property
    def device(self) -> TorchDevice: ...
    @property
    def requires_grad(self) -> bool: ...
    def stride(self) -> tuple[int, ...]: ...
    def data_ptr(self) -> int: ...
    def is_neg(self) -> bool: ...
    def is_conj(self) -> bool: ...
    def new_empty(self, size: Sequence[int], /, *, dtype: object) -> Self: ...


AnyArray = np.ndarray | TorchTensor
AnyKind = TypeVar("AnyKind", bound=AnyArray)


def compile(
    what: str | NestProblem,
    *examples: AnyArray,
    sizes: Mapping[str, int] | Sequence[int] | None = None,
    schedule: str | Nest | None = None,
    backend: Backend | None = None,
    dtype: object = "f32",
    combine: Combine = "sum",
    post: Post | None = None,
    initial: bool = False,
    threads: int | None = None,
) -> Contraction:
    """Return the function that computes a contraction, for one layout of its arrays.

        multiply = compile("mk,kn->mn", sizes={"m": 128, "k": 64, "n": 32})
        c = multiply(a, b)                      # a [128,64], b [64,32], c [128,32], all f32
        multiply(a, b, out=c)

    Shapes, strides and type come from `sizes` and `dtype` (C-contiguous; f32, f64 or bf16, or their
    names in NumPy or Torch), from `examples` (arrays or tensors: the inputs, perhaps the output),
    or from a NestProblem. `combine` is the reduction, `post` a function of each result; with
    `initial`, the old values of `out` take part. `schedule` is a nest or its order,
    "n/64 m/6 k m n"; by default the nest that `recurra tune` has stored for this problem and
    processor, or else a standard tile. `threads` share the outermost loop of a parallel nest, by
    default one per processor; with `threads`, the standard tile is parallel. Raises ShapeError,
    ScheduleError, BackendError.
    """
    if isinstance(what, NestProblem):
        problem = what
    elif examples:
        problem = _of_examples(what, examples, sizes, (combine, post, initial))
    elif sizes is None:
        raise ShapeError(f"nothing tells the sizes of {what!r}", hint="give sizes= or the arrays")
    else:
        kind = named(dtype)
        problem = from_sizes(what, sizes, dtype=kind, combine=combine, post=post, initial=initial)
    on = _target(backend)
    _expect_options(threads, schedule)
    if schedule is None and (stored := _compile_stored(problem, on, threads)) is not None:
        return stored
    if isinstance(schedule, Nest):
        nest = schedule
    elif schedule is not None:
        nest = scheduled(problem, schedule)
    else:
        nest = standard(problem, on)
        nest = (parallelize(nest, threads) or nest) if threads and threads > 1 else nest
    if threads is not None and threads > 1 and not nest.parallel:
        raise ScheduleError(
            f"{threads} threads have nothing to share",
            facts=f"the nest {nest.order!r} is not parallel",
            hint='schedule="parallel ..", beginning with a loop over an index of the output',
        )
    if nest.problem != problem:
        raise ShapeError(
            "the schedule is of another problem",
            facts=f"it is of {nest.problem.statement}, wanted is {problem.statement}",
            hint="give its order instead, as in schedule=nest.order",
        )
    return Contraction(nest, on, threads)


def _compile_stored(
    problem: NestProblem, on: VectorTarget, threads: int | None
) -> Contraction | None:
    """Compile the nest that is stored for a problem; None if there is none that compiles."""
    known = kernel_store.load(problem, on.name, threads or 1)
    try:
        return None if known is None else Contraction(known.nest, on, threads)
    except (ScheduleError, RecursionError) as error:  # stored by another version, or by hand
        why = " ".join(str(error).split())
        tell_once(f"a kept nest cannot be compiled: {why}; the standard tile is used")
        return None


def _target(backend: Backend | None) -> VectorTarget:
    if backend == "llvm":
        from recurra.nest.llvm import host

        return host()
    return host_target(backend)


def load(program: NestCode) -> NestKernel:
    if program.target == "llvm":
        from recurra.nest.llvm import LlvmKernel

        return LlvmKernel(program)
    return LoadedKernel(program)


def kernel(nest: Nest, on: VectorTarget, threads: int | None = None) -> NestKernel | Team:
    """Load the code of a nest: `call` takes addresses, inputs first.

    With RECURRA_CHECK=1 it runs in a child process first; raises KernelCheckError if it is wrong.
    """
    if nest.parallel:
        return Team(nest, threads or cpu.cores(), lambda part: kernel(part, on).call)
    loaded = load(generate(nest, on))
    if environment().check:
        from recurra.nest.check import validate

        validate(nest, loaded)
    return loaded


class Contraction:
    """A compiled contraction, called with its inputs, and perhaps `out=`."""

    def __init__(self, nest: Nest, on: VectorTarget, threads: int | None = None) -> None:
        p = self.problem = nest.problem
        self.nest, self.target, self.threads = nest, on, threads
        self.kernel = kernel(nest, on, threads)
        plain = p.output.strides == contiguous(p.output.shape)
        self._makes_output = plain and _all_written(p) and not p.initial
        self._call: Callable[..., None] = self.kernel.call
        self._layouts = [_Layout(t) for t in (*p.inputs, p.output)]
        self._output = self._layouts[-1]
        address: int | None = self.kernel.address
        slow = self._checked_call
        fast = address and guarded_call(address, self._layouts, p.flops, slow, self.kernel)
        self.run: Callable[..., AnyArray] = fast or slow
        """Runs the kernel on NumPy arrays that fit, in machine code; other calls go to Python."""
        self.__signature__ = _signature(tuple(t.name for t in p.inputs))

    def __reduce__(self) -> tuple[object, ...]:
        """Compile copies and pickles where they are loaded."""
        return Contraction, (self.nest, self.target, self.threads)

    def __repr__(self) -> str:
        p = self.problem
        loops = f"order {self.nest.order!r} on {self.target}"
        return f"<{p.statement} for {' '.join(f'{i}<{n}' for i, n in p.sizes)}, {loops}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self.nest))}</pre>"

    if TYPE_CHECKING:

        def __call__(self, *inputs: AnyKind, out: AnyKind | None = None) -> AnyKind:
            """Return out [output shape], by default a new array of the inputs' kind.

            Raises ShapeError for arrays of another number, shape, stride, type, kind or device.
            """
            ...

    else:
        __call__ = property(attrgetter("run"))  # a method's call takes as long as 16³

    def _checked_call(self, *inputs: AnyArray, out: AnyArray | None = None) -> AnyArray:
        if len(inputs) != len(self._layouts) - 1:
            raise ShapeError(
                f"{self.problem.statement} has {len(self._layouts) - 1} inputs",
                facts=f"{len(inputs)} are given",
            )
        _check_kinds(inputs if out is None else (*inputs, out))
        found = self._new_output(inputs[0]) if out is None else out
        if out is None and isinstance(found, np.ndarray) and self.run != self._checked_call:
            return self.run(*inputs, out=found)
        addresses = [t.address(x) for t, x in zip(self._layouts, (*inputs, found), strict=True)]
        if out is not None:
            self._check_out(addresses, out)
        self._call(*addresses)
        return found

    _checked_call.__qualname__ = "Contraction"  # in Python's messages about wrong arguments

    def _check_out(self, addresses: list[int], out: AnyArray) -> None:
        first, last = addresses[-1] + self._output.low, addresses[-1] + self._output.high
        for tensor, address in zip(self._layouts[:-1], addresses, strict=False):
            if address + tensor.low < last and first < address + tensor.high:
                raise ShapeError(
                    f"{self.problem.output.name} shares memory with {tensor.name}",
                    facts="the kernel would read what it has already written",
                    hint="give out= an array of its own",
                )
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ShapeError(f"{self.problem.output.name} is read-only", hint="out=array.copy()")

    def _new_output(self, like: AnyArray) -> AnyArray:
        p = self.problem
        if not self._makes_output:
            why = "it takes part in the result" if p.initial else "only some of it is written"
            if not p.initial and _all_written(p):
                why = f"its strides are to be {p.output.strides}"
            raise ShapeError(f"{p.output.name} has to be given", facts=why, hint="out=array")
        if isinstance(like, np.ndarray):
            return np.empty(p.output.shape, self._output.dtype)
        _expect_array(p.inputs[0].name, like)
        dtype = getattr(sys.modules["torch"], TORCH[p.dtype])
        return like.new_empty(p.output.shape, dtype=dtype)


class _Layout:
    """The layout that the array of one tensor must have."""

    def __init__(self, access: TensorAccess) -> None:
        self.name, self.shape, self.strides = access.name, access.shape, access.strides
        self.item = ITEM_BYTES[access.dtype]
        self.dtype = DTYPES[access.dtype]
        self.in_bytes = tuple(s * self.item for s in access.strides)
        self.torch = f"torch.{TORCH[access.dtype]}"
        first, last = access.span
        self.low, self.high = first * self.item, (last + 1) * self.item
        """The range of its bytes, from the address of its first element"""

    def address(self, array: AnyArray) -> int:
        """Return the address of an array's first element; raise ShapeError unless it fits."""
        _expect_array(self.name, array)
        if isinstance(array, np.ndarray):
            if (
                array.strides != self.in_bytes
                or array.shape != self.shape
                or array.dtype != self.dtype
            ):
                self.expect(
                    array.shape,
                    tuple(s / self.item for s in array.strides),
                    str(array.dtype),
                    str(self.dtype),
                )
            address = array.__array_interface__["data"][0]
        else:
            usual = array.device.type == "cpu" and str(array.layout) == "torch.strided"
            if not usual or array.requires_grad or array.is_neg() or array.is_conj():
                raise _unusable(self.name, array)
            if (
                array.stride() != self.strides
                or array.shape != self.shape
                or str(array.dtype) != self.torch
            ):
                self.expect(tuple(array.shape), array.stride(), str(array.dtype), self.torch)
            address = array.data_ptr()
        if address % self.item:
            raise ShapeError(
                f"{self.name} is misaligned",
                facts=f"its address is no multiple of {self.item} bytes",
                hint="copy it",
            )
        return address

    def expect(
        self, shape: tuple[int, ...], strides: tuple[float, ...], dtype: str, compiled: str
    ) -> None:
        """Raise ShapeError unless a layout fits; strides of axes with one element do not matter."""
        if dtype != compiled:
            raise ShapeError(
                f"{self.name} has type {dtype}",
                facts=f"compiled for {compiled}",
                hint="convert it, or compile for it: compile(words, *arrays)",
            )
        if shape != self.shape:
            raise ShapeError(f"{self.name} has shape {shape}", facts=f"compiled for {self.shape}")
        pairs = zip(shape, strides, self.strides, strict=True)
        if any(n > 1 and a != b for n, a, b in pairs):
            raise ShapeError(
                f"{self.name} has strides {tuple(int(s) for s in strides)}",
                facts=f"compiled for {self.strides} elements",
                hint="compile for this layout, compile(words, *arrays), or copy the array",
            )


def _all_written(problem: NestProblem) -> bool:
    at = problem.output.at
    return all(
        not a.offset and len(a.terms) == 1 and problem.extents[a.terms[0][0]] == n
        for a, n in zip(at, problem.output.shape, strict=True)
    )


def _is_torch(value: object) -> TypeGuard[TorchTensor]:
    """Return whether a value is a Torch tensor, without importing Torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def _check_kinds(arrays: Sequence[AnyArray]) -> None:
    """Raise ShapeError for arrays of NumPy together with tensors of Torch."""
    if any(_is_torch(x) for x in arrays) and any(isinstance(x, np.ndarray) for x in arrays):
        kinds = ("Torch" if _is_torch(x) else "NumPy" for x in arrays)
        raise ShapeError(
            "all arrays of a call are of one kind",
            facts=f"given: {', '.join(kinds)}",
            hint="convert them: torch.from_numpy(array), or tensor.numpy()",
        )


@cache
def _signature(inputs: tuple[str, ...]) -> Signature:
    positional = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in inputs]
    return Signature([*positional, Parameter("out", Parameter.KEYWORD_ONLY, default=None)])


def _expect_options(threads: object, schedule: object) -> None:
    """Raise ScheduleError for options of a wrong type."""
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ScheduleError("a nest needs a thread, or several", facts=f"threads={threads!r}")
    if not isinstance(schedule, str | Nest | None):
        raise ScheduleError(
            "a schedule is a nest or the order of its loops",
            facts=f"given: {schedule!r}",
            hint='schedule="n/64 m/6 k m n"',
        )


def _expect_array(name: str, value: object) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise ShapeError(
            f"{name} is a masked array",
            facts="kernels read every element, masked or not",
            hint=f"{name.lower()}.filled(0)",
        )
    if not isinstance(value, np.ndarray) and not _is_torch(value):
        what = f"{name} is neither a NumPy array nor a Torch tensor"
        raise ShapeError(what, facts=f"it is {type(value).__name__}")


def _unusable(name: str, array: TorchTensor) -> ShapeError:
    if array.requires_grad:
        return ShapeError(
            f"{name} wants a gradient", facts="kernels have none", hint=f"{name.lower()}.detach()"
        )
    if array.device.type != "cpu":
        return ShapeError(
            f"{name} is on {array.device}", facts="kernels run on the CPU", hint=".cpu()"
        )
    if str(array.layout) != "torch.strided":
        why = "kernels read every element"
        return ShapeError(f"{name} has layout {array.layout}", facts=why, hint=".to_dense()")
    return ShapeError(f"{name} is a lazy view", hint="give a tensor with values: .resolve_neg()")


def _of_examples(
    words: str,
    examples: Sequence[AnyArray],
    sizes: Mapping[str, int] | Sequence[int] | None,
    rest: tuple[Combine, Post | None, bool],
) -> NestProblem:
    _check_kinds(examples)
    names = [f"argument {k}" for k in range(len(examples))]
    layouts = [_layout(name, x) for name, x in zip(names, examples, strict=True)]
    dtypes = [dtype for _, _, dtype in layouts]
    if len({*dtypes} - {"bf16"}) > 1:
        raise ShapeError(
            "all tensors of a contraction have one type",
            facts=f"given: {', '.join(sorted({*dtypes}))}",
        )
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ShapeError(
            "beside arrays, sizes are given by letter", facts=f"given: {tuple(sizes)}",
            hint=f"sizes={{'m': 4, ..}}; the letters are those of {words!r}",
        )  # fmt: skip
    axes_of(words)
    combine, post, initial = rest
    return from_layouts(
        words, [x[:2] for x in layouts], dtypes=dtypes, sizes=sizes,
        combine=combine, post=post, initial=initial,
    )  # fmt: skip


def _layout(name: str, array: AnyArray) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return shape, strides in elements (contiguous for axes of one element), and type."""
    _expect_array(name, array)
    if isinstance(array, np.ndarray):
        item = array.itemsize
        if any(s % item for s in array.strides):
            raise ShapeError(
                f"{name} has strides that are no multiple of its elements",
                facts=f"{array.strides} bytes, for elements of {item}",
                hint="copy it",
            )
        shape, strides = array.shape, tuple(s // item for s in array.strides)
        dtype = {d: k for k, d in DTYPES.items()}.get(array.dtype, str(array.dtype))
    else:
        if str(array.layout) != "torch.strided":
            raise _unusable(name, array)
        shape, strides = tuple(array.shape), tuple(array.stride())
        dtype = str(array.dtype).removeprefix("torch.")
        dtype = {name: k for k, name in TORCH.items()}.get(dtype, dtype)
    rows = zip(strides, contiguous(shape), shape, strict=True)
    return shape, tuple(s if n > 1 else c for s, c, n in rows), dtype
