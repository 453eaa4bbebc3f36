"""Saved policies: load the policy of a run, and act in plain NumPy.

    policy = rc.rl.load("runs/x")
    action = policy.act(observation)

A policy is a graph of one step (`acting.py`), with its parameters in the run's folder. For each
number of rows it is compiled to one Python function that calls NumPy:

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

from recurra.backends.numpy.python_source_writer import Writer
from recurra.backends.numpy.source_blocks import text_of
from recurra.backends.numpy.source_machine import NumpyNamespace
from recurra.backends.numpy.traced_array import StandIn, zero_array
from recurra.compiler.options import expect_seed
from recurra.errors import RecurraError
from recurra.ir.graph import Graph, Node
from recurra.ir.graph_parser import parse
from recurra.ir.order import topological
from recurra.ir.types import NUMPY_NAME, Type
from recurra.ir.user_objects import ArrayResource
from recurra.ops.source import Input
from recurra.report.runs import POLICY
from recurra.rl.acting import FIRST, FORMAT, ROW, PolicyJson, SpacePartJson
from recurra.support import json_text, safetensors_file
from recurra.support.source_text import tuple_of
from recurra.transforms.vectorize.vectorize import vectorize, with_axis

Array = np.ndarray
(ROWS,) = ROW.ranges
DRAWN_FROM = "what an action is drawn from"
ANY_SIZES = {ROWS.dim.upper(): 2, str(ROWS.hi): 2}  # no size is left in the generated code


def load(path: str | Path, seed: int = 0) -> SavedPolicy:
    """Load the last saved policy of a run, by its folder; `seed` is the seed of its draws.

    Policies are saved with every checkpoint, and when the run ends. Raises RecurraError if there is
    none, or if acting could not be cut out of the program.
    """
    try:
        folder = Path(path)
    except TypeError:
        raise RecurraError.at_user_line(
            f"{path!r} is no folder of a run",
            facts="a folder is named by a string or a path",
            hint='rc.rl.load("runs/x")',
        ) from None
    expect_seed(seed)
    file = folder / POLICY if folder.is_dir() else folder
    if not file.exists():
        raise RecurraError.at_user_line(
            f"there is no policy at {path}",
            facts=f"{file} is written with the checkpoints of a run and at its end",
            hint="train with `recurra train`, program.run(folder=..) or module.checkpoint(folder)",
        )
    arrays, words = safetensors_file.read(file)
    if words.get("format") != FORMAT or not safetensors_file.is_whole(file):
        raise RecurraError.at_user_line(
            f"{file} is damaged, or no policy of this version",
            facts=f"its format is {words.get('format')!r}, to be {FORMAT!r}",
            hint="train again, or resume the run: it is written at the next checkpoint",
        )
    if "refused" in words:
        raise RecurraError.at_user_line(
            f"{file} holds no policy", facts=words["refused"], hint="act in the program"
        )
    return SavedPolicy(arrays, json_text.parse(words["told"]), seed)


@dataclass(frozen=True)
class Leaf:
    """One array of a space: its key path, its first value, and its number of classes."""

    path: tuple[str | int, ...]
    dtype: str
    start: Any
    classes: int | None
    shape: tuple[int, ...]  # of one row, in the environment
    program_dtype: str

    def show(self, raw: Any) -> Array:
        """Convert an observation to the program's."""
        for key in self.path:
            try:
                raw = raw[key]
            except (IndexError, KeyError, TypeError):
                at = "".join(f"[{k!r}]" for k in self.path)
                raise RecurraError.at_user_line(
                    f"the observation has no {at}",
                    facts=f"it is {raw!r}"
                    if np.ndim(raw) == 0
                    else f"it is a {type(raw).__name__}",
                    hint="give all parts, as the environment does: policy.act(observation)",
                ) from None
        if self.classes is not None:
            return np.eye(self.classes, dtype=np.float32)[self.index(raw, self.classes)]
        raw = numbers_of(raw)
        if self.start != 0:
            raw = raw - np.asarray(self.start)
        array = np.asarray(raw, self.program_dtype)
        if array.dtype.kind == "f":
            flat = array if array.ndim == 1 else array.ravel()
            if (length := flat.dot(flat)) != length:  # the sum of squares is NaN if one is
                raise _not_a_number(array, self.called)
        return array

    @property
    def called(self) -> str:
        """The name of this part of an observation."""
        return "the observation" + "".join(f"[{k!r}]" for k in self.path)

    def index(self, raw: Any, classes: int) -> Array:
        """The index of a class, from 0 on; raises RecurraError for other values."""
        array, _ = _as_array(raw)
        if array.dtype.kind in "iu":
            index = array - self.start
            if not ((index < 0) | (index >= classes)).any():
                return index
        raise RecurraError.at_user_line(
            f"{raw!r} is no observation of this policy",
            facts=f"it is a whole number from {self.start} to {self.start + classes - 1}, as the "
            "environment gives it, or a batch of them; the program sees it as one-hot",
            hint="give it as the environment does: policy.act(observation)"
            if self.path
            else f"write policy.act({self.start})",
        )


