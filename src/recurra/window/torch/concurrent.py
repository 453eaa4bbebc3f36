"""PyTorch without annotations: operators inside a block run in parallel where memory permits.

    with torch.no_grad(), recurra.window.concurrent(threads=2):
        y = model(x)

Every ATen operator that the thread calls is intercepted natively. The first call of a signature
(operator, shapes, strides, types, scalars) runs at once, and the shape of its result is recorded;
later calls return their result before it is computed. Views and shapes never wait; reads of values
do, such as `.item()`, `.numpy()` and printing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
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
from recurra.window.launch_records import ThreadSpan
from recurra.window.native.native_build import TORCH
from recurra.window.native.native_window import load
from recurra.window.python_window import LARGEST
from recurra.window.task import MOST_THREADS, WindowError, is_count
from recurra.window.torch.block import Block, OperatorOutcome
from recurra.window.torch.call_sites import Site, site_of
from recurra.window.torch.eager_compiled_functions import not_compiled
from recurra.window.torch.processes import Named, senders, starters

# Methods that read a tensor's memory without the dispatcher (storages that NumPy sees cannot be
# resized any more), ..
LOOKS = ("tolist", "apply_", "map_", "map2_", "numpy")
# .. and methods that export it. Others, such as share_memory_() or pickle, call these.
GIVES = ("data_ptr", "untyped_storage", "pin_memory")
READERS = (*LOOKS, *GIVES)
HOLDERS = "_use_count"  # counts references to a tensor, including those of calls in flight
_C: ModuleType = torch._C  # pyright: ignore[reportPrivateUsage]
Replacement = tuple[object, str, Callable[[Any], object]]  # of an attribute, by a function of it
EXPORTERS: tuple[tuple[object, str], ...] = (  # functions that export memory
    (dlpack, "to_dlpack"),
    (torch, "to_dlpack"),
    *((_C, name) for name in ("_to_dlpack", "_to_dlpack_versioned") if hasattr(_C, name)),
)
# Setters of global settings that operators read when they run, behind all public names, ..
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
# Functions in C++ that call operators and read the memory of their results.
LOOKS_BETWEEN: tuple[tuple[object, str], ...] = tuple(
    (torch.distributed, name)
    for name in ("_verify_params_across_processes",)
    if hasattr(torch.distributed, name)
)
REGISTRATIONS = ("impl", "_impl_with_aoti_compile")  # of torch.library.Library, for kernels
PROFILERS = (("_enable_profiler", True), ("_disable_profiler", False))  # of autograd.profiler
no_grad = torch.no_grad  # for the command, which does not import torch
TINY_US = 5.0  # a shorter operator runs in the caller, if it is ready

_open: dict[str, Block] = {}  # the block that is open
_native: list[ModuleType] = []  # the module, while a block is open
_registered: set[str] = set()  # the kernels in Python that the module knows


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
    """A context manager and decorator: see `concurrent`."""

    def __init__(self, site: Site, options: Options):
        self._site, self._options = site, options
        self._open: AbstractContextManager[Block] | None = None

    def _recreate_cm(self) -> Concurrent:
        return Concurrent(self._site, self._options)

    def __enter__(self) -> Block:
        may_rest = self._options.learn and not self._options.explain
        if may_rest and self._site.is_paused() and not torch.is_grad_enabled():
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
    """Run operators of this thread on `threads` threads, itself included, until the block ends.

    Results are equal to the last bit. Gradients must be off at the beginning: use torch.no_grad()
    or inference_mode(); operators that need one nevertheless, under torch.enable_grad(), run in the
    caller, with their history. `policy` "learn" runs operators of few µs at once, and the window is
    off while it would gain less than a tenth; "always" defers all that can be. A nested block is
    part of the open one on the same thread, and has no effect on another thread, whose operators
    wait for calls in flight. The threads that one operator uses itself are those of
    torch.set_num_threads: 1 is best here, but may change last bits against more. With `explain`,
    `print(block)` has every operator's calls by the way they ran, the reason and the cost, and
    `block.save_timeline("block.html")` draws them by thread. With `check`, every operator that can
    be deferred is, and also runs in eager mode when it is called: if the results differ in any bit,
    it fails with the line of the call.

    Raises WindowError for other policies, with gradients on, or without the native part. A failing
    operator raises its own exception where its result is first needed, and at the end a KernelError
    that is also of its type if no one read it.
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
                _add_earlier_error(module, error)
                raise
            module.drain()
            module.account()
            block.ended.update(module.counts())
            fates = (OperatorOutcome(*fields) for fields in module.fates())
            block.fates.extend(sorted(fates, key=lambda f: -f.us))
            block.spans.extend(ThreadSpan(*fields) for fields in module.ran())
            if options.learn:
                site.ended(block.counts)
            with _as_kernel_errors():
                module.finish()
    finally:
        if "block" in _open and _open["block"] is block:
            _open.clear()


# Python raises Ctrl-C where a function begins or returns, or a loop repeats. So every change is
# undone by one call of C, in a `finally` around it.
@contextmanager
def _entered(module: ModuleType, options: Options) -> Generator[None]:
    """Send operators of this thread through the window inside."""
    try:
        _pass_python_kernels(module)
        module.begin(
            options.threads, options.slots, options.learn, TINY_US, options.explain, options.check
        )
        _native.append(module)
        module.enter()
        yield
    finally:
        module.leave()
        _native.clear()


def _add_earlier_error(module: ModuleType, error: Exception) -> None:
    """Add a note to the error that ends a block, if an operator failed before unnoticed."""
    module.drain()
    try:
        module.finish()
    except Exception as earlier:
        error.add_note(f"before that, and read by nobody: {type(earlier).__name__}: {earlier}")


