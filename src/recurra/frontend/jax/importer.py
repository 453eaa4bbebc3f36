"""rc.import_jax: functions and modules of JAX libraries, translated to equations.

net = rc.import_jax(lambda m, x: m(x), params=equinox_mlp, domain=(i,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from recurra.analysis.argument_checks import check_arguments
from recurra.errors import RecurraError, here
from recurra.frontend.dims import Steps
from recurra.frontend.nn.modules import Module, Parameter
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.value_conversion import array_of


@partial(
    check_arguments,
    name="rc.import_jax",
    hint="write y = rc.import_jax(lambda x: x * jax.numpy.sin(x))(x)",
)
def import_jax(
    fn: Callable[..., object],
    name: str | None = None,
    *,
    params: object = None,
    domain: Steps = (),
) -> Imported:
    """Translate a pure function of jax.numpy to equations of the program, primitive by primitive.

    Operands and results are trees of tensors of one point. With `params`, a tree of arrays (an
    equinox module, the state of a flax one), each array of floats becomes a parameter over `domain`
    and the tree is `fn`'s first operand; everything else in it stays as it is. Calling the result
    raises RecurraError for an unsupported primitive; rc.jax_fn supports all.
    """
    stem = name or getattr(fn, "__name__", "fn").strip("<>")
    return Imported(fn, stem, params, domain)


class Imported(Module):
    """An imported function of JAX: call it, and pass its `.params` to an optimizer."""

    def __init__(self, fn: Callable[..., object], name: str, params: object, domain: Steps):
        from recurra.frontend.jax import jaxpr

        self.fn, self.name = fn, name
        self.bound = () if params is None else (params,)
        self.named = [
            (k, _parameter(x, k, domain) if _trainable(x) else x)
            for k, x in jaxpr.named_leaves(params)
        ]

    def named_params(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        for key, x in self.named:
            if isinstance(x, Parameter):
                yield prefix + key, x

    def forward(self, *xs: Any, **options: Any) -> Any:
        from jax import tree

        from recurra.frontend.jax import jaxpr

        structure = tree.structure(self.bound)
        leaves, operand_structure = tree.flatten(xs)
        tensors = [p for _, p in self.named_params()] + [as_tensor(x) for x in leaves]
        n = len(self.params)

        def flat(*arrays: object) -> object:
            params = iter(arrays[:n])
            own = [next(params) if isinstance(x, Parameter) else x for _, x in self.named]
            args = (*tree.unflatten(structure, own), *tree.unflatten(operand_structure, arrays[n:]))
            return self.fn(*args, **options)

        return jaxpr.imported(flat, self.name, tensors)


def _trainable(value: object) -> bool:
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "shape")
        and getattr(dtype, "kind", "") in ("f", "V")
        and str(dtype) in ("float16", "bfloat16", "float32", "float64")
    )


def _parameter(value: object, name: str, domain: Steps) -> Parameter:
    if isinstance(value, RecurrentTensor):
        raise RecurraError.at_user_line(
            "params are arrays",
            facts=f"{name} is {value!r}",
            hint="pass it as an operand",
        )
    return Parameter(as_tensor(array_of(value, name, here())), domain, name)
