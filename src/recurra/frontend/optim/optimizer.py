"""The base of optimizers: p[i+1] = p[i] - lr · direction(grad[i], state[i]) for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from recurra.analysis.argument_checks import argument_text, check_arguments
from recurra.errors import RecurraError
from recurra.frontend.dims import Index, wrap
from recurra.frontend.foreign_names import no_attribute
from recurra.frontend.nn.modules import Parameter, start, steps_of
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.types import Type

After = Callable[[Parameter, RecurrentTensor], RecurrentTensor | None]

Rate = float | Index | RecurrentTensor


class Optimizer:
    """The base of optimizers; `lr` is a number, or an expression of the parameters' dim"""

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            name = f"rc.optim.{cls.__name__}"
            hint = f"write {name}(net.params, lr=1e-3), or {name}([p], lr=1e-3) of parameters"
            cls.__init__ = check_arguments(cls.__init__, name, hint)

    def __init__(self, params: Sequence[Parameter], lr: Rate):
        self.params, self.lr = parameters(params), _rate(lr)

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("the optimizer", self, name)

    def direction(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        """The descent direction, such as the gradient scaled and averaged; a step subtracts it."""
        raise NotImplementedError

    def step(self, after: After | None = None) -> None:
        """Write the next value of every parameter, from its `.grad`.

        Args:
            after: a function that replaces each next value, for masks and limits of weights:
                lambda p, new: new.clip(-1, 1).

        Raises RecurraError for a parameter without a gradient, or without a dim to step along.
        """
        for p in self.params:
            update(p, p - self.direction(p, gradient(p)) * self.lr, after)


def parameters(given: Any) -> list[Parameter]:
    """The parameters as a list. Raises RecurraError for anything that is no parameter."""
    found = list(given) if isinstance(given, Iterable) else [given]
    stray = next((x for x in found if not isinstance(x, Parameter)), None)
    if stray is not None:
        what = given if hasattr(given, "params") else stray
        raise RecurraError.at_user_line(
            f"an optimizer is given a {type(what).__name__}",
            facts="it changes what rc.nn.Parameter makes, and the parameters of modules",
            hint="write net.params of a module, [p, q] of parameters",
        )
    return found


def _rate(lr: Any) -> Rate:
    """Return a learning rate; raise RecurraError for a function of the step, None or text.

    A list or an array has a rate for each element of the parameters.
    """
    if lr is not None and not isinstance(lr, str) and not callable(lr):
        return lr
    raise RecurraError.at_user_line(
        "a learning rate is a number or a tensor"
        + (", no function of the step" if callable(lr) else ""),
        facts=f"lr is {argument_text(lr)}; a schedule is an expression of the dim that parameters "
        "step along",
        hint="write lr=1e-3, or with the dim t lr=1e-3 * 0.99**t",
    )


def update(parameter: Parameter, new: RecurrentTensor, after: After | None) -> None:
    """Write p[i+1] = after(p, new)[i]; raise RecurraError if `after` returns None."""
    changed = new if after is None else after(parameter, new)
    if changed is None:
        raise RecurraError.at_user_line(
            f"what is to follow the step gives no value for {parameter.name}",
            facts="it is given the parameter and its next value, and returns what that becomes",
            hint="write step(after=lambda p, new: new.clip(-1, 1))",
        )
    parameter.update(changed)


def state(parameter: Parameter, name: str) -> RecurrentTensor:
    """Declare optimizer state like the parameter, initially zero, called {p}_{name}."""
    return declared_state(parameter, f"{parameter.name}_{name}", parameter.type, 0.0)


def declared_state(
    parameter: Parameter, name: str, type_: Type, initial: object
) -> RecurrentTensor:
    """Declare a tensor of a type that steps along with a parameter, with an initial value."""
    builder = parameter.builder
    node = builder.declare(name, parameter.domain, type_)
    builder.clocks[node.name] = builder.clocks[parameter.name]
    x = RecurrentTensor(builder, node.ref)
    start(x, initial)
    return x


def count(parameter: Parameter) -> RecurrentTensor:
    """The number of the current step, from 1 on."""
    steps: Index | RecurrentTensor | int = 0
    for r in steps_of(parameter):
        steps = steps * wrap(r.hi - r.lo) + (Index(r.sym) - r.lo)
    return as_tensor(steps + 1, parameter.dtype)


def gradient(parameter: Parameter) -> RecurrentTensor:
    """The gradient of a parameter; raises RecurraError if backward() computed none."""
    if parameter.grad is None:
        raise RecurraError.at_user_line(
            f"{parameter.name} has no gradient",
            facts="step() needs loss.backward() before it",
            hint="call backward() on the loss, or leave the parameter out",
        )
    steps_of(parameter)
    return parameter.grad
