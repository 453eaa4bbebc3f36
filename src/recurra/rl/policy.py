"""A policy by itself: what a run has learned, for acting in plain NumPy.

    policy = rc.rl.load("runs/x")
    action = policy.act(observation)

Who acts is a graph of one step (`acting.py`), beside its parameters in the run's folder. For a
number of rows it becomes one Python function that calls NumPy:

    def act(o, h_1):
        einsum = o.dot(W1)
        ..
        return (draw(add_4), tanh_2)
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recurra.backends.numpy.code import text_of
from recurra.backends.numpy.machine import NumpyNamespace
from recurra.backends.numpy.stand_in import StandIn, blank
from recurra.backends.numpy.writer import Writer
from recurra.compiler.options import expect_seed
from recurra.errors import RecurraError, here
from recurra.ir.graph import Graph, Node
from recurra.ir.order import topological
from recurra.ir.resource import ArrayResource
from recurra.ir.text import parse
from recurra.ir.types import NUMPY_NAME, Type
from recurra.ops.source import Input
from recurra.report.runs import POLICY
from recurra.rl.acting import FIRST, FORMAT, ROW, PartTold, PolicyTold
from recurra.support import json_text, safetensors_file
from recurra.support.source_text import tuple_of
from recurra.transforms.vectorize.vectorize import vectorize, with_axis

Array = np.ndarray
(ROWS,) = ROW.ranges
DRAWN_FROM = "what an action is drawn from"
FEW = {ROWS.dim.upper(): 2, str(ROWS.hi): 2}  # any number will do where none is left in the code


def load(path: str | Path, seed: int = 0) -> SavedPolicy:
    """The policy of a run, by its folder, as it was when it was saved last; `seed` is of its draws.

    It is saved with every checkpoint, and when the run ends. Raises RecurraError where there is
    none, or the program acts in a way that cannot be cut out of it.
    """
    try:
        given = Path(path)
    except TypeError:
        raise RecurraError(
            f"{path!r} is no folder of a run",
            facts="a folder is named by a string or a path",
            hint='rc.rl.load("runs/x")',
            loc=here(),
        ) from None
    expect_seed(seed)
    file = given / POLICY if given.is_dir() else given
    if not file.exists():
        raise RecurraError(
            f"there is no policy at {path}",
            facts=f"{file} is written with the checkpoints of a run and at its end",
            hint="train with `recurra train`, program.run(folder=..) or module.checkpoint(folder)",
            loc=here(),
        )
    arrays, words = safetensors_file.read(file)
    if words.get("format") != FORMAT or not safetensors_file.is_whole(file):
        raise RecurraError(
            f"{file} is damaged, or no policy of this version",
            facts=f"its format is {words.get('format')!r}, to be {FORMAT!r}",
            hint="train again, or resume the run: it is written at the next checkpoint",
            loc=here(),
        )
    if "refused" in words:
        raise RecurraError(
            f"{file} holds no policy", facts=words["refused"], hint="act in the program", loc=here()
        )
    return SavedPolicy(arrays, json_text.parse(words["told"]), seed)


@dataclass(frozen=True)
class Leaf:
    """One array of a space: the way to it, its first value, and how many classes it counts."""

    path: tuple[str | int, ...]
    dtype: str
    start: Any
    classes: int | None
    shape: tuple[int, ...]  # of one row, as the environment has it
    wanted: str  # its type in the program

    def show(self, raw: Any) -> Array:
        """An observation as the program sees it."""
        for key in self.path:
            try:
                raw = raw[key]
            except (IndexError, KeyError, TypeError):
                at = "".join(f"[{k!r}]" for k in self.path)
                raise RecurraError(
                    f"the observation has no {at}",
                    facts=f"it is {raw!r}"
                    if np.ndim(raw) == 0
                    else f"it is a {type(raw).__name__}",
                    hint="give all parts, as the environment does: policy.act(observation)",
                    loc=here(),
                ) from None
        if self.classes is not None:
            return np.eye(self.classes, dtype=np.float32)[self.index(raw, self.classes)]
        raw = numbers_of(raw)
        if self.start != 0:
            raw = raw - np.asarray(self.start)
        seen = np.asarray(raw, self.wanted)
        if seen.dtype.kind == "f":
            flat = seen if seen.ndim == 1 else seen.ravel()
            if (length := flat.dot(flat)) != length:  # squares are NaN together if one is
                raise _not_a_number(seen, self.called)
        return seen

    @property
    def called(self) -> str:
        """The name of that part of an observation."""
        return "the observation" + "".join(f"[{k!r}]" for k in self.path)

    def index(self, raw: Any, classes: int) -> Array:
        """The number of a class, from 0 on; raises RecurraError where it is none."""
        given, _ = _as_array(raw)
        if given.dtype.kind in "iu":
            found = given - self.start
            if not ((found < 0) | (found >= classes)).any():
                return found
        raise RecurraError(
            f"{raw!r} is no observation of this policy",
            facts=f"it is a whole number from {self.start} to {self.start + classes - 1}, as the "
            "environment gives it, or a batch of them; the program sees it as one-hot",
            hint="give it as the environment does: policy.act(observation)"
            if self.path
            else f"write policy.act({self.start})",
            loc=here(),
        )


def numbers_of(raw: Any) -> Array:
    """A part of an observation as an array; raises RecurraError if that has not only numbers."""
    given, why = _as_array(raw)
    kind = given.dtype.kind
    if kind in "fiub" or (kind == "O" and all(isinstance(x, Real) for x in given.flat)):
        return given
    if kind == "V" and given.dtype.names is None:  # bfloat16, of which NumPy has no kind
        return given
    raise RecurraError(
        f"an observation is {' '.join(reprlib.repr(raw).split())}, and has not only numbers",
        facts=why or "None, texts and complex numbers are none",
        hint="give it as the environment does: policy.act(observation)",
        loc=here(),
    )


def _as_array(raw: Any) -> tuple[Array, str]:
    """An array, of texts if there is none, and why; PyTorch's lose their history."""
    try:
        return np.asarray(raw.detach() if hasattr(raw, "detach") else raw), ""
    except (TypeError, ValueError) as error:  # such as rows of several lengths
        return np.empty(0, str), str(error)


