"""Arrays and loop counters → one safetensors file; a kill leaves either the old or the new.

    checkpoints/00000007.safetensors     header: {"__metadata__": {"meta": JSON, "sha256": …}, …}
    checkpoints/00000008.safetensors     the newest, of iteration 8; `keep` of them stay

The file is written here, not by the library: safetensors 0.8 stores a transposed array wrongly,
and its own temporary file stays behind when it is killed. It is read by the library.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from recurra.errors import RecurraError
from recurra.report import atomic

FORMAT = "recurra-checkpoint-1"
SUFFIX = ".safetensors"
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

Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found; `warning` names the newer files that had to be passed over."""

    path: Path
    arrays: Arrays
    meta: dict[str, Any]
    warning: str = ""


def graph_hash(text: str) -> str:
    """The fingerprint of a printed graph, for `meta["graph_hash"]`.

    Functions and data that were registered twice under one name differ by a number, which depends
    on what else the process has traced: `fn='step_3'` counts as the first, second, .. of the graph.
    """
    order: dict[str, int] = {}

    def place(m: re.Match[str]) -> str:
        stem = re.sub(r"_?\d+$", "", m[2])
        return f"{m[1]}='{stem}#{order.setdefault(m[2], len(order))}'"

    plain = re.sub(r"\b(fn|key)='([^']*)'", place, text)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def save(
    directory: str | Path,
    arrays: Mapping[str, Any],
    meta: Mapping[str, Any],
    keep: int = 3,
    number: int | None = None,
) -> Path:
    """Saves durably under a number, then drops all but the `keep` newest files.

    Without `number` it is the next one. What has a higher one is the future of a run that went back
    behind it, or was started anew: it is dropped too, once the new file is safe.
    `meta` is JSON: by convention `graph_hash` (see above) and `counters`, one per dimension.
    """
    if keep < 1:
        raise RecurraError(f"keep={keep} would delete the checkpoint just saved", hint="keep >= 1")
    directory = Path(directory)
    plain = _plain(arrays)
    text = _json(meta)
    header = _header(plain, {"format": FORMAT, "meta": text, "sha256": _digest(plain, text)})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with atomic.locked(directory):
            atomic.sweep(directory)
            number = _next_number(directory) if number is None else number
            path = directory / f"{number:08d}{SUFFIX}"
            atomic.write(path, [b"".join([header, *map(_bytes, plain.values())])])
            old = saved(directory)
            newest = old.index(path) + 1
            _drop([*old[newest:], *old[: max(0, newest - keep)]])
    except OSError as error:
        raise RecurraError(
            f"the checkpoint could not be saved in {directory}",
            facts=f"{error.strerror or error}; it takes {_size(header, plain)} bytes, "
            f"and {len(saved(directory))} earlier ones are untouched",
            hint="free some space or choose another directory",
        ) from error
    return path


def load(
    path: str | Path,
    *,
    graph_hash: str | None = None,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Checkpoint:
    """The newest whole checkpoint of a directory, or exactly the file that is named.

    A damaged file is passed over aloud, through `warn` and `Checkpoint.warning`. With
    `graph_hash`, a checkpoint of another graph is refused.
    """
    path = Path(path)
    if not path.exists():
        raise RecurraError(
            f"there is no checkpoint at {path}",
            facts="the run was stopped before it had saved one, or the folder is another",
            hint="start it again",
        )
    if not path.is_dir():
        return _matching(_read(path), graph_hash)
    damage: list[str] = []
    with atomic.locked(path, shared=True):
        for file in reversed(saved(path)):
            try:
                found = _read(file)
            except RecurraError as error:
                damage.append(str(error))
                continue
            if damage:
                warning = "\n".join([*damage, f"  went back to {file.name}"])
                warn(warning)
                found = Checkpoint(found.path, found.arrays, found.meta, warning)
            return _matching(found, graph_hash)
    if damage:
        raise RecurraError(f"no checkpoint in {path} is whole", facts="\n  ".join(damage))
    raise RecurraError(f"no checkpoint in {path}", hint=f"name a folder of *{SUFFIX} files")


def saved(directory: str | Path) -> list[Path]:
    """The checkpoint files of a directory, oldest first, whole or not."""
    files = [p for p in Path(directory).glob(f"*{SUFFIX}") if p.stem.isdecimal()]
    return sorted(files, key=lambda p: int(p.stem))


def _matching(found: Checkpoint, graph_hash: str | None) -> Checkpoint:
    theirs = found.meta.get("graph_hash")
    if graph_hash is not None and theirs != graph_hash:
        raise RecurraError(
            "this checkpoint belongs to another program",
            facts=f"{found.path} was saved by graph {theirs}, this one is {graph_hash}",
            hint="resume with the settings in its config.json, or start a new run",
        )
    return found


def _read(path: Path) -> Checkpoint:
    """One file, verified: header, lengths, checksum."""
    from safetensors import SafetensorError, safe_open

    with suppress(ImportError):
        importlib.import_module("ml_dtypes")  # comes with JAX, and teaches numpy bfloat16
    try:
        with safe_open(path, framework="numpy") as file:
            info = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise RecurraError(f"checkpoint {path} cannot be read", facts=str(error)) from error
    if info.get("format") != FORMAT:
        raise RecurraError(
            f"{path} is not a checkpoint of this version",
            facts=f"its format is {info.get('format')!r}, not {FORMAT!r}",
        )
    if _digest(_plain(arrays), info.get("meta", "")) != info.get("sha256"):
        raise RecurraError(f"checkpoint {path} is damaged", facts="its checksum does not match")
    return Checkpoint(path, arrays, json.loads(info["meta"]))


def _plain(arrays: Mapping[str, Any]) -> Arrays:
    """Little-endian, C-contiguous arrays, widest elements first so that each one is aligned."""
    plain: Arrays = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        kind = _name(array.dtype)
        if kind not in DTYPES or name == "__metadata__":
            raise RecurraError(
                f"array {name!r} cannot be saved",
                facts=f"its dtype is {array.dtype}; a checkpoint holds {', '.join(DTYPES)}"
                if kind not in DTYPES
                else "the safetensors format keeps this name for itself",
                hint="save a cast or a `.view(numpy.uint8)` of it, under another name",
            )
        plain[name] = np.asarray(array, dtype=_little(array.dtype), order="C")
    return dict(sorted(plain.items(), key=lambda item: (-item[1].itemsize, item[0])))


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


@cache
def _little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<")


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(plain: Arrays, text: str) -> str:
    shapes = [[name, _name(array.dtype), array.shape] for name, array in plain.items()]
    digest = hashlib.sha256(json.dumps([text, shapes]).encode())
    for array in plain.values():
        digest.update(_bytes(array))
    return digest.hexdigest()


def _header(plain: Arrays, info: dict[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": info}
    at = 0
    for name, a in plain.items():
        kind, end = DTYPES[_name(a.dtype)], at + a.nbytes
        entries[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(header: bytes, plain: Arrays) -> int:
    return len(header) + sum(a.nbytes for a in plain.values())


def _json(meta: Mapping[str, Any]) -> str:
    for where, key in _keys(meta, "meta"):
        if not isinstance(key, str):
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


def _keys(value: Any, where: str) -> Iterator[tuple[str, Any]]:
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


def _next_number(directory: Path) -> int:
    files = saved(directory)
    return int(files[-1].stem) + 1 if files else 1


def _drop(files: list[Path]) -> None:
    for path in files:
        with suppress(OSError):
            path.unlink()
