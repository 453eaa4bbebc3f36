"""Record the operators' calls of torch as generated code.

Operators run on meta tensors (shapes, no numbers), and every call of torch is written down. Values
of constants alone are computed once; reads of stores and numbers are parameters of a kernel.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from recurra.backends.bounded_int import Count, bounded, range_of
from recurra.backends.torch.array_namespace import Tensor, threefry
from recurra.backends.torch.recorded_code import Bind, For, Item, StraightLineCode, Write, words
from recurra.cost.thresholds import MAX_WRITTEN_ELEMENTS
from recurra.support.source_text import FreeNames

TAKEN = {
    "torch", "attention", "widened", "threefry", "number", "foreign", "loop_end", "seed",
    *dir(builtins), *keyword.kwlist,
}  # fmt: skip
VIEWS = {"reshape", "broadcast_to", "permute", "unsqueeze", "__getitem__", "to", "einsum"}
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "mod": "%", "pow": "**", "rshift": ">>",
    "lshift": "<<", "and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=",
}  # fmt: skip


@dataclass(frozen=True)
class StoreRef:
    """A store of the region: its name, shape and type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def part(self, key: str) -> str:
        """The text of a part of it; of all of it, if the key is empty."""
        return f"{self.name}[{key}]" if key else self.name


@dataclass
class RecordedValue:
    """A tensor of the generated code, made by the kernel `home` inside `level` loops."""

    tensor: Tensor  # kept alive, so that its id stays unique
    name: str
    home: StraightLineCode | None
    level: int = 0
    constant: bool = False


