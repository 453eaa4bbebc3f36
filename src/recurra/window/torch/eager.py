"""Compiled functions run operator by operator inside a block: their code takes addresses by itself.

That is said to torch._dynamo, which takes seconds to import: where nothing was compiled before the
block begins, when somebody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

COMPILER = "torch._dynamo"

Attributes = list[tuple[object, ...]]  # (owner, name, value)


@contextmanager
def not_compiled(put: Callable[[Attributes], None]) -> Generator[None]:
    """Functions of torch.compile are run as if they were not compiled.

    Ctrl-C may come anywhere: `put`, one call of C, gives attributes their values back.
    """
    before: Attributes = []
    try:
        if COMPILER in sys.modules:
            _run_eagerly(before)
            yield
        else:
            with _found_by(_Finder(before)):
                yield
    finally:
        put(before)


def _run_eagerly(before: Attributes) -> None:
    """Say so to the compiler; add to `before` what it is told at the end."""
    from torch._dynamo import eval_frame

    stance = eval_frame._stance  # pyright: ignore[reportPrivateUsage]
    before.append((eval_frame, "_stance", stance))
    torch.compiler.set_stance("force_eager")


@contextmanager
def _found_by(finder: MetaPathFinder) -> Generator[None]:
    try:
        sys.meta_path.insert(0, finder)
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds the compiler where it is, and tells it once it is there."""

    def __init__(self, before: Attributes):
        self._before = before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._before)
        return spec


class _Telling(Loader):
    def __init__(self, loader: Loader, before: Attributes):
        self._loader, self._before = loader, before

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        _run_eagerly(self._before)
