"""A terminal for which everything takes long."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

import pytest

from recurra.support import notices


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Impatient:
    """A timer whose time is up at once."""

    daemon = True

    def __init__(self, seconds: float, call: Callable[..., None], args: Sequence[str]):
        self.call, self.args = call, args

    def start(self) -> None:
        self.call(*self.args)

    def cancel(self) -> None:
        pass


def told_at_once(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What a terminal shows if everything takes long."""
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(notices, "Timer", Impatient)
    return out
