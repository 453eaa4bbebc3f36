"""Host calls: functions of the user's that run outside the program, once per point and in order.

    y[t<T] = call(x, token, fn='f')
    token[t<T] = merge(0, after[t-1], when=(t == 0, t > 0)), where after is the token y returned

An i32 token orders the calls of a function: each call reads it and returns it for the next. The
order is that of nested loops over the dims, in the context's order. A pure function needs no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from recurra.analysis.argument_checks import WrongCall, check_arguments
from recurra.analysis.demanded_points import branch_conditions
from recurra.analysis.graph_builder import current
from recurra.errors import Loc, RecurraError, ShapeError, here
from recurra.frontend.dims import Dims, Index
from recurra.frontend.functions import call as emit_call
from recurra.frontend.functions import dims_of, type_of
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.frontend.tensor_base import union
from recurra.ir.expr import TRUE, Expr, all_of, compare, negate
from recurra.ir.graph import Graph, Node
from recurra.ir.types import NUMPY_NAME, Domain, Type
from recurra.ir.user_objects import HostFunction
from recurra.ir.value_conversion import fitted
from recurra.ops.control import Call, Item, Merge
from recurra.ops.source import Const


@dataclass(frozen=True)
class Host:
    """A host function, wrapped to take arrays and to check the types of the arrays it returns."""

    fn: Callable[..., Any]
    name: str
    results: tuple[Type, ...]
    one: bool
    pure: bool
    batch: int
    loc: Loc | None = field(default=None, compare=False)  # where the program calls it
    rows: str = field(default="x[0:B, t]", compare=False)  # text: the first operand over all rows

    def __call__(self, *xs: object) -> tuple[np.ndarray, ...]:
        arrays = [np.asarray(x) for x in xs]
        token = () if self.pure else (arrays.pop(),)
        found = self.fn(*arrays)
        ys = (found,) if self.one or not _is_iterable(found) else tuple(found)
        if len(ys) != len(self.results):
            count = "one result" if len(ys) == 1 else f"{len(ys)} results"
            raise ShapeError(
                f"{self.name} gives {count}, not {len(self.results)}",
                facts=f"it was to give {', '.join(map(str, self.results))}",
                hint="return as many values as the call names types",
                loc=self.loc,
            )
        return *(self.result(y, t) for y, t in zip(ys, self.results, strict=True)), *token

    def result(self, value: object, want: Type) -> np.ndarray:
        """Convert one result to an array of its type; raise ShapeError if it does not fit."""
        hint = f'return an array of "{NUMPY_NAME[want.dtype]}", or name another type in rc.call'
        what = f"what {self.name} gives"
        array = fitted(value, want.dtype, what, hint=hint, loc=self.loc)
        shape = array.shape[self.batch :]
        rank = self.batch + want.rank
        if array.ndim != rank or any(
            isinstance(n, int) and n != m for n, m in zip(want.shape, shape, strict=True)
        ):
            raise ShapeError(
                f"{self.name} gives an array of shape {array.shape}",
                facts=f"it was to give {want}" + (", one per row" if self.batch else ""),
                hint="for one result of all rows read them as an axis, and leave batch out: "
                f"rc.call(f, type, {self.rows})"
                if array.shape == want.shape
                else "return that shape, or name the type that it has in rc.call(f, type, ...)",
                loc=self.loc,
            )
        return array


@partial(
    check_arguments,
    name="rc.call",
    hint="write y = rc.call(lambda x: np.sort(x), rc.f32[3], x), with the type of what it gives",
)
def call(
    fn: Callable[..., Any],
    results: object,
    *xs: object,
    batch: Dims = (),
    domain: Dims = (),
    pure: bool = False,
) -> Any:
    """Call `fn` on the host with NumPy arrays of one point; `results` is a type, or several.

    It is called once per point of the operands' domain and of `domain`; all points of the dims in
    `batch` go into one call, as leading axes of every operand and result. A function may have
    state, so calls are made in order; with `pure`, no call waits for another. No gradient passes.
    """
    argument: Any = results
    one = isinstance(argument, str) or not isinstance(argument, Sequence)
    types = tuple(type_of(t) for t in ((argument,) if one else argument))
    _expect_fitting(fn, len(xs))
    tensors = [as_tensor(x) for x in xs]
    builder, extra = current(), dims_of((*domain, *batch))
    box = union(builder, tuple(tensors), Const(value=0))
    ranges = {r.dim: r for r in (*extra, *box)}
    box = builder.domain(set(ranges), ranges)
    outer = box.without(*dims_of(batch).dims)
    rows = _read_whole(tensors[0], dims_of(batch).dims) if tensors else Host.rows
    host = _host_function(Host(fn, _name_of(fn), types, one, pure, len(batch), here(), rows))
    if pure:
        ys = emit_call(host, types, tensors, batch, box, stem=_name_of(fn))
    else:
        token = first_token(outer)
        *ys, after = emit_call(host, types, tensors, batch, box, token=token, stem=_name_of(fn))
        in_order(token, after, outer)
        builder.finishing[where_taken] = None
    return ys[0] if one else tuple(ys)


def _read_whole(tensor: RecurrentTensor, dims: Sequence[str]) -> str:
    """The text of a read of a tensor over all points of some dims: x[0:B, t]."""
    index = (f"{r.lo}:{r.hi}" if r.dim in dims else r.dim for r in tensor.domain)
    called = tensor.called
    return f"{called if called.isidentifier() else 'x'}[{', '.join(index)}]"


def _expect_fitting(fn: object, count: int) -> None:
    """Raise RecurraError unless `fn` is a function that can take this many arrays."""
    if not callable(fn):
        raise RecurraError.at_user_line(
            f"rc.call is given a {type(fn).__name__} for a function",
            facts="the function comes first, then the types of its results, then its arguments",
            hint="write rc.call(f, rc.f32[4], x)",
        )
    try:
        arguments = signature(fn)
    except (TypeError, ValueError):  # a function of C, with no signature
        return
    try:
        arguments.bind(*range(count))
    except TypeError as error:
        raise WrongCall.at_user_line(
            f"{_name_of(fn)}{arguments} does not fit: {error}",
            facts=f"rc.call gives it {count} array{'' if count == 1 else 's'}, one for each tensor "
            "behind the types",
            hint="give rc.call as many tensors as the function has arguments",
        ) from None


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:  # an array without axes has the method, too
        return False
    return True


def _name_of(fn: object) -> str:
    return getattr(fn, "__name__", type(fn).__name__).strip("<>")


def _host_function(host: Host) -> HostFunction:
    """The resource of a host function; raises RecurraError for a second call of one with state."""
    calls = (n.op.fn.value for n in current().nodes.values() if isinstance(n.op, Call))
    if not host.pure and any(getattr(x, "fn", None) is host.fn for x in calls):
        raise RecurraError.at_user_line(
            f"{host.name} is called at two places of one program",
            facts="the order of its calls would be open",
            hint="say pure=True if it has no state, or make one call of both",
        )
    return current().function(HostFunction, host.name, host)


def first_token(outer: Domain, name: str = "token") -> RecurrentTensor:
    """Declare the token that the call at each point of `outer` reads; the first reads 0."""
    zero = as_tensor(0, "i32")
    if not len(outer):
        return zero
    builder = current()
    node = builder.declare_choice(name, outer, Type("i32"))
    token = RecurrentTensor(builder, node.ref)
    token[Index(all_of(*(compare("==", r.sym, r.lo) for r in outer)))] = zero
    return token


def in_order(token: RecurrentTensor, after: RecurrentTensor, outer: Domain) -> None:
    """Let each point of `outer` but the first read the token of the point before it.

    The last dim varies fastest. `after` may have more dims: it is read at their last point.
    """
    within: dict[str, Expr | int] = {r.dim: r.hi - 1 for r in after.domain if r.dim not in outer}
    for k, r in enumerate(outer):
        inner = list(outer)[k + 1 :]
        ends: dict[str, Expr | int] = within | {q.dim: q.hi - 1 for q in inner}
        index = tuple(ends.get(q.dim, q.sym - 1 if q == r else q.sym) for q in after.domain)
        when = all_of(compare(">", r.sym, r.lo), *(compare("==", q.sym, q.lo) for q in inner))
        token[Index(when)] = after[index]


def where_taken(graph: Graph) -> Graph:
    """Restrict host calls to the points at which a branch takes their results.

        y[i<I] = merge(f_0[i], y[i-1], when=(i % 50 == 0, ..))
        token[i<I] = merge(0, f_1[i-1], ..)    →    token[i<I] = merge(0, f_passed[i-1], ..)
                                    f_passed[i<I] = merge(f_1[i], token[i], when=(i % 50 == 0, ..))

    In between, the token is passed on. A call whose results nobody reads is made everywhere.
    """
    tokens = {n.args[0].name: n for n in graph.nodes.values() if _is_token(graph, n)}
    if not tokens:
        return graph
    taken = branch_conditions(without_order(graph))
    nodes, passed = dict(graph.nodes), dict[str, str]()
    for name, after in tokens.items():
        condition, call = taken.get(name, TRUE), graph[name]
        if condition == TRUE:
            continue
        passed[after.name] = fresh = graph.fresh(f"{name}_passed", nodes)
        args = (after.ref, call.args[-1])
        op = Merge(when=(condition, negate(condition)))
        nodes[fresh] = Node(fresh, op, args, call.domain, after.type, call.loc)
    for n in graph.nodes.values():
        args = tuple(replace(a, name=passed.get(a.name, a.name)) for a in n.args)
        nodes[n.name] = replace(n, args=args) if args != n.args else n
    return replace(graph, nodes=nodes)


def without_order(graph: Graph) -> Graph:
    """Remove the order of host calls: reads of tokens become 0."""
    tokens = [n for n in graph.nodes.values() if _is_token(graph, n)]
    return graph.update(replace(n, args=(), op=Const(value=0, dtype="i32")) for n in tokens)


def _is_token(graph: Graph, node: Node) -> bool:
    """Is it the token that a call returns for the next one?"""
    if not isinstance(node.op, Item):
        return False
    op = graph[node.args[0].name].op
    return isinstance(op, Call) and op.has_state and node.op.k == len(op.results) - 1