@dataclass
class Recorder(TorchFunctionMode):
    """Writes code into `items` while operators run inside `with recorder:`."""

    device: str
    items: list[Item] = field(default_factory=list[Item])
    constants: dict[str, str] = field(default_factory=dict[str, str])  # text -> name
    scope: dict[str, Any] = field(default_factory=dict[str, Any])  # constants, and functions
    aliases: set[str] = field(default_factory=set[str])  # values that are views of a store
    shared: set[str] = field(default_factory=set[str])  # values that may be views of others

    def __post_init__(self) -> None:
        super().__init__()
        self.values: dict[int, RecordedValue] = {}
        self.block: StraightLineCode = StraightLineCode()
        self.before: list[StraightLineCode] = []  # of each loop around: its loop-invariant code
        self.levels: dict[str, int] = {}  # of clocks
        self.min_level = 0  # code is hoisted out of no loop up to this level
        self.calls: dict[tuple[str, ...], str] = {}  # of other libraries, so far
        self.pending: list[Write] = []
        self.written: set[str] = set()
        self.quiet = False
        names = FreeNames(TAKEN)
        self.fresh, self.named = names.fresh, names.named
        self.equations: set[str] = set()  # values that are named after their equations

    # ---- values

    def bind(
        self,
        tensor: Tensor,
        name: str,
        home: StraightLineCode | None,
        level: int,
        constant: bool = False,
    ) -> Any:
        self.values[id(tensor)] = RecordedValue(tensor, name, home, level, constant)
        return tensor

    @property
    def depth(self) -> int:
        return len(self.before)

    def kernel(self, level: int) -> StraightLineCode:
        """The kernel for code of a level: the open one, or one before loops it is invariant in."""
        return self.block if level >= self.depth else self.before[level]

    def meta(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        with self.silent():
            return torch.empty(tuple(shape), dtype=dtype, device="meta")

    @contextmanager
    def silent(self) -> Any:
        """Calls of torch inside are made, but not written down."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        home: StraightLineCode | None = None,
    ) -> Tensor:
        """A value of the innermost loop that `home` makes.

        Without a home, it is an argument of the region, carried, or assigned outside of kernels.
        """
        return self.bind(self.meta(shape, dtype), name, home, self.depth)

    def results(self, name: str, types: Any) -> tuple[Tensor, ...]:
        """The results of a host call, an argument of the region that is one tuple."""
        names = [self.named(f"{name}_{k}") for k in range(len(types))]
        self.items += [Bind(n, f"{name}[{k}]") for k, n in enumerate(names)]
        return tuple(
            self.parameter(n, shape, dtype) for n, (shape, dtype) in zip(names, types, strict=True)
        )

    def array(self, tensor: Tensor) -> Tensor:
        """A constant of the code."""
        name = self.fresh("data")
        self.scope[name] = tensor
        return self.bind(self.meta(tensor.shape, tensor.dtype), name, None, 0, constant=True)

    def use(self, tensor: Tensor, kernel: StraightLineCode) -> str:
        """The name of a tensor inside a kernel; a parameter if it is made elsewhere."""
        v = self.values[id(tensor)]
        if v.home is not kernel:
            kernel.takes[v.name] = None
        return v.name

    def name_of(self, tensor: Tensor) -> str:
        """The name of a tensor outside of kernels."""
        return self.values[id(tensor)].name

    def is_own(self, tensor: Tensor) -> bool:
        """Is a tensor the only one with its memory: no constant, and no view of another?"""
        v = self.values[id(tensor)]
        return v.home is not None and v.name not in self.shared and v.name not in self.aliases

    # ---- calls of torch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.quiet:
            return func(*args, **kwargs)
        on_meta = {**kwargs, "device": "meta"} if "device" in kwargs else kwargs
        result = func(*args, **on_meta)
        if isinstance(result, tuple) and result and all(isinstance(x, Tensor) for x in result):
            return self.record_tuple(func, args, kwargs, result)
        if not isinstance(result, Tensor) or id(result) in self.values:
            return result
        operands = [self.values[id(x)] for x in _tensors((args, kwargs))]
        if all(v.constant for v in operands) and result.numel() <= MAX_WRITTEN_ELEMENTS:
            text = self.text(func, args, kwargs, self.name_of)
            if text not in self.constants:
                self.constants[text] = self.fresh("c")
            return self.bind(result, self.constants[text], None, 0, constant=True)
        level = max(self.min_level, *(v.level for v in operands), 0)
        kernel = self.kernel(level)
        name = self.assign(kernel, self.text(func, args, kwargs, lambda x: self.use(x, kernel)))
        if func.__name__ in VIEWS:
            self.shared.add(name)
            if any(v.name in self.aliases for v in operands):
                self.aliases.add(name)
        return self.bind(result, name, kernel, level)

    def assign(self, kernel: StraightLineCode, text: str) -> str:
        """Append `name = text` to a kernel; return the name."""
        kernel.lines.append((name := self.fresh(), text))
        return name

    def record_tuple(self, func: Any, args: Any, kwargs: Any, results: tuple[Tensor, ...]) -> Any:
        """Record a call that returns several tensors."""
        operands = [self.values[id(x)] for x in _tensors((args, kwargs))]
        level = max(self.min_level, *(v.level for v in operands), 0)
        kernel = self.kernel(level)
        name = self.assign(kernel, self.text(func, args, kwargs, lambda x: self.use(x, kernel)))
        names = [self.fresh() for _ in results]
        kernel.lines += [(each, f"{name}[{k}]") for k, each in enumerate(names)]
        return tuple(
            self.bind(x, each, kernel, level) for x, each in zip(results, names, strict=True)
        )

    def text(self, func: Any, args: Any, kwargs: Mapping[str, Any], use: Any) -> str:
        """The call as an expression."""
        own = "" if func is threefry else "torch."
        path = resolve_name(func) or f"{own}{func.__name__}"
        short = path.rpartition(".")[2]
        texts = [_show(a, use) for a in args]
        bare = short.strip("_")
        if short.startswith("__r") and bare[1:] in OPERATORS and bare not in OPERATORS:
            return f"{texts[1]} {OPERATORS[bare[1:]]} {texts[0]}"
        if short.startswith("__") and bare in OPERATORS:
            return f"{texts[0]} {OPERATORS[bare]} {texts[1]}"
        if short == "__getitem__":
            return f"{texts[0]}[{_show(args[1], use).removeprefix('(').removesuffix(')')}]"
        named = [f"{k}={_show(v, use)}" for k, v in kwargs.items()]
        if path.startswith("torch.Tensor."):
            return f"{texts[0]}.{short}({', '.join([*texts[1:], *named])})"
        return f"{path}({', '.join([*texts, *named])})"

    # ---- reads, writes, numbers

    def view(self, store: StoreRef, key: str, shape: Sequence[int]) -> Tensor:
        """A read of a store, as it is when the open kernel starts."""
        if store.name in self.written:
            self.close()
        name = self.kernel_parameter(self.block, "v", store.part(key))
        self.aliases.add(name)
        return self.parameter(name, shape, store.dtype, self.block)

    def kernel_parameter(self, kernel: StraightLineCode, stem: str, text: str) -> str:
        """The parameter of a kernel whose argument is `text`."""
        known = {t: n for n, t in kernel.views.items()}
        name = known.get(text) or self.fresh(stem)
        kernel.views[name] = text
        return name

    def row(self, table: Tensor, count: Count) -> Tensor:
        """One row of a tensor that was made before the innermost loop."""
        v = self.values[id(table)]
        name = self.kernel_parameter(self.block, "r", f"{v.name}[{count}]")
        return self.parameter(name, table.shape[1:], table.dtype, self.block)

    def write(self, store: StoreRef, key: str, value: Tensor) -> None:
        self.pending.append(Write(store.part(key), self.name_of(value)))
        self.written.add(store.name)

    def choice(self, count: Count, left: Tensor, right: Tensor) -> Tensor | None:
        """One of two tensors by a counted condition; None if the open kernel makes one of them."""
        va, vb = self.values[id(left)], self.values[id(right)]
        alike = left.shape == right.shape and left.dtype == right.dtype
        if self.block in (va.home, vb.home) or not alike:
            return None
        name = self.kernel_parameter(self.block, "s", f"{va.name} if {count} else {vb.name}")
        return self.parameter(name, left.shape, left.dtype, self.block)

    def number(self, count: Count) -> Tensor:
        """A counted number as a tensor."""
        text = f"number({count}{', torch.bool' if count.truth else ''})"
        level = max(self.min_level, *(self.levels.get(w, 0) for w in words(text)))
        kernel = self.kernel(level)
        tensor = self.meta((), torch.bool if count.truth else torch.int32)
        return self.bind(tensor, self.kernel_parameter(kernel, "n", text), kernel, level)

    def call(
        self, function: str, operands: Sequence[Tensor], index: int, shape: Any, dtype: torch.dtype
    ) -> Tensor:
        """Result `index` of a function of another library, called once, outside of kernels."""
        text = f"{function}({', '.join(map(self.name_of, operands))})"
        known = (*self.levels, text)
        if known not in self.calls:
            self.close()
            self.calls[known] = self.fresh("y")
            self.items.append(Bind(self.calls[known], text))
        self.items.append(Bind(name := self.fresh("y"), f"{self.calls[known]}[{index}]"))
        return self.parameter(name, shape, dtype)

    def drawn(
        self, draws: Any, seed: Tensor, times: Sequence[Count], shape: Any, dtype: torch.dtype
    ) -> Tensor:
        """The result of a function of the seed and times, called before the open kernel."""
        function = self.fresh("draws")
        self.scope[function] = draws
        arguments = ", ".join([self.name_of(seed), *map(str, times)])
        self.items.append(Bind(name := self.fresh("u"), f"{function}({arguments})"))
        return self.parameter(name, shape, dtype)

    def line(
        self, function: str, literals: Sequence[Any], args: Sequence[Tensor], shape: Any, dtype: Any
    ) -> Tensor:
        """A call of a function of ours in the open kernel, with `literals` and tensors."""
        kernel = self.block
        texts = [
            self.kernel_parameter(kernel, "n", str(x)) if isinstance(x, Count) else repr(x)
            for x in literals
        ]
        texts += [self.use(x, kernel) for x in args]
        return self.parameter(
            self.assign(kernel, f"{function}({', '.join(texts)})"), shape, dtype, kernel
        )

    # ---- structure

    def rename(self, tensor: Any, equation: str) -> None:
        """Name a value after its equation, if the kernel's last line made it."""
        v = self.values.get(id(tensor))
        if v is None or v.home is None or not v.home.lines or v.name in self.equations:
            return
        old, text = v.home.lines[-1]
        if old != v.name:
            return
        name = self.named(equation)
        self.equations.add(name)
        v.home.lines[-1] = (name, text)
        for names in (self.aliases, self.shared):
            if old in names:
                names.add(name)
        v.name = name

    def close(self) -> None:
        """End the kernel; its writes follow it."""
        if self.block.lines or self.block.views:
            self.items.append(self.block)
        self.items += self.pending
        self.block, self.pending, self.written = StraightLineCode(), [], set()

    @contextmanager
    def loop(
        self,
        clock: str,
        lo: Any,
        hi: Any,
        starts: Iterable[tuple[str, Tensor]],
        perhaps: bool = False,
    ) -> Any:
        """Record into the body of a loop; nothing is hoisted out of one that runs `perhaps`."""
        self.close()
        trips = range_of(hi)[1] - range_of(lo)[0] if bounded(lo, hi) else 1
        opened = For(clock, str(lo), str(hi), [(n, self.name_of(x)) for n, x in starts], trips)
        self.before.append(StraightLineCode())
        self.levels[clock] = self.depth
        min_level, self.min_level = self.min_level, self.depth if perhaps else self.min_level
        around, self.items = self.items, opened.body
        around += [self.before[-1], opened]
        try:
            yield opened
        finally:
            self.close()
            self.items, self.min_level = around, min_level
            self.before.pop()
            del self.levels[clock]


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [t for y in tree for t in _tensors(y)]
    return [t for y in tree.values() for t in _tensors(y)] if isinstance(tree, dict) else []


def _show(value: Any, use: Any) -> str:
    if isinstance(value, Tensor):
        return use(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_show(y, use) for y in value)
        return f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, slice):
        ends = ["" if e is None else _show(e, use) for e in (value.start, value.stop)]
        return ":".join(ends) + ("" if value.step is None else f":{value.step}")
    if isinstance(value, float) and not isfinite(value):
        return "torch.nan" if value != value else f"{'-' if value < 0 else ''}torch.inf"
    return "..." if value is Ellipsis else repr(value)
