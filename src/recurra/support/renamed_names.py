"""Old names, which keep working for one release with a warning that says the new ones."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from recurra.errors import users_frame
from recurra.support.notices import tell_once


def warn_renamed(old: str, new: str) -> None:
    """Warn at the user's line that what was called `old` is called `new`; tell a command's user."""
    text = f"{old} is called {new} now; the old name goes with the next release"
    frame = users_frame()
    if frame is None:
        tell_once(text)
        return
    names = frame.f_globals  # Python shows a script's own warnings, each once for a line
    seen = names.setdefault("__warningregistry__", {})
    file, module = frame.f_code.co_filename, names.get("__name__")
    warnings.warn_explicit(text, DeprecationWarning, file, frame.f_lineno, module, seen)


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that finds what it defines by old names, too."""

    def find(name: str) -> object:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return find


def old_module(old: str, new: str) -> None:
    """Let a module be imported by its old name, too; what is taken from it is the new one's."""

    def find(name: str) -> object:
        if name.startswith("__"):  # Python itself asks
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warn_renamed(old, new)
        return getattr(import_module(new), name)

    sys.modules[old] = module = ModuleType(old)
    vars(module)["__getattr__"] = find
