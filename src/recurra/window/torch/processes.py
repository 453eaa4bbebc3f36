"""Functions of PyTorch in C++ that send tensors to other processes, and are no operators.

    rpc.rpc_sync("w0", torch.add, args=(x, 1))  →  rpc.api._invoke_rpc_builtin(.., x, 1)

Collectives of `torch.distributed` are operators, c10d::allreduce_ and so on; those of its backends
are not: they read and write memory themselves. A function of TorchScript may send from C++.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import ModuleType

import torch

Named = tuple[object, str]  # an owner, and the name of its attribute
_C: ModuleType = torch._C  # pyright: ignore[reportPrivateUsage]
_RPC = "torch.distributed.rpc.api"  # all calls of RPC in C++ are from this module


def senders() -> Generator[Named]:
    """Yield those that exist now: they need an RPC agent, or a process group."""
    native, api = getattr(_C, "_distributed_rpc", None), sys.modules.get(_RPC)
    if native and api and native._is_current_rpc_agent_set():
        yield from ((api, name) for name in dir(native) if name.startswith("_invoke_"))
        yield _C.ScriptFunction, "__call__"
        yield _C.ScriptMethod, "__call__"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        backend = _C._distributed_c10d.Backend
        yield from ((backend, name) for name in vars(backend) if _takes_tensors(backend, name))


def starters() -> Generator[Named]:
    """Yield the functions that create an RPC agent or a process group."""
    if _RPC in sys.modules:
        yield sys.modules[_RPC], "_set_and_start_rpc_agent"
    if torch.distributed.is_available():
        yield torch.distributed.distributed_c10d, "_new_process_group_helper"


def _takes_tensors(owner: object, name: str) -> bool:
    """Return whether a method's docstring, which begins with its signature, has tensors."""
    method = getattr(owner, name)
    return callable(method) and "torch.Tensor" in (method.__doc__ or "")
