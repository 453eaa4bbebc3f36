"""PyTorch without annotations: operators inside a block run side by side where memory lets them.

    with torch.no_grad(), recurra.window.concurrent(threads=2):
        y = model(x)

Every ATen operator that the thread calls is intercepted natively. The first time that a signature
is seen (operator, shapes, strides, types, scalars) it runs at once, and the shape of its result is
learned; from then on its result is returned before it is computed. Views and shapes are never
waited for; values are: by `.item()`, `.numpy()`, printing and whatever else reads them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch._ops import HigherOrderOperator
from torch.utils import dlpack

from recurra.fragments import table_html
from recurra.window.faults import KernelError
from recurra.window.learning import check_policy
from recurra.window.native.build import TORCH
from recurra.window.native.twin import load
from recurra.window.task import WindowError
from recurra.window.torch.eager import not_compiled
from recurra.window.torch.sites import Site, site_of

# What looks at a tensor's memory without the dispatcher, ..
LOOKS = ("tolist", "apply_", "map_", "map2_", "__reduce_ex__")
# .. and what gives it away.
GIVES = (
    "numpy",
    "__array__",
    "data_ptr",
    "untyped_storage",
    "_typed_storage",
    "storage",
    "storage_type",
    "__dlpack__",
    "share_memory_",
    "pin_memory",
)
READERS = (*LOOKS, *GIVES)
_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]
DOORS: tuple[tuple[Any, str], ...] = (  # functions that give memory away
    (dlpack, "to_dlpack"),
    (torch, "to_dlpack"),
    *((_C, name) for name in ("_to_dlpack", "_to_dlpack_versioned") if hasattr(_C, name)),
)
# What operators look at when they run is set by these, whatever the public name, ..
SETTINGS = (
    "_set_cpu_allow_fp16_reduced_precision_reduction",
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_math_sdp_allow_fp16_bf16_reduction",
    "_set_mkldnn_deterministic",
    "_set_mkldnn_enabled",
    "_set_nnpack_enabled",
    "_set_onednn_allow_tf32",
    "_set_qengine",
)
SETTERS: tuple[tuple[Any, str], ...] = (  # .. but for these
    (torch, "set_num_threads"),
    (torch.backends.ContextProp, "__set__"),
    *((_C, name) for name in SETTINGS if hasattr(_C, name)),
)
PROFILERS = (("_enable_profiler", True), ("_disable_profiler", False))  # of autograd.profiler
TINY_US = 5.0  # an operator that takes less is run by the caller, if nothing holds it up

_lock = threading.Lock()  # of the block that is open
_native: list[Any] = []  # the module, while a block is open


@dataclass(frozen=True)
class Fate:
    """What became of an operator's calls for one reason, and what of its caller's time that took.

    `what` is deferred, at once (without waiting for what is in flight), or caller (after that).
    """

    operator: str
    what: str
    why: str
    calls: int
    us: float


@dataclass(frozen=True)
class Block:
    """What a block did: how many operators were deferred, run at once, alone, ..

    One with explain=True tells of each operator, too, most of the caller's time first.
    """

    counts: dict[str, float] = field(default_factory=dict[str, float])
    fates: list[Fate] = field(default_factory=list[Fate])

    def __str__(self) -> str:
        counts = "\n".join(f"{k}: {v:g}" for k, v in self.counts.items())
        if not self.fates:
            return counts
        width = max(len(f.operator) for f in self.fates)
        lines = [f"{'operator':<{width}}  {'what':<8}  {'calls':>6}  {'ms':>8}  why"]
        for f in self.fates:
            row = f"{f.operator:<{width}}  {f.what:<8}  {f.calls:>6}  {f.us / 1000:>8.2f}  {f.why}"
            lines.append(row)
        return "\n".join([counts, "", *lines])

    def _repr_html_(self) -> str:
        return table_html([{"operators": k, "count": v} for k, v in self.counts.items()])


class Concurrent(ContextDecorator):
    """A block to come: see `concurrent`."""

    def __init__(self, site: Site, options: tuple[int, int, bool, Path | None, bool]):
        self._site, self._options = site, options
        self._open: AbstractContextManager[Block] | None = None

    def _recreate_cm(self) -> Concurrent:
        return Concurrent(self._site, self._options)

    def __enter__(self) -> Block:
        learn, explain = self._options[2], self._options[4]
        if learn and not explain and self._site.rests() and not torch.is_grad_enabled():
            return Block(dict(self._site.counts))
        self._open = _block(self._site, *self._options)
        return self._open.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        block, self._open = self._open, None
        return None if block is None else block.__exit__(*raised)


def concurrent(
    threads: int = 2,
    slots: int = 32,
    *,
    policy: Literal["learn", "always"] = "learn",
    folder: Path | None = None,
    explain: bool = False,
) -> Concurrent:
    """Operators of this thread run on `threads` threads, itself included, until the block ends.

    Results are equal to the last bit. Gradients must be off at the beginning: use torch.no_grad()
    or inference_mode(); operators that need one nevertheless, under torch.enable_grad(), run in the
    caller, with their history. `policy` "learn" runs operators of few µs at once, and the window is
    off while it would gain less than a tenth; "always" defers whatever can be. A block that begins
    while one is open is part of it, on the same thread, or nothing, on another, whose operators
    wait for what is in flight. How many threads one operator uses itself is left to
    torch.set_num_threads: 1 is best here, but may change last bits against more. With `explain`,
    `print(block)` says of every operator what became of its calls, why, and what that cost.

    Raises WindowError for other policies, with gradients on, or without the native part. An
    operator that fails raises what it would have raised, where its result is first needed, and
    KernelError of that type, too, at the end, if nobody has read it.
    """
    check_policy(policy, ("learn", "always"))
    site = site_of(sys._getframe(1), threads, slots)  # pyright: ignore[reportPrivateUsage]
    return Concurrent(site, (threads, slots, policy == "learn", folder, explain))


@contextmanager
def _block(
    site: Site, threads: int, slots: int, learn: bool, folder: Path | None, explain: bool
) -> Generator[Block]:
    module = check(threads, slots, folder)
    if torch.is_grad_enabled():
        raise WindowError(
            "gradients are on inside window.concurrent()",
            facts="results that come later have no history",
            hint="with torch.no_grad(), window.concurrent(): ..., or to train: "
            "torch.compile(model, backend=window.backend())",
        )
    if not _lock.acquire(blocking=False):
        yield Block({"in a block that was open": 1})
        return
    block = Block()
    with ExitStack() as undo:
        undo.callback(_lock.release)
        undo.enter_context(_readers_wait(module))
        undo.enter_context(_settings_wait(module))
        undo.enter_context(_profilers_see(module))
        undo.enter_context(_higher_order_waits(module))
        undo.enter_context(not_compiled())
        module.replaced(implemented_in_python())
        module.begin(threads, slots, learn, TINY_US, explain)
        _native.append(module)
        module.enter()
        undo.callback(_leave, module)
        yield block
        module.drain()
        module.account()
        block.counts.update(module.counts())
        block.fates.extend(sorted((Fate(*told) for told in module.fates()), key=lambda f: -f.us))
        if learn:
            site.ended(block.counts)
        with _told():
            module.finish()


@contextmanager
def _told() -> Generator[None]:
    """What operators have raised is a KernelError, too."""
    try:
        yield
    except Exception as error:
        kind = type("KernelError", (KernelError, type(error)), {})
        raise kind(str(error)) from error


def implemented_in_python() -> list[str]:
    """PyTorch's own operators for which somebody has registered a kernel of theirs."""
    registered: set[str] = torch.library._impls  # pyright: ignore[reportPrivateUsage]
    found = (key.split("/") for key in registered if not key.endswith("/Meta"))
    return [f"aten::{name}" for space, name, _ in found if space == "aten"]


