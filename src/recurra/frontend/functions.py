"""The functions of the language, besides the methods of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from keyword import iskeyword
from string import ascii_letters
from typing import Any

from recurra.analysis.argument_checks import check_arguments
from recurra.analysis.graph_builder import GraphBuilder, current
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.axes import axis_of
from recurra.frontend.dims import Dims, Index
from recurra.frontend.dtype_objects import Dtype, dtype_name
from recurra.frontend.index_arguments import Size, condition, unwrap
from recurra.frontend.indexing import choose
from recurra.frontend.operator_table import operator
from recurra.frontend.reshaping import diagonal
from recurra.frontend.tensor import RecurrentTensor, as_tensor, elementwise
from recurra.frontend.tensor_conversion import promote
from recurra.ir.dims import is_reserved, is_word
from recurra.ir.expr import Sym, negate, symbols
from recurra.ir.graph import Ref, Slice
from recurra.ir.types import Domain, Range, Type, accumulator
from recurra.ir.user_objects import HostFunction, Resource
from recurra.ops import elementwise as el
from recurra.ops import movement
from recurra.ops.control import Call, Foreign, Item, Traceable
from recurra.ops.permutation import Permutation
from recurra.ops.random import Uniform
from recurra.ops.source import Input


def dims_of(domain: object) -> Domain:
    """The domain over the user's dims, (b, i, t); raises RecurraError for anything else."""
    builder = current()
    if not isinstance(domain, Sequence) or isinstance(domain, str):
        raise RecurraError.at_user_line(
            f"{domain} is no domain",
            facts="a domain is a tuple of dims, of "
            f"{', '.join(builder.dim_names()) or 'none'} here",
            hint=f"write domain=({domain},)"
            if not isinstance(domain, int)
            else f"dims come first, the shape of a point second: domain=(), shape=({domain},)",
        )
    names = [str(unwrap(d)) for d in domain]
    for n in names:
        if n not in builder.dim_names():
            bound = next((d.name for d in builder.dims if str(d.hi) == n), None)
            raise RecurraError.at_user_line(
                f"{n} is no dim of this context",
                facts=f"its dims are {', '.join(builder.dim_names()) or 'none'}"
                + (f", and {n} is the bound of {bound}" if bound else ""),
                hint=f"write {bound}" if bound else "dims come first, the shape of a point second",
            )
        if names.count(n) > 1:
            once = ", ".join(dict.fromkeys(names))
            raise RecurraError.at_user_line(
                f"{n} stands {names.count(n)} times among the dims ({', '.join(names)})",
                facts="a domain is a set of dims: a tensor has one value for each point of them",
                hint=f"write domain=({once}{',' if once in names else ''})",
            )
    return builder.domain(set(names))


def box_of(domain: Dims) -> Domain:
    """The domain of a new tensor.

    Raises RecurraError if the dims are not in the context's order, that of brackets and arrays.
    """
    box, known = dims_of(domain), current().dim_names()
    names, ordered = ", ".join(map(str, domain)), ", ".join(box.dims)
    if names != ordered:
        raise RecurraError.at_user_line(
            f"dims stand in another order than in the context: ({names})",
            facts=f"there it is {', '.join(known)}, and so it is in brackets and among the axes of "
            "an array",
            hint=f"write ({ordered}), and its places in brackets in that order",
        )
    return box


def type_of(of: object) -> Type:
    """The type that is given, or that of a dtype (a scalar) or a space; raises RecurraError."""
    found = of if isinstance(of, Type) else getattr(of, "type", None)
    if not isinstance(found, Type):
        raise RecurraError.at_user_line(
            f"{of!r} is no type",
            facts="rc.like(type, domain) declares a tensor of one type at every point of its dims",
            hint="a type is rc.f32[4, 2], a scalar rc.f32",
        )
    return found


