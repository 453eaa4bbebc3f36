"""Modules: named parameters and a forward equation. As in torch.nn, but weights [in, out]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import pairwise
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self

from numpy.typing import ArrayLike

from recurra.analysis.arguments import expecting
from recurra.analysis.tracer import current
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.bare_index import condition
from recurra.frontend.dims import Index, Place, Steps, wrap
from recurra.frontend.functions import declared, dims_of, named
from recurra.frontend.nn import initializers, weights
from recurra.frontend.nn.distributions import Categorical
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.sizes import sized
from recurra.frontend.nn.spaces import Spaces
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.frontend.words import OF_MODULES, no_attribute
from recurra.ir.effects import Checkpoint
from recurra.ir.expr import TRUE, Expr, symbols
from recurra.ir.types import Domain, Range


class Parameter(RecurrentTensor):
    """A tensor over `domain` that starts at `initial`; an optimizer writes what follows.

    It steps along the last of its dims as written, whatever order the context has: domain=(e, i)
    along i, domain=(i, e) along e. Along several, counted one in the other, if these stand in
    brackets of their own: domain=((i, e, m),) has its next value at m+1, after the last m at e+1,
    after the last e at i+1.
    """

    def __init__(self, initial: object, domain: Steps, name: str | None = None):
        tracer, initial = current(), as_tensor(initial)
        dims, steps = _dims_and_steps(name or "a parameter", domain)
        if name is None:
            x = declared(initial.type, dims.dims, "parameter")
        else:
            x = named(initial.type, dims.dims, name)
        tracer.clocks[x.name] = steps
        super().__init__(tracer, x.ref)
        self.initial = initial
        self._next: RecurrentTensor | None = None
        start(self, initial)
        tracer.params.append(self)

    __init__ = expecting(
        __init__, "rc.nn.Parameter", lambda args: _over_a_dim("rc.nn.Parameter", args)
    )

    @classmethod
    def drawn(
        cls, initial: Initializer, shape: tuple[int, ...], domain: Steps, name: str
    ) -> Parameter:
        """One that starts as an initializer draws it, anew at every point of the dims that it does
        not step along: members of an ensemble start apart."""
        dims, steps = _dims_and_steps(name, domain)
        with current().drawing_over(dims.without(*steps).dims):
            first = initial(shape)
        return cls(first, domain, name)

    def restart(self, initial: object) -> None:
        """Another first value, of the same shape."""
        value = as_tensor(initial, self.dtype)
        if value.type != self.type:
            raise ShapeError(
                f"{self.name} cannot start at {value.type}", facts=f"it is {self.type}", loc=here()
            )
        self.initial = value
        self.tracer.branches[self.name][0].value = value.ref

    def update(self, new: RecurrentTensor) -> None:
        """p[i+1] = new[i], along the dims that it steps along"""
        written = self.tracer.branches[self.name]
        if len(written) > 1:
            raise RecurraError(
                f"{self.name} is updated twice",
                facts=f"it has its next value already, of {written[1].loc}",
                hint="one optimizer makes one step: add the losses, or split the parameters",
                loc=here(),
            )
        advance(self, new)
        self._next = as_tensor(new)

    @property
    def next(self) -> RecurrentTensor:
        """The value that follows, which `step()` or `update()` has written: p.next[i] = p[i+1].

        Raises RecurraError if nothing has.
        """
        if self._next is None:
            raise RecurraError(
                f"{self.name} has no next value yet",
                facts="optimizer.step() writes it, or p.update(new)",
                hint="call step() first",
                loc=here(),
            )
        return self._next


def _dims_and_steps(name: str, domain: Steps) -> tuple[Domain, tuple[str, ...]]:
    """The box of a parameter, and the dims along which it steps, the slowest first.

    Raises RecurraError if dims in brackets do not stand at the end.
    """
    if not isinstance(domain, (tuple, list)):
        return dims_of(domain), ()
    groups: list[tuple[Place, ...]] = [d if isinstance(d, tuple) else (d,) for d in domain]
    flat = [d for group in groups for d in group]
    early = next((d for d in domain[:-1] if isinstance(d, tuple)), None)
    if early is not None:
        rest = [d for d in domain if d is not early]
        raise RecurraError(
            f"{name} cannot step along {early!r}, which does not stand at the end of its domain",
            facts=f"its domain is written {tuple(domain)!r}, and a parameter steps along the last "
            f"part of it, {domain[-1]!r}",
            hint=f"write domain={(*rest, early)!r}, or take the brackets away: "
            f"domain={tuple(flat)!r}",
            loc=here(),
        )
    return dims_of(flat), tuple(map(str, groups[-1])) if groups else ()


def clock(x: RecurrentTensor) -> list[Range]:
    """The ranges along which a tensor has next values, the slowest first."""
    return [x.domain[dim] for dim in x.tracer.clocks[x.name]]


def written_domain(parameter: Parameter) -> str:
    """The domain of a parameter as one writes it, with what it steps along at the end."""
    return repr(_domain_as_given(parameter)).replace("'", "")


def _domain_as_given(parameter: Parameter) -> tuple[str | tuple[str, ...], ...]:
    """Dims by name, those that it steps along in brackets at the end."""
    steps = tuple(r.dim for r in clock(parameter))
    rest = parameter.domain.without(*steps).dims
    return (*rest, steps) if len(steps) > 1 else (*rest, *steps)


def steps_of(x: RecurrentTensor) -> list[Range]:
    """`clock`, of a tensor that has one: raises RecurraError where there is none."""
    found = clock(x)
    if not found:
        raise RecurraError(
            f"{x.name} cannot be updated",
            facts="its domain has no dim along which it could have a next value",
            hint="give it one: domain=(i,)",
            loc=here(),
        )
    return found


def start(x: RecurrentTensor, initial: object) -> None:
    """x[0] = initial, at the first step of x"""
    moving = clock(x)
    x[tuple(r.lo if r in moving else Index(r.sym) for r in x.domain)] = initial


def advance(x: RecurrentTensor, new: RecurrentTensor) -> None:
    """x[i+1] = new[i], along the dims that x steps along; the new value is called {x}_next."""
    moving = steps_of(x)
    for k in reversed(range(len(moving))):
        wrapped = moving[k + 1 :]  # dims that are at their end, and begin again
        at: dict[str, Expr | int] = {r.dim: r.hi - 1 for r in wrapped}
        value = new[tuple(wrap(at.get(r.dim, r.sym)) for r in new.domain)] if at else new
        place: dict[str, Expr | int] = {r.dim: r.lo for r in wrapped} | {
            moving[k].dim: moving[k].sym + 1
        }
        x[tuple(wrap(place.get(r.dim, r.sym)) for r in x.domain)] = value
    x.tracer.suggest(new.ref, f"{x.name}_next")


class Module:
    """A tree of parameters with a forward equation."""

    matrices: ClassVar[frozenset[str]] = frozenset()
    """Its own parameters that are [in, out], where torch has [out, in]."""

    def forward(self, *xs: Any, **options: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *xs: Any, **options: Any) -> Any:
        return self.forward(*xs, **options)

    def named_params(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        for key, part in self._parts():
            if isinstance(part, Module):
                yield from part.named_params(f"{prefix}{key}.")
            else:
                yield prefix + key, part

    def _parts(self) -> Iterator[tuple[str, Parameter | Module]]:
        """Yield the module's own parameters and modules, those in a list as "layers.0"."""
        for key, v in vars(self).items():
            if isinstance(v, (Parameter, Module)):
                yield key, v
            elif isinstance(v, (list, tuple)):
                yield from ((f"{key}.{k}", m) for k, m in enumerate(v) if isinstance(m, Module))

    @property
    def params(self) -> list[Parameter]:
        return [p for _, p in self.named_params()]

    def torch_params(self, prefix: str = "") -> Iterator[tuple[str, Parameter, bool]]:
        """Every parameter by its name in torch, and whether torch has the matrix turned."""
        for key, part in self._parts():
            if isinstance(part, Module):
                yield from part.torch_params(f"{prefix}{self.torch_name(key)}.")
            else:
                yield prefix + key, part, key in self.matrices

    def torch_name(self, key: str) -> str:
        """The name of a part in the module of torch."""
        return key

    def load(
        self, arrays: Mapping[str, ArrayLike], layout: Literal["recurra", "torch"] = "recurra"
    ) -> None:
        """Parameters start at these values: by their names in the module, "layers.0.weight".

        Args:
            arrays: one for each parameter. What a checkpoint holds beside, "state/..", is left out.
            layout: "torch" for the state_dict of the same module of torch: names are as there,
                "0.weight", and its matrices [out, in] are turned.

        Raises RecurraError where a parameter has no array, an array no parameter, or no fit.
        """
        weights.load(self, arrays, layout)

    def copy(self) -> Self:
        """A module of its own parameters, which start where these do, and follow none until told.

        For the targets of learning, and averages: q.update(..) for q in target.params.
        """
        return self._with_parameters(_copied)

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            ours = cls.__module__.startswith("recurra.")
            name = f"rc.nn.{cls.__name__}" if ours else cls.__name__
            hint = partial(_over_a_dim, name)
            made = sized(cls.__init__, name, hint) if ours else cls.__init__
            cls.__init__ = expecting(made, name, hint)
        if "forward" in vars(cls):
            cls.forward = expecting(cls.forward, f"{cls.__name__}.forward", "write net(x)")

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def __iter__(self) -> Iterator[Module]:
        raise RecurraError(
            f"a module is given where several tensors belong: {type(self).__name__}",
            facts=f"it has the parameters {', '.join(k for k, _ in self.named_params()) or 'none'}",
            hint="write net.params for them",
            loc=here(),
        )

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("the module", self, name, OF_MODULES)

    def __getitem__(self, at: Any) -> Any:
        """The module with its parameters read at other points, net[i, 0, 0](o); or, given a
        condition on its dims, at the points where that holds: dnn[i % 5 == 0].checkpoint(..)"""
        when = condition(at)
        if when is not None:
            return View(self, when)
        index = at if isinstance(at, tuple) else (at,)
        if not all(isinstance(e, Index | int) for e in index):
            raise RecurraError(
                f"a module is indexed with {at!r}",
                facts="brackets name a point, or choose points by a condition",
                hint="write net[i, 0, 0](o), or e.g. dnn[(i + 1) % 5 == 0].checkpoint(path)",
                loc=here(),
            )
        return self._with_parameters(lambda p: p[index])

    def _with_parameters(self, change: Callable[[Parameter], object]) -> Self:
        """The module with every parameter p as change(p)."""

        def changed(value: object) -> object:
            if isinstance(value, Module):
                return value._with_parameters(change)
            if isinstance(value, (list, tuple)):
                return type(value)(map(changed, value))
            return change(value) if isinstance(value, Parameter) else value

        out = copy(self)
        vars(out).update({key: changed(x) for key, x in vars(self).items()})
        return out

    def checkpoint(self, path: str | PathLike[str]) -> None:
        """Saves the parameters at every point of their domain."""
        View(self, TRUE).checkpoint(path)