class SavedPolicy:
    """Acts as the program did when it was saved; see the module.

    What a step hands on to the next, such as the state of an LSTM, is carried from call to call,
    for every row of a batch, until `reset()`.
    """

    def __init__(self, arrays: Mapping[str, Array], told: PolicyTold, seed: int = 0) -> None:
        keys = told["constants"]
        held = [ArrayResource(key, arrays[f"constant/{key}"]) for key in keys]
        self.graph = parse(told["graph"], held)
        self.env = told["env"]
        self.values = {k: x for k, x in arrays.items() if k in self.graph.nodes}
        self.actions = told["actions"]
        self.links = told["state"]  # input → what it is in the next step
        self.draws = told["draws"]
        self.random = np.random.default_rng(seed)
        names = sorted(told["seen"], key=lambda n: told["seen"][n])
        self.seen = {n: self._leaf(told["spaces"]["seen"][told["seen"][n]], n) for n in names}
        self.taken = [
            self._leaf(x, n) for x, n in zip(told["spaces"]["taken"], self.actions, strict=True)
        ]
        self.state: list[Array] | None = None
        self.rows: int | None = None
        self.begins = FIRST in self.graph.nodes
        self.functions: dict[tuple[int | None, bool], Callable[..., tuple[Array, ...]]] = {}

    def _leaf(self, x: PartTold, name: str) -> Leaf:
        shape, wanted = self._like(name)
        shape = () if x["classes"] is not None else shape
        path = tuple(x["path"])
        return Leaf(path, x["dtype"], x["start"], x["classes"], shape, wanted)

    def _like(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and type of an equation in one row."""
        type_ = self.graph[name].type
        assert isinstance(type_, Type)
        return type_.sizes({}), NUMPY_NAME[type_.dtype]

    @property
    def is_recurrent(self) -> bool:
        """Does a step read what earlier steps have left?"""
        return bool(self.links)

    def reset(self) -> None:
        """Forget what earlier steps have left: the next call begins an episode in every row."""
        self.state = None

    @np.errstate(all="ignore")  # 1 / 0 is inf, as in a program
    def act(self, obs: object, *, greedy: bool = False, begins: ArrayLike | None = None) -> Any:
        """The action for an observation, or for a batch of them along a first axis.

        It is drawn, or with `greedy` what is most likely. `begins` tells of each row of a recurrent
        policy that it begins an episode with this observation.
        """
        given = [leaf.show(obs) for leaf in self.seen.values()]
        rows = self._rows(given)
        act = self.functions.get((rows, greedy))
        if act is None:
            act = self.functions[rows, greedy] = self._compiled(rows, greedy)
        if self.begins or self.links:
            made = act(*given, *self._past(rows, begins))
            self.state = list(made[len(self.actions) :])
        else:
            made = act(*given)
        if self.is_plain:
            return made[0]
        return self._nested(made[: len(self.actions)])

    def _rows(self, given: Sequence[Array]) -> int | None:
        """The number of rows in the arrays of an observation; None: it is a single one."""
        found: set[int | None] = set()
        for x, leaf in zip(given, self.seen.values(), strict=True):
            shape = leaf.shape if leaf.classes is None else (leaf.classes,)
            lead = x.ndim - len(shape)
            if lead not in (0, 1) or x.shape[lead:] != shape:
                raise RecurraError(
                    f"{leaf.called} has the shape {list(x.shape)}",
                    facts=f"{self.env} shows {list(shape)}, in a batch [rows, ..]",
                    hint="give it as the environment does: policy.act(observation)",
                    loc=here(),
                )
            found.add(x.shape[0] if lead else None)
        (rows, *others) = found or {None}
        if others:
            raise RecurraError(
                "the parts of an observation differ in their rows",
                facts=f"they have {', '.join(str(n) for n in found)}",
                hint="give a batch in all of them, or in none",
                loc=here(),
            )
        return rows

    # ---- what goes on from step to step

    def _past(self, rows: int | None, begins: ArrayLike | None) -> list[Array]:
        lead = () if rows is None else (rows,)
        if self.state is None or rows != self.rows:
            if self.state is not None and begins is None:
                raise RecurraError(
                    f"a step of {rows or 'one'} rows follows one of {self.rows or 'one'}",
                    facts="what the policy remembers is of other rows",
                    hint="policy.reset() begins episodes in all rows",
                    loc=here(),
                )
            likes = [self._like(x) for x in self.links]
            self.state = [np.zeros((*lead, *shape), dtype) for shape, dtype in likes]
            self.rows, begins = rows, True
        begins = np.broadcast_to(np.asarray(bool(0) if begins is None else begins, bool), lead)
        return [*([begins] if self.begins else []), *self.state]

    # ---- the function

    def _compiled(self, rows: int | None, greedy: bool) -> Callable[..., tuple[Array, ...]]:
        text, scope = self.source(rows, greedy)
        names: dict[str, Any] = {"np": np, **scope}
        exec(compile(text, f"<policy of {self.env}>", "exec"), names)
        return names["act"]

    def source(
        self, rows: int | None = None, greedy: bool = False
    ) -> tuple[str, dict[str, object]]:
        """The function for so many rows (None: a single observation), and what it calls by name."""
        graph, lead = self.graph, () if rows is None else (rows,)
        if rows is not None:
            graph = self._batched()
        w = Writer()
        xp, env = Dots(w), {str(ROWS.hi): rows or 1}
        made: dict[str, Any] = {}
        takes: list[str] = []
        begins = [FIRST] if self.begins else []
        for name in (*self.seen, *begins, *self.links):
            shape, dtype = self._like(name)
            takes.append(w.named(name))
            made[name] = StandIn(w, takes[-1], blank((*lead, *shape), dtype))
        inputs = {x.name for x in made.values()}
        for n in topological([*graph.nodes.values()], lambda n: self._before(graph, n)):
            if n.name in made:
                continue
            args = [made[a.name] for a in n.args]
            if n.name in self.values:
                x = self.values[n.name]
                made[n.name] = StandIn(w, w.bound(x, w.named(n.name)), x)
            elif n.name in self.draws:
                made[n.name] = self._drawn(w, n.name, made, lead, greedy)
            else:
                made[n.name] = n.op.run(xp, env, *args)
        gives = [
            self._given(w, leaf, made[n]) for n, leaf in zip(self.actions, self.taken, strict=True)
        ]
        gives += [
            f"{x}.copy()" if x in inputs else x
            for x in (w.show(made[n]) for n in self.links.values())
        ]
        head = f"def act({', '.join(takes)}):"
        return text_of(head, w.items, tuple_of(gives)), w.scope

    def _before(self, graph: Graph, node: Node) -> list[Node]:
        params = self.draws[node.name]["params"] if node.name in self.draws else ()
        return [graph[x] for x in (*(a.name for a in node.args), *params)]

    def _batched(self) -> Graph:
        """The graph with rows as the first axis of all that varies with them."""
        cut, members = with_axis(self.graph, ROWS.dim, FEW)
        graph = vectorize(cut, ROWS.dim, members, FEW)
        left = [n for n in graph.nodes.values() if len(n.domain) and not isinstance(n.op, Input)]
        if left:
            raise RecurraError(
                f"the policy of {self.env} acts for one row at a time",
                facts=f"{left[0].name} cannot be computed for many at once",
                hint="call policy.act(observation) row by row",
                loc=here(),
            )
        return graph

    def _drawn(
        self,
        writer: Writer,
        name: str,
        made: Mapping[str, object],
        lead: tuple[int, ...],
        greedy: bool,
    ) -> StandIn:
        shape, dtype = self._like(name)
        kind, params = self.draws[name]["kind"], self.draws[name]["params"]
        draw = (MODES if greedy else SAMPLES)[kind](self.random, (*lead, *shape))
        operands = ", ".join(writer.show(made[p]) for p in params)
        text = f"{writer.bound(draw, writer.named(kind))}({operands})"
        return writer.assign(text, blank((*lead, *shape), dtype), moves=False)

    @property
    def is_plain(self) -> bool:
        """Is an action one array, not a dict or tuple of such?"""
        return len(self.taken) == 1 and not self.taken[0].path

    def _given(self, writer: Writer, leaf: Leaf, value: object) -> str:
        """An action as the environment takes it."""
        text = writer.show(value)
        if np.any(np.asarray(leaf.start) != 0):
            text = f"({text} + {writer.show(np.asarray(leaf.start))})"
        return (
            text
            if leaf.wanted == leaf.dtype
            else f"{text}.astype({writer.show(np.dtype(leaf.dtype))})"
        )

    def _nested(self, made: Sequence[Array]) -> object:
        """The arrays of an action as its space has them: tuples and dicts."""
        return nested([(leaf.path, x) for leaf, x in zip(self.taken, made, strict=True)])

    def __repr__(self) -> str:
        kind = "recurrent policy" if self.is_recurrent else "policy"
        count = sum(x.size for x in self.values.values())
        return f"{kind} of {self.env}, {count:,} parameters"


class Dots(NumpyNamespace):
    """NumPy for operators that are written down; products of matrices go to BLAS."""

    def einsum(self, labels: str, *xs: Any) -> Any:
        ins, _, out = labels.partition("->")
        for (a, x), (b, y) in permutations(zip(ins.split(","), xs, strict=True), 2):
            if len(xs) == 2 and len(b) <= 2 and a[-1:] == b[:1] and out == a[:-1] + b[1:]:
                return x.dot(y)
        return super().einsum(labels, *xs)


def nested(parts: Sequence[tuple[tuple[str | int, ...], object]]) -> object:
    """Arrays under the names and positions that lead to them."""
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    keys = list(dict.fromkeys(path[0] for path, _ in parts))
    inner = {k: nested([(p[1:], x) for p, x in parts if p[0] == k]) for k in keys}
    return tuple(inner.values()) if all(isinstance(k, int) for k in keys) else inner


# ---- distributions, by kind: (generator, shape of the draw) → draw(*parameters)

Draw = Callable[..., Array]


def _sample_class(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    """The largest of logits plus Gumbel noise is drawn as their softmax says."""
    gumbel = random.gumbel

    def draw(logits: Array) -> Array:
        return _largest(logits + gumbel(size=logits.shape))

    return draw


def _likely_class(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    return _largest


def _largest(logits: Array) -> Array:
    """The place of the largest; raises RecurraError if one is NaN, which NumPy takes for it."""
    place = logits.argmax(-1)
    if logits.ndim == 1:
        if logits[place] != logits[place]:
            raise _not_a_number(logits, DRAWN_FROM)
    else:
        _expect_numbers(logits)
    return place.astype(np.int32)


def _expect_numbers(array: Array) -> Array:
    """The array; raises RecurraError if it has a NaN."""
    if np.isnan(array).any():
        raise _not_a_number(array, DRAWN_FROM)
    return array


def _not_a_number(array: Array, what: str) -> RecurraError:
    """The error that names the first place of a NaN."""
    at = f" at {np.argwhere(np.isnan(array))[0].tolist()}" if array.ndim else ""
    return RecurraError(
        f"{what} is NaN{at}",
        facts="an observation, what the policy remembers, or its parameters are not finite",
        hint="act by what the environment shows: np.isfinite(observation).all()",
        loc=here(),
    )


def _sample_normal(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    normal = random.standard_normal

    def draw(mean: Array, log_std: Array) -> Array:
        return _expect_numbers(mean + np.exp(log_std) * normal(shape, np.float32))

    return draw


def _likely_normal(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    return lambda mean, _: np.broadcast_to(_expect_numbers(mean), shape)


def _sample_uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    return lambda: random.random(shape, np.float32)


def _no_mode(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    raise RecurraError(
        "this policy has no most likely action",
        facts="it draws numbers by rc.uniform or rc.normal, of no distribution",
        hint="leave greedy out, or write it with rc.nn.Categorical or rc.nn.Gaussian",
        loc=here(),
    )


SAMPLES = {"categorical": _sample_class, "gaussian": _sample_normal, "uniform": _sample_uniform}
MODES = {"categorical": _likely_class, "gaussian": _likely_normal, "uniform": _no_mode}
