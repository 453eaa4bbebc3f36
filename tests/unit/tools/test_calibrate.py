"""Prices: measured, written, read back, and what is decided with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra import cli
from recurra.cost.prices import PRICES, Prices, of_machine, read, write
from recurra.errors import RecurraError
from recurra.runtime.executable import Executable
from recurra.support import cpu
from recurra.tools import calibration


def learner(**options: Any) -> Executable:
    """A net that acts forwards and learns backwards: its layer is kept, or computed again."""
    with (ctx := rc.Context(num_dims=3)) as ((b, B), (i, I), (t, T)):
        net = rc.nn.MLP([32, 32, 1], (i,))
        x = rc.like(rc.f32[32], domain=(b, i, t))
        x[b, i, 0] = rc.uniform((b, i), (32,))
        y = net(x)
        x[b, i, t + 1] = x * 0.9 + y.mean()
        y.square()[0:B, i, 0:T].mean().backward()
        rc.optim.SGD(net.params, lr=1e-2).step()
        rc.log(y=y[0:B, i, 0:T].mean())
    return ctx.compile({B: 64, I: 8, T: 8}, **options)


def test_a_small_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"ROWS": 8, "WIDTH": 8, "STEPS": 3, "FAR": 3, "POINTS": 20}.items():
        monkeypatch.setattr(calibration, name, small)
    told: list[str] = []
    found = calibration.measure("numpy", told.append)
    assert set(calibration.OPERATORS) < set(told)
    assert set(found.elements) == set(PRICES.elements)
    flat = (found.flops_per_ns, found.traffic, found.statement, found.plain)
    assert min(*flat, *found.elements.values()) > 0


def test_every_operator_runs_everywhere() -> None:
    start = np.linspace(0.1, 0.9, 8, dtype="f4").reshape(2, 4)
    for name, step in calibration.OPERATORS.items():
        if name in ("uniform", "take"):
            continue  # of as many rows as are measured
        with (ctx := rc.Context(dims="t")) as ((t, T),):
            x = rc.like(rc.f32[2, 4], domain=(t,))
            x[0] = rc.constant(start)
            x[t + 1] = step(x, t)
            rc.output(x=x)
        program = ctx.compile({"T": 50}, backend="numpy")
        assert np.isfinite(program.run()["x"]).all(), name


def test_prices_are_those_that_were_written(tmp_path: Path) -> None:
    path, mine = tmp_path / "prices.json", replace(PRICES, plain=0.5)
    write(path, "a machine", {"jax": mine, "numpy": PRICES})
    assert read(path, "a machine") == {"jax": mine, "numpy": PRICES}
    with pytest.raises(RecurraError, match="prices of another machine"):
        read(path, "another")


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.update(schema="recurra-prices/0"),
        lambda x: x["prices"]["jax"].pop("plain"),
        lambda x: x["prices"]["jax"].update(plain=-1.0),
        lambda x: x["prices"]["jax"]["elements"].update(tanh=None),
        lambda x: x.update(prices=[]),
    ],
)
def test_what_is_no_price(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "prices.json"
    write(path, "a machine", {"jax": PRICES})
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(RecurraError, match="holds no prices") as refused:
        read(path, "a machine")
    assert f"recurra calibrate --out {path}" in str(refused.value)


def test_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.json"
    assert of_machine("jax") is PRICES
    monkeypatch.setenv("RECURRA_PRICES", str(path))
    with pytest.raises(RecurraError, match="holds no prices"):
        of_machine("jax")
    write(path, cpu.name(), {"jax": replace(PRICES, plain=2.0)})
    assert of_machine("jax").plain == 2.0
    with pytest.raises(RecurraError, match=f"{path} has no prices of torch"):
        of_machine("torch")
    assert learner(backend="jax").compilation.target.prices.plain == 2.0


def test_choices_follow_prices() -> None:
    dear = learner(backend="numpy", prices=replace(PRICES, traffic=1e3))
    cheap = learner(backend="numpy", prices=replace(PRICES, traffic=1e-3))
    kept = [sum(s.nbytes(p.compiled.plan.sizes) for s in stores(p)) for p in (dear, cheap)]
    assert kept[0] < kept[1]
    np.testing.assert_allclose(dear.run()["y"], cheap.run()["y"], rtol=1e-5)
    fast = learner(backend="numpy", prices=Prices(flops_per_ns=1e6, elements={}, plain=1e-6))
    assert sum(x.predicted for x in fast.islands(steps=1)) < 0.1 * sum(
        x.predicted for x in dear.islands(steps=1)
    )


def stores(p: Executable) -> Any:
    return p.compiled.plan.stores.values()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prices.json"
    write(path, cpu.name(), {"torch": PRICES})
    monkeypatch.setattr(calibration, "measure", lambda backend, told: replace(PRICES, plain=3.0))
    assert cli.main(["calibrate", "--backend", "numpy", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert "plain" in said
    assert f"RECURRA_PRICES={path}" in said
    found = read(path, cpu.name())
    assert (found["numpy"].plain, found["torch"]) == (3.0, PRICES)
    assert cli.main(["calibrate", "--out", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plain"] == 3.0
    assert cli.main(["calibrate", "--backend", "cupy", "--out", str(path)]) == 2
    assert "there is no backend 'cupy'" in capsys.readouterr().err
    assert cli.main(["calibrate", "--out", str(tmp_path / "none" / "prices.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