def _over_a_dim(name: str, args: str) -> str:
    """The call with the dims that parameters change with."""
    if "domain=" in args:
        return f"give {name} the arguments above"
    dims = current().dim_names()
    own = f"domain=({dims[0]},)" if dims else "domain=()"
    return (
        f"write {name}({', '.join(filter(None, [args, own]))}), of the dims with which its "
        "parameters change as they learn; () is for weights that stay"
    )


def _copied(parameter: Parameter) -> Parameter:
    return Parameter(parameter.initial, _domain_as_given(parameter), f"{parameter.name}_copy")


class View:
    """A module at some of its points."""

    def __init__(self, module: Module, when: Expr):
        named = list(module.named_params())
        dims = {d for _, p in named for d in p.domain.dims}
        stray = (symbols(when) & set(current().dim_names())) - dims
        if stray:
            raise RecurraError(
                f"the condition {when} mentions {', '.join(sorted(stray))}",
                facts=f"the parameters vary with {', '.join(sorted(dims)) or 'no dim'} only",
                loc=here(),
            )
        self.module, self.when = module, when

    def checkpoint(self, path: str | PathLike[str]) -> None:
        """Saves the parameters into the folder `path`, as they are at these points."""
        params = tuple((key, p.name) for key, p in self.module.named_params())
        current().effects.append(Checkpoint(self.when, fspath(path), params, here()))


