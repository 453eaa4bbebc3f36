"""The native extensions of the window: their sources, flags and builds."""

from __future__ import annotations

from pathlib import Path

from recurra.support import native_extension
from recurra.support.native_extension import Extension

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-march=native", "-DNDEBUG")


WINDOW = Extension("_recurra_window", "the native window", HERE / "module.cpp", FLAGS)
STREAMS = Extension("_recurra_streams", "streams of a GPU", HERE / "streams_module.cpp", FLAGS)
TORCH = Extension(
    "_recurra_torch",
    "PyTorch without annotations",
    HERE / "torch_module.cpp",
    FLAGS,
    package="torch",
)


def build(folder: Path | None = None, extension: Extension = WINDOW) -> Path:
    """Return the module, compiled if needed; raise as `native_extension.build`."""
    return native_extension.build(extension, folder)
