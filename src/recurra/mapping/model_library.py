"""The library of instances: real models, imported once and kept as compressed JSON.

`recurra map library --write` imports them again from `models/`. The output of XLA changes with its
version; published figures are for these files.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.storage.mapping_problem import Problem, ProblemError
from recurra.storage.mapping_problem_text import problem_from_json, problem_to_json

if TYPE_CHECKING:
    from recurra.mapping.models.training import Model

FOLDER = Path(__file__).parent / "instances"


@dataclass(frozen=True)
class LibraryModel:
    """A model's module and function, and the fast memory that it is mapped to, in MiB."""

    module: str
    function: str
    mebibytes: int = 128

    def build(self) -> Model:
        """Return the model's function, the shapes of its arguments, and the donated ones."""
        return getattr(import_module(f"recurra.mapping.models.{self.module}"), self.function)()

    def problem(self, name: str) -> Problem:
        """Compile and import the model, which takes seconds to a minute."""
        from recurra.mapping.imports import from_jax
        from recurra.mapping.machine_model import TPU_V4I

        function, arguments, donated = self.build()
        machine = replace(TPU_V4I, fast_size=self.mebibytes << 20)
        return from_jax(function, *arguments, donated=donated, machine=machine, name=name)


LIBRARY: Mapping[str, LibraryModel] = {
    "ppo_step": LibraryModel("reinforcement_learning", "ppo_step", 8),
    "alexnet_train": LibraryModel("vision", "alexnet"),
    "resnet50_infer": LibraryModel("vision", "resnet_inference"),
    "wavenet": LibraryModel("sequence", "wavenet", 64),
    "transformer_infer": LibraryModel("sequence", "transformer_inference", 32),
    "mnasnet_infer": LibraryModel("vision", "mnasnet_inference", 32),
    "bilstm_infer": LibraryModel("recurrent", "bidirectional", 16),
    "alphatensor": LibraryModel("reinforcement_learning", "alphatensor", 32),
    "gpt_decode": LibraryModel("sequence", "gpt_decode"),
    "gru_infer": LibraryModel("recurrent", "gru", 16),
    "rnn_train": LibraryModel("recurrent", "elman_training", 8),
    "lstm": LibraryModel("recurrent", "lstm", 32),
    "lstm_lm_train": LibraryModel("recurrent", "language_model_training", 32),
    "nmt_train": LibraryModel("recurrent", "translation_training", 64),
    "mnasnet_train": LibraryModel("vision", "mnasnet_training", 64),
    "resnet50_train": LibraryModel("vision", "resnet_training"),
    "transformer_train": LibraryModel("sequence", "transformer_training"),
}


def library_model(name: str, what: str = "instance") -> LibraryModel:
    """Return a model of the library; raises `ProblemError` if there is none of this name."""
    if name not in LIBRARY:
        raise ProblemError(f"there is no {what} {name!r}", facts=f"there are: {', '.join(LIBRARY)}")
    return LIBRARY[name]


@cache
def instance(name: str) -> Problem:
    """Return a problem of the library; raises `ProblemError` if there is none of this name."""
    library_model(name)
    path = FOLDER / f"{name}.json.gz"
    return problem_from_json(gzip.decompress(path.read_bytes()).decode(), path.name)


def write(name: str) -> str:
    """Import an instance again, into the package; return a line that describes it."""
    problem = library_model(name).problem(name)
    FOLDER.mkdir(exist_ok=True)
    data = gzip.compress(problem_to_json(problem).encode(), mtime=0)
    (FOLDER / f"{name}.json.gz").write_bytes(data)
    instance.cache_clear()
    return f"{problem}; {len(data) / 1e3:.0f} kB"