class Linear(Module):
    """y = x W + b;  x [.., in], W [in, out], b [out]; `label` follows the names of W and b

    With `init` for the weight, the bias is first 0; without, both are as in torch.
    """

    matrices = frozenset({"weight"})

    def __init__(
        self,
        inputs: int,
        outputs: int,
        domain: Steps,
        init: Initializer | None = None,
        label: str = "",
        bias: bool = True,
    ):
        start = init or initializers.kaiming_uniform(3**-0.5)
        self.weight = Parameter.drawn(start, (inputs, outputs), domain, f"W{label}")
        self.bias: Parameter | None = None
        if bias:
            first = initializers.zeros() if init else initializers.uniform(inputs**-0.5)
            self.bias = Parameter.drawn(first, (outputs,), domain, f"b{label}")

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Tanh(Module):
    """y = tanh x"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return x.tanh()


class ReLU(Module):
    """y = max(x, 0)"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return x.relu()


class Sigmoid(Module):
    """y = 1 / (1 + e⁻ˣ)"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return x.sigmoid()


class SiLU(Module):
    """y = x / (1 + e⁻ˣ)"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return x.silu()


class Sequential(Module):
    """One module after another"""

    def __init__(self, *layers: Module):
        stray = next((x for x in layers if not callable(x)), None)
        if stray is not None:
            raise RecurraError(
                f"rc.nn.Sequential is given a {type(stray).__name__}",
                facts="each of its arguments is a module, or another function of a tensor",
                hint="write rc.nn.Sequential(*layers) for those of a list",
                loc=here(),
            )
        self.layers = list(layers)

    def torch_name(self, key: str) -> str:
        return key.removeprefix("layers.")

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class MLP(Sequential):
    """Linear layers with tanh between; the last is scaled by `last_gain`"""

    def __init__(self, sizes: Sequence[int], domain: Steps, last_gain: float = 1.0):
        if len(sizes) < 2:
            raise ShapeError(
                f"rc.nn.MLP has layers between sizes, of which there are {len(sizes)}",
                facts="the first is that of what it is given, the last that of its result",
                hint=_over_a_dim("rc.nn.MLP", "[4, 32, 2]"),
                loc=here(),
            )
        layers: list[Module] = []
        for k, (a, b) in enumerate(pairwise(sizes)):
            final = k == len(sizes) - 2
            init = initializers.he_normal(last_gain if final else 1.0)
            layers.append(Linear(a, b, domain, init, str(k + 1)))
            if not final:
                layers.append(Tanh())
        super().__init__(*layers)


