"""The editor in a terminal: a key is a word; without a terminal, a line of input is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from recurra.nest.editor.session import Bench, Session, legal

KEYS: Mapping[str, str] = {
    "k": "up", "j": "down", "K": "swap_up", "J": "swap_down",
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[1;2A": "swap_up", "\x1b[1;2B": "swap_down",
    **{str(n): f"split_{n}" for n in (2, 3, 4, 6, 8)},
    "!": "split_16", "@": "split_32",
    "A": "[A]", "B": "[B]", "p": "parallel", "u": "undo", "r": "redo", "q": "quit", "\x03": "quit",
}  # fmt: skip
HELP = (
    "k j ↑ ↓ cursor · K J shift-↑ ↓ swap · 2 3 4 6 8 split, ! by 16, @ by 32 · "
    "A B pack · p parallel · u r undo, redo · q quit"
)


def screen_text(bench: Bench, session: Session) -> str:
    lines = [str(session.nest), "", session.status, f"order: {session.nest.order}"]
    lines += [session.note] if session.note else []
    return "\n".join([*lines, "", f"now: {' '.join(legal(bench, session))}"])


def run_editor(
    bench: Bench, session: Session, read: Callable[[], str], show: Callable[[str], None]
) -> Session:
    """Apply words until `quit` or the end of input; show every session, and return the last."""
    show(screen_text(bench, session))
    while (word := read()) and word != "quit":
        session = bench.after(session, word)
        show(screen_text(bench, session))
    return session


def lines() -> str:
    """Read the next word of standard input, a line each; "" at its end."""
    for line in sys.stdin:
        if line.strip():
            return line.strip()
    return ""


def keys() -> str:
    """Read the word of the next key that has one; "" at the end of input."""
    while True:
        key = os.read(sys.stdin.fileno(), 8).decode(errors="replace")
        if not key:
            return ""
        if key in KEYS:
            return KEYS[key]


@contextmanager
def screen() -> Generator[Callable[[str], None]]:
    """Switch the terminal to an alternate screen and raw keys; switch back at the end."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        tty.setcbreak(file)

        def show(text: str) -> None:
            body = f"{text}\n\n{HELP}".replace("\n", "\x1b[K\n")
            sys.stdout.write(f"\x1b[H{body}\x1b[J")
            sys.stdout.flush()

        yield show
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
