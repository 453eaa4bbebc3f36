"""The command line, `recurra COMMAND`: find a command, parse its options, set the exit code.

Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted. A user's mistake is reported without a
traceback.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TextIO, cast

import recurra
from recurra.errors import Interrupted, RecurraError
from recurra.support.atomic_write import WRONG_PATHS
from recurra.support.command_line_text import in_flags
from recurra.support.optional_packages import missing_package

# name → (the class of its options, or a program of the benchmarks; a description)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "train reinforce": ("recurra.rl.recipes:Reinforce", "train a policy in an environment"),
    "train ppo": ("recurra.rl.recipes:Ppo", "the same by proximal policy optimization"),
    "run": ("recurra.cli.commands:RunCommand", "run a program, or step through it"),
    "view": ("recurra.cli.commands:ViewCommand", "write the report of a run and say where it is"),
    "opt": ("recurra.cli.commands:Opt", "apply compiler passes to a graph in a text file"),
    "reduce": ("recurra.cli.commands:Reduce", "shrink a graph that a compiler pass fails on"),
    "generate": ("recurra.llm.commands:Generate", "let a language model go on with a text"),
    "llm init": ("recurra.llm.commands:Init", "a language model of random weights, in a folder"),
    "calibrate": ("recurra.tools.calibration:Calibrate", "measure what work costs on this machine"),
    "window run": (
        "recurra.window.commands:WindowRunCommand",
        "a PyTorch script, its operators side by side",
    ),
    "window simulate": (
        "recurra.window.commands:Simulate",
        "kernels on a model of a GPU, under several policies",
    ),
    "window profile": (
        "recurra.window.commands:WindowProfileCommand",
        "why kernels leave a GPU idle",
    ),
    "window build": (
        "recurra.window.commands:WindowBuildCommand",
        "compile the native window, for an image",
    ),
    "tune train": (
        "recurra.nest.agents.command:TuneTrainCommand",
        "train a policy that schedules nests",
    ),
    "tune edit": ("recurra.nest.editor.command:Edit", "edit a nest by hand, with live GFLOPS"),
    "tune figures": ("benchmarks.looptune", "measure and draw what LoopTune's figures show"),
    "tune": ("recurra.nest.tune:Tune", "search a schedule for a tensor contraction"),
    "map solve": ("recurra.mapping.commands:Solve", "map a program's buffers to fast memory"),
    "map run": (
        "recurra.mapping.execute.command:MapRunCommand",
        "run a mapped program from RAM and a disk",
    ),
    "map import": ("recurra.mapping.commands:Import", "make a memory-mapping problem of a program"),
    "map pack": (
        "recurra.mapping.commands:MapPackCommand",
        "pack buffers with fixed lives, minimalloc's files",
    ),
    "map train": (
        "recurra.mapping.learn.command:MapTrainCommand",
        "train an agent to play the mapping game",
    ),
    "map priorities": (
        "recurra.mapping.priorities:Priorities",
        "learn priorities over all models, and say how good on unseen ones",
    ),
    "map library": ("recurra.mapping.commands:Library", "the models that mappings are measured on"),
    "map build": (
        "recurra.mapping.commands:MapBuildCommand",
        "build the native engine of mapping, for an image",
    ),
    "bench": ("benchmarks", "measure us beside programs written by hand"),
}

EXAMPLES = """\
examples:
  recurra train reinforce --env CartPole-v1
  recurra train --help
  recurra view runs/CartPole-v1__reinforce__1__1760000000"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _replace_unprintable()
    with _record_interrupts() as interrupts:
        return exit_code(partial(_respect_interrupts, interrupts, partial(dispatch, words)))


