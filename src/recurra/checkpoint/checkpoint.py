"""Checkpoints: arrays and loop counters in one safetensors file, written atomically.

    checkpoints/00000007.safetensors
    checkpoints/00000008.safetensors     the newest, of iteration 8; `keep` of them stay

support/safetensors_file.py describes the contents of a file, and the checksum that detects damage.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from recurra.errors import RecurraError
from recurra.support import atomic_write, json_text, safetensors_file
from recurra.support.safetensors_file import Arrays

FORMAT = "recurra-checkpoint-2"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A loaded checkpoint; `warning` names the newer files that were skipped as damaged."""

    path: Path
    arrays: Arrays
    meta: dict[str, Any]
    warning: str = ""


def save(
    directory: str | Path,
    arrays: Mapping[str, ArrayLike],
    meta: Mapping[str, object],
    keep: int = 3,
    number: int | None = None,
) -> Path:
    """Save durably under a number, by default the next one, and remove all but the newest `keep`.

    Files with a higher number are of a run that was resumed from an earlier step, or restarted:
    they are removed too, once the new file is safe. `meta` is JSON: by convention `graph_hash`, a
    fingerprint, and `counters`, one per dimension.
    """
    if keep < 1:
        raise RecurraError(f"keep={keep} would delete the checkpoint just saved", hint="keep >= 1")
    directory, packed = os.fspath(directory), pack(arrays, meta)
    try:
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
        with atomic_write.locked(directory):
            names = os.listdir(directory)
            atomic_write.sweep(directory, names)
            known = _numbers(names)
            number = max(known, default=0) + 1 if number is None else number
            name = f"{number:08d}{SUFFIX}"
            path = os.path.join(directory, name)
            (atomic_write.replace if name in names else atomic_write.create)(path, packed)
            kept = sorted({n for n in known if n <= number} | {number})[-keep:]
            atomic_write.retire(directory, [known[n] for n in sorted(known) if n not in kept])
    except OSError as error:
        raise atomic_write.NotWrittenError(
            f"the checkpoint could not be saved in {directory}",
            error,
            f"it takes {sum(map(len, packed))} bytes, "
            f"and {len(saved(directory))} earlier ones are untouched",
        ) from error
    return Path(path)


def load(
    path: str | Path,
    *,
    graph_hash: str | None = None,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> LoadedCheckpoint:
    """Load a file, or the newest undamaged checkpoint of a directory.

    Damaged files are skipped, and reported through `warn` and `LoadedCheckpoint.warning`. With
    `graph_hash`, a checkpoint of another graph is refused.
    """
    path = Path(path)
    if not path.exists():
        raise RecurraError(
            f"there is no checkpoint at {path}",
            facts="the run was stopped before it had saved one, or the folder is another",
            hint="start it again, with overwrite=True if it has metrics in its folder",
        )
    if not path.is_dir():
        return _expect_graph(_read(path), graph_hash)
    damage: list[str] = []
    with atomic_write.locked(path, shared=True):
        for file in reversed(saved(path)):
            try:
                loaded = _read(file)
            except RecurraError as error:
                damage.append(str(error))
                continue
            if damage:
                warning = "\n".join([*damage, f"  went back to {file.name}"])
                warn(warning)
                loaded = replace(loaded, warning=warning)
            return _expect_graph(loaded, graph_hash)
    if damage:
        raise RecurraError(f"no checkpoint in {path} is whole", facts="\n  ".join(damage))
    raise RecurraError(f"no checkpoint in {path}", hint=f"name a folder of *{SUFFIX} files")


def saved(directory: str | Path) -> list[Path]:
    """Return the checkpoint files of a directory, oldest first, damaged ones included."""
    directory = Path(directory)
    files = _numbers(os.listdir(directory)) if directory.is_dir() else {}
    return [directory / files[n] for n in sorted(files)]


def newest_meta(directory: str | Path) -> dict[str, Any]:
    """Return the meta of a directory's newest undamaged checkpoint; {} if there is none."""
    for path in reversed(saved(directory)):
        with suppress(RecurraError):
            return _read(path).meta
    return {}


def remove(directory: str | Path) -> None:
    """Remove all checkpoints of a directory."""
    with atomic_write.locked(directory):
        atomic_write.retire(directory, [path.name for path in saved(directory)])


def _numbers(names: Iterable[str]) -> dict[int, str]:
    """Map the numbers of checkpoint files to their names."""
    stems = ((name.removesuffix(SUFFIX), name) for name in names if name.endswith(SUFFIX))
    return {int(stem): name for stem, name in stems if stem.isdecimal()}


def _expect_graph(loaded: LoadedCheckpoint, graph_hash: str | None) -> LoadedCheckpoint:
    theirs = loaded.meta.get("graph_hash")
    if graph_hash is not None and theirs != graph_hash:
        raise RecurraError(
            "this checkpoint belongs to another program",
            facts=f"{loaded.path} was saved by graph {theirs}, this one is {graph_hash}",
            hint="resume with the settings in its config.json, or start a new run",
        )
    return loaded


def _read(path: Path) -> LoadedCheckpoint:
    """Read a file, and verify its header, lengths and checksum."""
    arrays, metadata = safetensors_file.read(path)
    if metadata.get("format") != FORMAT:
        raise RecurraError(
            f"{path} is not a checkpoint of this version",
            facts=f"its format is {metadata.get('format')!r}, not {FORMAT!r}",
        )
    if not safetensors_file.is_whole(path):
        raise RecurraError(f"checkpoint {path} is damaged", facts="its checksum does not match")
    return LoadedCheckpoint(path, arrays, json_text.parse(metadata["meta"]))


def pack(arrays: Mapping[str, ArrayLike], meta: Mapping[str, object]) -> list[bytes]:
    """Return the header and body of a file; raises RecurraError for unsupported values."""
    return safetensors_file.pack(arrays, {"format": FORMAT, "meta": _json(meta)})


def _json(meta: Mapping[str, object]) -> str:
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


def _text_keys(value: object) -> bool:
    """Return whether all keys of a tree are text; this fast check runs at every save."""
    if isinstance(value, (str, int, float)):
        return True
    if isinstance(value, Mapping):
        return all([isinstance(k, str) for k in value]) and all(map(_text_keys, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_text_keys, value))


def _keys(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield every key of a tree, and its path."""
    match value:
        case Mapping():
            for key, inner in value.items():
                yield where, key
                yield from _keys(inner, f"{where}[{key!r}]")
        case list() | tuple():
            for k, inner in enumerate(value):
                yield from _keys(inner, f"{where}[{k}]")
        case _:
            return


def _scalar(value: Any) -> object:
    """Convert NumPy and JAX scalars, paths and mappings for JSON; raises TypeError for others."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")
