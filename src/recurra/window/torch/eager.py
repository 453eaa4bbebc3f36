"""Compiled functions run operator by operator inside a block: their code takes addresses by itself.

That is said to torch._dynamo, which takes seconds to import: where nothing was compiled before the
block begins, when somebody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

COMPILER = "torch._dynamo"


@contextmanager
def not_compiled() -> Generator[None]:
    """Functions of torch.compile are run as if they were not compiled."""
    with ExitStack() as undo:
        if COMPILER in sys.modules:
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        else:
            finder = _Finder(undo)
            sys.meta_path.insert(0, finder)
            undo.callback(sys.meta_path.remove, finder)
        yield


class _Finder(MetaPathFinder):
    """Finds the compiler where it is, and tells it once it is there."""

    def __init__(self, undo: ExitStack):
        self._undo = undo

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._undo)
        return spec


class _Telling(Loader):
    def __init__(self, loader: Loader, undo: ExitStack):
        self._loader, self._undo = loader, undo

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._undo.enter_context(torch.compiler.set_stance("force_eager"))
