"""Real peers, installed as their users do, one virtual environment each; nothing of it in tests.

What cannot run is told on standard error, with the reason, and has no row.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import progress
from benchmarks.ppo.workload import Work
from benchmarks.process import Process
from recurra.errors import RecurraError

TORCH, NUMPY = "torch==2.13.0", "numpy==2.4.6"


@dataclass(frozen=True)
class Peer:
    """A contestant by the name of what makes it, `module:function`, and the Python that runs it."""

    make: str
    python: str = sys.executable
    real: bool = False  # made by others: it may be absent

    def started(self, work: Work, threads: int) -> Process:
        """Its process; `Ended` if it cannot run."""
        return Process(self.make, work, threads, self.python)


@dataclass(frozen=True)
class Recipe:
    """What pip installs for a peer, and what it installs without what that asks for."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


RECIPES = (
    Recipe("sb3", (TORCH, NUMPY, "stable-baselines3==2.9.2")),
    Recipe("torchrl", (TORCH, NUMPY, "torchrl==0.14.1", "tensordict==0.14.3")),
    Recipe("rl_games", (TORCH, NUMPY, "rl-games==1.6.5")),
    Recipe(
        "sample_factory", (TORCH, "numpy==1.26.4", "gymnasium==0.29.1", "sample-factory==2.1.1")
    ),
    Recipe("brax", (NUMPY, "brax==0.14.2", "jax==0.8.1", "jaxlib==0.8.1")),
    Recipe("rllib", (TORCH, NUMPY, "ray[rllib]==2.60.0")),
)
ABSENT = {"EnvPool": "a set of environments; the one here is arithmetic in every framework"}


def installed(folder: Path) -> list[Peer]:
    """The peers in `folder`, made where they are missing, one after the other.

    PyTorch's default wheel for Linux brings the CUDA libraries along: point pip at a CPU wheel
    (PIP_FIND_LINKS, or an index of its own) where that is not wanted.
    """
    if folder.exists() and not folder.is_dir():
        raise RecurraError(
            f"{folder} is no folder for peers",
            facts="it is a file; each peer gets a virtual environment of its own there",
        )
    for name, why in ABSENT.items():
        progress(f"no row of {name}: {why}")
    return [
        Peer(f"{__name__}.{recipe.name}:make", str(python), real=True)
        for recipe in RECIPES
        if (python := _made(recipe, folder / recipe.name)) is not None
    ]


def _made(recipe: Recipe, home: Path) -> Path | None:
    """The Python of an environment with the recipe's packages, or None with a word why."""
    python, ready = home / "bin" / "python", home / "ready"
    wanted = "\n".join([*recipe.packages, *recipe.alone])
    if ready.exists() and ready.read_text() == wanted:
        return python
    progress(f"installing {recipe.name} in {home}")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    steps: list[Sequence[str]] = [
        [sys.executable, "-m", "venv", str(home)],
        [*pip, *recipe.packages],
        *([[*pip, "--no-deps", *recipe.alone]] if recipe.alone else []),
    ]
    for step in steps:
        done = subprocess.run(step, stdout=sys.stderr, check=False)
        if done.returncode:
            progress(f"no row of {recipe.name}: `{' '.join(step)}` ended with {done.returncode}")
            return None
    ready.write_text(wanted)
    return python
