"""Options as a shell has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from recurra.cli import main, run
from recurra.errors import RecurraError
from recurra.support.command_line_text import command_line, spelled


@dataclass(frozen=True)
class Walked:
    """A command."""

    file: str
    """Where."""
    top_k: int = 3
    """How many."""
    folder: Path = Path("runs")
    """Where to."""
    again: bool = False
    """Once more."""

    def __call__(self) -> int:
        raise RecurraError("top_k is 3, and top_kk=4", facts="folder='a b'", hint="top_k=2")


def test_a_line_to_type() -> None:
    assert command_line("recurra walk", Walked("a")) == "recurra walk a"
    line = "recurra walk 'a b' --top-k 4 --folder 'my runs' --again"
    assert command_line("recurra walk", Walked("a b", 4, Path("my runs"), True)) == line


def test_settings_are_spelled_as_flags() -> None:
    assert spelled("seed is -1", ["seed", "top_k"]) == "--seed is -1"
    assert spelled("it is: seed=1, top_k='2'", ["seed", "top_k"]) == "it is: --seed 1, --top-k 2"
    assert spelled("my_seed=1, x.seed=1", ["seed"]) == "my_seed=1, x.seed=1"


def test_several_ways_out_are_all_spelled_as_flags() -> None:
    """It was: leave placement out, or compile with --backend numpy or "torch"."""
    told = 'leave placement out, or compile with backend="numpy" or "torch"'
    want = "leave --placement out, or --backend numpy or --backend torch"
    assert spelled(told, ["placement", "backend"]) == want


def test_a_command_tells_its_flags() -> None:
    with pytest.raises(RecurraError) as e:
        run(Walked, "recurra walk", ["--file", "x"])
    assert str(e.value) == "--top-k is 3, and top_kk=4\n  --folder a b\n  hint: --top-k 2"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "ppo", "--backend", "cuda"], "hint: --backend jax is what"),
        (["train", "ppo", "--backend", "nunpy"], "hint: did you mean --backend numpy?"),
        (["generate", "--model", "x", "--prompt", "a", "--top-k", "-1"], "--top-k is -1"),
    ],
)
def test_commands_tell_their_flags(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err
