"""The tensors in a folder's safetensors files, by name: shapes at once, values on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from recurra.errors import RecurraError
from recurra.llm.config import read_json
from recurra.support.safetensors_file import opened

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_READ = 1 << 20  # numbers read at a time, so that conversions of them are small, too
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file, with its dtype in the spelling of safetensors, BF16."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return BYTES.get(self.dtype, 0) * prod(self.shape)

    def rows(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the values, some rows at a time; the file is then closed, which frees its pages."""
        size = self.shape[0]
        count = max(1, size * MAX_READ // prod(self.shape))
        with opened(self.file) as file:
            tensor = file.get_slice(self.name)
            for first in range(0, size, count):
                part = slice(first, min(first + count, size))
                yield part, tensor[part]


def entries(folder: str | Path) -> dict[str, TensorEntry]:
    """List the tensors of a folder: in model.safetensors, or in the files that its index names.

    Raises RecurraError if a file is missing or damaged, or lacks a tensor of the index.
    """
    folder = Path(folder)
    if not (folder / INDEX).exists():
        if not (folder / ONE).exists():
            have = sorted(p.name for p in folder.glob("*"))
            raise RecurraError(
                f"there is no {ONE} and no {INDEX} in {folder}",
                facts=f"there is {', '.join(have) or 'nothing'}",
                hint="save the model with safetensors: model.save_pretrained(folder)",
            )
        return {e.name: e for e in _of_file(folder / ONE)}
    return _indexed(folder, folder / INDEX)


def _indexed(folder: Path, index: Path) -> dict[str, TensorEntry]:
    content = read_json(index)
    places: object = content.get("weight_map") if isinstance(content, Mapping) else None
    if not isinstance(places, Mapping):
        raise RecurraError(f"{index}: weight_map is missing")
    out: dict[str, TensorEntry] = {}
    for file in sorted(set(map(str, places.values()))):
        if Path(file).name != file or not (folder / file).is_file():
            raise RecurraError(f"{index} names the file {file}, which is not in {folder}")
        out |= {e.name: e for e in _of_file(folder / file)}
    for name, file in places.items():
        if name not in out or out[name].file.name != file:
            raise RecurraError(f"{index} says that {name} is in {file}, where it is not")
    return out


def _of_file(path: Path) -> Iterable[TensorEntry]:
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - no mapping, but a file with keys
            at = file.get_slice(name)
            yield TensorEntry(name, path, at.get_dtype(), tuple(at.get_shape()))
