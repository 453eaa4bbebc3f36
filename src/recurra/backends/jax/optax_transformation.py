"""An optax gradient transformation as two functions of flat arrays: initial state, and step.

Only the user's object is needed of optax: `init(params)`, `update(updates, state, params)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from recurra.ir.types import NUMPY_NAME, Type


@dataclass(frozen=True)
class Transformation:
    """`init(*params) -> state`, `step(*grads, *state, *params, *extra) -> (params, state)`"""

    init: Callable[..., tuple[Any, ...]]
    step: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
    names: tuple[str, ...]  # of the arrays of the state: mu_W1, count


def transformation(
    tx: Any, params: Any, types: Sequence[Type], extra: Sequence[str]
) -> Transformation:
    """Flatten a transformation; `params` is its tree of parameters, `types` those of the leaves."""
    n, tree = len(types), jax.tree.structure(params)

    def init(*ps: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(tx.init(jax.tree.unflatten(tree, ps))))

    avals = [jax.ShapeDtypeStruct(t.shape, NUMPY_NAME[t.dtype]) for t in types]
    shapes = jax.eval_shape(tx.init, jax.tree.unflatten(tree, avals))
    paths, state_tree = jax.tree_util.tree_flatten_with_path(shapes)
    m = len(paths)

    def step(*xs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        grads, state, ps = xs[:n], xs[n : n + m], xs[n + m : n + m + n]
        updates, after = tx.update(
            jax.tree.unflatten(tree, grads),
            jax.tree.unflatten(state_tree, state),
            jax.tree.unflatten(tree, ps),
            **dict(zip(extra, xs[n + m + n :], strict=True)),
        )
        new = [(p + u).astype(p.dtype) for p, u in zip(ps, jax.tree.leaves(updates), strict=True)]
        return tuple(new), tuple(jax.tree.leaves(after))

    return Transformation(init, step, tuple(_name(path) for path, _ in paths))


def leaves(params: Any) -> list[Any]:
    """The tensors of a tree, in JAX's order."""
    return jax.tree.leaves(params)


def _name(path: Sequence[Any]) -> str:
    """[1][0].mu['W1'] → mu_W1"""
    words = [str(getattr(k, "name", getattr(k, "key", ""))) for k in path]
    return "_".join(w for w in words if w.isidentifier()) or "state"
