"""Shrink a graph as long as it fails in the same way (Zeller and Hildebrandt, 2002).

    300 equations, B=4 I=3 T=8, and a pass changes g   →   3 equations, T=2, and it changes g

The steps remove outputs or take earlier equations as outputs, replace equations by inputs or by
their own operands, remove dims, and reduce bounds: many at a time first, then one by one.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recurra.analysis.safety import check_safety
from recurra.compiler.options import CompileOptions
from recurra.compiler.pass_manager import PassManager
from recurra.compiler.pipeline import compile_context
from recurra.config import Config
from recurra.cost.target import PLAIN, Target
from recurra.errors import RecurraError
from recurra.ir.graph import Graph, Node, Ref, Slice, index_at
from recurra.ir.graph_parser import parse
from recurra.ir.types import Domain, Type
from recurra.ir.verify import verify
from recurra.ops.source import Input
from recurra.reference import equivalence
from recurra.transforms.compile_context import Pass
from recurra.transforms.rewriter.rewriting import compose


@dataclass(frozen=True)
class Case:
    """A graph and the bounds at which it fails."""

    graph: Graph
    sizes: Mapping[str, int]

    @property
    def bounds(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.sizes.items())

    def __str__(self) -> str:
        return (f"# {self.bounds}\n" if self.sizes else "") + str(self.graph)


Failure = Callable[[Case], str | None]  # a description of the failure of a case; None: no failure


def reduce(case: Case, failure: Failure, say: Callable[[str], None] = lambda _: None) -> Case:
    """Return the smallest case found with the same failure; raises RecurraError if it has none."""
    expected = failure(case)
    if expected is None:
        raise RecurraError(
            "the graph does not fail, so there is nothing to reduce",
            facts=f"{len(case.graph.nodes)} equations, {case.bounds or 'no bounds given'}",
            hint="give the pass and the bounds with which it fails: --pass lift --sizes T=8",
        )
    say(f"it fails: {expected}")

    def fails(new: Case | None) -> bool:
        return new is not None and _is_valid(new) and failure(new) == expected

    while True:
        before = case
        for step in STEPS:
            case = step(case, fails)
        if case == before:
            return case
        say(f"{len(case.graph.nodes)} equations, {case.bounds}")


Fails = Callable[[Case | None], bool]


def _is_valid(case: Case) -> bool:
    """Return whether the graph can be parsed from its text, and is safe if all bounds are known."""
    try:
        same = parse(str(case.graph)) == verify(case.graph)
        if bound_names(case.graph) <= set(case.sizes):
            check_safety(case.graph, case.sizes)
    except (RecurraError, AssertionError, SyntaxError, ValueError, TypeError, KeyError):
        return False
    return same


def bound_names(graph: Graph) -> set[str]:
    """Return the bounds that need a size before the graph can be evaluated."""
    every = [*(d.range for d in graph.dims), *(r for n in graph.nodes.values() for r in n.domain)]
    return set().union(*(r.mentions() for r in every)) - {r.dim for r in every}


# ---- steps


def _drop_items(
    case: Case,
    items: Sequence[str],
    drop: Callable[[Case, Sequence[str]], Case | None],
    fails: Fails,
) -> Case:
    """Drop as many `items` as possible from a case: all at once, a half, a quarter, .., one."""
    size = len(items)
    while size:
        for k in range(0, len(items), size):
            new = drop(case, items[k : k + size])
            if new is not None and new != case and fails(new):
                case = new
        size //= 2
    return case


def one_output(case: Case, fails: Fails) -> Case:
    """Make one equation the only output: the first with which the case fails."""
    nodes = case.graph.nodes
    for name, n in nodes.items():
        new = replace(case, graph=Graph(nodes, (name,), case.graph.dims).live())
        if isinstance(n.type, Type) and len(new.graph.nodes) < len(nodes) and fails(new):
            return new
    return case


def fewer_outputs(case: Case, fails: Fails) -> Case:
    def drop(case: Case, names: Sequence[str]) -> Case | None:
        kept = tuple(o for o in case.graph.outputs if o not in names)
        graph = Graph(case.graph.nodes, kept, case.graph.dims)
        return replace(case, graph=graph.live()) if kept else None

    return _drop_items(case, tuple(dict.fromkeys(case.graph.outputs)), drop, fails)


def fewer_operands(case: Case, fails: Fails) -> Case:
    """Replace equations by inputs of their type, and remove effects without readers."""
    return _drop_items(case, list(case.graph.nodes)[::-1], _as_inputs, fails)


def _as_inputs(case: Case, names: Sequence[str]) -> Case:
    graph, new = case.graph, dict(case.graph.nodes)
    dims = set(graph.declared)
    for name in names:
        n = new.get(name)
        if n is None:
            continue
        if not n.op.pure and not graph.readers[name] and name not in graph.outputs:
            del new[name]
        elif isinstance(n.type, Type) and n.args and not dims & n.type.mentions():
            new[name] = replace(n, op=Input(dtype=n.type.dtype, shape=n.type.shape), args=())
    return replace(case, graph=Graph(new, graph.outputs, graph.dims).live())


def fewer_equations(case: Case, fails: Fails) -> Case:
    """Let the readers of an equation read one of its operands, if the types are equal."""
    for name in list(case.graph.nodes):
        for new in _bypassed(case, name):
            if fails(new):
                case = new
                break
    return case


def _bypassed(case: Case, name: str) -> Iterator[Case]:
    graph = case.graph
    n = graph.nodes.get(name)
    for a in n.args if n is not None and name not in graph.outputs else ():
        assert n is not None
        if a.name == name or graph.read_type(a) != n.type:
            continue
        nodes: dict[str, Node] = {}
        for m in graph.nodes.values():
            args = [compose(x, n.domain, a) if x.name == name else x for x in m.args]
            nodes[m.name] = replace(m, args=tuple(x for x in args if x is not None))
        yield replace(case, graph=Graph(nodes, graph.outputs, graph.dims).live())


def fewer_dims(case: Case, fails: Fails) -> Case:
    """Remove a dim: of every equation the point 0 remains."""
    for d in case.graph.declared:
        new = _without_dim(case, d)
        if new is not None and fails(new):
            case = new
    return case


def _without_dim(case: Case, dim: str) -> Case | None:
    graph, by = case.graph, {dim: 0}

    def read(ref: Ref) -> Ref:
        pairs = zip(graph[ref.name].domain.dims, ref.index, strict=True)
        return Ref(ref.name, tuple(index_at(e, by) for d, e in pairs if d != dim))

    every = [(graph[a.name].domain, a) for n in graph.nodes.values() for a in n.args]
    if any(dim in d and isinstance(a.index[d.dims.index(dim)], Slice) for d, a in every):
        return None
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        domain = Domain(tuple(r for r in n.domain if r.dim != dim))
        type_ = n.type.at(by)
        args = tuple(map(read, n.args))
        nodes[n.name] = replace(n, op=n.op.at(by), args=args, domain=domain, type=type_)
    smaller = Graph(nodes, graph.outputs, tuple(d for d in graph.dims if d.name != dim))
    words = set(re.findall(r"\w+", str(smaller)))
    return Case(smaller, {k: v for k, v in case.sizes.items() if k in words})


def smaller_bounds(case: Case, fails: Fails) -> Case:
    for name, n in case.sizes.items():
        for less in sorted({1, 2, 3, n // 2, n - 1}):
            new = replace(case, sizes={**case.sizes, name: less})
            if 0 < less < n and fails(new):
                case = new
                break
    return case


STEPS = (
    one_output,
    fewer_outputs,
    fewer_operands,
    fewer_equations,
    fewer_dims,
    smaller_bounds,
)


# ---- failures


def by_pass(step: Pass, options: CompileOptions | None = None, target: Target = PLAIN) -> Failure:
    """Return the failure of a pass that raises, or changes the oracle's answer."""

    def failure(case: Case) -> str | None:
        stages = PassManager(
            compile_context(case.sizes, options, target), config=Config(check=True)
        )
        try:
            if equivalence.evaluations(case.graph, case.sizes) > equivalence.MAX_EVALUATIONS:
                return None
            stages.begin(case.graph)
        except Exception:
            return None  # the graph itself cannot be evaluated
        try:
            stages.run_one(step, case.graph)
        except Exception as error:
            return _signature(error)
        return None

    return failure


def _signature(error: Exception) -> str:
    """Return the kind of an error and the function that raised it, to recognize it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, {frame.name}"


def by_command(command: str) -> Failure:
    """Return the failure of a command: an exit code. {} is the file, {sizes} are the bounds."""

    def failure(case: Case) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "graph.txt"
            file.write_text(f"{case.graph}\n")
            words: list[str] = []
            for word in shlex.split(command):
                sizes = case.bounds.split() if word == "{sizes}" else None
                words += [word.replace("{}", str(file))] if sizes is None else sizes
            if "{}" not in command:
                words.append(str(file))
            try:
                done = subprocess.run(words, capture_output=True, check=False)
            except OSError as error:
                raise RecurraError(
                    f"{words[0]} cannot be run", facts=f"{error.strerror or error}"
                ) from None
        return f"exit code {done.returncode}" if done.returncode else None

    return failure
