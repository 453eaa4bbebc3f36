"""A check for undeclared writes of kernels, which compares bytes before and after.

    with watch.kernel(launch):  # kernel scale writes y, which it does not declare
        launch.wrapper.function(*args, **kwargs)

The memory is that of a launch's arguments, also in lists, tuples and dicts, and of its kernel's
declarations. Declared writes of concurrent kernels are allowed.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from recurra.window.access import segment_of
from recurra.window.failures import UndeclaredWrite
from recurra.window.launch_records import Launch
from recurra.window.task import Segment

if TYPE_CHECKING:
    import numpy as np

Place = tuple[int, ...]  # the index of an element


class WriteWatch:
    """The running kernels, and the memory that may change during each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, list[Segment]] = {}
        self._declared: dict[int, tuple[Segment, ...]] = {}

    @contextmanager
    def kernel(self, launch: Launch) -> Generator[None]:
        """Check the writes of a launch's kernel, which runs inside; raise UndeclaredWrite."""
        if launch.wrapper.reads is None or launch.wrapper.writes is None:  # a barrier
            yield
            return
        arrays = _arrays_of(launch)
        before = [_elements(x) for x in arrays.values()]
        allowed = self._enter(launch)
        try:
            yield
        finally:
            with self._lock:
                del self._running[id(launch)], self._declared[id(launch)]
        for (name, array), old in zip(arrays.items(), before, strict=True):
            place = _first_change(array, old, allowed)
            if place is not None:
                raise _error(launch, name, place)

    def _enter(self, launch: Launch) -> list[Segment]:
        """Allow this launch's writes during others, and theirs during this one."""
        ours = launch.task.writes
        with self._lock:
            allowed = [*ours, *chain(*self._declared.values())]
            for others in self._running.values():
                others.extend(ours)
            self._running[id(launch)], self._declared[id(launch)] = allowed, ours
        return allowed


def _arrays_of(launch: Launch) -> dict[str, Any]:
    """Return the arrays of a launch that have bytes to compare, each once, by name."""
    args, kwargs = launch.arguments
    values = list(_leaves(_parameters(launch)))
    for word, declared in (("reads", launch.wrapper.reads), ("writes", launch.wrapper.writes)):
        if declared is not None:
            values += [(f"what {word}= gives", x) for x in declared(*args, **kwargs)]
    once = {id(x): name for name, x in reversed(values) if _has_bytes(x)}
    arrays = {id(x): x for _, x in values}
    return {name: arrays[key] for key, name in reversed(once.items())}


def _parameters(launch: Launch) -> Mapping[str, object]:
    args, kwargs = launch.arguments
    bound = inspect.signature(launch.wrapper.function).bind_partial(*args, **kwargs)
    return bound.arguments


def _leaves(tree: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for name, x in tree.items():
        if isinstance(x, Mapping):
            yield from _leaves({f"{name}[{k!r}]": part for k, part in x.items()})
        elif isinstance(x, list | tuple):
            yield from _leaves({f"{name}[{k}]": part for k, part in enumerate(x)})
        else:
            yield name, x


def _has_bytes(value: Any) -> bool:
    if hasattr(value, "__array_interface__"):
        return value.size > 0 and not value.dtype.hasobject
    if not hasattr(value, "untyped_storage"):
        return False
    strided = value.layout == sys.modules["torch"].strided
    return value.device.type == "cpu" and strided and value.numel() > 0


def _elements(array: Any) -> np.ndarray:
    """Return a copy of the elements' bytes, [.., itemsize]."""
    import numpy as np

    if hasattr(array, "__array_interface__"):
        flat = np.array(array, order="C").reshape(-1).view(np.uint8)
        return flat.reshape(*array.shape, array.itemsize)
    copy = array.detach().resolve_conj().resolve_neg().clone().contiguous().reshape(-1)
    return copy.view(sys.modules["torch"].uint8).numpy().reshape(*array.shape, array.element_size())


def _first_change(array: Any, before: np.ndarray, allowed: Iterable[Segment]) -> Place | None:
    """Return the first element that has changed outside of the allowed segments."""
    import numpy as np

    now = _elements(array)
    if now.shape != before.shape:  # it was resized
        return ()
    places = np.argwhere((now != before).any(axis=-1))
    if not len(places):
        return None
    strides = np.array(_strides(array), dtype=np.int64)
    reach = strides * (np.array(now.shape[:-1], dtype=np.int64) - 1)
    offsets = places @ strides - np.minimum(reach, 0).sum()
    begin = segment_of(array).start
    outside = np.ones(len(places), dtype=bool)
    for part in allowed:
        outside &= (offsets < part.start - begin) | (offsets >= part.stop - begin)
    found = places[outside]
    return tuple(map(int, found[0])) if len(found) else None


def _strides(array: Any) -> tuple[int, ...]:
    if hasattr(array, "__array_interface__"):
        return array.strides
    return tuple(step * array.element_size() for step in array.stride())


def _error(launch: Launch, name: str, place: Place) -> UndeclaredWrite:
    args, kwargs = launch.arguments
    element = f"{name}[{', '.join(map(str, place))}]" if place else name
    writes = launch.wrapper.writes
    known = [] if writes is None else list(writes(*args, **kwargs))
    names = [n for n, x in _leaves(_parameters(launch)) if any(x is one for one in known)]
    given = ", ".join(_spelled(launch.wrapper.function))
    return UndeclaredWrite(
        f"kernel {launch.wrapper.name} writes {name}, which it does not declare",
        facts=f"{element} has another value than before, and writes= gives "
        + (", ".join(names) if names else "none of the arguments"),
        hint=f"writes=lambda {given}: ({', '.join([*names, name])},)",
        loc=launch.loc,
    )


def _spelled(function: Callable[..., object]) -> Iterable[str]:
    """Yield a function's parameters as text, without annotations."""
    for parameter in inspect.signature(function).parameters.values():
        yield str(parameter.replace(annotation=inspect.Parameter.empty))
