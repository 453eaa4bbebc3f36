"""check=True: every deferred operator beside eager mode, to the last bit."""

from __future__ import annotations

import ctypes
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from random_torch import bits, inputs, run
from recurra import window
from recurra.cli import main
from recurra.window import KernelError
from recurra.window.torch.concurrent import concurrent

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]
SLOW = torch.randn(700, 700, generator=torch.Generator().manual_seed(0)) / 25


@pytest.mark.slow
def test_random_programs_are_checked_and_stay_the_same() -> None:
    start = inputs()
    counts: dict[str, float] = {"deferred": 0, "checked": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outputs that are resized
        for seed in range(300):
            expected = bits(run(seed, start))
            with concurrent(1 + seed % 4, 1 + seed % 64, check=True) as block:
                found = run(seed, start)
            assert bits(found) == expected, f"program {seed}"
            for name in counts:
                counts[name] += block.counts[name]
    assert counts["checked"] == counts["deferred"] > 300 * 20


def address_of(x: torch.Tensor) -> Any:
    return ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))


def test_the_first_that_differs_is_told_with_its_line() -> None:
    """Memory is changed by an address that was taken before the block: nobody can see that."""
    x = torch.ones(4)
    behind_our_back = address_of(x)

    def program() -> torch.Tensor:
        one = (SLOW @ SLOW)[0, 0] * 0 + 1
        y = x * one  # the line that is told
        behind_our_back[1] = 7.0
        return (y + 1) * 2

    with concurrent(2, policy="always"):
        program()
    x.fill_(1.0)
    with pytest.raises(KernelError) as told, concurrent(2, check=True):
        program()
    line = program.__code__.co_firstlineno + 2
    assert "operator aten::mul failed: 1 of 4 elements are not eager mode's" in str(told.value)
    assert "the first of them is 7 instead of 1;" in str(told.value)
    assert f"test_window_check.py:{line}" in str(told.value)


def test_what_fails_in_eager_mode_fails_as_ever() -> None:
    at = torch.tensor([0, 700])
    with concurrent(2, check=True):
        torch.index_select(SLOW, 0, at - at)
        with pytest.raises(IndexError, match="out of range"):
            torch.index_select(SLOW, 0, at).sum().item()


def test_memory_is_compared_as_it_was_when_a_call_wrote_it() -> None:
    """Later calls that write the same memory, or other parts of it, change nothing of that."""
    with concurrent(3, check=True) as block:
        for _ in range(3):
            x = SLOW @ SLOW
            x[:350].mul_(2)
            y = x + 1
            x[350:].copy_(y[:350])
            x.add_(y).t()[::2].zero_()
            z = torch._foreach_add([x, y], 1.0)
    assert block.counts["checked"] == block.counts["deferred"] > 0
    assert torch.equal(z[0], x + 1)


def test_training_is_checked() -> None:
    counted = window.torch.concurrent.Block()
    with torch.enable_grad():
        layer = torch.nn.Linear(8, 8)
        model = torch.compile(layer, backend=window.backend(check=True, block=counted))
        for _ in range(3):
            model(torch.ones(4, 8)).square().sum().backward()
    assert counted.counts["checked"] > 0


def test_a_script_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", list(sys.path))
    path = tmp_path / "infer.py"
    path.write_text("import torch\nx = torch.ones(53, 53)\nfor _ in range(9): y = x @ x\n")
    assert main(["window", "run", str(path), "--check"]) == 0
    told = capsys.readouterr().err
    assert "checked: 8" in told or "checked: 9" in told  # the first, too, if its like was known
