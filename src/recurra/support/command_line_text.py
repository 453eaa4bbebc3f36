"""Options of a command in shell syntax: in its messages, and in command lines to be typed.

hint: backend='jax'   →   hint: --backend jax
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING

from recurra.errors import RecurraError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def flag(name: str, value: object = None) -> str:
    """Return a setting in shell syntax."""
    return " ".join(_words(name, value))


def _words(name: str, value: object) -> list[str]:
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return ["--" + name.replace("_", "-"), *map(str, values)]


def command_line(program: str, command: DataclassInstance) -> str:
    """Return the command line with all settings that differ from their defaults."""
    words = program.split()
    for f in fields(command):
        value = getattr(command, f.name)
        if f.default is MISSING:
            words.append(str(value))
        elif value != f.default:
            words += _words(f.name, None if value is True else value)
    return shlex.join(words)


def spelled(text: str, names: Collection[str]) -> str:
    """Rewrite the settings of these names in a text as flags."""
    any_name = "|".join(map(re.escape, names))
    value = r"'[^']*'|\"[^\"]*\"|[\w.+-]+"
    setting = rf"(?<![\w.-])({any_name})=({value})((?: or (?:'[^']*'|\"[^\"]*\"))*)"

    def as_flags(match: re.Match[str]) -> str:
        values = re.findall(value, f"{match[2]}{match[3].replace(' or ', ' ')}")
        return " or ".join(flag(match[1], x.strip("\"'")) for x in values)

    text = re.sub(rf"(?:compile with )?{setting}", as_flags, text)
    text = re.sub(rf"\bleave ({any_name}) out\b", lambda m: f"leave {flag(m[1])} out", text)
    return re.sub(rf"^({any_name}) (?=is |are )", lambda m: f"{flag(m[1])} ", text)


@contextmanager
def in_flags(command: object) -> Generator[None]:
    """Rewrite errors without a source location: their settings become flags of the command."""
    try:
        yield
    except RecurraError as error:
        if error.loc is None and is_dataclass(command):
            names = [f.name for f in fields(command)]
            what, facts, hint = (spelled(x, names) for x in (error.what, error.facts, error.hint))
            RecurraError.__init__(error, what, facts=facts, hint=hint)
        raise
