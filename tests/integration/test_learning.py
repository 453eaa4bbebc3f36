"""It learns: the compiled program holds the pole up."""

import pytest

from benchmarks.core import recurra_program


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_reinforce_learns_cartpole(seed: int):
    length = recurra_program.program(64, 200, 40, gradients=False).run(seed=seed)["length"]
    assert length[0] < 30
    assert length[-5:].mean() >= 175, length
