"""Attention along a dim: every step attends to a range of the past."""

from __future__ import annotations

from recurra.errors import ShapeError
from recurra.frontend.dims import Index, Steps, maximum, wrap
from recurra.frontend.functions import einsum
from recurra.frontend.nn import initializers
from recurra.frontend.nn.modules import Linear, Module, Parameter
from recurra.frontend.nn.recurrent import time_of
from recurra.frontend.tensor import RecurrentTensor


class MultiheadAttention(Module):
    """Causal self-attention of x [embed_dim] over (.., t) (Vaswani et al., 2017)

    y[t] reads x[0 : t + 1], or with `window=w` the last w steps, x[max(t - w + 1, 0) : t + 1].
    Weights are [in, out]; those of queries, keys and values are concatenated in `in_proj_weight`.
    """

    matrices = frozenset({"in_proj_weight"})

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        domain: Steps,
        window: int | None = None,
        bias: bool = True,
    ):
        if embed_dim % num_heads:
            raise ShapeError.at_user_line(
                f"{embed_dim} elements do not divide into {num_heads} heads",
                hint=f"take a multiple of {num_heads}",
            )
        self.heads, self.width, self.window = num_heads, embed_dim // num_heads, window
        first, shape = initializers.xavier_uniform(), (embed_dim, 3 * embed_dim)
        self.in_proj_weight = Parameter.drawn(first, shape, domain, "in_proj_weight")
        self.in_proj_bias: Parameter | None = None
        if bias:
            self.in_proj_bias = Parameter(
                initializers.zeros()((3 * embed_dim,)), domain, "in_proj_bias"
            )
        start = initializers.kaiming_uniform(3**-0.5)
        self.out_proj = Linear(embed_dim, embed_dim, domain, start, "_out_proj", bias)

    def forward(self, x: RecurrentTensor, over: object = None) -> RecurrentTensor:
        t = time_of(x, over)
        y = x @ self.in_proj_weight
        y = y if self.in_proj_bias is None else y + self.in_proj_bias
        n = self.heads * self.width
        q, k, v = (y.cut(j * n, (j + 1) * n).reshape(self.heads, self.width) for j in range(3))
        keys, values = self.past(k, t), self.past(v, t)
        scores = einsum("hd,nhd->hn", q * self.width**-0.5, keys)
        read = einsum("hn,nhd->hd", scores.softmax(), values)
        return self.out_proj(read.reshape(n))

    def past(self, tensor: RecurrentTensor, dim: str) -> RecurrentTensor:
        """The steps that step t attends to, [n, heads, width]."""
        index: list[object] = []
        for r in tensor.domain:
            now = Index(r.sym)
            lo = r.lo if self.window is None else maximum(now - (self.window - 1), wrap(r.lo))
            index.append(slice(lo, now + 1) if r.dim == dim else now)
        return tensor[tuple(index)]
