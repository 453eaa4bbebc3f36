"""Immutable values that are keys of many tables: each is hashed once."""

from __future__ import annotations

_HASH = "_hash"


class Frozen:
    """An immutable dataclass that keeps its hash, which is that of its type and its fields.

    The hash is of this process alone, as those of texts are: it is neither pickled nor copied.
    """

    __match_args__: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.__hash__ = Frozen.__hash__  # or the dataclass makes one that asks all fields each time

    def __hash__(self) -> int:
        known = self.__dict__
        found = known.get(_HASH)
        if found is None:
            fields = (known[name] for name in self.__match_args__)
            found = known[_HASH] = hash((type(self), *fields))
        return found

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != _HASH}
