"""Where tests build native parts of the window: in the tests' cache, where commands find them."""

import os
from pathlib import Path

from recurra.support import cxx_toolchain
from recurra.window.native import native_build

FOLDER = Path(os.environ["XDG_CACHE_HOME"]) / "recurra" / "native"
PROGRAMS = Path(__file__).parent / "native"
HEADERS = Path(native_build.__file__).parent


def build_stress(folder: Path, sanitizer: str, program: str = "stress") -> Path:
    """Compile stress.cpp, or stress_streams.cpp, with a sanitizer, such as thread or address."""
    arguments = ["-std=c++20", "-Og", "-g1", f"-fsanitize={sanitizer}", "-pthread", f"-I{HEADERS}"]
    target = folder / f"{program}-{sanitizer}"
    return cxx_toolchain.build(target, [*arguments, str(PROGRAMS / f"{program}.cpp")])
