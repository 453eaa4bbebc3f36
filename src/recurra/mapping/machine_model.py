"""A roofline model of a machine with a small fast memory and a large slow one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from recurra.storage.mapping_problem import ProblemError
from recurra.support import json_text


@dataclass(frozen=True)
class Machine:
    """Sizes in bytes, bandwidths in bytes per second, and rates in operations per second."""

    name: str
    fast_size: int
    slow_bandwidth: float
    fast_bandwidth: float
    copy_bandwidth: float
    matrix: float  # rate of the multiplications and additions of dot and convolution
    vector: float  # rate of everything else
    overhead: float = 2e-7  # seconds per instruction
    alignment: int = 1024  # sizes are rounded up to a multiple
    smallest: int = 512  # buffers with fewer bytes are always in fast memory

    def __post_init__(self) -> None:
        for name, value in list(asdict(self).items())[1:]:
            wrong = None
            if isinstance(value, bool) or not isinstance(value, int | float):
                wrong = f"{value!r}, not a number"
            elif name in ("fast_size", "alignment", "smallest") and not isinstance(value, int):
                wrong = f"{value}, not whole"
            elif not math.isfinite(value):
                wrong = str(value)
            elif value <= 0 and not (name == "overhead" and value == 0):
                wrong = f"{value}, not positive"
            if wrong is not None:
                raise ProblemError(f"machine {self.name}: {name} is {wrong}")
        if self.fast_bandwidth < self.slow_bandwidth:
            raise ProblemError(
                f"machine {self.name}: its fast memory is the slower one",
                facts=f"{self.fast_bandwidth:g} B/s fast, {self.slow_bandwidth:g} B/s slow",
            )

    def aligned(self, nbytes: int) -> int:
        """Round a size up to the alignment of allocations."""
        return math.ceil(nbytes / self.alignment) * self.alignment

    def __str__(self) -> str:
        return json.dumps(asdict(self), indent=1)


def picoseconds(amount: float, per_second: float) -> int:
    """Return the time of an amount at a rate."""
    return round(amount / per_second * 1e12)


# TPU v4i: 128 MiB of CMEM, 614 GB/s of HBM, 138 TFLOP/s in bf16 (Jouppi et al., ISCA 2021). The
# bandwidth of CMEM and the vector rate are assumptions: they are not published.
TPU_V4I = Machine("tpu-v4i", 128 << 20, 614e9, 2.4e12, 614e9, 138e12, 4.3e12)
MACHINES: Mapping[str, Machine] = {TPU_V4I.name: TPU_V4I}


def machine_of(name_or_file: str) -> Machine:
    """Return a machine by its name, or from a JSON file with the fields of `Machine`."""
    if name_or_file in MACHINES:
        return MACHINES[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        raise ProblemError(
            f"there is no machine {name_or_file!r}",
            facts=f"there are: {', '.join(MACHINES)}; and there is no such file",
        )
    try:
        return Machine(**json_text.parse(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ProblemError(f"{path} does not describe a machine", facts=str(error)) from None
