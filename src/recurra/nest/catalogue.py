"""The contractions of LoopTune's section 2, by name. All tensors are C-contiguous."""

from __future__ import annotations

from dataclasses import replace

from recurra.nest.einsum import from_sizes
from recurra.nest.problem import RESULTS, Affine, NestProblem, Post, TensorAccess, contiguous


def matmul(
    rows: int, inner: int, columns: int, *, dtype: str = "f32", post: Post | None = None
) -> NestProblem:
    """C[m,n] = Σ A[m,k] B[k,n]"""
    return from_sizes("mk,kn->mn", (rows, inner, columns), dtype=dtype, post=post)


def matvec(rows: int, inner: int, *, dtype: str = "f32") -> NestProblem:
    """C[m] = Σ A[m,k] B[k] (GEMV)"""
    return from_sizes("mk,k->m", (rows, inner), dtype=dtype)


def vecmat(inner: int, columns: int, *, dtype: str = "f32") -> NestProblem:
    """C[n] = Σ A[k] B[k,n] (GEVM)"""
    return from_sizes("k,kn->n", (inner, columns), dtype=dtype)


def convolution(
    batch: int,
    height: int,
    width: int,
    channels: int,
    features: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    dtype: str = "f32",
) -> NestProblem:
    """C[n,h,w,k] = Σ A[n,stride·h+r,stride·w+s,c] B[r,s,c,k]: channels last, nothing padded."""
    step = "" if stride == 1 else stride
    words = f"n({step}h+r)({step}w+s)c,rsck->nhwk"
    return from_sizes(
        words,
        dict(n=batch, h=height, r=kernel, w=width, s=kernel, c=channels, k=features),
        dtype=dtype,
    )


def depthwise(
    batch: int, height: int, width: int, channels: int, kernel: int = 3, *, dtype: str = "f32"
) -> NestProblem:
    """C[n,h,w,c] = Σ A[n,h+r,w+s,c] B[r,s,c]"""
    sizes = dict(n=batch, h=height, r=kernel, w=width, s=kernel, c=channels)
    return from_sizes("n(h+r)(w+s)c,rsc->nhwc", sizes, dtype=dtype)


def max_pooling(
    height: int, width: int, channels: int, window: int = 2, *, dtype: str = "f32"
) -> NestProblem:
    """C[h,w,c] = max A[window·h+i,window·w+j,c]"""
    sizes = dict(h=height, i=window, w=width, j=window, c=channels)
    words = f"({window}h+i)({window}w+j)c->hwc"
    return from_sizes(words, sizes, dtype=dtype, combine="max")


def reduction(rows: int, columns: int, *, dtype: str = "f32") -> NestProblem:
    """C[r] = Σ A[r,c]"""
    return from_sizes("rc->r", (rows, columns), dtype=dtype)


def transposition(rows: int, columns: int, *, dtype: str = "f32") -> NestProblem:
    """C[c,r] = A[r,c]"""
    return from_sizes("rc->cr", (rows, columns), dtype=dtype)


def broadcast(rows: int, columns: int, *, dtype: str = "f32") -> NestProblem:
    """C[r,c] = A[r]"""
    a = TensorAccess("A", dtype, (rows,), (1,), (Affine((("r", 1),)),))
    at = (Affine((("r", 1),)), Affine((("c", 1),)))
    return NestProblem(
        (("r", rows), ("c", columns)),
        TensorAccess("C", RESULTS[dtype], (rows, columns), (columns, 1), at),
        (a,),
    )


def concatenation(
    rows: int, first: int, second: int, *, dtype: str = "f32"
) -> tuple[NestProblem, NestProblem]:
    """C[r,c] = A[r,c] and C[r,c+d'] = B[r,d']: two problems that write parts of one tensor."""
    shape = (rows, first + second)

    def part(name: str, width: int, offset: int) -> NestProblem:
        p = from_sizes("rc->rc", (rows, width), dtype=dtype)
        at = (Affine((("r", 1),)), Affine((("c", 1),), offset))
        output = TensorAccess("C", RESULTS[dtype], shape, contiguous(shape), at)
        return replace(p, output=output, inputs=(replace(p.inputs[0], name=name),))

    return part("A", first, 0), part("B", second, first)
