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
import types
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch, dlpack

from recurra.window.failures import KernelError
from recurra.window.gain_model import check_policy
from recurra.window.launch import ThreadSpan
from recurra.window.native.build import TORCH
from recurra.window.native.native_window import load
from recurra.window.python_window import LARGEST
from recurra.window.task import MOST_THREADS, WindowError, is_count
from recurra.window.torch.block import Block, Fate
from recurra.window.torch.call_sites import Site, site_of
from recurra.window.torch.eager import not_compiled
from recurra.window.torch.processes import Named, senders, starters

# What looks at a tensor's memory without the dispatcher (storages that NumPy sees say so: they
# cannot be resized any more), ..
LOOKS = ("tolist", "apply_", "map_", "map2_", "numpy")
# .. and what gives it away. Other ways, such as share_memory_() or pickle, come here.
GIVES = ("data_ptr", "untyped_storage", "pin_memory")
READERS = (*LOOKS, *GIVES)
HOLDERS = "_use_count"  # counts who holds a tensor, as what is in flight does
_C: ModuleType = torch._C  # pyright: ignore[reportPrivateUsage]
Replacement = tuple[object, str, Callable[[Any], object]]  # of an attribute, by a function of it
DOORS: tuple[tuple[object, str], ...] = (  # functions that give memory away
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
SETTERS: tuple[tuple[object, str], ...] = (  # .. but for these
    (torch, "set_num_threads"),
    (torch.backends.ContextProp, "__set__"),
    *((_C, name) for name in SETTINGS if hasattr(_C, name)),
)
# C++ that calls operators and looks at the memory of their results itself.
LOOKS_BETWEEN: tuple[tuple[object, str], ...] = tuple(
    (torch.distributed, name)
    for name in ("_verify_params_across_processes",)
    if hasattr(torch.distributed, name)
)
REGISTRATIONS = (
    "impl",
    "_impl_with_aoti_compile",
)  # of torch.library.Library: of a kernel in Python
PROFILERS = (("_enable_profiler", True), ("_disable_profiler", False))  # of autograd.profiler
TINY_US = 5.0  # an operator that takes less is run by the caller, if nothing holds it up

_open: dict[str, Block] = {}  # the block that is open
_native: list[ModuleType] = []  # the module, while a block is open
_registered: set[str] = set()  # the kernels in Python that the module was told of


@dataclass(frozen=True)
class Options:
    """The options of a block: see `concurrent`."""

    threads: int
    slots: int
    learn: bool
    folder: Path | None
    explain: bool
    check: bool


class Concurrent(ContextDecorator):
    """A block to come: see `concurrent`."""

    def __init__(self, site: Site, options: Options):
        self._site, self._options = site, options
        self._open: AbstractContextManager[Block] | None = None

    def _recreate_cm(self) -> Concurrent:
        return Concurrent(self._site, self._options)

    def __enter__(self) -> Block:
        may_rest = self._options.learn and not self._options.explain
        if may_rest and self._site.rests() and not torch.is_grad_enabled():
            return Block(dict(self._site.counts))
        self._open = _block(self._site, self._options)
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
    check: bool = False,
) -> Concurrent:
    """Operators of this thread run on `threads` threads, itself included, until the block ends.

    Results are equal to the last bit. Gradients must be off at the beginning: use torch.no_grad()
    or inference_mode(); operators that need one nevertheless, under torch.enable_grad(), run in the
    caller, with their history. `policy` "learn" runs operators of few µs at once, and the window is
    off while it would gain less than a tenth; "always" defers whatever can be. A block that begins
    while one is open is part of it, on the same thread, or nothing, on another, whose operators
    wait for what is in flight. How many threads one operator uses itself is left to
    torch.set_num_threads: 1 is best here, but may change last bits against more. With `explain`,
    `print(block)` says of every operator what became of its calls, why, and what that cost, and
    `block.save_timeline("block.html")` shows what ran when, in which thread. With `check`, every
    operator that can be deferred is, and runs in eager mode, too, when it is called: one whose
    results are not the same, to the last bit, fails, and says which line called it.

    Raises WindowError for other policies, with gradients on, or without the native part. An
    operator that fails raises what it would have raised, where its result is first needed, and
    KernelError of that type, too, at the end, if nobody has read it.
    """
    check_policy(policy, ("learn", "always"))
    site = site_of(sys._getframe(1), threads, slots)  # pyright: ignore[reportPrivateUsage]
    learn = policy == "learn" and not check
    return Concurrent(site, Options(threads, slots, learn, folder, explain, check))


