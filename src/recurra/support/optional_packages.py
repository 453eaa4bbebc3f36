"""Packages that only an extra of ours brings along, and the line that installs it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from recurra.errors import RecurraError, here

EXTRAS = {
    "gymnasium": "rl",
    "llvmlite": "nest",
    "matplotlib": "figures",
    "mctx": "mapping-learn",
    "nanobind": "window",
    "ray": "cluster",
    "tokenizers": "llm",
    "torch": "torch",
}
"""Packages, and the extra of ours that brings each."""


def missing_package(
    missing: ModuleNotFoundError,
    what: str,
    kind: type[RecurraError] = RecurraError,
    extra: str = "",
) -> RecurraError:
    """The refusal of `what`, which needs a package that is not installed.

    Args:
        extra: the one to install, where it brings more than the package.

    Raises the error that was given if no extra brings the package.
    """
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise missing
    return kind(
        f"{what} needs the package {package}",
        facts="it is not installed",
        hint=f'pip install "recurra[{extra or EXTRAS[package]}]"',
        loc=here(),
    )


@contextmanager
def needed_by(
    what: str, kind: type[RecurraError] = RecurraError, extra: str = ""
) -> Generator[None]:
    """Within, a package that is not installed is refused, with the line that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise missing_package(missing, what, kind, extra) from None
