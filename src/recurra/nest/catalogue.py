"""The contractions of LoopTune's section 2, by name. All tensors are C-contiguous."""

from __future__ import annotations

from dataclasses import replace

from recurra.nest.einsum import from_sizes
from recurra.nest.problem import RESULTS, Affine, NestProblem, Post, TensorAccess, contiguous


def matmul(
    m: int, index: int, count: int, *, dtype: str = "f32", post: Post | None = None
) -> NestProblem:
    """C[m,n] = Σ A[m,k] B[k,n]"""
    return from_sizes("mk,kn->mn", (m, index, count), dtype=dtype, post=post)


def matvec(m: int, index: int, *, dtype: str = "f32") -> NestProblem:
    """C[m] = Σ A[m,k] B[k] (GEMV)"""
    return from_sizes("mk,k->m", (m, index), dtype=dtype)


def vecmat(index: int, count: int, *, dtype: str = "f32") -> NestProblem:
    """C[n] = Σ A[k] B[k,n] (GEVM)"""
    return from_sizes("k,kn->n", (index, count), dtype=dtype)


def convolution(
    count: int,
    h: int,
    width: int,
    c: int,
    index: int,
    r: int = 3,
    *,
    stride: int = 1,
    dtype: str = "f32",
) -> NestProblem:
    """C[n,h,w,k] = Σ A[n,stride·h+r,stride·w+s,c] B[r,s,c,k]: channels last, nothing padded."""
    step = "" if stride == 1 else stride
    words = f"n({step}h+r)({step}w+s)c,rsck->nhwk"
    return from_sizes(words, dict(n=count, h=h, r=r, w=width, s=r, c=c, k=index), dtype=dtype)


def depthwise(
    count: int, h: int, width: int, c: int, r: int = 3, *, dtype: str = "f32"
) -> NestProblem:
    """C[n,h,w,c] = Σ A[n,h+r,w+s,c] B[r,s,c]"""
    sizes = dict(n=count, h=h, r=r, w=width, s=r, c=c)
    return from_sizes("n(h+r)(w+s)c,rsc->nhwc", sizes, dtype=dtype)


def max_pooling(h: int, width: int, c: int, window: int = 2, *, dtype: str = "f32") -> NestProblem:
    """C[h,w,c] = max A[window·h+i,window·w+j,c]"""
    sizes = dict(h=h, i=window, w=width, j=window, c=c)
    words = f"({window}h+i)({window}w+j)c->hwc"
    return from_sizes(words, sizes, dtype=dtype, combine="max")


def reduction(r: int, c: int, *, dtype: str = "f32") -> NestProblem:
    """C[r] = Σ A[r,c]"""
    return from_sizes("rc->r", (r, c), dtype=dtype)


def transposition(r: int, c: int, *, dtype: str = "f32") -> NestProblem:
    """C[c,r] = A[r,c]"""
    return from_sizes("rc->cr", (r, c), dtype=dtype)


def broadcast(r: int, c: int, *, dtype: str = "f32") -> NestProblem:
    """C[r,c] = A[r]"""
    a = TensorAccess("A", dtype, (r,), (1,), (Affine((("r", 1),)),))
    at = (Affine((("r", 1),)), Affine((("c", 1),)))
    return NestProblem(
        (("r", r), ("c", c)), TensorAccess("C", RESULTS[dtype], (r, c), (c, 1), at), (a,)
    )


def concatenation(r: int, c: int, d: int, *, dtype: str = "f32") -> tuple[NestProblem, NestProblem]:
    """C[r,c] = A[r,c] and C[r,c+d'] = B[r,d']: two problems that write parts of one tensor."""
    shape = (r, c + d)

    def part(name: str, width: int, offset: int) -> NestProblem:
        p = from_sizes("rc->rc", (r, width), dtype=dtype)
        at = (Affine((("r", 1),)), Affine((("c", 1),), offset))
        output = TensorAccess("C", RESULTS[dtype], shape, contiguous(shape), at)
        return replace(p, output=output, inputs=(replace(p.inputs[0], name=name),))

    return part("A", c, 0), part("B", d, c)
