"""Eager execution of compiled functions inside a block, since their code accesses memory itself.

The stance of torch._dynamo is set. Its import takes seconds: unless it is imported before the block
begins, an import hook sets the stance at its first import.
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
    """Run functions of torch.compile eagerly inside.

    `put`, one call of C, restores attributes at the end, also after Ctrl-C.
    """
    before: Attributes = []
    try:
        if COMPILER in sys.modules:
            _run_eagerly(before)
            yield
        else:
            finder = _Finder(before)
            try:
                sys.meta_path.insert(0, finder)
                yield
            finally:
                sys.meta_path.remove(finder)
    finally:
        put(before)


def _run_eagerly(before: Attributes) -> None:
    """Set the compiler's stance; add the old one to `before`."""
    from torch._dynamo import eval_frame

    stance = eval_frame._stance  # pyright: ignore[reportPrivateUsage]
    before.append((eval_frame, "_stance", stance))
    torch.compiler.set_stance("force_eager")


class _Finder(MetaPathFinder):
    """Finds the compiler, and sets its stance after its import."""

    def __init__(self, before: Attributes):
        self._before = before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _StanceLoader(spec.loader, self._before)
        return spec


class _StanceLoader(Loader):
    def __init__(self, loader: Loader, before: Attributes):
        self._loader, self._before = loader, before

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        _run_eagerly(self._before)