@contextmanager
def _block(site: Site, options: Options) -> Generator[Block]:
    if torch.is_grad_enabled():
        raise WindowError(
            "gradients are on inside window.concurrent()",
            facts="results that come later have no history",
            hint="with torch.no_grad(), window.concurrent(): ..., or to train: "
            "torch.compile(model, backend=window.backend())",
        )
    module = load_native(options.threads, options.slots, options.folder)
    block = Block(until_now=lambda: module.counts() if _open.get("block") is block else {})
    try:
        if _open.setdefault("block", block) is not block:
            yield Block({"in a block that was open": 1})
            return
        with _replaced(module), not_compiled(module.put), _entered(module, options):
            try:
                yield block
            except Exception as error:
                _note_what_failed(module, error)
                raise
            module.drain()
            module.account()
            block.ended.update(module.counts())
            fates = (Fate(*told) for told in module.fates())
            block.fates.extend(sorted(fates, key=lambda f: -f.us))
            block.spans.extend(ThreadSpan(*told) for told in module.ran())
            if options.learn:
                site.ended(block.counts)
            with _as_kernel_errors():
                module.finish()
    finally:
        if "block" in _open and _open["block"] is block:
            _open.clear()


# Ctrl-C comes where a function begins or has ended, or a loop goes on. What must be undone is
# undone by one call of C, in a `finally` that holds from before the first change.
@contextmanager
def _entered(module: ModuleType, options: Options) -> Generator[None]:
    """Inside, operators of this thread go through the window."""
    try:
        _tell_of_kernels_in_python(module)
        module.begin(
            options.threads, options.slots, options.learn, TINY_US, options.explain, options.check
        )
        _native.append(module)
        module.enter()
        yield
    finally:
        module.leave()
        _native.clear()


def _note_what_failed(module: ModuleType, error: Exception) -> None:
    """An error by which a block is left says which operator failed before, if nobody read it."""
    module.drain()
    try:
        module.finish()
    except Exception as earlier:
        error.add_note(f"before that, and read by nobody: {type(earlier).__name__}: {earlier}")


@contextmanager
def _as_kernel_errors() -> Generator[None]:
    """Raise errors of operators as KernelErrors, too."""
    try:
        yield
    except Exception as error:
        kind = type("KernelError", (KernelError, type(error)), {})
        raise kind(str(error)) from error


def _tell_of_kernels_in_python(module: ModuleType) -> None:
    """Tell which of PyTorch's own operators have a kernel that somebody registered in Python."""
    registered: set[str] = torch.library._impls  # pyright: ignore[reportPrivateUsage]
    if registered == _registered:
        return
    found = (key.split("/") for key in registered if not key.endswith("/Meta"))
    module.replaced([f"aten::{name}" for space, name, _ in found if space == "aten"])
    _registered.clear()
    _registered.update(registered)


def load_native(threads: int, slots: int, folder: Path | None) -> ModuleType:
    """Load the native part.

    Raises WindowError for numbers that cannot be, BuildError where it cannot be built.
    """
    if not (is_count(slots, LARGEST) and is_count(threads, MOST_THREADS)):
        raise WindowError(
            f"{threads!r} threads and {slots!r} slots",
            facts=f"there are 1 to {MOST_THREADS} threads, the caller's own too, and 1 to {LARGEST}"
            " slots",
            hint="threads=2, slots=32",
        )
    return load(folder, TORCH)


@contextmanager
def without_gradients(
    threads: int,
    slots: int,
    *,
    policy: Literal["learn", "always"],
    explain: bool = False,
    check: bool = False,
) -> Generator[Block]:
    """`concurrent`, with gradients off."""
    block = concurrent(threads, slots, policy=policy, explain=explain, check=check)
    with torch.no_grad(), block as counted:
        yield counted


@contextmanager
def _replaced(module: ModuleType) -> Generator[None]:
    """Inside, what PyTorch does without operators goes by us: its functions in C, whoever looked
    them up before, and attributes. One that a class inherits is inherited again at the end."""
    before: list[tuple[object, ...]] = []

    def replace(replacements: Iterable[Replacement]) -> None:
        ours: list[tuple[object, ...]] = []
        for owner, name, replaced in replacements:
            method = module.original(owner, name)
            ours.append((owner, name, replaced(method)))
            before.append((owner, name, method) if name in vars(owner) else (owner, name))
        module.put(ours)

    send = partial(_alone, module)
    start = partial(_starting, lambda more: replace((*one, send) for one in more))
    try:
        replace((*_replacements(module), *((*one, start) for one in starters())))
        yield
    finally:
        module.put(before)


def _starting(
    replace: Callable[[Iterable[Named]], None], start: Callable[..., object]
) -> Callable[..., object]:
    """Replace `start` by a function that also replaces whatever can be called once it has run."""

    def call(*args: object, **kwargs: object) -> object:
        known = set(senders())
        try:
            return start(*args, **kwargs)
        finally:
            replace(one for one in senders() if one not in known)

    return call


