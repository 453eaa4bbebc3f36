"""Parts of a bench's table, as `--only` names them."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.errors import RecurraError


def named(bench: str, parts: Sequence[str], only: str | None) -> tuple[str, ...]:
    """The parts that `only` names, separated by commas; all of them without it.

    Raises RecurraError for a part that there is not.
    """
    if only is None:
        return tuple(parts)
    found = tuple(part for part in only.replace(" ", "").split(",") if part)
    unknown = [part for part in found if part not in parts]
    if unknown or not found:
        raise RecurraError(
            f"the bench {bench} has no part {', '.join(unknown) or repr(only)}",
            facts=f"its parts are {', '.join(parts)}",
            hint=f"write --only {','.join(parts[:2])}",
        )
    return found
