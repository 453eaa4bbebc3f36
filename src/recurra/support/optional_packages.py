"""Optional packages, which extras of ours install, and the errors if they are missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from recurra.errors import RecurraError

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
"""Packages, and the extra of ours that installs each."""


def missing_package(
    missing: ModuleNotFoundError,
    what: str,
    kind: type[RecurraError] = RecurraError,
    extra: str = "",
) -> RecurraError:
    """Return the error for `what`, which needs a missing package.

    Args:
        extra: the one to install, if it is not the package's own.

    Raises `missing` again if no extra installs the package.
    """
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise missing
    return kind.at_user_line(
        f"{what} needs the package {package}",
        facts="it is not installed",
        hint=f'pip install "recurra[{extra or EXTRAS[package]}]"',
    )


@contextmanager
def needed_by(
    what: str, kind: type[RecurraError] = RecurraError, extra: str = ""
) -> Generator[None]:
    """Turn the missing import of a package in the block into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise missing_package(missing, what, kind, extra) from None
