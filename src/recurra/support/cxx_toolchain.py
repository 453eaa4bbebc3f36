"""The C++ compiler of this machine: which one it is, and how it is called.

    CXX="ccache g++" CXXFLAGS="-g -O2"      both are read as a shell would

A compiler that does not answer is given up, together with all that it has started.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from recurra.errors import RecurraError

COMPILERS = ("g++", "clang++", "c++")
ANSWER_S = 10.0  # seconds of wall clock: to tell its version a compiler needs a hundredth of one
BUILD_S = 300.0  # seconds of wall clock: the largest extension takes one minute on a busy core
_WRONG = re.compile(r"error|failed|cannot|No space", re.IGNORECASE)  # in what compilers say


class BuildError(RecurraError):
    """Something native cannot be built, or loaded, here."""

    exit_code = 1


def compiler() -> list[str]:
    """Return the words of $CXX, or the first of the usual names.

    Raises BuildError if there is no such compiler.
    """
    words = _named()
    if not _is_there(words):
        raise _without(words)
    return words


def _without(words: Sequence[str]) -> BuildError:
    """The error for a missing compiler; CXX may begin with a program that runs the compiler."""
    behind = [word for word in words[1:] if shutil.which(word)]
    if behind:
        return BuildError(
            f"there is no {words[0]} on the path, which CXX names",
            facts=f"CXX is {shlex.join(words)}; there is {behind[0]}, which it runs",
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


def flags() -> list[str]:
    """Return the words of $CXXFLAGS, which come after ours."""
    return _words("CXXFLAGS")


def identity() -> str | None:
    """Return what tells compilers apart, without running one; None if there is none."""
    words = _named()
    if not _is_there(words):
        return None
    paths = [os.path.realpath(path) for word in words if (path := shutil.which(word))]
    files = [(path, os.stat(path)) for path in paths]
    return repr((words, [(path, s.st_size, s.st_mtime_ns) for path, s in files]))


def build(target: Path, arguments: Sequence[str]) -> Path:
    """Compile to `target`; `arguments` are all but its name and $CXXFLAGS.

    Raises BuildError if there is no compiler, if it hangs, and with what it says.
    """
    words = compiler()
    _run([*words, "--version"], ANSWER_S)  # what hangs does so here
    command = [*words, *arguments, *flags(), "-o", str(target)]
    code, told = _run(command, BUILD_S)
    if code or not target.exists():
        lines = told.splitlines()
        first = [x for x in lines if _WRONG.search(x)][:3]
        raise BuildError(
            f"{words[0]} could not build {target.name}",
            facts="\n  ".join(first or lines[-3:]) or f"it ended with {code}",
            hint=f"the command was: {shlex.join(command)}",
        )
    return target


def _named() -> list[str]:
    return _words("CXX") or [x for x in COMPILERS if shutil.which(x)][:1]


def _is_there(words: Sequence[str]) -> bool:
    return bool(words) and shutil.which(words[0]) is not None


def _words(variable: str) -> list[str]:
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BuildError(
            f"{variable}={text} is not understood",
            facts=str(error),
            hint=f"unset {variable}, or close what it quotes: {variable}='g++ -O2'"
            if variable == "CXX"
            else f"unset {variable}, or close what it quotes",
        ) from None


def _run(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Return a command's exit status and what it says; raise BuildError if it takes too long.

    Whatever ends the wait ends the command, too, and all processes that it has started.
    """
    with _interrupts_held() as let_go:
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
                let_go()
                told, _ = process.communicate(timeout=seconds)
            except BaseException as error:
                _kill(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise BuildError(
                        f"{command[0]} hangs",
                        facts=f"{shlex.join(command[:6])} did not end within {seconds:.0f} s",
                        hint="set CXX to another compiler",
                    ) from None
                raise
    return process.returncode, told


@contextmanager
def _interrupts_held() -> Generator[Callable[[], None]]:
    """Within, Ctrl-C waits until it is let go: who starts a process has to know it to end it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None  # Ctrl-C is none of its business
        return
    held: list[tuple[int, FrameType | None]] = []

    def let_go() -> None:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held.pop())

    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield let_go
    finally:
        let_go()


def _kill(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # it may have ended just now
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    else:
        process.kill()