@contextmanager
def _as_kernel_errors() -> Generator[None]:
    """Raise errors of operators as KernelErrors of the same type."""
    try:
        yield
    except Exception as error:
        kind = type("KernelError", (KernelError, type(error)), {})
        raise kind(str(error)) from error


def _pass_python_kernels(module: ModuleType) -> None:
    """Pass the module those of PyTorch's own operators that have a kernel in Python."""
    registered: set[str] = torch.library._impls  # pyright: ignore[reportPrivateUsage]
    if registered == _registered:
        return
    found = (key.split("/") for key in registered if not key.endswith("/Meta"))
    module.replaced([f"aten::{name}" for space, name, _ in found if space == "aten"])
    _registered.clear()
    _registered.update(registered)


def load_native(threads: int, slots: int, folder: Path | None) -> ModuleType:
    """Load the native part.

    Raises WindowError for impossible numbers, BuildError where it cannot be built.
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
def _replaced(module: ModuleType) -> Generator[None]:
    """Replace functions of PyTorch that bypass operators inside, and restore them at the end.

    Functions in C are replaced also for callers that looked them up before. An attribute that a
    class inherits is inherited again at the end.
    """
    before: list[tuple[object, ...]] = []

    def replace(replacements: Iterable[Replacement]) -> None:
        attributes: list[tuple[object, ...]] = []
        for owner, name, replacement in replacements:
            method = module.original(owner, name)
            attributes.append((owner, name, replacement(method)))
            before.append((owner, name, method) if name in vars(owner) else (owner, name))
        module.put(attributes)

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
    """Wrap `start` to replace also the functions that exist only after it."""

    def call(*args: object, **kwargs: object) -> object:
        known = set(senders())
        try:
            return start(*args, **kwargs)
        finally:
            replace(one for one in senders() if one not in known)

    return call


def _replacements(module: ModuleType) -> Generator[Replacement]:
    """Yield the attributes that are replaced inside a block, with their replacements."""
    look, give = partial(_waiting, module, gives=False), partial(_waiting, module, gives=True)
    yield from ((torch.Tensor, name, look) for name in LOOKS)
    yield from ((torch.Tensor, name, give) for name in GIVES)
    yield from ((owner, name, give) for owner, name in EXPORTERS)
    yield torch.Tensor, HOLDERS, look
    set_after = partial(_drained, module, lambda: None)
    yield torch.Tensor, "data", lambda data: property(data.__get__, set_after(data.__set__))
    change = partial(_drained, module, module.change)
    yield from ((owner, name, change) for owner, name in SETTERS)
    for name, begins in PROFILERS:
        yield torch.autograd.profiler, name, partial(_profiling, module, begins)
    register = partial(_drained, module, partial(_pass_python_kernels, module))
    yield from ((torch.library.Library, name, register) for name in REGISTRATIONS)
    yield HigherOrderOperator, "__call__", partial(_alone, module)
    yield from ((*one, partial(_alone, module)) for one in (*LOOKS_BETWEEN, *senders()))
    yield torch.Tensor, "_make_wrapper_subclass", lambda make: staticmethod(look(make))
    yield from _modes(module)


def _waiting(
    module: ModuleType, method: Callable[..., object], *, gives: bool
) -> Callable[..., object]:
    """Wrap a method that accesses memory without the dispatcher to wait for that memory.

    If it `gives` memory away, that may be read or written from now on.
    """

    def wait(tensor: object, *args: object, **kwargs: object) -> object:
        module.drain()
        if isinstance(tensor, torch.Tensor):
            with _as_kernel_errors():
                module.look(tensor, gives)
        return method(tensor, *args, **kwargs)

    return wait


def _drained(
    module: ModuleType, after: Callable[[], object], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap a function that changes how operators run: earlier calls run first, `after` follows."""

    def call(*args: object, **kwargs: object) -> Any:
        module.drain()
        try:
            return function(*args, **kwargs)
        finally:
            after()

    return call


def _profiling(
    module: ModuleType, begins: bool, change: Callable[..., object]
) -> Callable[..., object]:
    """Wrap the begin and end of a profiler, which sees all calls between them and no others."""

    def call(*args: object, **kwargs: object) -> object:
        module.drain()
        module.listen(begins)
        return change(*args, **kwargs)

    return call


def _alone(module: ModuleType, call: Callable[..., object]) -> Callable[..., object]:
    """Wrap a call that accesses memory itself to run in the caller, after all calls in flight.

    These are operators of operators, and calls that send tensors to other processes.
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
    """Yield the functions that push and pop dispatch modes, which are called for every operator.

    Operators that modes call are not intercepted, so nothing may be in flight meanwhile.
    """
    thread = threading.local()

    def pushing(push: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            module.drain()
            if module.see(False):
                thread.intercepted = True  # before the first mode
            return push(*args, **kwargs)

        return call

    def popping(pop: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            mode = pop(*args, **kwargs)
            # tracers pop some modes by other functions
            if getattr(thread, "intercepted", False) and not _any_mode():
                module.see(True)
                thread.intercepted = False
            return mode

        return call

    yield _python_dispatch, "_push_mode", pushing
    yield _python_dispatch, "_pop_mode", popping


def _any_mode() -> bool:
    """Return whether this thread has a dispatch mode."""
    early = torch._ops._len_torch_dispatch_stack_pre_dispatch  # pyright: ignore[reportPrivateUsage]
    return bool(_C._len_torch_dispatch_stack() or early())


def _before_fork() -> None:
    for module in _native:
        module.drain()


def _in_child() -> None:
    _open.clear()  # its thread may not exist here
    module = sys.modules.get(TORCH.name)
    if module is not None:
        module.forked()
    _native.clear()


atexit.register(_before_fork)  # a daemon thread may be inside a block
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
