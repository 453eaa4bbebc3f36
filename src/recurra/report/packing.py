"""Arrays and meta → the bytes of one safetensors file, with a checksum of all of them.

    8 bytes   the length of the header
    header    {"__metadata__": {"sha256": …, "format": …, "meta": JSON}, name: {dtype, shape, …}, …}
    body      the arrays, widest elements first, so that each is aligned

The checksum is the SHA-256 of the whole file with zeros in its own place. The file is written here,
not by the library: safetensors 0.8 stores a transposed array wrongly. It is read by the library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from recurra.errors import RecurraError

FORMAT = "recurra-checkpoint-2"
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_OPENING = b'{"__metadata__": {"sha256": "'
_BLANK = b"0" * 64
_FROM = 8 + len(_OPENING)  # where the checksum stands in the file
_TO = _FROM + len(_BLANK)

Arrays = dict[str, "np.ndarray[Any, Any]"]
Signature = tuple[tuple[str, "np.dtype[Any]", tuple[int, ...]], ...]


@dataclass(frozen=True)
class Layout:
    """The arrays in the order of the body, little-endian, and their part of the header."""

    arrays: tuple[tuple[str, np.dtype[Any]], ...]
    entries: bytes


def pack(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> list[bytes]:
    """Header and body of a file; raises RecurraError for what it cannot hold."""
    given = {name: np.asarray(value) for name, value in arrays.items()}
    where = layout(tuple([(name, a.dtype, a.shape) for name, a in given.items()]))
    body = b"".join([_little(given[name], dtype) for name, dtype in where.arrays])
    rest = f'", "format": "{FORMAT}", "meta": {json.dumps(_json(meta))}}}'.encode() + where.entries
    rest += b" " * (-(_TO + len(rest)) % 8)
    length = (_TO - 8 + len(rest)).to_bytes(8, "little")
    digest = hashlib.sha256(length + _OPENING + _BLANK + rest)
    digest.update(body)
    return [length + _OPENING + digest.hexdigest().encode() + rest, body]


def whole(file: BinaryIO) -> bool:
    """Is the checksum of a file right?"""
    head = bytearray(file.read(_TO))
    told, head[_FROM:_TO] = bytes(head[_FROM:_TO]), _BLANK
    digest = hashlib.sha256(head)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest().encode() == told


@lru_cache(16)
def layout(signature: Signature) -> Layout:
    """Where arrays of these names, types and shapes lie: the same at every save of a run."""
    for name, dtype, _ in signature:
        _savable(name, dtype)
    ordered = sorted(signature, key=lambda a: (-a[1].itemsize, a[0]))
    entries, at = [""], 0
    for name, dtype, shape in ordered:
        end = at + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entry = {"dtype": DTYPES[dtype.name], "shape": list(shape), "data_offsets": [at, end]}
        entries.append(f"{json.dumps(name)}: {json.dumps(entry)}")
        at = end
    little = tuple((name, dtype.newbyteorder("<")) for name, dtype, _ in ordered)
    return Layout(little, (", ".join(entries) + "}").encode())


def _little(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bytes:
    return (array if array.dtype == dtype else array.astype(dtype)).tobytes()


def _savable(name: str, dtype: np.dtype[Any]) -> None:
    known = dtype.name in DTYPES
    if not known or name == "__metadata__":
        raise RecurraError(
            f"array {name!r} cannot be saved",
            facts="the safetensors format keeps this name for itself"
            if known
            else f"its dtype is {dtype}; a checkpoint holds {', '.join(DTYPES)}",
            hint="save a cast or a `.view(numpy.uint8)` of it, under another name",
        )


def _json(meta: Mapping[str, Any]) -> str:
    if not _text_keys(meta):
        where, key = next((w, k) for w, k in _keys(meta, "meta") if not isinstance(k, str))
        raise RecurraError(
            f"{where} has the key {key!r}",
            facts="JSON has only text keys, so it would come back changed",
            hint=f"write {str(key)!r}",
        )
    try:
        return json.dumps(meta, default=_scalar)
    except (TypeError, ValueError) as error:
        raise RecurraError(
            "the checkpoint's meta is not JSON", facts=str(error), hint="put arrays into `arrays`"
        ) from error


def _text_keys(value: Any) -> bool:
    """Are all keys of a tree text? Asked at every save."""
    if isinstance(value, (str, int, float)):
        return True
    if isinstance(value, Mapping):
        return all([isinstance(k, str) for k in value]) and all(map(_text_keys, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_text_keys, value))


def _keys(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Every key of a tree, and where it stands."""
    match value:
        case Mapping():
            for key, inner in value.items():
                yield where, key
                yield from _keys(inner, f"{where}[{key!r}]")
        case list() | tuple():
            for k, inner in enumerate(value):
                yield from _keys(inner, f"{where}[{k}]")
        case _:
            pass


def _scalar(value: Any) -> Any:
    """NumPy and JAX scalars are numbers; anything else is the caller's mistake."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")
