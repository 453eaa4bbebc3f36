"""The examples of `examples/`, read but not run."""

import runpy
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(p.stem for p in FOLDER.glob("*.py"))


def read_example(name: str) -> dict[str, Any]:
    """The variables of an example. It may be read more than once: what it registers is replaced,
    and stays, for whoever has read it before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Overriding environment.*")
        return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="example")
