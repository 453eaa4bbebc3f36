"""The graph builder: it collects the equations that a user's program writes."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from recurra.errors import DomainError, Loc, RecurraError, ShapeError, here
from recurra.ir.dims import Dim
from recurra.ir.effects import Checkpoint, Export
from recurra.ir.expr import FALSE, TRUE, Expr, Product, Sym, all_of, compare, negate, symbols, walk
from recurra.ir.graph import Graph, Node, Ref, bound_names, fresh_name, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Type
from recurra.ir.user_objects import ArrayResource, Resource
from recurra.ops.control import Merge
from recurra.ops.source import Input
from recurra.polyhedral import isl

R = TypeVar("R", bound=Resource[Any])


@dataclass
class Branch:
    """One branch of the definition of a recurrent tensor: its value where `when` holds."""

    when: Expr
    value: Ref
    loc: Loc | None
    gradients: int = 0  # the number of gradients taken before it was written
    folded: bool = False  # Python evaluated one of its conditions to True: i % n == 0 with n = 1


@dataclass(frozen=True)
class DrawnSample:
    """A sample of a distribution, with the kind and the parameters of the distribution."""

    sample: Any
    kind: str
    params: tuple[Any, ...]


@dataclass
class GraphBuilder:
    """The equations and declarations of a program so far. `current()` is the innermost open one."""

    dims: list[Dim] = field(default_factory=list[Dim])
    nodes: dict[str, Node] = field(default_factory=dict)
    branches: dict[str, list[Branch]] = field(default_factory=dict)
    dead_branches: dict[str, Loc | None] = field(
        default_factory=dict
    )  # branches that are always False
    logs: dict[str, str] = field(default_factory=dict)  # metric name -> equation
    params: list[Any] = field(default_factory=list)
    effects: list[Checkpoint] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list[Export])
    drawn: list[DrawnSample] = field(default_factory=list[DrawnSample])
    renamed: list[Mapping[str, str]] = field(default_factory=list)  # old -> new names, in order
    checks: list[Callable[[Graph], None]] = field(default_factory=list)  # of the finished graph
    # rewrites of the finished graph, each applied once and in this order
    finishing: dict[Callable[[Graph], Graph], None] = field(default_factory=dict)
    clocks: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # equations that have next values, and the dims along which they step
    final: set[str] = field(default_factory=set[str])  # names that the user gave
    choices: set[str] = field(default_factory=set[str])  # merges that no line of the user declares
    draws: int = 0
    members: tuple[str, ...] = ()  # dims along which draws over no dims are repeated
    gradients: int = 0  # the number of gradients taken
    bounds: list[str] = field(default_factory=list)  # bounds that belong to no dim
    line: Loc | None = None  # the line whose gradient is being written, if any
    resources: dict[str, Resource[Any]] = field(default_factory=dict[str, Resource[Any]])  # by key

    def know(self, names: set[str]) -> None:
        """Raise DomainError if one of the names is neither a dim nor a bound of this program."""
        known = {*self.dim_names(), *self.bounds}.union(*(symbols(d.hi) for d in self.dims))
        for name in sorted(names - known):
            raise DomainError.at_user_line(
                f"{name} is no dim and no bound of this context",
                facts=f"its dims are {', '.join(str(d.range) for d in self.dims) or 'none'}",
                hint="use the dims that `with rc.Context(...) as ...` names, "
                "or declare a bound of its own: rc.bound('N')",
            )

    def range(self, dim: str) -> Range:
        return next(d.range for d in self.dims if d.name == dim)

    def dim_names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims)

    def constant(self, array: np.ndarray) -> ArrayResource:
        """Return the resource of an array, keyed by its contents, so that equal programs have equal
        texts."""
        digest = hashlib.blake2b(f"{array.dtype} {array.shape}".encode(), digest_size=6)
        digest.update(np.ascontiguousarray(array).tobytes())
        resource = ArrayResource(f"data-{digest.hexdigest()}", array)
        return cast(ArrayResource, self.resources.setdefault(resource.key, resource))

    def function(self, kind: type[R], stem: str, value: object) -> R:
        """Return the resource of a function, under the first key that is free for it: stem,
        stem 2, .."""
        key, k = stem, 1
        while self.resources.setdefault(key, kind(key, value)).value != value:
            k += 1
            key = f"{stem} {k}"
        return cast(R, self.resources[key])

    @contextmanager
    def drawing_over(self, dims: tuple[str, ...]) -> Generator[None]:
        """Make draws over no dims, within the block, independent draws at every point of `dims`."""
        before, self.members = self.members, dims
        try:
            yield
        finally:
            self.members = before

    def fresh(self, stem: str) -> str:
        return fresh_name(stem, self.nodes)

    def free(self, name: str) -> None:
        """Free a name for a new equation: the one that has it is renamed to x_2."""
        if name in self.nodes:
            self.rename({name: self.fresh(name)})

    def domain(self, dims: Collection[str], ranges: dict[str, Range] | None = None) -> Domain:
        """The box over `dims` in declared order; `ranges` overrides the declared ones."""
        ranges = ranges or {}
        return Domain(tuple(ranges.get(d.name, d.range) for d in self.dims if d.name in dims))

    def emit(self, op: Op, args: tuple[Ref, ...], domain: Domain, stem: str) -> Node:
        """Add an equation; its type is inferred. Raises ShapeError if the operands do not fit."""
        named = op.mentions().union(*(index_symbols(e) for a in args for e in a.index))
        self.know(named - bound_names(op))
        graph = Graph(self.nodes, ())
        try:
            type_ = op.infer(*(graph.read_type(a) for a in args))
        except TypeError as e:
            operands = ", ".join(f"{a} is {graph.read_type(a)}" for a in args)
            law = (type(op).__doc__ or "").splitlines()[0]
            raise ShapeError.at_user_line(
                str(e), facts=operands, hint=f"{op.name} is  {law}"
            ) from None
        node = Node(self.fresh(stem), op, args, domain, type_, self.line or here())
        self.nodes[node.name] = node
        return node

    def declare(self, stem: str, domain: Domain, type_: Type) -> Node:
        """Add an equation whose branches are yet to be written."""
        node = Node(self.fresh(stem), Merge(when=()), (), domain, type_, here())
        self.nodes[node.name] = node
        self.branches[node.name] = []
        return node

    def declare_choice(self, stem: str, domain: Domain, type_: Type) -> Node:
        """Add an equation that the user has not declared: its branches have no source lines."""
        node = self.declare(stem, domain, type_)
        self.choices.add(node.name)
        return node

    def define(self, name: str, when: Expr, value: Ref, folded: bool = False) -> None:
        """Add a branch. The first true one wins: later ones hold where no earlier one does.

        A branch whose condition is the constant False, such as i % n == 1 with n = 1, is dropped.
        """
        have, want = Graph(self.nodes, ()).read_type(value), self.nodes[name].type
        if have != want:
            raise ShapeError.at_user_line(
                f"a branch of {name} has another type",
                facts=f"{name} is {want}, this branch is {have}",
                hint="cast or reshape it",
            )
        if when == FALSE:
            self.dead_branches.setdefault(name, here())
            return
        self._expect_reachable(name, when)
        self.branches[name].append(Branch(when, value, here(), self.gradients, folded))

    def _expect_reachable(self, name: str, when: Expr) -> None:
        """Raise DomainError if earlier branches hold wherever this one does, for any bounds.

        Python values in a program may make branches empty by chance, so branches whose condition
        Python folded to True do not count, and only another x[t] = .. can hide a branch x[t] = ..
        """
        domain = self.nodes[name].domain
        earlier = [b for b in self.branches[name] if not b.folded]
        earlier = [b for b in earlier if b.when == TRUE or when != TRUE]
        if not earlier or any(isinstance(e, Product) for b in earlier for e in walk(b.when)):
            return
        holds = all_of(when, *(c for r in domain for c in r.edges))
        bounds = symbols(holds).union(*(symbols(b.when) for b in earlier)) - set(domain.dims)
        holds = all_of(holds, *(compare(">=", Sym(n), 1) for n in bounds))
        if any(isinstance(e, Product) for e in walk(holds)) or not isl.satisfiable(holds):
            return  # branches outside the domain are dropped silently
        if isl.satisfiable(all_of(holds, *(negate(b.when) for b in earlier))):
            return
        hides = next(b for b in earlier if isl.satisfiable(all_of(holds, b.when)))
        place = f"where {when}" if when != TRUE else "at every point"
        raise DomainError.at_user_line(
            f"this branch of {name} never holds: others come before it",
            facts=f"the first branch that holds wins, and {place} earlier ones do"
            + (f"\n  the first of them   --> {hides.loc}" if hides.loc else ""),
            hint="write it above them: the branch of few points first, that of the rest last",
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename equations everywhere in the program; handles look up `renamed`."""

        def new(name: str) -> str:
            return names.get(name, name)

        self.nodes = renamed(self.nodes, names)
        self.branches = {new(k): bs for k, bs in self.branches.items()}
        self.dead_branches = {new(k): loc for k, loc in self.dead_branches.items()}
        for branches in self.branches.values():
            for b in branches:
                if b.value.name in names:
                    b.value = Ref(names[b.value.name], b.value.index)
        self.renamed.append(names)
        self.final = {new(name) for name in self.final}
        self.choices = {new(name) for name in self.choices}
        self.clocks = {new(k): dims for k, dims in self.clocks.items()}
        self.logs = {k: new(v) for k, v in self.logs.items()}
        self.effects = [e.renamed(new) for e in self.effects]

    def suggest(self, value: Ref, name: str) -> None:
        """Name a new equation after its purpose, unless it has a name already."""
        if self.unnamed(value):
            self.rename({value.name: self.fresh(name)})

    def unnamed(self, value: Ref) -> bool:
        """Is it the read, at the identity, of an equation with a default name, that of its op?"""
        node = self.nodes[value.name]
        return (
            re.fullmatch(rf"{node.op.name}(_\d+)?", node.name) is not None
            and node.name not in self.branches
            and not isinstance(node.op, Input)
            and value.index == node.domain.identity
        )

    def graph(self, keep: Collection[str] = ()) -> Graph:
        """The finished graph: declared tensors become merges with disjoint conditions.

        Equations that nothing depends on are dropped, except those in `keep`.
        """
        nodes = dict(self.nodes)
        for name, branches in self._every_point().items():
            if not branches:
                raise self._never_defined(nodes[name])
            nodes[name] = replace(
                nodes[name],
                op=Merge(when=disjoint([b.when for b in branches])),
                args=tuple(b.value for b in branches),
                locs=() if name in self.choices else tuple(b.loc for b in branches),
            )
        outputs = dict.fromkeys(self.logs.values())
        aliases = self._aliases({*outputs, *keep})
        for name in aliases.values():
            del nodes[name]
        nodes = renamed(nodes, aliases)
        kept = Graph(nodes, (*outputs, *(k for k in keep if k not in outputs)), tuple(self.dims))
        graph = replace(kept.live(), outputs=tuple(outputs))
        for finish in self.finishing:
            graph = finish(graph)
        for check in self.checks:
            check(graph)
        return graph

    def _never_defined(self, node: Node) -> DomainError:
        name, at = node.name, ", ".join(node.domain.dims)
        facts = f"its domain is {node.domain}"
        if name not in self.dead_branches:
            return DomainError(
                f"{name} is declared but never defined",
                facts=facts,
                hint=f"write {name}[...] = ...",
                loc=node.loc,
            )
        return DomainError(
            f"{name} is defined at no point",
            facts=f"{facts}; the condition of its branch is False, as i % n == 1 is where n is 1, "
            "and names none of them",
            hint=f"define the rest after it: {name}[{at}] = ...",
            loc=self.dead_branches[name],
        )

    def _every_point(self) -> dict[str, list[Branch]]:
        """The branches by equation; a parameter that nothing trains keeps its first value."""
        out = dict(self.branches)
        for p in self.params:
            if len(out[p.name]) == 1:
                out[p.name] = [replace(out[p.name][0], when=TRUE)]
        return out

    def _aliases(self, outputs: Collection[str]) -> dict[str, str]:
        """The declared name for each unnamed value that it is equal to: y[t] = x + 1 is just y."""
        out: dict[str, str] = {}
        for name, branches in self.branches.items():
            value = branches[0].value
            if (
                branches[0].when == TRUE
                and value.name not in outputs
                and self.unnamed(value)
                and self.nodes[value.name].domain == self.nodes[name].domain
            ):
                out.setdefault(value.name, name)
        return out


