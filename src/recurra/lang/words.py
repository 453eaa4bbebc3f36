"""Words of NumPy, torch and JAX that are none of ours: each is refused with a line to write.

    x.unsqueeze(0)      hint: write x.reshape(1, *x.shape)

Words of operators that are only called otherwise here are found in their table.
"""

from __future__ import annotations

from recurra.errors import RecurraError, here
from recurra.lang.operators import OPERATORS, Operator

WORDS = {
    "array": "rc.constant([1.0, 2.0])",
    "astype": 'x.cast("f32")',
    "at": "rc.where(x > 0.0, 1.0, x)",
    "bfloat16": 'x.cast("bf16")',
    "bmm": 'rc.einsum("ab,bc->ac", x, x.T)',
    "bool": 'x.cast("bool")',
    "chunk": "x.cut(0, 1, axis=0)",
    "clone": "x",
    "contiguous": "x",
    "copy": "x",
    "cpu": 'ctx.compile({T: 3}, backend="numpy")',
    "cuda": 'ctx.compile({T: 3}, backend="jax")',
    "device": 'ctx.compile({T: 3}, backend="jax")',
    "dim": "len(x.shape)",
    "double": 'x.cast("f64")',
    "empty": "rc.zeros((2, 3))",
    "expand_as": "x.broadcast_to((2, 3))",
    "expand_dims": "x.reshape(1, *x.shape)",
    "eye": 'rc.constant(np.eye(3, dtype="f4"))',
    "flatten": "x.reshape(-1)",
    "float": 'x.cast("f32")',
    "float16": "rc.f16",
    "float32": "rc.f32",
    "float64": "rc.f64",
    "half": 'x.cast("f16")',
    "int": 'x.cast("i32")',
    "int32": "rc.i32",
    "int64": "rc.i64",
    "item": "rc.output(x=x)",
    "linspace": 'rc.constant(np.linspace(0.0, 1.0, 3, dtype="f4"))',
    "long": 'x.cast("i64")',
    "masked_fill": "rc.where(x > 0.0, 0.0, x)",
    "mm": "x @ x.T",
    "mT": "x.T",
    "ndim": "len(x.shape)",
    "ndimension": "len(x.shape)",
    "nelement": "math.prod(x.shape)",
    "no_grad": "x.detach()",
    "numel": "math.prod(x.shape)",
    "numpy": "rc.output(x=x)",
    "ones_like": "rc.ones(x.shape)",
    "pad": "rc.concat([x, rc.zeros((2, 1))], axis=1)",
    "ravel": "x.reshape(-1)",
    "requires_grad": 'rc.nn.Parameter(rc.zeros(3), domain=(), name="p")',
    "size": "x.shape",
    "softplus": "rc.maximum(x, 0.0) + ((-x.abs()).exp() + 1.0).log()",
    "split": "x.cut(0, 1, axis=0)",
    "swapaxes": "x.transpose(1, 0)",
    "t": "x.T",
    "tensor": "rc.constant([1.0, 2.0])",
    "tolist": "rc.output(x=x)",
    "unbind": "x.index(0, axis=0)",
    "unsqueeze": "x.reshape(1, *x.shape)",
    "view": "x.reshape(3, 2)",
    "view_as": "x.reshape(3, 2)",
    "zeros_like": "rc.zeros(x.shape)",
}


class NoSuchName(RecurraError, AttributeError):
    """A word that is none of ours; an AttributeError too, as `hasattr` expects."""


def hint(name: str) -> str:
    """What to write for a word, or for a function as np.sum or torch.cat; it may be none."""
    word = name.rpartition(".")[2]
    mine = (o for o in OPERATORS.values() if name in (o.numpy, o.torch))
    near = (o for o in OPERATORS.values() if word in _last_words(o))
    found = next(mine, None) or next(near, None)
    line = found.ours if found else WORDS.get(word)
    if line is None and word.endswith("_") and not word.startswith("_"):
        return "nothing is changed in place: write x = x + 1.0"
    return f"write {line}" if line else "docs/operators.md lists what there is"


def unknown(what: str, name: str) -> NoSuchName:
    """What is raised where a tensor or the package has no such name."""
    return NoSuchName(
        f"{what} has no {name!r}",
        facts=f"{name} is a word of another library, or of none",
        hint=hint(name),
        loc=here(),
    )


def _last_words(o: Operator) -> set[str]:
    """The last words of its names."""
    return {x.rpartition(".")[2] for x in (o.key, o.numpy, o.torch)}
