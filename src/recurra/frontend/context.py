"""Context: the block in which a program is written, and the methods that compile and run it."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain, count, takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from numpy.typing import ArrayLike

from recurra.analysis.argument_checks import check_arguments
from recurra.analysis.graph_builder import GraphBuilder, current, enter, leave
from recurra.errors import DomainError, RecurraError, at_the_users_line, caller
from recurra.frontend.dims import Index
from recurra.frontend.dynamic_bounds import resolved, until
from recurra.frontend.functions import foreign
from recurra.frontend.index_arguments import unwrap
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.frontend.tensor_base import Read
from recurra.ir.dims import Dim, is_reserved, is_word
from recurra.ir.expr import Sym
from recurra.ir.graph import Graph
from recurra.ir.types import Range, Type
from recurra.ir.user_objects import Resource
from recurra.ops.control import Traceable
from recurra.ops.source import Input
from recurra.report.html import code_html

if TYPE_CHECKING:
    from recurra.backends.protocol import Backend
    from recurra.compiler.options import Scheduler
    from recurra.cost.tuning_knobs import Knobs, Tuning
    from recurra.runtime.executable import Executable
    from recurra.storage.arena_solvers import PlacementSolver
    from recurra.storage.offload import Offload, Tier

Pairs = tuple[tuple[Index, Index], ...]

_OPTIONS: ContextVar[Mapping[str, object]] = ContextVar("options", default={})  # noqa: B039


def compiling(**options: object) -> AbstractContextManager[None]:
    """Set defaults for the options of `ctx.compile` within the block."""
    from recurra.compiler.options import by_new_names

    return _within(_OPTIONS, {**_OPTIONS.get(), **by_new_names(options)})


Compile = Callable[["Context", Mapping[Any, Any]], Any]
_COMPILE: ContextVar[Compile | None] = ContextVar("compile", default=None)


def compiled_by(compile: Compile) -> AbstractContextManager[None]:
    """Replace `ctx.compile` within the block by a function of the context and the bounds."""
    return _within(_COMPILE, compile)


@contextmanager
def _within(variable: ContextVar[Any], value: object) -> Generator[None]:
    """Set a context variable within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Context:
    """`with rc.Context(num_dims=3) as ((b, B), (i, I), (t, T)):` — dims have your variables' names.

    With one dim, `as (t, T)` is enough.
    """

    @partial(check_arguments, name="rc.Context", hint='write rc.Context(dims="b t")')
    def __init__(self, num_dims: int | None = None, dims: str | Sequence[str] | None = None):
        names = dims.split() if isinstance(dims, str) else dims
        self.names = None if names is None else list(names)
        self.num_dims = num_dims if self.names is None else len(self.names)
        self.builder = GraphBuilder()
        self.pairs: Pairs = ()

    def __enter__(self) -> Any:
        frame = caller()
        targets = _targets_in_source(frame)
        if self.num_dims is None:
            self.num_dims = _pairs_unpacked(frame)
        is_pair = self.num_dims == 1 and _unpacked(frame) == [2]
        if is_pair and targets is not None:
            targets = [ast.Tuple(list(targets))]
        names = [(d, _bound(d)) for d in self.names or _DEFAULT[self.num_dims]]
        if targets is not None:
            _expect_pairs([*map(ast.unparse, targets)], names, self.names is not None)
        elif not is_pair and (counts := _unpacked(frame)):
            _expect_pairs([f"name {k + 1}" for k in range(counts[0])], names, True)
        if self.names is None and targets is not None:
            names = _pairs(targets, self.num_dims) or names
        if self.pairs:
            self._expect_same(names, targets is not None)
        else:
            _expect_names([x for pair in names for x in pair])
            self.builder.dims = [Dim(Range(d, Sym(n))) for d, n in names]
            self.pairs = tuple((Index(Sym(d)), Index(Sym(n))) for d, n in names)
        enter(self.builder)
        return self.pairs[0] if is_pair else self.pairs

    def _expect_same(self, names: list[tuple[str, str]], are_read: bool) -> None:
        """Raise RecurraError if a second block of the program names the dims otherwise."""
        own = [(str(d), str(n)) for d, n in self.pairs]
        if names != own and are_read:
            raise RecurraError.at_user_line(
                f"the dims of this context are called {', '.join(d for d, _ in own)}",
                facts=f"this block calls them {', '.join(d for d, _ in names)}",
                hint="write `with ctx:` to go on with the program, or make a context of its own",
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave()
        if kind is None:
            _name_after_variables(self.builder, caller().f_locals)

    @property
    def graph(self) -> Graph:
        """The program as equations, before any pass."""
        return self.builder.graph()

    @partial(
        check_arguments,
        name="ctx.compile",
        hint='write ctx.compile({T: 10}, backend="numpy"): options are called by name',
    )
    def compile(
        self,
        bounds: Mapping[Any, object] | None = None,
        *,
        backend: str | Backend = "jax",
        memory: int | str | None = None,
        check: Literal["", "nan", "bounds"] | None = None,
        workers: int = 1,
        groups: int = 1,
        offload: Offload | Tier | None = None,
        placement: PlacementSolver | None = None,
        scheduler: Scheduler = "own",
        tuning: Tuning | None = None,
        **knobs: Unpack[Knobs],
    ) -> Executable:
        """Compile the program for these bounds: `ctx.compile({B: 64, I: 100, T: 200})`.

        A bound is a number, an expression of other bounds (`N: B * T`), or set by the data: `T: d`
        ends rows where `d` holds, `T: rc.until(d, max=200)` does so after at most 200 points.

        Args:
            backend: "jax", "numpy", "torch", "jax+nest" or "torch+nest".
            memory: the most memory, such as "2GiB"; values are recomputed, or it is refused.
            check: with "nan", a run stops at the first NaN or inf and reports the op, the point and
                the line; launches are then short, and slower. With "bounds", it stops at an index
                by data that is outside its axis.
            workers: the number of devices that share the rows of a dim that imposes no order.
            groups: groups of rows of host environments; one steps while the others compute.
            offload: the place of large stores, "host" or "disk", or an `rc.Offload`.
            placement: the solver that places stores in one block of memory.
            scheduler: "own", or "isl" for the order that isl's scheduler finds.
            tuning: knobs for experts; each is also a keyword of its own (docs/options.md).

        Raises ShapeError, DomainError, ScheduleError or PlanError before it runs, with the line.
        """
        from recurra.compiler.options import CompileOptions, by_new_names, expect_known
        from recurra.cost.tuning_knobs import Tuning
        from recurra.runtime.executable import Executable
        from recurra.runtime.memory_budget import compile_within_budget

        if (other := _COMPILE.get()) is not None:
            return other(self, {} if bounds is None else bounds)
        sizes = self._sizes({} if bounds is None else bounds)
        more = by_new_names(knobs)
        inputs = [n.name for n in self.builder.nodes.values() if isinstance(n.op, Input)]
        expect_known(more, [d.name.upper() for d in self.builder.dims], inputs)
        options = CompileOptions(
            backend=backend,
            memory=memory,
            check=check,
            workers=workers,
            groups=groups,
            offload=offload,
            placement=placement,
            scheduler=scheduler,
            tuning=tuning or Tuning(),
        )
        options = options.with_options(more).fill_defaults(_OPTIONS.get())
        with at_the_users_line():
            return compile_within_budget(partial(Executable, self.builder, sizes), options)

    def _sizes(self, bounds: object) -> dict[str, object]:
        """The bounds by name; raises DomainError if one of them is a dim.

        A Boolean tensor ends rows where it holds, {T: d}; a bound may be an expression of others,
        {N: B * T}.
        """
        if not isinstance(bounds, Mapping):
            ends = [str(d.hi) for d in self.builder.dims]
            raise RecurraError.at_user_line(
                f"bounds are given by their names, not as {type(bounds).__name__}",
                facts=f"this program has the bounds {', '.join(ends)}",
                hint=f"write ctx.compile({{{', '.join(f'{end}: 10' for end in ends)}}})",
            )
        tensor = next((k for k in bounds if isinstance(k, Read)), None)
        if tensor is not None:
            raise DomainError.at_user_line(
                f"a tensor is no bound: {tensor!r}",
                facts=f"the program calls it {tensor.called}",
                hint="call it otherwise, if that was the name of a bound",
            )
        sizes = {str(unwrap(k)): until(v) if isinstance(v, Read) else v for k, v in bounds.items()}
        for d in self.builder.dims:
            if d.name in sizes:
                raise DomainError.at_user_line(
                    f"{d.name} is a dim, no bound",
                    facts=f"it counts from 0 to {d.hi} - 1, and {d.hi} is its bound",
                    hint=f"give the bound: {d.hi}: {sizes[d.name]}",
                )
        return resolved(sizes)

    @partial(
        check_arguments,
        name="ctx.run",
        hint='write ctx.run({T: 10}, inputs={"x": x}): all but the bounds are called by name',
    )
    def run(
        self,
        bounds: Mapping[Any, object] | None = None,
        *,
        seed: int = 0,
        inputs: Mapping[str, ArrayLike] | None = None,
        folder: str | Path | None = None,
        overwrite: bool = False,
        native: bool = False,
        backend: str | Backend = "jax",
        memory: int | str | None = None,
        check: Literal["", "nan", "bounds"] | None = None,
        workers: int = 1,
        groups: int = 1,
        offload: Offload | Tier | None = None,
        placement: PlacementSolver | None = None,
        scheduler: Scheduler = "own",
        tuning: Tuning | None = None,
        **knobs: Unpack[Knobs],
    ) -> dict[str, Any]:
        """Compile, then run: takes the options of `compile` and those of `program.run`."""
        program = self.compile(
            bounds,
            backend=backend,
            memory=memory,
            check=check,
            workers=workers,
            groups=groups,
            offload=offload,
            placement=placement,
            scheduler=scheduler,
            tuning=tuning,
            **knobs,
        )
        return program.run(
            seed=seed, inputs=inputs, folder=folder, overwrite=overwrite, native=native
        )

    def __repr__(self) -> str:
        dims = " ".join(d.name for d in self.builder.dims)
        names = ", ".join(self.builder.logs) or "nothing"
        return f'rc.Context(dims="{dims}") of {len(self.builder.nodes)} equations, gives {names}'

    def _repr_html_(self) -> str:
        return code_html(str(self.graph))


_MANY = [f"d{k}" for k in range(8)]
_DEFAULT = [[], ["t"], ["i", "t"], ["b", "i", "t"], *(_MANY[:n] for n in range(4, 9))]


def _bound(dim: str) -> str:
    return dim.upper() if dim.upper() != dim else dim + "_n"


def _targets_in_source(frame: FrameType) -> Sequence[ast.expr] | None:
    """The targets (b, B), .. of `with ctx as ((b, B), ..)`, read from the source line."""
    lines = linecache.getlines(frame.f_code.co_filename)[frame.f_lineno - 1 : frame.f_lineno + 8]
    for k in range(1, len(lines) + 1):
        try:
            tree = ast.parse("".join(line.strip() + "\n" for line in lines[:k]) + " pass")
        except SyntaxError:
            continue
        match tree.body:
            case [ast.With(items=[ast.withitem(optional_vars=ast.Tuple(elts=targets))])]:
                return targets
            case [ast.With(items=[ast.withitem(ctx, ast.Tuple() as first), *more])]:
                _expect_brackets(ctx, first, [x.context_expr for x in more])
                return None
            case _:
                return None
    return None


def _expect_names(names: list[str]) -> None:
    """Raise RecurraError unless the names of dims and bounds are distinct and not reserved."""
    for k, name in enumerate(names):
        if is_word(name) and name not in names[:k]:
            continue
        raise RecurraError.at_user_line(
            f"no dim or bound can be called {name!r}",
            facts=f"{name} is a word of Python or of the language of sets"
            if is_reserved(name)
            else f"the names are {', '.join(names)}",
            hint='take another name, of a..z, digits and _; rc.Context(dims="b t") gives names',
        )


def _expect_brackets(ctx: ast.expr, first: ast.expr, more: list[ast.expr]) -> None:
    """Raise RecurraError for `with ctx as (b, B), (t, T):`, which has two context managers."""
    if not all(isinstance(x, ast.Tuple) for x in more):
        return
    pairs = ", ".join(map(ast.unparse, (first, *more)))
    raise RecurraError.at_user_line(
        "the pairs of dims stand in brackets of their own",
        facts=f"to Python {ast.unparse(more[0])} is another context manager, behind the comma",
        hint=f"write `with {ast.unparse(ctx)} as ({pairs}):`",
    )


def _unpacked(frame: FrameType) -> list[int]:
    """The numbers of values to which the result of __enter__, and its first item, are unpacked.

    [3, 2] for `as ((b, B), (i, I), (t, T))`, [2] for `as (t, T)`: read from bytecode, as there may
    be no source.
    """
    after = (x for x in dis.get_instructions(frame.f_code) if x.offset > frame.f_lasti)
    unpacked = takewhile(lambda x: x.opname == "UNPACK_SEQUENCE", after)
    return [x.arg or 0 for x in unpacked][:2]


def _pairs_unpacked(frame: FrameType) -> int:
    """The number of (dim, bound) pairs to which the context is unpacked."""
    counts = _unpacked(frame)
    return 1 if counts == [2] else counts[0] if counts else 0


def _expect_pairs(targets: Sequence[str], dims: list[tuple[str, str]], are_given: bool) -> None:
    """Raise RecurraError unless there are as many targets as dims."""
    n = len(dims)
    if len(targets) == n or any(x.startswith("*") for x in targets):
        return
    names = ", ".join(targets)
    pairs = ", ".join(f"({d}, {bound})" for d, bound in dims)
    raise RecurraError.at_user_line(
        f"a context of {n} dims gives {n} pairs, and {len(targets)} names are there for them"
        if n != 1
        else f"a context of one dim gives one pair, and {len(targets)} names are there for it",
        facts=f"the names are {names}",
        hint=f"write `as ({pairs}{',' if n == 1 else ''}):`"
        if are_given
        else f"write num_dims={len(targets)}",
    )


def _pairs(targets: Sequence[ast.expr], count: int) -> list[tuple[str, str]] | None:
    """The names of dims and bounds in the targets; a bound named `_` is named after its dim."""
    found: list[list[str]] = [
        [e.id if isinstance(e, ast.Name) else "" for e in p.elts]
        for p in targets
        if isinstance(p, ast.Tuple) and len(p.elts) == 2
    ]
    if len({d for d, _ in found} - {""}) != count:
        return None
    every = [x for pair in found for x in pair]
    return [(d, b if b.strip("_") and every.count(b) == 1 else _bound(d)) for d, b in found]


def _name_after_variables(builder: GraphBuilder, variables: Mapping[str, object]) -> None:
    """Rename equations after the user's variables that hold them.

    An equation in no variable gives up its name to one that needs it. An equation in a variable
    does so only for an input, because runs refer to inputs by name.
    """
    by_variable = _by_variable(builder, variables)
    fixed = builder.final | {x.name for k, x in by_variable.items() if x.name == k}
    others = builder.nodes.keys() - {x.name for x in by_variable.values()} - fixed
    names: dict[str, str] = {}
    taken = set(builder.nodes)
    for name, x in [*by_variable.items()] * 2:  # the second pass uses names given up in the first
        makes_room = name in others or isinstance(builder.nodes[x.name].op, Input)
        is_free = name not in taken or makes_room
        if is_free and x.name not in fixed | names.keys() and name not in fixed:
            names[x.name] = name
            taken = taken - {x.name} | {name}
    for name in [n for n in names.values() if n in builder.nodes and n not in names]:
        names[name] = next(n for k in count(2) if (n := f"{name}_{k}") not in taken)
        taken.add(names[name])
    builder.rename(names)


def _by_variable(
    builder: GraphBuilder, variables: Mapping[str, object]
) -> dict[str, RecurrentTensor]:
    """The program's tensors by the variables that hold them, and inputs by their keys in dicts."""
    dicts = [cast("dict[object, object]", x) for x in variables.values() if isinstance(x, dict)]
    found = {
        k: x
        for k, x in chain(*(d.items() for d in dicts), variables.items())
        if isinstance(x, RecurrentTensor) and x.builder is builder and x.name in builder.nodes
        if k in variables or isinstance(builder.nodes[x.name].op, Input)
    }
    return {k: x for k, x in found.items() if isinstance(k, str) and k.isidentifier()}


@partial(
    check_arguments,
    name="rc.jax_fn",
    hint="write y = rc.jax_fn(lambda x: x * jax.numpy.sin(x))(x)",
)
def jax_fn(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Use a pure function written in jax.numpy in the program; it is traced into a region.

    Operands and results are arrays of one point; results have the tree structure that `fn` returns.
    JAX computes gradients through it; rc.import_jax instead translates the function to equations.
    Sizes may be bounds, as of x[0:B, t], but must not vary between points, as that of x[b, 0:t+1].
    """
    from recurra.backends.jax.foreign_function import Traced, untraceable
    from recurra.frontend.jax.jaxpr import expect_one_size

    traced = Traced(fn)
    stem = name or getattr(fn, "__name__", "fn").strip("<>")

    def apply(*xs: object) -> Any:
        tensors = [as_tensor(x) for x in xs]
        types: list[Type] = [x.type for x in tensors]
        expect_one_size(stem, fn, types, current().dim_names())
        try:
            results, tree = traced.result_types(types)
        except Exception as e:
            raise untraceable(stem, e, types, "jax_fn") from None
        resource: Resource[Traceable] = current().function(Resource, stem, traced)
        return traced.unflatten(tree, foreign(resource, results, tensors))

    return apply


__all__ = ["Context", "current", "jax_fn"]
