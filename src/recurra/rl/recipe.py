"""Recipe: a program that `recurra train` knows, with its settings."""

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
    """A Gymnasium id; what it shows is seen as one vector."""
    seed: int = 1
    """Decides the parameters, the actions and the environments."""
    iterations: int = 100
    """In total, those before a --resume included."""
    rows: int = 64
    """Environments side by side."""
    steps: int = 200
    """Of each environment, per iteration."""
    gamma: float = 0.99
    """Discount per step."""
    backend: str = "jax"
    """What runs the compiled program: jax, torch or numpy."""
    workers: int = 1
    """Devices of jax (or threads of numpy) that share the rows, or the samples of minibatches."""
    checkpoint_every: int = 10
    """Iterations between checkpoints."""
    resume: Path | None = None
    """The folder of a run to go on with; its settings are taken from there."""
    out: Path | None = None
    """Where the run folder is made; by default in runs."""
    check: Literal["nan"] | None = None
    """nan: stop at the first NaN or inf in a result, and name the op, point and line behind it."""
    memory: str | None = None
    """What may be held at once, say 2GiB; what needs more is refused before it runs."""
    placement: str | None = None
    """Stores in one block of memory, placed by greedy, exact or mapping. Of numpy and torch."""
    islands: bool = False
    """Show in the report what every loop of an iteration costs, predicted and measured."""
    json: bool = False
    """Print the result as one JSON object."""

    config: Annotated[Mapping[str, object] | None, Suppress] = None
    """The config.json of the run that is gone on with, if other settings are as in there."""

    @property
    def bounds(self) -> Mapping[str, str]:
        """The bounds of the program, in words of the command."""
        return {"B": "--rows", "I": "--iterations", "T": "--steps"}

    @property
    def name(self) -> str:
        """The name of the algorithm on the command line."""
        return type(self).__name__.lower()

    def command(self, *options: str, algo: str = "") -> str:
        """A line for a shell."""
        return shlex.join(["recurra", "train", algo or self.name, *options])

    def program(self) -> tuple[Context, dict[object, int]]:
        """The program, and the bounds to compile it for."""
        raise NotImplementedError
