"""Programs that tests compile again and again in the same ways: of each way there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recurra.compiler.options import CompileOptions
from recurra.runtime.executable import Executable


def each_once() -> Callable[..., Executable]:
    """In the place of `Executable`, for one graph and its bounds: one for each set of options."""
    made: dict[str, Executable] = {}

    def once(builder: Any, sizes: Any, options: CompileOptions) -> Executable:
        key = str(options)
        if key not in made:
            made[key] = Executable(builder, sizes, options)
        return made[key]

    return once


def forget(program: Any) -> None:
    """As in a new process: the hosts hold nothing."""
    for owner in program.saver.hosts.values():
        owner.rows = None
        owner.load_state_dict(None)