class Policy(Module):
    """A network whose output is the logits of a categorical distribution"""

    def __init__(self, body: Module):
        self.body = body

    def forward(self, x: RecurrentTensor) -> Categorical:
        return Categorical(self.body(x))


class SpacePolicy(Module):
    """A network from the observations of an environment to a distribution over its actions"""

    def __init__(self, body: Module, spaces: Spaces, domain: Steps):
        self.body, self.spaces = body, spaces
        if spaces.deviations:
            zeros = initializers.zeros()((spaces.deviations,))
            self.log_std = Parameter(zeros, domain, "log_std")

    def forward(self, x: Any) -> Any:
        y = self.body(self.spaces.seen(x))
        return self.spaces.distribution(y, getattr(self, "log_std", None))


class DNNBuilder:
    """`DNNBuilder(domain=(i,)).from_env(env, hidden=[32, 32]).build()`: a policy."""

    def __init__(self, domain: Steps):
        self.domain, self.hidden = domain, list[int]()
        self.spaces: Spaces | None = None

    def from_env(self, env: Any, hidden: Sequence[int]) -> DNNBuilder:
        """Sizes from the environment's spaces; what is observed is seen as one vector.

        Raises RecurraError for actions that no distribution of ours gives.
        """
        self.spaces, self.hidden = Spaces(env), list(hidden)
        return self

    def build(self) -> SpacePolicy:
        """The policy, of tanh layers."""
        if self.spaces is None:
            raise RecurraError(
                "this network has no sizes yet",
                hint="DNNBuilder(domain=(i,)).from_env(env, hidden=[32, 32]).build()",
                loc=here(),
            )
        sizes = [self.spaces.width, *self.hidden, self.spaces.outputs]
        return SpacePolicy(MLP(sizes, self.domain, last_gain=0.01), self.spaces, self.domain)
