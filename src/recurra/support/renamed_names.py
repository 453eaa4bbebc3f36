"""Old names, which keep working for one release with a warning that says the new ones."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that what was called `old` is called `new`; by default, at the line of the caller's."""
    text = f"{old} is called {new} now; the old name goes with the next release"
    warnings.warn(text, DeprecationWarning, stacklevel)


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that finds what it defines by old names, too."""

    def find(name: str) -> object:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return find