def check(threads: int, slots: int, folder: Path | None) -> Any:
    """The native part. Raises WindowError for numbers that cannot be, BuildError without it."""
    if not 1 <= slots <= 64 or threads < 1:
        raise WindowError(
            f"{threads} threads and {slots} slots", facts="there is a thread, and 1 to 64 slots"
        )
    return load(folder, TORCH)


@contextmanager
def without_gradients(
    threads: int, slots: int, *, policy: Literal["learn", "always"], explain: bool = False
) -> Generator[Block]:
    """`concurrent`, with gradients off."""
    with torch.no_grad(), concurrent(threads, slots, policy=policy, explain=explain) as block:
        yield block


def _leave(module: Any) -> None:
    module.leave()
    if _native:
        module.end()
        _native.clear()


@contextmanager
def _readers_wait(module: Any) -> Generator[None]:
    """Inside, whatever touches memory without the dispatcher waits for it to be computed."""
    kind = torch.Tensor
    own = {name: kind.__dict__.get(name) for name in (*READERS, "data")}
    for name in READERS:
        setattr(kind, name, _waiting(getattr(kind, name), module, gives=name in GIVES))
    data: Any = kind.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        module.drain()
        data.__set__(tensor, value)

    setattr(kind, "data", property(data.__get__, set_data))  # noqa: B010
    given = [(owner, name, getattr(owner, name)) for owner, name in DOORS]
    for owner, name, door in given:
        setattr(owner, name, _waiting(door, module, gives=True))
    try:
        yield
    finally:
        for owner, name, door in given:
            setattr(owner, name, door)
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _waiting(method: Callable[..., Any], module: Any, *, gives: bool) -> Callable[..., Any]:
    """Waits first. If it `gives` memory away, that may be looked at from now on, or changed."""

    def wait(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        module.drain()
        if isinstance(tensor, torch.Tensor):
            with _told():
                module.look(tensor, gives)
        return method(tensor, *args, **kwargs)

    return wait


@contextmanager
def _settings_wait(module: Any) -> Generator[None]:
    """Inside, what was called before a setting is changed runs before."""
    own = [(owner, name, getattr(owner, name)) for owner, name in SETTERS]
    for owner, name, change in own:
        setattr(owner, name, _changing(change, module))
    try:
        yield
    finally:
        for owner, name, change in own:
            setattr(owner, name, change)


def _changing(change: Callable[..., Any], module: Any) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        module.drain()
        try:
            return change(*args, **kwargs)
        finally:
            module.change()

    return wait


@contextmanager
def _profilers_see(module: Any) -> Generator[None]:
    """Profilers that begin inside see every call, and not what was called before."""
    owner: Any = torch.autograd.profiler
    own = [(name, getattr(owner, name), begins) for name, begins in PROFILERS]

    def told(change: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            module.drain()
            module.listen(begins)
            return change(*args, **kwargs)

        return call

    for name, change, begins in own:
        setattr(owner, name, told(change, begins))
    try:
        yield
    finally:
        for name, change, _ in own:
            setattr(owner, name, change)


@contextmanager
def _higher_order_waits(module: Any) -> Generator[None]:
    """Inside, operators of operators wait for what is in flight, and run in the caller."""
    kind: Any = HigherOrderOperator
    own = kind.__call__

    def call(*args: Any, **kwargs: Any) -> Any:
        with _alone(module):
            return own(*args, **kwargs)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = own


@contextmanager
def _alone(module: Any) -> Generator[None]:
    """Everything before ends first; operators of this thread are not seen."""
    module.drain()
    seen = module.see(False)
    try:
        yield
    finally:
        module.see(seen)


def _before_fork() -> None:
    for module in _native:
        module.drain()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # whoever held it may not be here
    module = sys.modules.get(TORCH.name)
    if module is not None:
        module.forked()
    _native.clear()


atexit.register(_before_fork)  # a thread that ends with the process may be inside a block
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
