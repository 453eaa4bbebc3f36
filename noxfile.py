"""The wheel in an empty environment on each Python that it is for: `nox`, or `nox -s wheel-3.12`.

Packages come from an index. The tests do the same without one, on the Python that runs them
(tests/integration/test_extras.py); both run the commands of tests/support/first_commands.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from first_commands import FIRST  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = tuple(dict.fromkeys(x.extra for x in FIRST))


@nox.session(python=PYTHONS)
@nox.parametrize("extra", EXTRAS, ids=[x or "none" for x in EXTRAS])
def wheel(session: nox.Session, extra: str) -> None:
    """Install the wheel with one extra, and run the first commands of that extra."""
    session.install("-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extra}]" if extra else str(ROOT))
    session.chdir(session.create_tmp())
    for first in FIRST:
        if first.extra == extra:
            printed = session.run("python", "-I", *first.words, silent=True)
            if first.prints not in str(printed):
                session.error(f"{first.prints!r} is not in {printed}")