@partial(check_arguments, name="rc.like", hint="write x = rc.like(rc.f32[3], (t,))")
def like(of: object, domain: Dims = (), name: str | None = None) -> RecurrentTensor:
    """Declare a tensor of a type (or a space with a `.type`), to be defined by x[b, i, 0] = ...

    A space of several parts gives a tree of such tensors, which is defined in the same way. The
    default `name` is that of the variable.
    """
    if not isinstance(of, Type) and (declare := getattr(of, "like", None)) is not None:
        return declare(domain, name)
    return declared(of, domain, "x") if name is None else named(of, domain, name)


def named(of: object, domain: Dims, name: str) -> RecurrentTensor:
    """Declare a tensor with a final name; a second one of that name is called x_2."""
    builder = current()
    if name not in builder.final:
        builder.free(name)
    x = declared(of, domain, name)
    builder.final.add(x.name)
    return x


def declared(of: object, domain: Dims, stem: str) -> RecurrentTensor:
    """Declare a tensor, named after `stem` until a variable holds it."""
    builder = current()
    node = builder.declare(stem, box_of(domain), type_of(of))
    return RecurrentTensor(builder, node.ref)


def bound(name: str) -> Index:
    """Declare a bound of no dim, a number for `compile`: N = rc.bound("N"), then {.., N: 5}."""
    builder = current()
    taken = {str(e) for d in builder.dims for e in (d.name, d.hi)}
    argument: Any = name
    if not isinstance(argument, str) or not is_word(name) or name in taken:
        raise RecurraError.at_user_line(
            f"a bound cannot be called {name!r}",
            facts=f"{name} is a word of Python or of the language of sets"
            if str(name) == name and is_reserved(name)
            else f"it needs a word of its own, of a..z, digits and _; taken are "
            f"{', '.join(sorted(taken)) or 'none'}",
            hint='N = rc.bound("N")',
        )
    builder.bounds.append(name)
    return Index(Sym(name))


@operator("rc.constant([1.0, 2.0])", "np.asarray", "torch.as_tensor")
def constant(x: object, dtype: str | Dtype | None = None) -> RecurrentTensor:
    """A constant tensor, from a number or an array; it is the same at every point."""
    return as_tensor(x, dtype)


def value(x: object, dtype: str | Dtype = "f32") -> RecurrentTensor:
    """The value of an index expression as a tensor: value(t), value(i + 1)."""
    return as_tensor(x, dtype)


@partial(check_arguments, name="rc.input", hint='write x = rc.input(rc.f32[3], (t,), name="x")')
def input(of: object, domain: Dims = (), name: str | None = None) -> RecurrentTensor:
    """Declare an input: a tensor whose values at all points the caller passes to `run(inputs=..)`.

    The key there is `name`, any text; by default the name of the variable. Raises RecurraError if
    another input has it.
    """
    builder, type_ = current(), type_of(of)
    if name is not None:
        _expect_input_name(builder, name)
        builder.free(name)
    op = Input(dtype=type_.dtype, shape=type_.shape)
    node = builder.emit(op, (), box_of(domain), "input" if name is None else name)
    builder.final |= set() if name is None else {node.name}
    return RecurrentTensor(builder, node.ref)


def _expect_input_name(builder: GraphBuilder, name: str) -> None:
    """Raise RecurraError for an empty name, or one that another input has."""
    if not name:
        raise RecurraError.at_user_line(
            "an input cannot be called ''",
            facts="a run is given its array by its name",
            hint="leave name out: it is then called as the variable that holds it",
        )
    first = builder.nodes.get(name)
    if first is not None and isinstance(first.op, Input) and name in builder.final:
        raise RecurraError.at_user_line(
            f"two inputs are called {name!r}",
            facts="a run is given one array of each name"
            + (f"\n  the first of them   --> {first.loc}" if first.loc else ""),
            hint="give this one another name, or read the first one twice",
        )


