"""Checkpoints of a run, to resume it, and `dnn[cond].checkpoint(path)`.

    state/W1_next, state/x[]        the variables and stores that live on after an iteration
    body.layers.0.weight            parameters, by their names in the module
    host/Walk-v0()/...              arrays in the state of host functions
    meta                            graph_hash, counters, seed, backend, decisions, rest of hosts

Launches end at every iteration that is saved; the snapshot is taken before the next launch destroys
the state.

A host function may be the method of an object that holds state. If that has `state_dict()` (a tree
of dicts, lists, numbers, text and arrays) and `load_state_dict(tree)`, it is saved too; None makes
it start anew. State that cannot be saved raises Unsaved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np

from recurra.checkpoint import checkpoint
from recurra.checkpoint.background_writer import BackgroundWriter
from recurra.codegen.host_program import Program
from recurra.cost.thresholds import MIN_LAUNCH_STEPS
from recurra.errors import RecurraError
from recurra.ir.effects import Checkpoint, Export, ProgramPart
from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Graph, Node, index_symbols
from recurra.ops.control import Call, Merge
from recurra.reference.interpreter import Oracle
from recurra.report.runs import differs, expect_no_run, expect_place
from recurra.runtime import checkpoint_fit
from recurra.runtime.host_executor import Resume, Step
from recurra.storage.store import store_key
from recurra.support import atomic_write, safetensors_file
from recurra.support.safetensors_file import Arrays

STATE, HOST = "state/", "host/"
Values = Mapping[str, np.ndarray]


class SavesState(Protocol):
    """An object whose state, a tree of dicts, lists, numbers, text and arrays, can be saved."""

    def state_dict(self) -> object: ...
    def load_state_dict(self, tree: object) -> None: ...


class Unsaved(RecurraError):
    """State that no checkpoint can hold."""


def steps_between_saves(
    effects: Sequence[Checkpoint], graph: Graph, sizes: Mapping[str, int]
) -> int:
    """The most steps of a launch such that one ends at every iteration that is saved."""
    dim, points = _outermost(effects, graph, sizes)
    size = MIN_LAUNCH_STEPS
    for e in effects:
        for i in iterations(e, sizes, dim, points):
            size = gcd(size, i) if i else size
    return max(1, size)


def _outermost(
    effects: Sequence[Checkpoint], graph: Graph, sizes: Mapping[str, int]
) -> tuple[str, int]:
    """The dim of the outermost loop of a program with parameters, and its number of points."""
    saved = [(e.loc, *p) for e in effects for p in e.params]
    for loc, name, parameter in saved:
        if parameter not in graph.nodes:
            raise RecurraError(
                f"the parameter {name} is saved, but not computed",
                facts=f"nothing that the program gives depends on {parameter}",
                hint="give what is learned with it: rc.log(loss=loss)",
                loc=loc,
            )
    (dim, *_) = graph[saved[0][2]].domain.dims
    return dim, graph.declared[dim].range.size(sizes)


def iterations(
    checkpoint: Checkpoint, sizes: Mapping[str, int], dim: str, points: int
) -> list[int]:
    """The iterations at which an effect saves."""
    stray = symbols(checkpoint.when) - {dim} - sizes.keys()
    if stray:
        raise RecurraError(
            f"a checkpoint's condition mentions {', '.join(sorted(stray))}",
            facts=f"a program is saved between iterations of its outermost loop, along {dim}",
            hint=f"write a condition on {dim}, or begin the context with what it is to be saved "
            f'along: rc.Context(dims="{min(stray)} .. {dim} ..")',
            loc=checkpoint.loc,
        )
    return [i for i in range(points) if evaluate(checkpoint.when, {**sizes, dim: i})]


@dataclass
class Saver:
    """Writes and reads the checkpoints of a program."""

    program: Program
    source: Graph  # as the user wrote it
    effects: Sequence[Checkpoint]
    backend: str
    decisions: tuple[str, ...]
    workers: int = 1  # each has its own state: arrays are [workers, ..]
    exports: Sequence[Export] = ()
    inputs: Mapping[str, object] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)  # hosts whose lost state was reported

    @cached_property
    def hash(self) -> str:
        return self.source.fingerprint()

    @cached_property
    def numbers(self) -> list[str]:
        return self.source.numbers()

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bounds of the program."""
        return self.program.plan.sizes

    @cached_property
    def bounds(self) -> dict[str, int]:
        """The bounds that results depend on: the number of iterations only if it is read."""
        main, graph = self.program.main, self.source
        iterations = set() if main is None else symbols(graph.declared[main.loop.dim].range.hi)
        nodes = graph.nodes.values()
        read = set().union(*(n.op.mentions() for n in nodes))
        read = read.union(*(index_symbols(e) for n in nodes for a in n.args for e in a.index))
        known = graph.symbols - (iterations - read)
        return {b: n for b, n in self.sizes.items() if b in known}

    @cached_property
    def due(self) -> list[tuple[Checkpoint, Path, set[int]]]:
        """The folder and the iterations of each effect."""
        plan, main = self.program.plan, self.program.main
        assert main is not None, "a program without a loop has no checkpoints"
        dim = main.loop.dim
        points = plan.graph.declared[dim].range.size(plan.sizes)
        return [
            (e, Path(e.path) / "checkpoints", set(iterations(e, plan.sizes, dim, points)))
            for e in self.effects
        ]

    def expect_own(self, resume: Resume | None, seed: int, overwrite: bool) -> None:
        """Raise RecurraError if a folder to save into is none, or has another run's checkpoints.

        With `overwrite` these are removed. A resumed run may overwrite its own later checkpoints,
        and one that is too short to save leaves all alone.
        """
        mine = {"seed": int(seed), "graph_hash": self.hash}
        for effect, folder, due in self.due:
            if not any(due):  # none at 0
                continue
            expect_place(folder, effect.loc)
            names = [f"checkpoints/{x.name}" for x in checkpoint.saved(folder)]
            own = "" if resume is None else differs(mine, checkpoint.newest_meta(folder))
            if names and overwrite and (own or resume is None):
                checkpoint.remove(folder)
            elif names and (own or resume is None):
                expect_no_run(folder.parent, names, own)

    def state(
        self, step: Step, seed: int, behind: BackgroundWriter, folder: Path | None = None
    ) -> None:
        """Save after a launch, if a checkpoint is due: `step.hi` is the next iteration.

        At the end, exported parts of the program are also written to `folder`.
        """
        now = [(e, place) for e, place, due in self.due if step.hi in due] if self.effects else []
        places = [place.parent for _, place in now]
        if self.exports and self.is_last(step):
            every = [Path(e.path) for e in self.effects]
            places += [x for x in (*every, folder) if x is not None]
        if not places:
            return
        behind.wait()  # for the writes of the last step
        variables = {name: step.variables[name] for name in step.variables}
        for e, place in now:
            params = {name: self.parameter(p, variables, seed) for name, p in e.params}
            arrays, meta = self.snapshot(step, variables, seed, params)
            behind.submit(checkpoint.save, place, arrays, meta, number=step.hi)
        for place in {x.resolve(): x for x in places}.values():
            for file, packed in self.exported(place, variables, seed):
                behind.submit(_write, file, packed)

    def is_last(self, step: Step) -> bool:
        """Is nothing left to do after this step of the outermost loop?"""
        main, declared = self.program.main, self.program.plan.graph.declared
        return main is not None and step.hi == declared[main.loop.dim].range.size(self.sizes)

    def save(self, folder: Path, step: Step, seed: int) -> Path:
        """Write all that is needed to resume at iteration `step.hi`, the number of the file."""
        arrays, meta = self.snapshot(step, step.variables, seed, {})
        path = checkpoint.save(folder, arrays, meta, number=step.hi)
        self.export(folder.parent, step.variables, seed)
        return path

    @cached_property
    def parts(self) -> list[tuple[Export, ProgramPart | RecurraError]]:
        """The exported parts of the program; an error for one that cannot be exported."""
        found: list[tuple[Export, ProgramPart | RecurraError]] = []
        for e in self.exports:
            try:
                found.append((e, e.cut(self.sizes)))
            except RecurraError as why:
                found.append((e, why))
        return found

    def export(self, folder: Path, variables: Values, seed: int) -> None:
        """Write the exported parts of the program, with the present values, into a folder."""
        for file, packed in self.exported(folder, variables, seed):
            _write(file, packed)

    def exported(
        self, folder: Path, variables: Values, seed: int
    ) -> Iterator[tuple[Path, list[bytes]]]:
        """Yield the files of the exported parts; the file of one that failed holds the reason."""
        for e, part in self.parts:
            try:
                if isinstance(part, RecurraError):
                    raise part
                arrays = {name: self.parameter(name, variables, seed) for name in part.values}
                arrays |= {f"constant/{name}": x for name, x in part.arrays.items()}
                metadata = {"told": json.dumps(part.told)}
            except RecurraError as why:
                arrays, metadata = {}, {"refused": str(why)}
            yield folder / e.file, safetensors_file.pack(arrays, {"format": e.format, **metadata})

    def snapshot(
        self, step: Step, variables: Values, seed: int, params: Values
    ) -> tuple[Arrays, dict[str, object]]:
        """Copy the state of a run; return the arrays and the metadata of a checkpoint."""
        arrays = {**params, **{STATE + name: x for name, x in variables.items()}}
        kept, lost = self.host_state()
        trees = {name: split(tree, f"{HOST}{name}", arrays) for name, tree in kept.items()}
        for name, why in lost.items():
            if name not in self.warned:
                self.warned.add(name)
                print(f"{why}\n{_CONSEQUENCE.format(name=name)}", file=sys.stderr)
        meta: dict[str, object] = {
            "graph_hash": self.hash,
            "numbers": self.numbers,
            "bounds": self.bounds,
            "counters": {step.dim: step.hi},
            "seed": int(seed),
            "backend": self.backend,
            "workers": self.workers,
            "decisions": self.decisions,
            "hosts": trees,
            "lost": lost,
        }
        return arrays, meta

    def load(self, path: str | Path) -> tuple[Resume, int]:
        """Return the iteration, state and seed of a run's newest checkpoint; restore the hosts."""
        path = Path(path)
        inner = path / "checkpoints"
        found = checkpoint.load(inner if inner.is_dir() else path, graph_hash=self.hash)
        dim = "" if self.program.main is None else self.program.main.loop.dim
        checkpoint_fit.expect_metadata(found, dim)
        hi = found.meta["counters"][dim]
        points = self.source.declared[dim].range.size(self.program.plan.sizes)
        if hi > points:
            raise RecurraError(
                f"{found.path} was saved after {hi} iterations",
                facts=f"the program has {points}, along {dim}",
                hint="compile it for more, or name an earlier checkpoint",
            )
        saved = {n: x for n, x in found.arrays.items() if n.startswith(STATE)}
        variables = {n.removeprefix(STATE): x for n, x in saved.items()}
        self.expect(variables, found)
        variables = checkpoint_fit.fit(self.program, self.workers, found, variables)
        for name, owner in self.hosts.items():
            _give_state(owner, name, found)
        for line in self.differences(found):
            print(line, file=sys.stderr)
        return (hi, variables), found.meta["seed"]

    @property
    def border(self) -> set[str]:
        """The variables and stores that live on after an iteration."""
        main = self.program.main
        if main is None:
            return set()
        known = [main.end.border] if main.end else []
        stores = (store_key(s) for s in self.program.waiting(main))
        return {*self.program.traveling(main), *stores, *known}

    def expect(self, variables: Values, found: checkpoint.LoadedCheckpoint) -> None:
        """Raise RecurraError if a checkpoint does not hold the state that the program carries."""
        theirs = found.meta.get("workers", 1)
        if theirs != self.workers:
            raise RecurraError(
                f"{found.path} was saved by {theirs} workers",
                facts=f"the program is compiled for {self.workers}, and each keeps its own rows",
                hint=f"compile it with workers={theirs}",
            )
        carried, saved = self.border, set(variables)
        if carried != saved:
            ours, theirs = sorted(carried - saved), sorted(saved - carried)
            raise RecurraError(
                f"{found.path} does not fit the program as it is compiled now",
                facts=f"only the program carries {', '.join(ours) or 'nothing'}; "
                f"only the file has {', '.join(theirs) or 'nothing'}",
                hint="compile it with the options and the backend that it was saved with",
            )

    def differences(self, found: checkpoint.LoadedCheckpoint) -> list[str]:
        """The reasons for which the resumed run will not be equal to the last bit, line by line."""
        out = [
            f"{why}\n{_CONSEQUENCE.format(name=name)}" for name, why in found.meta["lost"].items()
        ]
        silent = [
            n.op.fn.key
            for n in self.program.plan.graph.nodes.values()
            if isinstance(n.op, Call) and _owner(n.op) is None and n.op.has_state
        ]
        out += [
            f"{fn} is called on the host: if it holds state, that was not saved" for fn in silent
        ]
        pairs = zip(found.meta.get("numbers", ()), self.numbers, strict=False)
        changed = list(dict.fromkeys(f"{a} there, {b} here" for a, b in pairs if a != b))
        changed += checkpoint_fit.other_bounds(found, self.sizes)
        if changed:
            out.append(
                f"resumed with other numbers than it was saved with ({', '.join(changed)}; such as "
                "rates and iterations): metrics will not be those of the run that was interrupted"
            )
        theirs = found.meta["backend"]
        if theirs != self.backend:
            out.append(
                f"resumed on {self.backend}, saved on {theirs}: "
                "metrics will be those of the uninterrupted run up to rounding only"
            )
        decided = [d for d in found.meta["decisions"] if d not in self.decisions]
        if decided:
            out.append(
                "the compiler decided otherwise when this was saved "
                f"({'; '.join(decided)}): metrics will be those of the uninterrupted run up to "
                "rounding only"
            )
        return out

    # ---- what is outside the program

    @cached_property
    def hosts(self) -> dict[str, SavesState]:
        """The objects with state whose methods the program calls, by a call's name."""
        out: dict[str, SavesState] = {}
        for n in self.program.plan.graph.nodes.values():
            if isinstance(n.op, Call):
                owner = _owner(n.op)
                if owner is not None and not any(owner is x for x in out.values()):
                    out[n.op.fn.key.rpartition(".")[0] or n.op.fn.key] = owner
        return out

    def host_state(self) -> tuple[dict[str, object], dict[str, str]]:
        """The state of each host; and the reason for those that cannot be saved."""
        kept, lost = dict[str, object](), dict[str, str]()
        for name, owner in self.hosts.items():
            try:
                kept[name] = owner.state_dict()
            except Unsaved as why:
                lost[name] = str(why)
        return kept, lost

    # ---- parameters

    def first_part(self, array: np.ndarray) -> np.ndarray:
        """An array of the first worker, where it is the same on all."""
        return array if self.workers == 1 else array[0]

    def parameter(self, name: str, variables: Values, seed: int) -> np.ndarray:
        """A parameter after an iteration; one that nothing trains keeps its initial value."""
        node = self.program.plan.graph.nodes.get(name)
        if node is not None and name in self.program.plan.initial_merges:
            return self.first_part(variables[node.args[1].name])
        plan = self.program.plan
        written = self.source[name]
        if isinstance(written.op, Merge) and len(written.args) > 1:
            for known in (name, self.value_after_first(written)):
                if known in variables:
                    return self.first_part(variables[known])
            outer = next(iter(written.domain))
            if outer.size(plan.sizes) == 1:
                raise RecurraError(
                    f"{name} cannot be saved",
                    facts=f"there is one iteration along {outer.dim}, and nothing reads what is "
                    "learned in it, so that it is not computed",
                    hint=f"compile it for two, {{{outer.hi}: 2}}",
                    loc=written.loc,
                )
            raise RecurraError(
                f"{name} cannot be saved",
                facts="its newest value is not at hand between iterations: it is read otherwise "
                "than from one to the next",
                hint="keep what reads an older value of it in a tensor of its own",
                loc=written.loc,
            )
        point = tuple(evaluate(r.lo, plan.sizes) for r in written.domain)
        return Oracle(self.source, plan.sizes, self.inputs, seed).value(name, point)

    def value_after_first(self, node: Node) -> str:
        """The equation that a merge reads at the second iteration: its value after the first."""
        assert isinstance(node.op, Merge)
        assert self.program.main is not None
        at = {r.dim: evaluate(r.lo, self.sizes) for r in node.domain}
        at |= {d: x + 1 for d, x in at.items() if d == self.program.main.loop.dim}
        return node.args[node.op.arm({**self.sizes, **at})].name


