"""Immutable values that compute their hash once, because they are keys of many tables."""

from __future__ import annotations

_HASH = "_hash"


class Frozen:
    """An immutable dataclass that caches the hash of its type and fields.

    Hashes of strings differ between processes, so the cache is neither pickled nor copied.
    """

    __match_args__: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.__hash__ = Frozen.__hash__  # else the dataclass makes one that hashes all fields anew

    def __hash__(self) -> int:
        known = self.__dict__
        found = known.get(_HASH)
        if found is None:
            fields = (known[name] for name in self.__match_args__)
            found = known[_HASH] = hash((type(self), *fields))
        return found

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != _HASH}
