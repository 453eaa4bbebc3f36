"""The examples of `examples/`: read, not run; compiled at small sizes."""

import runpy
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from recurra.analysis.graph_builder import enter, leave
from recurra.cost.tuning_knobs import Tuning
from recurra.frontend.functions import output
from recurra.runtime.executable import Executable

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(p.stem for p in FOLDER.glob("*.py"))


def read_example(name: str) -> dict[str, Any]:
    """The variables of an example. It may be read more than once: what it registers is replaced,
    and stays, for whoever has read it before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Overriding environment.*")
        return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="example")


@cache
def scope(name: str, *shown: str) -> dict[str, Any]:
    """The variables of an example, which is traced and not run; some more of them are outputs."""
    found = read_example(name)
    enter(found["ctx"].builder)
    try:
        output(**{x: found[x] for x in shown})
    finally:
        leave()
    return found


def program(
    of: dict[str, Any],
    backend: str = "numpy",
    min_skew_gain: float = Tuning.min_skew_gain,
    **bounds: int,
) -> Executable:
    given = {of[k]: n for k, n in bounds.items()}
    return of["ctx"].compile(given, backend=backend, min_skew_gain=min_skew_gain)


TINY_SIZES: dict[str, dict[str, int]] = {
    "attention_patterns": {"B": 2, "T": 12},
    "big_observations": {"B": 2, "I": 2, "T": 8},
    "bptt_rnn": {"B": 2, "I": 2, "T": 8},
    "diffusion": {"B": 8, "T": 6},
    "edit_distance": {"B": 2, "I": 4, "J": 8},
    "kalman_filter": {"B": 2, "T": 8},
    "linear_attention": {"B": 2, "T": 12},
    "newton": {"B": 8},
    "ppo": {"B": 2, "I": 2, "E": 2, "M": 2, "N": 4, "T": 4},
    "reinforce": {"B": 2, "I": 2, "T": 8},
    "state_space": {"B": 2, "T": 12},
    "td_lambda": {"B": 2, "T": 12},
    "windowed_average": {"B": 2, "T": 12},
}


# Sizes of a second or so, whose numbers are many enough that Python's own do not count.
PEAK_SIZES: dict[str, dict[str, int]] = {
    "attention_patterns": {"B": 4, "T": 50},
    "big_observations": {"B": 4, "I": 2, "T": 8},
    "bptt_rnn": {"B": 256, "I": 3, "T": 20},
    "diffusion": {"B": 2000, "T": 20},
    "edit_distance": {"B": 64, "I": 40, "J": 50},
    "kalman_filter": {"B": 200, "T": 20},
    "linear_attention": {"B": 64, "T": 50},
    "newton": {"B": 1000},
    "ppo": {"B": 16, "I": 2, "E": 2, "M": 4, "N": 128, "T": 32},
    "reinforce": {"B": 64, "I": 2, "T": 30},
    "state_space": {"B": 64, "T": 100},
    "td_lambda": {"B": 500, "T": 60},
    "windowed_average": {"B": 64, "T": 500},
}


def one_and_two(backend: str) -> tuple[int, int]:
    """The peak of half the rows, and of one of two workers that have them all."""
    of = scope("kalman_filter")
    two = of["ctx"].compile({of["B"]: 200, of["T"]: 5}, backend=backend, workers=2).memory
    return of["ctx"].compile({of["B"]: 100, of["T"]: 5}, backend=backend).memory.nbytes, two.nbytes