def exit_code(command: Callable[[], int]) -> int:
    """Run a command; print a mistake on standard error, and return its exit code."""
    try:
        code = command()
        if (out := cast("TextIO | None", sys.stdout)) is not None:  # None: it was closed
            out.flush()
        return code
    except RecurraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as missing:
        error = missing_package(missing, "this command")
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Interrupted.exit_code
    except BrokenPipeError:  # the reader of our output has ended
        _discard_output()
        return 1
    except MemoryError as error:
        print(f"there is not enough memory: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, or a file that is not writable
        _discard_output()
        path = error.filename2 or error.filename  # the target of a rename
        where = f": {path}" if path else ""
        print(f"the system says: {error.strerror or error}{where}", file=sys.stderr)
        return 2 if error.filename and error.errno in WRONG_PATHS else 1


def _replace_unprintable() -> None:
    """Print letters that the terminal's encoding does not have as `?`."""
    out: Any = sys.stdout
    if getattr(out, "errors", None) == "strict" and hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")


def _respect_interrupts(interrupts: list[int], command: Callable[[], int]) -> int:
    """Run a command; after Ctrl-C, turn errors that libraries raise back into KeyboardInterrupt."""
    try:
        return command()
    except RecurraError:
        raise
    except Exception as error:
        if interrupts:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _record_interrupts() -> Generator[list[int]]:
    """Record each Ctrl-C, and raise it again where Python ignores it: in a callback of the garbage
    collector."""
    before, interrupts = sys.unraisablehook, list[int]()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = usual and threading.current_thread() is threading.main_thread()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    def unraisable(ignored: Any) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            before(ignored)
            return
        again = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
        again.daemon = True
        again.start()

    sys.unraisablehook = unraisable
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupts
    finally:
        sys.unraisablehook = before
        if ours and signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _discard_output() -> None:
    """Discard unwritten output, so that Python does not try to write it again at exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(words: list[str]) -> int:
    """Run the command whose name is the first one or two words."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            return _run(name, words[count:])
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    rest = words[1:] if group else words
    if not rest or rest[0] in ("-h", "--help"):
        print(usage(group or list(COMMANDS), words[0] if group else ""))
        return 0 if rest else 2
    if rest == ["--version"] and not group:
        print(f"recurra {recurra.__version__}")
        return 0
    known = [name.split()[1 if group else 0] for name in group or COMMANDS]
    close = difflib.get_close_matches(rest[0], known, 1)
    if rest[0] in COMMANDS:  # without a group
        close = [f"recurra {rest[0]}"]
    name = f"{words[0]} {rest[0]}" if group else rest[0]
    raise RecurraError(
        f"there is no command `recurra {name}`",
        facts=f"there are: {', '.join(dict.fromkeys(known))}",
        hint=f"perhaps you meant {close[0]}" if close else "recurra --help",
    )


def _run(name: str, rest: list[str]) -> int:
    module, _, kind = COMMANDS[name][0].partition(":")
    if not kind:
        from recurra.cli.commands import run_benchmarks

        return run_benchmarks(module, rest)
    return run(getattr(importlib.import_module(module), kind), f"recurra {name}", rest)


def run(options: Callable[..., Any], program: str, words: Sequence[str]) -> int:
    """Parse the words into a command's options, call it, and return its exit code."""
    import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    parsed = partial(tyro.cli, options, prog=program, args=words, config=config)
    try:
        command = parsed()
    except SystemExit as left:
        hint = getattr(options, "SCRIPT_WORDS", "")
        if left.code and hint and "--" not in words:
            print(hint, file=sys.stderr)
        raise
    default = command.otherwise() if hasattr(command, "otherwise") else None
    command = command if default is None else parsed(default=default)
    with in_flags(command):
        return command()


def usage(names: Sequence[str], group: str) -> str:
    """Return the help: one line per command."""
    lines = "\n".join(f"  {name:<16} {COMMANDS[name][1]}" for name in names)
    words = f"{group} COMMAND" if group else "COMMAND"
    head = f"usage: recurra {words} [options]\n\n{lines}\n\n"
    tail = f"each has its own help: recurra {names[0]} --help"
    return head + (tail if group else f"{tail}\n\n{EXAMPLES}")


if __name__ == "__main__":
    sys.exit(main())