def renamed(nodes: dict[str, Node], names: Mapping[str, str]) -> dict[str, Node]:
    """Rename equations, and the reads of them, without changing their order."""
    out: dict[str, Node] = {}
    for k, n in nodes.items():
        name = names.get(k, k)
        if any(a.name in names for a in n.args):
            args = tuple(Ref(names.get(a.name, a.name), a.index) for a in n.args)
            n = replace(n, name=name, args=args)
        out[name] = n if n.name == name else replace(n, name=name)
    return out


def disjoint(when: list[Expr]) -> tuple[Expr, ...]:
    """Exclude from each condition those before it, unless they are disjoint already."""
    out: list[Expr] = []
    for k, c in enumerate(when):
        earlier = [e for e in when[:k] if not excludes(e, c)]
        out.append(all_of(c, *(negate(e) for e in earlier)) if earlier else c)
    return tuple(out)


def excludes(left: Expr, right: Expr) -> bool:
    """Can `left` and `right` never hold at one point, whatever the bounds?"""
    if left == negate(right):
        return True
    quasi_affine = not any(isinstance(e, Product) for c in (left, right) for e in walk(c))
    return quasi_affine and not isl.satisfiable(all_of(left, right))


class _Open(threading.local):
    """The builders of the contexts that are open in this thread, innermost last."""

    def __init__(self) -> None:
        self.builders: list[GraphBuilder] = []


_OPEN = _Open()


def current() -> GraphBuilder:
    if not _OPEN.builders:
        raise RecurraError.at_user_line(
            "no program is being written here",
            facts="recurrent tensors are made and joined in the block of their context, and this "
            "line is in none",
            hint="move it into the block, or open that again: `with ctx:`; a new program begins by "
            '`with rc.Context(dims="t") as (t, T):`',
        )
    return _OPEN.builders[-1]


def enter(builder: GraphBuilder) -> None:
    _OPEN.builders.append(builder)


def leave() -> None:
    _OPEN.builders.pop()
