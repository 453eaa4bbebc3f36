"""The C++ compiler of this machine: finding and running it.

    CXX="ccache g++" CXXFLAGS="-g -O2"      both are parsed in shell syntax

A compiler that hangs is killed, together with all processes that it has started.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from recurra.errors import RecurraError
from recurra.support.interrupts import hold_interrupts

COMPILERS = ("g++", "clang++", "c++")
ANSWER_S = 10.0  # seconds of wall clock for `--version`, which takes 0.01 s
BUILD_S = 300.0  # seconds of wall clock; the largest extension takes one minute on a busy core
_WRONG = re.compile(r"error|failed|cannot|No space", re.IGNORECASE)  # in compilers' messages


class BuildError(RecurraError):
    """A native extension cannot be built or loaded on this machine."""

    exit_code = 1


def compiler() -> list[str]:
    """Return the words of $CXX, or the first of the usual names.

    Raises BuildError if there is no such compiler.
    """
    words = _compiler_words()
    if not _exists(words):
        raise _missing(words)
    return words


def _missing(words: Sequence[str]) -> BuildError:
    """Return the error for a missing compiler, or for a missing launcher of it in CXX."""
    launched = [word for word in words[1:] if shutil.which(word)]
    if launched:
        return BuildError(
            f"there is no {words[0]} on the path, which CXX names",
            facts=f"CXX is {shlex.join(words)}; there is {launched[0]}, which it runs",
            hint=f"install {words[0]}, or CXX={shlex.quote(shlex.join(words[1:]))}",
        )
    linux = "apt install g++, or dnf install gcc-c++"
    install = "xcode-select --install" if sys.platform == "darwin" else linux
    usual = next((x for x in COMPILERS if words and shutil.which(x)), None)
    return BuildError(
        "there is no C++ compiler",
        facts=f"there is no {words[0]} on the path, which CXX names"
        if words
        else f"none of {', '.join(COMPILERS)} is on the path",
        hint=f"unset CXX: there is {usual}" if usual else f"{install}; or set CXX",
    )


def cxx_flags() -> list[str]:
    """Return the words of $CXXFLAGS, which come after ours."""
    return _words("CXXFLAGS")


def identity() -> str | None:
    """Return a text that identifies the compiler, without running it; None if there is none."""
    words = _compiler_words()
    if not _exists(words):
        return None
    paths = [os.path.realpath(path) for word in words if (path := shutil.which(word))]
    files = [(path, os.stat(path)) for path in paths]
    return repr((words, [(path, s.st_size, s.st_mtime_ns) for path, s in files]))


def build(target: Path, arguments: Sequence[str]) -> Path:
    """Compile to `target`, with these arguments and $CXXFLAGS.

    Raises BuildError if there is no compiler, if it hangs, and with its error messages.
    """
    words = compiler()
    _run([*words, "--version"], ANSWER_S)  # a compiler that hangs does so here
    command = [*words, *arguments, *cxx_flags(), "-o", str(target)]
    code, output = _run(command, BUILD_S)
    if code or not target.exists():
        lines = output.splitlines()
        first = [x for x in lines if _WRONG.search(x)][:3]
        raise BuildError(
            f"{words[0]} could not build {target.name}",
            facts="\n  ".join(first or lines[-3:]) or f"it ended with {code}",
            hint=f"the command was: {shlex.join(command)}",
        )
    return target


def _compiler_words() -> list[str]:
    return _words("CXX") or [x for x in COMPILERS if shutil.which(x)][:1]


def _exists(words: Sequence[str]) -> bool:
    return bool(words) and shutil.which(words[0]) is not None


def _words(variable: str) -> list[str]:
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        example = ": CXX='g++ -O2'" if variable == "CXX" else ""
        raise BuildError(
            f"{variable}={text} is not understood",
            facts=str(error),
            hint=f"unset {variable}, or close what it quotes{example}",
        ) from None


def _run(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Return a command's exit status and output; raise BuildError if it takes too long.

    An error or interrupt while waiting kills the command, and all processes that it has started.
    """
    with hold_interrupts() as release:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise BuildError(f"{command[0]} cannot be run", facts=str(error)) from None
        with process:
            try:
                release()
                output, _ = process.communicate(timeout=seconds)
            except BaseException as error:
                _kill(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise BuildError(
                        f"{command[0]} hangs",
                        facts=f"{shlex.join(command[:6])} did not end within {seconds:.0f} s",
                        hint="set CXX to another compiler",
                    ) from None
                raise
    return process.returncode, output


def _kill(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # it may have ended just now
            os.killpg(process.pid, signal.SIGKILL)  # it is the leader of its group
    else:
        process.kill()