@operator("rc.where(x > 0.0, x, y)", "np.where", "torch.where")
def where(cond: object, a: object, b: object) -> RecurrentTensor:
    """`a` where `cond` holds, else `b`. With a condition on dims, only the chosen side is read."""
    when = condition(cond) if isinstance(cond, Index) else None
    if when is not None:
        a, b = promote(RecurrentTensor, a, b)
        return choose((when, a), (negate(when), b))
    chosen = as_tensor(cond)
    if chosen.dtype != "bool":
        raise ShapeError.at_user_line(
            f"rc.where is asked by {chosen.type}, which is no truth value",
            facts=f"the condition is {chosen!r}",
            hint="compare it: rc.where(x != 0, x, 0.0)",
        )
    return elementwise(el.Where, chosen, a, b)


@operator("rc.maximum(x, y)", "np.maximum", "torch.maximum")
def maximum(a: object, b: object, *more: object) -> RecurrentTensor:
    """The elementwise maximum of tensors; `rc.max` is for index expressions."""
    return reduce(partial(elementwise, el.Maximum), more, elementwise(el.Maximum, a, b))


@operator("rc.minimum(x, y)", "np.minimum", "torch.minimum")
def minimum(a: object, b: object, *more: object) -> RecurrentTensor:
    """The elementwise minimum of tensors; `rc.min` is for index expressions."""
    return reduce(partial(elementwise, el.Minimum), more, elementwise(el.Minimum, a, b))


@operator("rc.concat([x, y], axis=0)", "np.concatenate", "torch.cat")
def concat(xs: Sequence[object], axis: int = 0) -> RecurrentTensor:
    """Concatenate tensors along an axis, promoted to one type."""
    xs = promote(RecurrentTensor, *_several("concat", xs))
    return xs[0].apply(movement.Concat(axis=axis_of(xs[0], axis)), *xs)


@operator("rc.stack([x, y], axis=0)", "np.stack", "torch.stack")
def stack(xs: Sequence[object], axis: int = 0) -> RecurrentTensor:
    """Stack tensors along a new axis."""
    tensors = map(as_tensor, _several("stack", xs))
    return concat([x.expand(1, axis=axis % (len(x.shape) + 1)) for x in tensors], axis=axis)


def _several(name: str, xs: Sequence[object]) -> Sequence[object]:
    """Return the list; raise ShapeError if it is a tensor instead, or empty."""
    if isinstance(xs, RecurrentTensor) or not len(xs):
        raise ShapeError.at_user_line(
            f"rc.{name} takes a list of tensors",
            facts=f"it was given {xs!r}",
            hint=f"write rc.{name}([x, y], axis=0); points of a dim are an axis as x[0:T]",
        )
    return xs


@operator('rc.einsum("ab,bc->ac", x, y)', "np.einsum", "torch.einsum")
def einsum(labels: str, *xs: RecurrentTensor) -> RecurrentTensor:
    """Σ over the labels that the result lacks: einsum("hk,k->h", w, x).

    Products and sums are computed in the type that `sum` has. A label that occurs twice in one
    operand takes its diagonal.
    """
    from recurra.ops.contraction import Einsum

    argument: Any = labels
    if not isinstance(argument, str) or not xs:
        raise ShapeError.at_user_line(
            "rc.einsum takes labels, then the tensors",
            facts=f"it was given {', '.join(map(repr, (labels, *xs)))}",
            hint='write rc.einsum("ab,bc->ac", x, x.T)',
        )
    labels = labels.replace(" ", "")
    if "->" not in labels:  # as in NumPy: the labels that occur once, in alphabetical order
        labels += f"->{''.join(sorted(c for c in set(labels) - {','} if labels.count(c) == 1))}"
    if invalid := set(labels.replace("->", "").replace(",", "")) - set(ascii_letters):
        raise ShapeError.at_user_line(
            f"einsum: {labels!r} has labels that are no letters: {' '.join(sorted(invalid))}",
            facts="each axis of each operand has one letter; axes that others lack broadcast in "
            "x * y and x @ y",
            hint='write rc.einsum("ab,bc->ac", x, y)',
        )
    ins, out = labels.split("->")
    operands = ins.split(",")
    if len(operands) == len(xs):
        pairs = [diagonal(as_tensor(x), axes) for x, axes in zip(xs, operands, strict=True)]
        xs, operands = tuple(x for x, _ in pairs), [axes for _, axes in pairs]
    op, xs = Einsum(labels=f"{','.join(operands)}->{out}"), tuple(map(as_tensor, xs))
    if op.sums:
        xs = tuple(x.cast(accumulator(x.dtype)) for x in xs)
    return xs[0].apply(op, *xs)


