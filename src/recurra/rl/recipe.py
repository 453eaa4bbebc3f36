"""The base class of recipes, programs with settings that `recurra train` knows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Suppress

if TYPE_CHECKING:
    from recurra.frontend.context import Context


@dataclass(frozen=True)
class Recipe:
    """The settings of all recipes."""

    env: str = "CartPole-v1"
    """A Gymnasium id; its observations are flattened to one vector."""
    seed: int = 1
    """The seed of the parameters, the actions and the environments."""
    iterations: int = 100
    """In total, including those before a --resume."""
    rows: int = 64
    """Environments side by side."""
    steps: int = 200
    """Steps of each environment, per iteration."""
    gamma: float = 0.99
    """Discount per step."""
    backend: str = "jax"
    """The library that runs the compiled program: jax, torch or numpy."""
    workers: int = 1
    """Devices of jax (or threads of numpy) that share the rows, or the samples of minibatches."""
    checkpoint_every: int = 10
    """Iterations between checkpoints."""
    resume: Path | None = None
    """The folder of a run to continue, with its settings."""
    out: Path | None = None
    """Where the run folder is created; by default in runs."""
    check: Literal["nan"] | None = None
    """nan: stop at the first NaN or inf in a result, and name the op, point and line behind it."""
    memory: str | None = None
    """The memory that a run may hold, say 2GiB; a program that needs more is refused."""
    placement: str | None = None
    """Put stores in one block of memory, by greedy, exact or mapping; for numpy and torch."""
    islands: bool = False
    """Show in the report what every loop of an iteration costs, predicted and measured."""
    json: bool = False
    """Print the result as one JSON object."""

    config: Annotated[Mapping[str, object] | None, Suppress] = None
    """The config.json of the run to continue, if the other settings default to its."""

    @property
    def bounds(self) -> Mapping[str, str]:
        """The bounds of the program, in words of the command."""
        return {"B": "--rows", "I": "--iterations", "T": "--steps"}

    @property
    def name(self) -> str:
        """The name of the algorithm on the command line."""
        return type(self).__name__.lower()

    def command(self, *options: str, algo: str = "") -> str:
        """A shell command for this recipe."""
        return shlex.join(["recurra", "train", algo or self.name, *options])

    def program(self) -> tuple[Context, dict[object, int]]:
        """The program, and the bounds to compile it for."""
        raise NotImplementedError