def _replacements(module: ModuleType) -> Generator[Replacement]:
    """Give the attributes that are replaced inside a block, and what each is replaced by."""
    look, give = partial(_waiting, module, gives=False), partial(_waiting, module, gives=True)
    yield from ((torch.Tensor, name, look) for name in LOOKS)
    yield from ((torch.Tensor, name, give) for name in GIVES)
    yield from ((owner, name, give) for owner, name in DOORS)
    yield torch.Tensor, HOLDERS, look
    yield torch.Tensor, "data", partial(_set_data, module)
    yield from ((owner, name, partial(_changing, module)) for owner, name in SETTERS)
    for name, begins in PROFILERS:
        yield torch.autograd.profiler, name, partial(_profiling, module, begins=begins)
    for name in REGISTRATIONS:
        yield torch.library.Library, name, partial(_registering, module)
    yield HigherOrderOperator, "__call__", partial(_alone, module)
    yield from ((*one, partial(_alone, module)) for one in (*LOOKS_BETWEEN, *senders()))
    yield torch.Tensor, "_make_wrapper_subclass", lambda make: staticmethod(look(make))
    yield from _modes(module)


def _waiting(
    module: ModuleType, method: Callable[..., object], *, gives: bool
) -> Callable[..., object]:
    """Make a method that touches memory without the dispatcher wait for that memory.

    If it `gives` memory away, that may be looked at from now on, or changed.
    """

    def wait(tensor: object, *args: object, **kwargs: object) -> object:
        module.drain()
        if isinstance(tensor, torch.Tensor):
            with _as_kernel_errors():
                module.look(tensor, gives)
        return method(tensor, *args, **kwargs)

    return wait


def _set_data(module: ModuleType, data: types.GetSetDescriptorType) -> property:
    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        module.drain()
        data.__set__(tensor, value)

    return property(data.__get__, set_data)


def _changing(module: ModuleType, change: Callable[..., object]) -> Callable[..., object]:
    """Run what was called before a setting is changed before the change."""

    def wait(*args: object, **kwargs: object) -> object:
        module.drain()
        try:
            return change(*args, **kwargs)
        finally:
            module.change()

    return wait


def _registering(module: ModuleType, register: Callable[..., object]) -> Callable[..., object]:
    """Run what was called before a kernel is registered first, with the kernel that it had."""

    def call(*args: object, **kwargs: object) -> object:
        module.drain()
        try:
            return register(*args, **kwargs)
        finally:
            _tell_of_kernels_in_python(module)

    return call


def _profiling(
    module: ModuleType, change: Callable[..., object], *, begins: bool
) -> Callable[..., object]:
    """Profilers that begin inside see every call, and not what was called before."""

    def call(*args: object, **kwargs: object) -> object:
        module.drain()
        module.listen(begins)
        return change(*args, **kwargs)

    return call


def _alone(module: ModuleType, call: Callable[..., object]) -> Callable[..., object]:
    """Run a call that looks at memory itself alone in the caller, after all that is in flight.

    Such are operators of operators, and calls that give tensors to other processes.
    """

    def alone(*args: object, **kwargs: object) -> object:
        module.drain()
        seen = module.see(False)
        try:
            return call(*args, **kwargs)
        finally:
            module.see(seen)

    return alone


def _modes(module: ModuleType) -> Generator[Replacement]:
    """Give what begins and ends modes that are told of every operator.

    Operators that they call themselves are not seen, so that nothing may be in flight meanwhile.
    """
    ours = threading.local()

    def pushing(push: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            module.drain()
            if module.see(False):
                ours.seen = True  # operators, before the first mode
            return push(*args, **kwargs)

        return call

    def popping(pop: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            mode = pop(*args, **kwargs)
            if getattr(ours, "seen", False) and not _any_mode():  # tracers pop some by other ways
                module.see(True)
                ours.seen = False
            return mode

        return call

    yield _python_dispatch, "_push_mode", pushing
    yield _python_dispatch, "_pop_mode", popping


def _any_mode() -> bool:
    """Does a mode see this thread's operators?"""
    early = torch._ops._len_torch_dispatch_stack_pre_dispatch  # pyright: ignore[reportPrivateUsage]
    return bool(_C._len_torch_dispatch_stack() or early())


def _before_fork() -> None:
    for module in _native:
        module.drain()


def _in_child() -> None:
    _open.clear()  # whose it is may not be here
    module = sys.modules.get(TORCH.name)
    if module is not None:
        module.forked()
    _native.clear()


atexit.register(_before_fork)  # a thread that ends with the process may be inside a block
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