def numbers_of(raw: Any) -> Array:
    """A part of an observation as an array; raises RecurraError if it has other than numbers."""
    array, why = _as_array(raw)
    kind = array.dtype.kind
    if kind in "fiub" or (kind == "O" and all(isinstance(x, Real) for x in array.flat)):
        return array
    if kind == "V" and array.dtype.names is None:  # bfloat16, for which NumPy has no kind
        return array
    raise RecurraError.at_user_line(
        f"an observation is {' '.join(reprlib.repr(raw).split())}, and has not only numbers",
        facts=why or "None, texts and complex numbers are none",
        hint="give it as the environment does: policy.act(observation)",
    )


def _as_array(raw: Any) -> tuple[Array, str]:
    """Convert to an array, detaching PyTorch's; an empty array of text, and why, if impossible."""
    try:
        return np.asarray(raw.detach() if hasattr(raw, "detach") else raw), ""
    except (TypeError, ValueError) as error:  # such as rows of several lengths
        return np.empty(0, str), str(error)


class SavedPolicy:
    """A policy that acts as the program did when it was saved; see the module.

    State from step to step, such as that of an LSTM, is kept from call to call, for every row of
    a batch, until `reset()`.
    """

    def __init__(self, arrays: Mapping[str, Array], data: PolicyJson, seed: int = 0) -> None:
        constants = [ArrayResource(key, arrays[f"constant/{key}"]) for key in data["constants"]]
        self.graph = parse(data["graph"], constants)
        self.env = data["env"]
        self.values = {k: x for k, x in arrays.items() if k in self.graph.nodes}
        self.actions = data["actions"]
        self.links = data["state"]  # input → its value in the next step
        self.draws = data["draws"]
        self.random = np.random.default_rng(seed)
        observed, spaces = data["seen"], data["spaces"]
        names = sorted(observed, key=lambda n: observed[n])
        self.inputs = {n: self._leaf(spaces["seen"][observed[n]], n) for n in names}
        self.outputs = [
            self._leaf(x, n) for x, n in zip(spaces["taken"], self.actions, strict=True)
        ]
        self.state: list[Array] | None = None
        self.rows: int | None = None
        self.begins = FIRST in self.graph.nodes
        self.functions: dict[tuple[int | None, bool], Callable[..., tuple[Array, ...]]] = {}

    def _leaf(self, x: SpacePartJson, name: str) -> Leaf:
        shape, dtype = self._like(name)
        shape = () if x["classes"] is not None else shape
        return Leaf(tuple(x["path"]), x["dtype"], x["start"], x["classes"], shape, dtype)

    def _like(self, name: str) -> tuple[tuple[int, ...], str]:
        """The shape and type of an equation in one row."""
        type_ = self.graph[name].type
        assert isinstance(type_, Type)
        return type_.sizes({}), NUMPY_NAME[type_.dtype]

    @property
    def is_recurrent(self) -> bool:
        """Tell whether a step reads state of earlier steps."""
        return bool(self.links)

    def reset(self) -> None:
        """Forget the state of earlier steps: the next call begins an episode in every row."""
        self.state = None

    @np.errstate(all="ignore")  # 1 / 0 is inf, as in a program
    def act(self, obs: object, *, greedy: bool = False, begins: ArrayLike | None = None) -> Any:
        """The action for an observation, or for a batch of them along a first axis.

        It is drawn or, if `greedy`, the most likely one. `begins` says for each row of a recurrent
        policy whether it begins an episode with this observation.
        """
        arrays = [leaf.show(obs) for leaf in self.inputs.values()]
        rows = self._rows(arrays)
        act = self.functions.get((rows, greedy))
        if act is None:
            act = self.functions[rows, greedy] = self._compiled(rows, greedy)
        if self.begins or self.links:
            results = act(*arrays, *self._past(rows, begins))
            self.state = list(results[len(self.actions) :])
        else:
            results = act(*arrays)
        if self.is_plain:
            return results[0]
        paths = [leaf.path for leaf in self.outputs]
        return nested(list(zip(paths, results[: len(self.actions)], strict=True)))

    def _rows(self, arrays: Sequence[Array]) -> int | None:
        """The number of rows in the arrays of an observation; None for a single one."""
        counts: set[int | None] = set()
        for x, leaf in zip(arrays, self.inputs.values(), strict=True):
            shape = leaf.shape if leaf.classes is None else (leaf.classes,)
            lead = x.ndim - len(shape)
            if lead not in (0, 1) or x.shape[lead:] != shape:
                raise RecurraError.at_user_line(
                    f"{leaf.called} has the shape {list(x.shape)}",
                    facts=f"{self.env} shows {list(shape)}, in a batch [rows, ..]",
                    hint="give it as the environment does: policy.act(observation)",
                )
            counts.add(x.shape[0] if lead else None)
        (rows, *others) = counts or {None}
        if others:
            raise RecurraError.at_user_line(
                "the parts of an observation differ in their rows",
                facts=f"they have {', '.join(str(n) for n in counts)}",
                hint="give a batch in all of them, or in none",
            )
        return rows

    # ---- state

    def _past(self, rows: int | None, begins: ArrayLike | None) -> list[Array]:
        lead = () if rows is None else (rows,)
        if self.state is None or rows != self.rows:
            if self.state is not None and begins is None:
                raise RecurraError.at_user_line(
                    f"a step of {rows or 'one'} rows follows one of {self.rows or 'one'}",
                    facts="what the policy remembers is of other rows",
                    hint="policy.reset() begins episodes in all rows",
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
        """The function for a number of rows (None: a single observation), and its global names."""
        graph, lead = self.graph, () if rows is None else (rows,)
        if rows is not None:
            graph = self._batched()
        w = Writer()
        xp, env = Dots(w), {str(ROWS.hi): rows or 1}
        values: dict[str, Any] = {}
        params: list[str] = []
        begins = [FIRST] if self.begins else []
        for name in (*self.inputs, *begins, *self.links):
            shape, dtype = self._like(name)
            params.append(w.named(name))
            values[name] = StandIn(w, params[-1], zero_array((*lead, *shape), dtype))
        inputs = {x.name for x in values.values()}
        for n in topological([*graph.nodes.values()], lambda n: self._before(graph, n)):
            if n.name in values:
                continue
            args = [values[a.name] for a in n.args]
            if n.name in self.values:
                x = self.values[n.name]
                values[n.name] = StandIn(w, w.bound(x, w.named(n.name)), x)
            elif n.name in self.draws:
                values[n.name] = self._draw(w, n.name, values, lead, greedy)
            else:
                values[n.name] = n.op.run(xp, env, *args)
        pairs = zip(self.actions, self.outputs, strict=True)
        results = [self._action(w, leaf, values[n]) for n, leaf in pairs]
        state = (w.show(values[n]) for n in self.links.values())
        results += [f"{x}.copy()" if x in inputs else x for x in state]
        head = f"def act({', '.join(params)}):"
        return text_of(head, w.items, tuple_of(results)), w.scope

    def _before(self, graph: Graph, node: Node) -> list[Node]:
        params = self.draws[node.name]["params"] if node.name in self.draws else ()
        return [graph[x] for x in (*(a.name for a in node.args), *params)]

    def _batched(self) -> Graph:
        """The graph with rows as the first axis of everything that varies with them."""
        cut, members = with_axis(self.graph, ROWS.dim, ANY_SIZES)
        graph = vectorize(cut, ROWS.dim, members, ANY_SIZES)
        left = [n for n in graph.nodes.values() if len(n.domain) and not isinstance(n.op, Input)]
        if left:
            raise RecurraError.at_user_line(
                f"the policy of {self.env} acts for one row at a time",
                facts=f"{left[0].name} cannot be computed for many at once",
                hint="call policy.act(observation) row by row",
            )
        return graph

    def _draw(
        self,
        writer: Writer,
        name: str,
        values: Mapping[str, object],
        lead: tuple[int, ...],
        greedy: bool,
    ) -> StandIn:
        shape, dtype = self._like(name)
        kind, params = self.draws[name]["kind"], self.draws[name]["params"]
        draw = (MODES if greedy else SAMPLES)[kind](self.random, (*lead, *shape))
        operands = ", ".join(writer.show(values[p]) for p in params)
        text = f"{writer.bound(draw, writer.named(kind))}({operands})"
        return writer.assign(text, zero_array((*lead, *shape), dtype), moves=False)

    @property
    def is_plain(self) -> bool:
        """Tell whether an action is one array, not a dict or tuple."""
        return len(self.outputs) == 1 and not self.outputs[0].path

    def _action(self, writer: Writer, leaf: Leaf, value: object) -> str:
        """The code of an action in the environment's form."""
        text = writer.show(value)
        if np.any(np.asarray(leaf.start) != 0):
            text = f"({text} + {writer.show(np.asarray(leaf.start))})"
        if leaf.program_dtype == leaf.dtype:
            return text
        return f"{text}.astype({writer.show(np.dtype(leaf.dtype))})"

    def __repr__(self) -> str:
        kind = "recurrent policy" if self.is_recurrent else "policy"
        count = sum(x.size for x in self.values.values())
        return f"{kind} of {self.env}, {count:,} parameters"


class Dots(NumpyNamespace):
    """NumPy for generated code, in which products of matrices are calls of BLAS."""

    def einsum(self, labels: str, *xs: Any) -> Any:
        ins, _, out = labels.partition("->")
        for (a, x), (b, y) in permutations(zip(ins.split(","), xs, strict=True), 2):
            if len(xs) == 2 and len(b) <= 2 and a[-1:] == b[:1] and out == a[:-1] + b[1:]:
                return x.dot(y)
        return super().einsum(labels, *xs)


def nested(parts: Sequence[tuple[tuple[str | int, ...], object]]) -> object:
    """Nest arrays in dicts and tuples by their key paths."""
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    keys = list(dict.fromkeys(path[0] for path, _ in parts))
    inner = {k: nested([(p[1:], x) for p, x in parts if p[0] == k]) for k in keys}
    return tuple(inner.values()) if all(isinstance(k, int) for k in keys) else inner


# ---- distributions, by kind: (generator, shape of the draw) → draw(*parameters)

Draw = Callable[..., Array]


def _sample_class(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    """Draw by the softmax of logits: the largest of them plus Gumbel noise."""
    gumbel = random.gumbel

    def draw(logits: Array) -> Array:
        return _largest(logits + gumbel(size=logits.shape))

    return draw


def _likely_class(random: np.random.Generator, shape: tuple[int, ...]) -> Draw:
    return _largest


def _largest(logits: Array) -> Array:
    """The position of the largest; raises RecurraError for NaN, which NumPy takes as largest."""
    place = logits.argmax(-1)
    if logits.ndim == 1:
        if logits[place] != logits[place]:
            raise _not_a_number(logits, DRAWN_FROM)
    else:
        _expect_numbers(logits)
    return place.astype(np.int32)


def _expect_numbers(array: Array) -> Array:
    """Return the array; raise RecurraError if it has a NaN."""
    if np.isnan(array).any():
        raise _not_a_number(array, DRAWN_FROM)
    return array


def _not_a_number(array: Array, what: str) -> RecurraError:
    """The error with the position of the first NaN."""
    at = f" at {np.argwhere(np.isnan(array))[0].tolist()}" if array.ndim else ""
    return RecurraError.at_user_line(
        f"{what} is NaN{at}",
        facts="an observation, what the policy remembers, or its parameters are not finite",
        hint="act by what the environment shows: np.isfinite(observation).all()",
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
    raise RecurraError.at_user_line(
        "this policy has no most likely action",
        facts="it draws numbers by rc.uniform or rc.normal, of no distribution",
        hint="leave greedy out, or write it with rc.nn.Categorical or rc.nn.Gaussian",
    )


SAMPLES = {"categorical": _sample_class, "gaussian": _sample_normal, "uniform": _sample_uniform}
MODES = {"categorical": _likely_class, "gaussian": _likely_normal, "uniform": _no_mode}
