"""Safetensors files of arrays and metadata, with a checksum of all bytes.

    8 bytes   the length of the header
    header    {"__metadata__": {"sha256": …, key: text, …}, name: {dtype, shape, data_offsets}, …}
    body      the arrays, widest elements first, so that each is aligned

The checksum is the SHA-256 of the file with zeros in place of the checksum. Files are written here,
since the library, safetensors 0.8, stores a transposed array wrongly; the library reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recurra.errors import RecurraError
from recurra.support import atomic_write

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
_FROM = 8 + len(_OPENING)  # the position of the checksum in the file
_TO = _FROM + len(_BLANK)

Arrays = dict[str, np.ndarray]
Signature = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


@dataclass(frozen=True)
class FileLayout:
    """The arrays in the order of the body, little-endian, and their part of the header."""

    arrays: tuple[tuple[str, np.dtype], ...]
    entries: bytes


def write(path: Path, arrays: Mapping[str, ArrayLike], metadata: Mapping[str, str]) -> None:
    """Write a file of arrays and metadata; raises NotWrittenError."""
    atomic_write.save(path, pack(arrays, metadata))


def pack(arrays: Mapping[str, ArrayLike], metadata: Mapping[str, str]) -> list[bytes]:
    """Return the header and body of a file; raises RecurraError for unsupported arrays."""
    values = {name: np.asarray(value) for name, value in arrays.items()}
    where = layout(tuple([(name, a.dtype, a.shape) for name, a in values.items()]))
    body = b"".join([_little(values[name], dtype) for name, dtype in where.arrays])
    entries = "".join(f", {json.dumps(k)}: {json.dumps(text)}" for k, text in metadata.items())
    rest = f'"{entries}}}'.encode() + where.entries
    rest += b" " * (-(_TO + len(rest)) % 8)
    length = (_TO - 8 + len(rest)).to_bytes(8, "little")
    digest = hashlib.sha256(length + _OPENING + _BLANK + rest)
    digest.update(body)
    return [length + _OPENING + digest.hexdigest().encode() + rest, body]


@lru_cache(16)
def layout(signature: Signature) -> FileLayout:
    """Lay out arrays of these names, dtypes and shapes; cached, as every save of a run is alike."""
    for name, dtype, _ in signature:
        _expect_savable(name, dtype)
    ordered = sorted(signature, key=lambda a: (-a[1].itemsize, a[0]))
    entries, at = [""], 0
    for name, dtype, shape in ordered:
        end = at + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entry = {"dtype": DTYPES[dtype.name], "shape": list(shape), "data_offsets": [at, end]}
        entries.append(f"{json.dumps(name)}: {json.dumps(entry)}")
        at = end
    little = tuple((name, dtype.newbyteorder("<")) for name, dtype, _ in ordered)
    return FileLayout(little, (", ".join(entries) + "}").encode())


def _little(array: np.ndarray, dtype: np.dtype) -> bytes:
    return (array if array.dtype == dtype else array.astype(dtype)).tobytes()


def _expect_savable(name: str, dtype: np.dtype) -> None:
    known = dtype.name in DTYPES
    if not known or name == "__metadata__":
        raise RecurraError(
            f"array {name!r} cannot be saved",
            facts="the safetensors format keeps this name for itself"
            if known
            else f"its dtype is {dtype}; a file holds {', '.join(DTYPES)}",
            hint="save a cast or a `.view(numpy.uint8)` of it, under another name",
        )


# ---- reading


@contextmanager
def opened(path: Path) -> Generator[Any]:
    """Open a file with the library; raises RecurraError if it is damaged or of another kind."""
    from safetensors import SafetensorError, safe_open

    with suppress(ImportError):
        import_module("ml_dtypes")  # installed with JAX; adds bfloat16 to NumPy
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise RecurraError(
            f"{path} cannot be read as safetensors", facts=str(error).strip(), hint="copy it again"
        ) from error


def read(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Return all arrays, and the metadata."""
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def is_whole(path: Path) -> bool:
    """Return whether the checksum of a file is right."""
    with path.open("rb") as file:
        head = bytearray(file.read(_TO))
        checksum, head[_FROM:_TO] = bytes(head[_FROM:_TO]), _BLANK
        digest = hashlib.sha256(head)
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest().encode() == checksum
