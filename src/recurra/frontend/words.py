"""Words of NumPy, torch and JAX that are none of ours: each is refused with a line to write.

    x.unsqueeze(0)      hint: write x.reshape(1, *x.shape)

Words of operators that are only called otherwise here are found in their table.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from recurra.errors import RecurraError, here
from recurra.frontend.operators import OPERATORS, Operator

WORDS = {
    "array": "rc.constant([1.0, 2.0])",
    "associative_scan": "h = rc.like(x.type, domain=(t,)); h[0] = x[0]; h[t] = h[t - 1] + x[t]",
    "astype": 'x.cast("f32")',
    "at": "rc.where(x > 0.0, 1.0, x)",
    "BatchNorm1d": "rc.nn.LayerNorm(3, domain=())(x)",
    "bfloat16": 'x.cast("bf16")',
    "block_until_ready": "ctx.run({T: 3})",
    "bmm": 'rc.einsum("ab,bc->ac", x, x.T)',
    "bool": 'x.cast("bool")',
    "Categorical": "rc.nn.Categorical(x.index(0)).sample()",
    "categorical": "rc.nn.Categorical(x.index(0)).sample()",
    "ceil": "-((-x).floor())",
    "chunk": "x.cut(0, 1, axis=0)",
    "clamp_max": "x.clip(hi=1.0)",
    "clamp_min": "x.clip(lo=0.0)",
    "clone": "x",
    "cond": "rc.where(x > 0.0, x, 0.0)",
    "contiguous": "x",
    "copy": "x",
    "cpu": 'ctx.compile({T: 3}, backend="numpy")',
    "cross_entropy": "-x.log_softmax(axis=-1).take(k, axis=-1)",
    "CrossEntropyLoss": "-x.log_softmax(axis=-1).take(k, axis=-1)",
    "cuda": 'ctx.compile({T: 3}, backend="jax")',
    "device": 'ctx.compile({T: 3}, backend="jax")',
    "diff": "x.cut(1, 3, axis=1) - x.cut(0, 2, axis=1)",
    "dim": "len(x.shape)",
    "DomainError": "from recurra.errors import DomainError",
    "dot": "x @ x.T",
    "double": 'x.cast("f64")',
    "dropout": "rc.nn.Dropout(0.1)(x)",
    "ELU": "rc.where(x > 0.0, x, x.exp() - 1.0)",
    "elu": "rc.where(x > 0.0, x, x.exp() - 1.0)",
    "embedding": "rc.nn.Embedding(3, 2, domain=())(i)",
    "empty": "rc.zeros((2, 3))",
    "eval": "net(x)",
    "expand_as": "x.broadcast_to((2, 3))",
    "expand_dims": "x.reshape(1, *x.shape)",
    "expm1": "x.exp() - 1.0",
    "eye": 'rc.constant(np.eye(3, dtype="f4"))',
    "flatten": "x.reshape(-1)",
    "float": 'x.cast("f32")',
    "float16": "rc.f16",
    "float32": "rc.f32",
    "float64": "rc.f64",
    "func": "rc.call(np.sqrt, rc.f32[2, 3], x.square())",
    "functional": "x.relu()",
    "GELU": "x.gelu()",
    "grad": "x[0:T].sum().backward(wrt=[x])",
    "H": "x.T",
    "half": 'x.cast("f16")',
    "Identity": "x",
    "indices": "x.argmax(axis=-1)",
    "inf": "math.inf",
    "init": "rc.nn.initializers.normal()((3, 2))",
    "int": 'x.cast("i32")',
    "int32": "rc.i32",
    "int64": "rc.i64",
    "is_cuda": 'ctx.compile({T: 3}, backend="jax")',
    "isnan": "x != x",
    "item": "rc.output(x=x)",
    "jit": "ctx.compile({T: 3})",
    "l1_loss": "(x - 1.0).abs().mean()",
    "L1Loss": "(x - 1.0).abs().mean()",
    "layer_norm": "rc.nn.LayerNorm(3, domain=())(x)",
    "leaky_relu": "rc.maximum(x, 0.01 * x)",
    "LeakyReLU": "rc.maximum(x, 0.01 * x)",
    "linear": "rc.nn.Linear(3, 2, domain=())(x)",
    "linspace": 'rc.constant(np.linspace(0.0, 1.0, 3, dtype="f4"))',
    "load_state_dict": 'net.load(torch.nn.Linear(3, 2).state_dict(), layout="torch")',
    "log1p": "(x + 1.0).log()",
    "log2": "x.log() / math.log(2.0)",
    "long": 'x.cast("i64")',
    "lr_scheduler": "1e-3 * 0.99**t",
    "make": 'rc.rl.env.make("CartPole-v1")',
    "masked_fill": "rc.where(x > 0.0, 0.0, x)",
    "mm": "x @ x.T",
    "ModuleList": "[rc.nn.Linear(3, 3, domain=()) for _ in range(2)]",
    "mse_loss": "(x - 1.0).square().mean()",
    "MSELoss": "(x - 1.0).square().mean()",
    "mT": "x.T",
    "mv": "x @ x.T",
    "named_parameters": "dict(net.named_params())",
    "nan": "math.nan",
    "ndim": "len(x.shape)",
    "ndimension": "len(x.shape)",
    "nelement": "math.prod(x.shape)",
    "newaxis": "x.reshape(1, *x.shape)",
    "nll_loss": "-x.take(k, axis=-1)",
    "NLLLoss": "-x.take(k, axis=-1)",
    "no_grad": "x.detach()",
    "nonzero": "x != 0.0",
    "Normal": "rc.nn.Gaussian(x, x.exp())",
    "numel": "math.prod(x.shape)",
    "numpy": "rc.output(x=x)",
    "ones_like": "rc.ones(x.shape)",
    "pad": "rc.concat([x, rc.zeros((2, 1))], axis=1)",
    "parameters": "net.params",
    "pi": "math.pi",
    "placeholder": "h = rc.like(rc.f32[3], domain=(t,)); h[0] = 0.0; h[t] = h[t - 1] + 1.0",
    "ravel": "x.reshape(-1)",
    "real": "x",
    "reciprocal": "1.0 / x",
    "RecurrentTensor": "h = rc.like(rc.f32[3], domain=(t,)); h[0] = 0.0; h[t] = h[t - 1] + 1.0",
    "requires_grad": 'rc.nn.Parameter(rc.zeros(3), domain=(), name="p")',
    "rsqrt": "x.sqrt() ** -1.0",
    "scan": "h = rc.like(x.type, domain=(t,)); h[0] = x[0]; h[t] = h[t - 1] + x[t]",
    "shape": "x.shape",
    "ShapeError": "from recurra.errors import ShapeError",
    "sign": '(x > 0.0).cast("f32") - (x < 0.0).cast("f32")',
    "sink": "rc.output(x=x)",
    "size": "x.shape",
    "Softmax": "x.softmax(axis=-1)",
    "softmin": "(-x).softmax(axis=-1)",
    "Softplus": "rc.maximum(x, 0.0) + ((-x.abs()).exp() + 1.0).log()",
    "softplus": "rc.maximum(x, 0.0) + ((-x.abs()).exp() + 1.0).log()",
    "split": "x.cut(0, 1, axis=0)",
    "state_dict": "rc.output(**dict(net.named_params()))",
    "swapaxes": "x.transpose(1, 0)",
    "t": "x.T",
    "tan": "x.sin() / x.cos()",
    "TempoContext": 'rc.Context(dims="t")',
    "Tensor": "rc.constant([1.0, 2.0])",
    "tensor": "rc.constant([1.0, 2.0])",
    "to": 'x.cast("f32")',
    "tolist": "rc.output(x=x)",
    "train": "net(x)",
    "udf": "rc.call(np.sqrt, rc.f32[2, 3], x.square())",
    "unbind": "x.index(0, axis=0)",
    "unsqueeze": "x.reshape(1, *x.shape)",
    "value_and_grad": "x[0:T].sum().backward(wrt=[x])",
    "values": "x",
    "Variable": 'rc.nn.Parameter(rc.zeros(3), domain=(t,), name="p")',
    "view": "x.reshape(3, 2)",
    "view_as": "x.reshape(3, 2)",
    "vmap": 'rc.Context(dims="b t")',
    "zero_grad": "x[0:T].sum().backward(wrt=[x])",
    "zeros_like": "rc.zeros(x.shape)",
}


class NoSuchName(RecurraError, AttributeError):
    """A word that is none of ours; an AttributeError too, as `hasattr` expects."""


def hint(name: str, known: Iterable[str] = ()) -> str:
    """What to write for a word, or for a function as np.sum or torch.cat; it may be none.

    Args:
        known: the words that there are, of which one may be meant.
    """
    word = name.rpartition(".")[2]
    mine = (o for o in OPERATORS.values() if name in (o.numpy, o.torch))
    near = (o for o in OPERATORS.values() if word in _last_words(o))
    found = next(mine, None) or next(near, None)
    line = found.ours if found else WORDS.get(word)
    alike = {x.lower(): x for x in known if not x.startswith("_")}
    plain = word.removesuffix("_")
    if (
        plain != word
        and plain in known
        and not any(plain in _last_words(o) for o in OPERATORS.values())
    ):
        return f"did you mean {plain}?"
    if line is None and word.endswith("_") and not word.startswith("_"):
        return "nothing is changed in place: write x = x + 1.0"
    if line is None and (close := get_close_matches(word.lower(), alike, 1, 0.8)):
        return f"did you mean {alike[close[0]]}?"
    return (
        f"write {line}"
        if line
        else "docs/operators.md lists what there is; rc.jax_fn(f)(x) is any function f of JAX"
    )


def unknown(what: str, name: str, known: Iterable[str] = ()) -> NoSuchName:
    """What is raised where a tensor, or a module of the package, has no such name.

    Args:
        known: the names that it has.
    """
    return NoSuchName(
        f"{what} has no {name!r}",
        facts=f"{name} is a word of another library, or of none",
        hint=hint(name, known),
        loc=here(),
    )


def only(
    module: str, names: Collection[str], renamed: Mapping[str, str] | None = None, home: str = ""
) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has these names and no others.

    Names that were `renamed` give what they are called now, in the module `home`, and a
    DeprecationWarning.
    """

    def find(name: str) -> Any:
        if name.startswith("_"):  # Python asks for these
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if renamed is None or name not in renamed:
            raise unknown(module, name, names)
        now = renamed[name]
        told = (
            f"{module}.{name} is called {module}.{now} now; the old name goes with the next release"
        )
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(home), now)

    return find


def _last_words(operator: Operator) -> set[str]:
    """The last words of its names."""
    return {x.rpartition(".")[2] for x in (operator.key, operator.numpy, operator.torch)}