@operator("rc.uniform(domain=(t,), shape=(2, 3))", "rng.random", "torch.rand")
def uniform(
    domain: Dims | Domain = (),
    shape: int | tuple[int, ...] = (),
    dtype: str | Dtype = "f32",
) -> RecurrentTensor:
    """Uniform random numbers from [0, 1), the same for any schedule, tiling and backend.

    The first and the last coordinate (of domain and element) are the counter of the generator; the
    others form its key, so that one key serves a whole batch of rows.
    """
    builder = current()
    box = domain if isinstance(domain, Domain) else box_of(domain)
    box = box if len(box) else builder.domain(set(builder.members))
    shape = (shape,) if isinstance(shape, int) else shape
    sizes: tuple[Any, ...] = shape
    if not all(isinstance(n, int) for n in sizes):
        raise ShapeError.at_user_line(
            f"a draw cannot have the shape {shape}",
            facts="its sizes are numbers, also when the bounds are not known",
            hint="draw over a dim, and read its points: rc.uniform((t,))[0:T]",
        )
    builder.draws += 1
    dims = list(box.identity)
    last = [] if shape else dims[1:][-1:]  # else the position of an element is the last coordinate
    key, counter = tuple(dims[1 : len(dims) - len(last)]), (*dims[:1], *last)
    op = Uniform(id=builder.draws, key=key, counter=counter, shape=shape, dtype=dtype_name(dtype))
    node = builder.emit(op, (), box, "u")
    return RecurrentTensor(builder, node.ref)


@operator("rc.permutation(size=3, at=t % 3)", "rng.permutation", "torch.randperm")
def permutation(size: Size, at: Size, domain: Dims = ()) -> RecurrentTensor:
    """Position (i32) of element `at` in a random permutation of 0 .. size - 1, one per point.

    The points are those of `domain`. Each element is computed independently:
    rc.permutation(B * T, at=m * N + n, domain=(i, e)) is minibatch m of epoch e, of N samples. All
    `at` from 0 to size - 1 give every position once.
    """
    builder = current()
    key = dims_of(domain)
    place = unwrap(at)
    mentioned = {d for d in builder.dim_names() if d in symbols(place)}
    builder.draws += 1
    op = Permutation(id=builder.draws, size=unwrap(size), at_=place, key=key.identity)
    node = builder.emit(op, (), builder.domain({*key.dims, *mentioned}), "shuffled")
    return RecurrentTensor(builder, node.ref)


@operator("rc.normal(domain=(t,), shape=(2, 3))", "rng.standard_normal", "torch.randn")
def normal(
    domain: Dims | Domain = (),
    shape: int | tuple[int, ...] = (),
    dtype: str | Dtype = "f32",
) -> RecurrentTensor:
    """Random numbers of the standard normal distribution (Box and Muller)."""
    u, v = uniform(domain, shape, dtype), uniform(domain, shape, dtype)
    return ((1.0 - u).log() * -2.0).sqrt() * (v * 6.283185307179586).cos()


def foreign(
    fn: Resource[Traceable], types: Sequence[Type], xs: Sequence[RecurrentTensor]
) -> tuple[RecurrentTensor, ...]:
    """Add an equation for each result of a traceable function, and return them as tensors."""
    return tuple(
        xs[0].apply(Foreign(fn=fn, out=k, dtype=t.dtype, shape=t.shape), *xs)
        for k, t in enumerate(types)
    )


