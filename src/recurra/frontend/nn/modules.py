"""Modules: named parameters and a forward equation, as in torch.nn, but with weights [in, out]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import pairwise
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self

from numpy.typing import ArrayLike

from recurra.analysis.argument_checks import check_arguments
from recurra.analysis.graph_builder import current
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.dims import Index, Place, Steps, wrap
from recurra.frontend.foreign_names import OF_MODULES, no_attribute
from recurra.frontend.functions import declared, dims_of, named
from recurra.frontend.index_arguments import condition
from recurra.frontend.nn import initializers, weight_loading
from recurra.frontend.nn.distributions import Categorical
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.sizes import sized
from recurra.frontend.nn.spaces import Spaces
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.effects import Checkpoint
from recurra.ir.expr import TRUE, Expr, symbols
from recurra.ir.types import Domain, Range


class Parameter(RecurrentTensor):
    """A tensor over `domain` that starts at `initial`; an optimizer writes the later values.

    It steps along the last dim as written, whatever the order of the context: domain=(e, i) steps
    along i, domain=(i, e) along e. A tuple of dims steps along all of them, nested:
    domain=((i, e, m),) has its next value at m+1, after the last m at e+1, after the last e at i+1.
    """

    def __init__(self, initial: object, domain: Steps, name: str | None = None):
        builder, initial = current(), as_tensor(initial)
        dims, steps = _dims_and_steps(name or "a parameter", domain)
        if name is None:
            x = declared(initial.type, dims.dims, "parameter")
        else:
            x = named(initial.type, dims.dims, name)
        builder.clocks[x.name] = steps
        super().__init__(builder, x.ref)
        self.initial = initial
        self._next: RecurrentTensor | None = None
        start(self, initial)
        builder.params.append(self)

    __init__ = check_arguments(
        __init__, "rc.nn.Parameter", lambda args: _over_a_dim("rc.nn.Parameter", args)
    )

    @classmethod
    def drawn(
        cls, initial: Initializer, shape: tuple[int, ...], domain: Steps, name: str
    ) -> Parameter:
        """Create a parameter that an initializer draws, independently at every point of the dims
        that it does not step along, so that members of an ensemble start at different values."""
        dims, steps = _dims_and_steps(name, domain)
        with current().drawing_over(dims.without(*steps).dims):
            first = initial(shape)
        return cls(first, domain, name)

    def restart(self, initial: object) -> None:
        """Replace the initial value by another of the same shape."""
        value = as_tensor(initial, self.dtype)
        if value.type != self.type:
            raise ShapeError.at_user_line(
                f"{self.name} cannot start at {value.type}", facts=f"it is {self.type}"
            )
        self.initial = value
        self.builder.branches[self.name][0].value = value.ref

    def update(self, new: RecurrentTensor) -> None:
        """Write p[i+1] = new[i], along the dims that p steps along; raise RecurraError if twice."""
        branches = self.builder.branches[self.name]
        if len(branches) > 1:
            raise RecurraError.at_user_line(
                f"{self.name} is updated twice",
                facts=f"it has its next value already, of {branches[1].loc}",
                hint="one optimizer makes one step: add the losses, or split the parameters",
            )
        advance(self, new)
        self._next = as_tensor(new)

    @property
    def next(self) -> RecurrentTensor:
        """The next value, which `step()` or `update()` has written: p.next[i] = p[i+1].

        Raises RecurraError if nothing has.
        """
        if self._next is None:
            raise RecurraError.at_user_line(
                f"{self.name} has no next value yet",
                facts="optimizer.step() writes it, or p.update(new)",
                hint="call step() first",
            )
        return self._next


def _dims_and_steps(name: str, domain: Steps) -> tuple[Domain, tuple[str, ...]]:
    """The domain of a parameter, and the dims along which it steps, the slowest first.

    Raises RecurraError if a tuple of dims is not the last item.
    """
    if not isinstance(domain, (tuple, list)):
        return dims_of(domain), ()
    groups: list[tuple[Place, ...]] = [d if isinstance(d, tuple) else (d,) for d in domain]
    flat = [d for group in groups for d in group]
    early = next((d for d in domain[:-1] if isinstance(d, tuple)), None)
    if early is not None:
        rest = [d for d in domain if d is not early]
        raise RecurraError.at_user_line(
            f"{name} cannot step along {early!r}, which does not stand at the end of its domain",
            facts=f"its domain is written {tuple(domain)!r}, and a parameter steps along the last "
            f"part of it, {domain[-1]!r}",
            hint=f"write domain={(*rest, early)!r}, or take the brackets away: "
            f"domain={tuple(flat)!r}",
        )
    return dims_of(flat), tuple(map(str, groups[-1])) if groups else ()


def clock(x: RecurrentTensor) -> list[Range]:
    """The ranges along which a tensor has next values, the slowest first."""
    return [x.domain[dim] for dim in x.builder.clocks[x.name]]


def written_domain(parameter: Parameter) -> str:
    """The domain of a parameter as text, with the dims that it steps along at the end."""
    return repr(_domain_with_steps(parameter)).replace("'", "")


def _domain_with_steps(parameter: Parameter) -> tuple[str | tuple[str, ...], ...]:
    """The names of the dims of a parameter, those it steps along as a tuple at the end."""
    steps = tuple(r.dim for r in clock(parameter))
    rest = parameter.domain.without(*steps).dims
    return (*rest, steps) if len(steps) > 1 else (*rest, *steps)


def steps_of(x: RecurrentTensor) -> list[Range]:
    """The ranges along which a tensor has next values; raises RecurraError if there are none."""
    found = clock(x)
    if not found:
        raise RecurraError.at_user_line(
            f"{x.name} cannot be updated",
            facts="its domain has no dim along which it could have a next value",
            hint="give it one: domain=(i,)",
        )
    return found


def start(x: RecurrentTensor, initial: object) -> None:
    """Write x[0] = initial, at the first step of x."""
    steps = clock(x)
    x[tuple(r.lo if r in steps else Index(r.sym) for r in x.domain)] = initial


def advance(x: RecurrentTensor, new: RecurrentTensor) -> None:
    """Write x[i+1] = new[i], along the dims that x steps along, and name the new value {x}_next."""
    steps = steps_of(x)
    for k in reversed(range(len(steps))):
        inner = steps[k + 1 :]  # these wrap around, from their last point to the first
        at: dict[str, Expr | int] = {r.dim: r.hi - 1 for r in inner}
        value = new[tuple(wrap(at.get(r.dim, r.sym)) for r in new.domain)] if at else new
        place: dict[str, Expr | int] = {r.dim: r.lo for r in inner} | {
            steps[k].dim: steps[k].sym + 1
        }
        x[tuple(wrap(place.get(r.dim, r.sym)) for r in x.domain)] = value
    x.builder.suggest(new.ref, f"{x.name}_next")


class Module:
    """A tree of parameters with a forward equation."""

    matrices: ClassVar[frozenset[str]] = frozenset()
    """The names of its own parameters that are [in, out] here and [out, in] in torch."""

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
        """The direct parameters and submodules by name, those in a list as "layers.0"."""
        for key, v in vars(self).items():
            if isinstance(v, (Parameter, Module)):
                yield key, v
            elif isinstance(v, (list, tuple)):
                yield from ((f"{key}.{k}", m) for k, m in enumerate(v) if isinstance(m, Module))

    @property
    def params(self) -> list[Parameter]:
        return [p for _, p in self.named_params()]

    def torch_params(self, prefix: str = "") -> Iterator[tuple[str, Parameter, bool]]:
        """All parameters, with their names in torch and true for those that torch transposes."""
        for key, part in self._parts():
            if isinstance(part, Module):
                yield from part.torch_params(f"{prefix}{self.torch_name(key)}.")
            else:
                yield prefix + key, part, key in self.matrices

    def torch_name(self, key: str) -> str:
        """The name of a part in the corresponding module of torch."""
        return key

    def load(
        self, arrays: Mapping[str, ArrayLike], layout: Literal["recurra", "torch"] = "recurra"
    ) -> None:
        """Set the initial values of parameters, by their names in the module, "layers.0.weight".

        Args:
            arrays: one for each parameter. Other entries of a checkpoint, "state/..", are ignored.
            layout: "torch" for the state_dict of the same module of torch: names as there,
                "0.weight", and matrices [out, in], which are transposed.

        Raises RecurraError for a parameter without array, an array without parameter, or a misfit.
        """
        weight_loading.load(self, arrays, layout)

    def copy(self) -> Self:
        """Copy the module, with new parameters of the same initial values and no updates.

        Update them as target networks or averages: q.update(..) for q in target.params.
        """
        return self._with_parameters(
            lambda p: Parameter(p.initial, _domain_with_steps(p), f"{p.name}_copy")
        )

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            ours = cls.__module__.startswith("recurra.")
            name = f"rc.nn.{cls.__name__}" if ours else cls.__name__
            hint = partial(_over_a_dim, name)
            init = sized(cls.__init__, name, hint) if ours else cls.__init__
            cls.__init__ = check_arguments(init, name, hint)
        if "forward" in vars(cls):
            cls.forward = check_arguments(cls.forward, f"{cls.__name__}.forward", "write net(x)")

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def __iter__(self) -> Iterator[Module]:
        raise RecurraError.at_user_line(
            f"a module is given where several tensors belong: {type(self).__name__}",
            facts=f"it has the parameters {', '.join(k for k, _ in self.named_params()) or 'none'}",
            hint="write net.params for them",
        )

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("the module", self, name, OF_MODULES)

    def __getitem__(self, at: Any) -> Any:
        """The module with parameters read at another point, net[i, 0, 0](o); or, for a condition on
        its dims, a view of the points where that holds: dnn[i % 5 == 0].checkpoint(..)"""
        when = condition(at)
        if when is not None:
            return View(self, when)
        index = at if isinstance(at, tuple) else (at,)
        if not all(isinstance(e, Index | int) for e in index):
            raise RecurraError.at_user_line(
                f"a module is indexed with {at!r}",
                facts="brackets name a point, or choose points by a condition",
                hint="write net[i, 0, 0](o), or e.g. dnn[(i + 1) % 5 == 0].checkpoint(path)",
            )
        return self._with_parameters(lambda p: p[index])

    def _with_parameters(self, change: Callable[[Parameter], object]) -> Self:
        """Copy the module with every parameter p replaced by change(p)."""

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
        """Save the parameters to the folder `path` at every point of their domain."""
        View(self, TRUE).checkpoint(path)


def _over_a_dim(name: str, args: str) -> str:
    """The hint to add `domain`, the dims along which parameters change, to a call."""
    if "domain=" in args:
        return f"give {name} the arguments above"
    dims = current().dim_names()
    own = f"domain=({dims[0]},)" if dims else "domain=()"
    return (
        f"write {name}({', '.join(filter(None, [args, own]))}), of the dims with which its "
        "parameters change as they learn; () is for weights that stay"
    )


class View:
    """A module, restricted to the points at which a condition holds."""

    def __init__(self, module: Module, when: Expr):
        named = list(module.named_params())
        dims = {d for _, p in named for d in p.domain.dims}
        stray = (symbols(when) & set(current().dim_names())) - dims
        if stray:
            raise RecurraError.at_user_line(
                f"the condition {when} mentions {', '.join(sorted(stray))}",
                facts=f"the parameters vary with {', '.join(sorted(dims)) or 'no dim'} only",
            )
        self.module, self.when = module, when

    def checkpoint(self, path: str | PathLike[str]) -> None:
        """Save the parameters to the folder `path` at each of these points."""
        params = tuple((key, p.name) for key, p in self.module.named_params())
        current().effects.append(Checkpoint(self.when, fspath(path), params, here()))


class Linear(Module):
    """y = x W + b;  x [.., in], W [in, out], b [out]; `label` is appended to the names of W and b

    With an `init` for the weight, the bias starts at 0; by default both start as in torch.
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
    """Modules applied one after another"""

    def __init__(self, *layers: Module):
        stray = next((x for x in layers if not callable(x)), None)
        if stray is not None:
            raise RecurraError.at_user_line(
                f"rc.nn.Sequential is given a {type(stray).__name__}",
                facts="each of its arguments is a module, or another function of a tensor",
                hint="write rc.nn.Sequential(*layers) for those of a list",
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
    """Linear layers with tanh in between; `last_gain` scales the initial weights of the last"""

    def __init__(self, sizes: Sequence[int], domain: Steps, last_gain: float = 1.0):
        if len(sizes) < 2:
            raise ShapeError.at_user_line(
                f"rc.nn.MLP has layers between sizes, of which there are {len(sizes)}",
                facts="the first is that of what it is given, the last that of its result",
                hint=_over_a_dim("rc.nn.MLP", "[4, 32, 2]"),
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
        y = self.body(self.spaces.vector(x))
        return self.spaces.distribution(y, getattr(self, "log_std", None))


class DNNBuilder:
    """`DNNBuilder(domain=(i,)).from_env(env, hidden=[32, 32]).build()`: a policy."""

    def __init__(self, domain: Steps):
        self.domain, self.hidden = domain, list[int]()
        self.spaces: Spaces | None = None

    def from_env(self, env: Any, hidden: Sequence[int]) -> DNNBuilder:
        """Take sizes from the environment's spaces; observations are flattened to a vector.

        Raises RecurraError for an action space without a matching distribution.
        """
        self.spaces, self.hidden = Spaces(env), list(hidden)
        return self

    def build(self) -> SpacePolicy:
        """Build the policy, an MLP with tanh."""
        if self.spaces is None:
            raise RecurraError.at_user_line(
                "this network has no sizes yet",
                hint="DNNBuilder(domain=(i,)).from_env(env, hidden=[32, 32]).build()",
            )
        sizes = [self.spaces.width, *self.hidden, self.spaces.outputs]
        return SpacePolicy(MLP(sizes, self.domain, last_gain=0.01), self.spaces, self.domain)
