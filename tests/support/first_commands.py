"""What a newcomer runs first with each extra, and what he is told without it."""

from __future__ import annotations

from dataclasses import dataclass

COMMAND = ("-m", "recurra.cli")
PROGRAM = """
import recurra as rc

ctx = rc.Context(dims="t")
with ctx as (t, T):
    x = rc.like(rc.f32, (t,))
    x[0] = 1.0
    x[t + 1] = x * 2.0
    rc.output(x=x)
print(ctx.run({T: 4}, backend="%s")["x"].tolist())
"""
PRODUCT = """
import numpy as np
import recurra as rc

ones = np.ones((8, 8), "f4")
product = rc.nest.compile("mk,kn->mn", sizes=[8, 8, 8], backend="llvm")
print(product(ones, ones)[0, 0])
"""
POWERS = "[1.0, 2.0, 4.0, 8.0]"


@dataclass(frozen=True)
class FirstCommand:
    """Words behind `python`, what they print with an extra, and which package is missed without."""

    extra: str
    words: tuple[str, ...]
    prints: str
    package: str = ""

    @property
    def told(self) -> str:
        """A line of what is said where the extra is not installed."""
        return f'hint: pip install "recurra[{self.extra}]"'


TRAIN = "train reinforce --env CartPole-v1 --iterations 1 --rows 2 --steps 8 --backend numpy"
FIRST = (
    FirstCommand("", (*COMMAND, "--version"), "recurra "),
    FirstCommand("", ("-c", PROGRAM % "numpy"), POWERS),
    FirstCommand("", ("-c", PROGRAM % "jax"), POWERS),
    FirstCommand("", (*COMMAND, "tune", "mk,kn->mn", "--sizes", "8,8,8", "--seconds", "1"), "for "),
    FirstCommand("torch", ("-c", PROGRAM % "torch"), POWERS, "torch"),
    FirstCommand("rl", (*COMMAND, *TRAIN.split()), "report: ", "gymnasium"),
    FirstCommand("llm", (*COMMAND, "llm", "init", "tiny"), "random weights", "tokenizers"),
    FirstCommand("nest", ("-c", PRODUCT), "8.0", "llvmlite"),
    FirstCommand(
        "mapping-learn",
        (*COMMAND, *["map", "train", "alexnet_train", "--seconds", "16", "--engine", "python"]),
        "",
        "mctx",
    ),
    FirstCommand("window", (*COMMAND, "window", "build"), "", "nanobind"),
)