def call(
    fn: HostFunction,
    results: Sequence[Type],
    xs: Sequence[RecurrentTensor],
    batch: Dims,
    domain: Domain,
    *,
    token: RecurrentTensor | None = None,
    stem: str = "call",
) -> tuple[RecurrentTensor, ...]:
    """Call the host function `fn` once per point of `domain` without `batch`; return its results.

    A call takes all points of the dims in `batch`: operands that vary with them are read over all
    of them, and results, whose types are those of one row, are split into rows. A `token` (i32[],
    without the dims in `batch`) is the last argument, and the token of the next call the last
    result.
    """
    builder = current()
    whole = tuple(str(unwrap(d)) for d in batch)
    ranges = [domain[d] for d in whole]
    args = [_over_all(x, ranges) for x in xs]
    sizes = tuple(r.hi - r.lo for r in ranges)
    types = [(t.dtype, (*sizes, *t.shape)) for t in results]
    if token is not None:
        args.append(token.ref)
        types.append(("i32", ()))
    op = Call(fn=fn, results=tuple(types), batch_dims=whole)
    node = builder.emit(op, tuple(args), domain.without(*whole), stem)
    out: list[RecurrentTensor] = []
    for k in range(len(types)):
        read = node.ref
        item = builder.emit(Item(k=k), (read,), node.domain, f"{stem}_{k}")
        x = RecurrentTensor(builder, item.ref)
        for r in ranges if k < len(results) else ():
            x = x.index(r.sym - r.lo, axis=0)
        out.append(x)
    return tuple(out)


def _over_all(tensor: RecurrentTensor, ranges: Sequence[Range]) -> Ref:
    """The read of `tensor` over the whole of some dims, which become its leading axes."""
    varying = [r for r in ranges if r.dim in tensor.domain]
    if not varying:
        return tensor.ref
    if not tensor.graph.is_identity(tensor.ref):
        tensor = RecurrentTensor(tensor.builder, tensor.graph.read(_equation_of(tensor, "operand")))
    whole = {r.dim: Slice(r.lo, r.hi) for r in varying}
    return Ref(tensor.name, tuple(whole.get(str(e), e) for e in tensor.ref.index))


def output(*unnamed: RecurrentTensor, **tensors: RecurrentTensor) -> None:
    """Keep tensors as outputs: after a run, `result[name]` has their values at all points."""
    builder = current()
    if unnamed:
        raise RecurraError.at_user_line(
            "an output has a name, which a run gives its value by",
            facts=f"{unnamed[0]!r} has none",
            hint="write rc.output(x=x), or rc.output(**tensors) of a dict",
        )
    taken = {str(e) for d in builder.dims for e in (d.name, d.hi)}
    for name, tensor in tensors.items():
        x = as_tensor(tensor)
        if name in builder.logs:
            first = builder.nodes[builder.logs[name]]
            raise RecurraError.at_user_line(
                f"{name} is put out twice",
                facts=f"it is {first.name}" + (f", of {first.loc}" if first.loc else ""),
                hint="give one of them another name",
            )
        free = name.isidentifier() and not iskeyword(name) and name not in taken
        if free:
            builder.suggest(x.ref, name)
        builder.logs[name] = _equation_of(x, name if free else "output")


def log(*unnamed: RecurrentTensor, **metrics: RecurrentTensor) -> None:
    """Log metrics of the run: scalars, one per point of their domain, written to metrics.jsonl."""
    if unnamed:
        raise RecurraError.at_user_line(
            "rc.log keeps metrics, and each has a name",
            facts=f"{unnamed[0]!r} has none",
            hint="write x.log() for the logarithm, rc.log(loss=x.mean()) for a metric",
        )
    scalars = {name: as_tensor(x) for name, x in metrics.items()}
    for name, x in scalars.items():
        if x.shape:
            raise RecurraError.at_user_line(
                f"the metric {name} is no scalar",
                facts=f"it is {x!r}",
                hint="log a mean or a sum of it, or rc.output it",
            )
    output(**scalars)


def _equation_of(tensor: RecurrentTensor, name: str) -> str:
    if tensor.indexed and not tensor.graph.is_identity(tensor.ref):
        builder = tensor.builder
        node = builder.declare_choice(name, tensor.domain, tensor.type)
        RecurrentTensor(builder, node.ref)[node.domain.identity or ()] = tensor
        return node.name
    return tensor.name
