"""Run kernels out of order inside a small window of a program (ACS)."""

from recurra.support.renamed_names import old_module
from recurra.window.executor import Executor as Executor
from recurra.window.executor import Launch as Launch
from recurra.window.failures import KernelError as KernelError
from recurra.window.native.native_window import NativeWindow as NativeWindow
from recurra.window.python_window import State as State
from recurra.window.python_window import Window as Window
from recurra.window.task import MEMORY as MEMORY
from recurra.window.task import Segment as Segment
from recurra.window.task import Task as Task
from recurra.window.task import WindowError as WindowError
from recurra.window.task import barrier as barrier
from recurra.window.trace import Kernel as Kernel
from recurra.window.trace import Trace as Trace
from recurra.window.wrapper import Wrapper as Wrapper
from recurra.window.wrapper import copy as copy
from recurra.window.wrapper import fill as fill
from recurra.window.wrapper import kernel as kernel
from recurra.window.wrapper import matmul as matmul
from recurra.window.wrapper import total as total
from recurra.window.wrapper import ufunc as ufunc

old_module("recurra.window.kernel", "recurra.window.trace")
old_module("recurra.window.streams", "recurra.window.stream_issuer")


def __getattr__(name: str) -> object:
    """`concurrent` and `backend` import PyTorch."""
    if name == "concurrent":
        from recurra.window.torch.concurrent import concurrent

        return concurrent
    if name == "backend":
        from recurra.window.torch.training import backend

        return backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
