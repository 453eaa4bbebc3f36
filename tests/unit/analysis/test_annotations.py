"""Arguments that no function takes: each is refused where it is written, with what would be."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.frontend.operator_table import OPERATORS

EVERY = rc.full  # its module, and those below it, enter their operators
LINES = [
    *(o.ours for o in OPERATORS.values()),
    'rc.input(rc.f32, (t,), name="x")',
    'rc.like(rc.f32, (t,), name="x")',
    "rc.nn.Parameter(rc.zeros(3), domain=(t,), name='q')",
    "rc.nn.Linear(3, 4, domain=())",
    "rc.nn.Conv2d(3, 4, 3, stride=1, padding=0, domain=())",
    "rc.nn.Dropout(0.5)",
    "rc.nn.Categorical(x.index(0))",
    "rc.nn.Gaussian(x, x)",
    "rc.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)",
    "rc.optim.Adam([p], lr=0.1, betas=(0.9, 0.99), eps=1e-8)",
    "rc.optim.AdamW([p], weight_decay=0.1)",
    "rc.optim.RMSprop([p], alpha=0.9, momentum=0.1, centered=True)",
    "rc.optim.clip_grad_norm([p], 1.0)",
    "rc.jax_fn(math.sin)",
    "rc.import_jax(math.sin)",
    "rc.call(np.sin, rc.f32, x.sum())",
    "rc.value(t)",
    "rc.until(x.sum() > 0.0, max=3)",
    'rc.bound("N")',
    "x.sum().backward(wrt=[x])",
    'rc.Context(dims="t")',
    "rc.Context(num_dims=2)",
    "net(x.index(0))",
]


def spoiled(line: str) -> Iterator[str]:
    """The call with each of its arguments in turn replaced by what nothing is."""
    tree = ast.parse(line, mode="eval").body
    if isinstance(tree, ast.BinOp):
        yield ast.unparse(ast.BinOp(tree.left, tree.op, ast.Name("nothing")))
    if not isinstance(tree, ast.Call):
        return
    for k in range(len(tree.args)):
        args = [*tree.args]
        args[k] = ast.Name("nothing")
        yield ast.unparse(ast.Call(tree.func, args, tree.keywords))
    for k, word in enumerate(tree.keywords):
        words = [*tree.keywords]
        words[k] = ast.keyword(word.arg, ast.Name("nothing"))
        yield ast.unparse(ast.Call(tree.func, tree.args, words))


TAKE_TEXT = ("dims=", "name=", "rc.bound")
CASES = [
    (call, nothing)
    for line in LINES
    for call in spoiled(line)
    for nothing in ({"a": 1}, "a", object())
    if nothing != "a" or not any(word in call for word in TAKE_TEXT)
]


def names(t: Any, T: Any) -> dict[str, Any]:
    """The names that stand in lines."""
    x, y = rc.normal((t,), (2, 3)), rc.normal((t,), (2, 3))
    given: dict[str, Any] = {"rc": rc, "np": np, "math": math, "t": t, "T": T, "x": x, "y": y}
    given["i"] = rc.randint(0, 2, (t,), (2, 3))
    given["p"] = rc.nn.Parameter(rc.zeros(3), domain=(t,), name="p")
    return given | {"net": rc.nn.Linear(3, 2, domain=())}


@pytest.mark.parametrize(("call", "nothing"), CASES)
def test_an_argument_that_is_nothing_is_refused(call: str, nothing: object) -> None:
    with rc.Context(dims="t") as (t, T):
        given = names(t, T) | {"nothing": nothing}
        with pytest.raises(RecurraError) as refused:
            eval(call, given)
    assert refused.value.hint
    assert refused.value.loc
    assert "has no attribute" not in str(refused.value)


TOLD = {
    "x.topk(1.5)": "k is a whole number or an index expression, not 1.5",
    "x.tile(2, 'a')": "times is a whole number or an index expression, or a list of them, not 'a'",
    "rc.optim.Adam([p], betas=0.9)": "betas is (a number, a number), not 0.9",
    "rc.optim.SGD([p], momentum='a')": "momentum is a number, not 'a'",
    "rc.optim.SGD([p], lr={})": "lr is a number or an index expression or a tensor, not {}",
    "rc.optim.AdamW([p], weight_decay='a')": "weight_decay is a number, not 'a'",
    "rc.optim.SGD(None)": "params is a list of parameters, not None",
    "rc.input(rc.f32, (t,), name=3)": "name is text or None, not 3",
    "x.softmax(None)": "axis is a whole number, not None",
    "x.sum(keepdims='a')": "keepdims is True or False, not 'a'",
    "x.gelu(approximate=[])": "gelu cannot be approximated by []",
    "rc.zeros('a')": "shape is a whole number or an index expression, or a list of them, not 'a'",
    "rc.jax_fn(3)": "fn is a function, not 3",
    "rc.call(3)": "missing a required argument: 'results'",
    "rc.nn.Categorical([1.0, 2.0])": "logits is a tensor, not [1.0, 2.0]",
    "rc.nn.Conv2d(3, 4, 3, 'a', domain=())": "stride is a whole number or (a whole number, a whole "
    "number), not 'a'",
    "x.sum(dim=0, dims=1)": "got an unexpected keyword argument 'dims'",
}


@pytest.mark.parametrize("call", TOLD)
def test_what_would_be_an_argument_is_told(call: str) -> None:
    with rc.Context(dims="t") as (t, T):
        given = names(t, T)
        with pytest.raises(RecurraError) as refused:
            eval(call, given)
    assert refused.value.what.endswith(TOLD[call])


TAKEN = [
    "x.reshape(np.int64(3), np.int32(2))",
    "x[0:T].reshape(T, 6)",
    "x[0:T].expand(T)",
    "x.sum(axis=np.int64(0), keepdims=1)",
    "x.discounted_sum(np.float32(0.9))",
    "x.cast(np.float64)",
    "rc.stack([t, 1.0, x.sum()])",
    "rc.optim.SGD([p], lr=np.float32(0.1), momentum=np.array(0.5))",
    "rc.optim.SGD((p,), lr=0.1 * 0.9**t)",
    "rc.optim.SGD([p], lr=[0.1, 0.2, 0.3])",
    "rc.nn.Dropout(rc.where(t > 0, 0.5, 0.0))",
    "rc.nn.Linear(3, 4, (t,))(np.ones(3, np.float32))",
]


@pytest.mark.parametrize("call", TAKEN)
def test_what_stands_for_an_argument_is_taken(call: str) -> None:
    with rc.Context(dims="t") as (t, T):
        assert eval(call, names(t, T)) is not None


def test_what_users_annotate_is_theirs() -> None:
    class Scaled(rc.nn.Module):
        def forward(self, x: np.ndarray, by: str = 2.0) -> rc.Tensor:  # pyright: ignore
            return x * by  # pyright: ignore

    with (ctx := rc.Context(dims="t")) as (t, T):
        rc.output(y=Scaled()(rc.value(t)))
    assert ctx.run({T: 3}, backend="numpy")["y"].tolist() == [0, 2, 4]