_CONSEQUENCE = (
    "  resumed, {name} starts new episodes there: metrics will not be those of a run that "
    "was not interrupted"
)


def _write(file: Path, packed: list[bytes]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise atomic_write.NotWrittenError(f"{file} cannot be written", error) from error
    atomic_write.save(file, packed)


def _owner(op: Call) -> SavesState | None:
    """The object that a host function is a method of, if its state can be saved."""
    called = op.fn.value
    owner = getattr(getattr(called, "fn", called), "__self__", None)
    return owner if _saves_state(owner) else None


def _give_state(owner: SavesState, name: str, found: checkpoint.LoadedCheckpoint) -> None:
    """Restore the state of a host from a checkpoint."""
    tree = found.meta["hosts"].get(name)
    try:
        owner.load_state_dict(None if tree is None else join(tree, found.arrays))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise RecurraError(
            f"{name} does not take back its state from {found.path}",
            facts=f"it raises {type(error).__name__}: {error}",
            hint=checkpoint_fit.OWN,
        ) from error


def _saves_state(value: object) -> TypeGuard[SavesState]:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def split(tree: object, path: str, arrays: Arrays) -> object:
    """Convert a tree to JSON; its arrays move to `arrays`, under their path."""
    match tree:
        case dict():
            return {k: split(x, f"{path}/{k}", arrays) for k, x in tree.items()}
        case list() | tuple():
            return [split(x, f"{path}/{k}", arrays) for k, x in enumerate(tree)]
        case np.ndarray():
            arrays[path] = tree.copy()
            return {"$array": path}
        case _:
            return tree


def join(tree: object, arrays: Values) -> object:
    """Rebuild the tree that `split` took apart."""
    match tree:
        case {"$array": path}:
            return arrays[path]
        case dict():
            return {k: join(x, arrays) for k, x in tree.items()}
        case list():
            return [join(x, arrays) for x in tree]
        case _:
            return tree
