"""Optimizers from optax transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recurra.errors import RecurraError, ShapeError
from recurra.frontend.context import jax_fn
from recurra.frontend.nn.modules import Module, Parameter, advance, clock, written_domain
from recurra.frontend.optim.optimizer import After, declared_state, gradient, parameters, update
from recurra.frontend.tensor import RecurrentTensor

Via = Callable[..., Callable[..., Any]]


def from_optax(tx: Any, params: Any, via: Via = jax_fn) -> Transformed:
    """Use an optax transformation: `rc.optim.from_optax(optax.adamw(1e-3), net.params).step()`.

    `params` is a list of parameters, or a tree of them, as masks of optax need. The state is a
    recurrence along the dim that the parameters step along, s[i+1] = update(grad[i], s[i], p[i]). A
    step is one operation; with `via=rc.import_jax` it is translated to equations, one for each
    primitive. Raises RecurraError if `tx` is no transformation, or if the parameters differ in
    their domains or the dims that they step along.
    """
    return Transformed(tx, params, via)


class Transformed:
    """An optimizer that applies an optax transformation to its parameters."""

    def __init__(self, tx: Any, params: Any, via: Via = jax_fn):
        from recurra.backends.jax import optax_transformation

        if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
            raise RecurraError.at_user_line(
                f"{tx!r} is no optax transformation",
                facts="it has no init and update",
                hint="give what a function of optax returns: from_optax(optax.adam(1e-3), params)",
            )
        self.tx, self.via = tx, via
        listed = isinstance(params, (list, Module))
        self.tree = {p.name: p for p in parameters(params)} if listed else params
        self.params: list[Parameter] = optax_transformation.leaves(self.tree)
        self._one_domain()

    def _one_domain(self) -> None:
        for p in self.params:
            first = self.params[0]
            if p.domain != first.domain or clock(p) != clock(first):
                raise RecurraError.at_user_line(
                    "the parameters of one transformation have several domains",
                    facts=f"{first.name} is over {written_domain(first)}, {p.name} over "
                    f"{written_domain(p)}, and each steps along the last",
                    hint="make a transformation for each domain",
                )

    def step(self, after: After | None = None, **extra: RecurrentTensor) -> None:
        """Write the next value of every parameter and of the state.

        `after(p, new)` replaces each next value, as in `Optimizer.step`. `extra` is passed to the
        transformation, as step(value=loss) for reduce_on_plateau.
        """
        from recurra.backends.jax.optax_transformation import transformation

        grads = [gradient(p) for p in self.params]
        t = transformation(self.tx, self.tree, [p.type for p in self.params], tuple(extra))
        first = self.via(t.init, "optax_init")(*(p.initial for p in self.params))
        state = [
            declared_state(self.params[0], name, x.type, x)
            for name, x in zip(t.names, first, strict=True)
        ]
        args = (*grads, *state, *self.params, *extra.values())
        new, changed = self.via(t.step, "optax_step")(*args)
        for p, x in zip(self.params, new, strict=True):
            update(p, x, after)
        for s, x in zip(state, changed, strict=True):
            if x.type != s.type:
                raise ShapeError.at_user_line(
                    f"the transformation changes its state {s.name}",
                    facts=f"it starts as {s.type}, a step makes it {x.type}",
                )
            advance(s, x)
