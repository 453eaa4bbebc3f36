"""Every example, at a tiny size: its answer is that of a loop in NumPy, its memory what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from documents import ROOT, fenced, fill, sections
from example_programs import EXAMPLES, program, scope
from recurra.cost.tuning_knobs import Tuning
from recurra.runtime.executable import Executable
from recurra.storage.offload import Offload


def drawn(*shape: int, times: int, by: float) -> list[Any]:
    """The constants of an example that makes them first of all."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) / by for _ in range(times)]


def close(got: Any, want: Any, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 45
    assert text.startswith('"""')
    assert f"python examples/{name}.py" in text


def test_the_pages_show_every_example() -> None:
    pages = [ROOT / "docs" / name for name in ("examples.md", "examples-models.md")]
    shown = [name for page in pages for name in sections(page)]
    assert sorted(shown) == sorted(EXAMPLES)
    for page in pages:
        sources = {n: (ROOT / "examples" / f"{n}.py").read_text() for n in sections(page)}
        fill(page, {n: fenced(text, "python no-run") for n, text in sources.items()})


def slots(p: Executable) -> dict[str, str]:
    return {r["store"]: r["slots"] for r in p.store_rows if r["class"] != "output"}


def test_windowed_average() -> None:
    p = program(scope("windowed_average"), "torch", B=2, T=12)
    assert {s for s in slots(p).items() if "t" in s[1]} == {("x", "t: 5")}
    x = program(scope("windowed_average", "x"), "torch", B=2, T=12).run()["x"]
    assert np.ptp(x) > 1
    want = [x[:, max(t - 4, 0) : t + 1].mean(axis=1) for t in range(12)]
    close(p.run()["y"], np.stack(want, axis=1))


LAKE = "SFFFFHFHFFFHHFFG"  # 4 by 4, of which H and G end an episode


def test_big_observations() -> None:
    """Pictures show where the actions lead; what is learned of them is the same from a disk."""
    B, T = 3, 9
    w = scope("big_observations", "o", "a", "r", "d")
    p = program(w, B=B, I=2, T=T)
    got = p.run()
    place = np.zeros(B, int)
    for t in range(T):
        cells = got["o"][:, 0, t].reshape(B, 3, 4, 32, 4, 32).max(axis=(3, 5)).reshape(B, 48)
        assert (cells == 255 * np.eye(48)[place]).all()
        y, x = divmod(place, 4)
        a = got["a"][:, 0, t]
        x, y = np.clip(x + (a == 2) - (a == 0), 0, 3), np.clip(y + (a == 1) - (a == 3), 0, 3)
        place = 4 * y + x
        ends = np.array([LAKE[k] in "HG" for k in place])
        assert (got["d"][:, 0, t] == ends).all()
        assert (got["r"][:, 0, t] == [LAKE[k] == "G" for k in place]).all()
        place = np.where(ends, 0, place)
    w = scope("big_observations", "a", "r", "d")
    bounds = {w[k]: n for k, n in {"B": B, "I": 2, "T": T}.items()}
    how = Offload("disk", least=1, stores=("o",))
    offloaded = w["ctx"].compile(bounds, backend="numpy", offload=how)
    assert any("o: " in x and "to the disk" in x for x in offloaded.compiled.stages.decisions)
    for name, x in offloaded.run().items():
        close(x, got[name])


def test_bptt_rnn() -> None:
    """Three updates, against back-propagation through time by hand."""
    w = scope("bptt_rnn", "x", "W", "V", "c", "d")
    steps, B, T, delay = 3, 4, 7, w["DELAY"]
    got = program(w, B=B, I=steps, T=T).run()
    p = {k: got[k][0].astype("f8") for k in "WVcd"}
    m, v = ({k: np.zeros_like(x) for k, x in p.items()} for _ in range(2))
    for n in range(steps):
        for k in p:
            close(got[k][n], p[k], 2e-3)
        x = got["x"][:, n]
        h = np.zeros((T + 1, B, p["V"].shape[0]))
        for t in range(T):
            h[t + 1] = np.tanh(x[:, t, None] @ p["W"] + h[t] @ p["V"])
        e = np.array(
            [(h[t + 1] @ p["c"])[:, 0] + p["d"] - x[:, t - delay] for t in range(delay, T)]
        )
        close(got["loss"][n], np.mean(e**2), 1e-3)
        g, back = {k: np.zeros_like(a) for k, a in p.items()}, np.zeros_like(h[0])
        for t in reversed(range(T)):
            if t >= delay:
                de = 2 * e[t - delay][:, None] / e.size
                g["c"] += h[t + 1].T @ de
                g["d"] += de.sum(axis=0)
                back = back + de @ p["c"].T
            back = back * (1 - h[t + 1] ** 2)
            g["W"] += x[:, t][None] @ back
            g["V"] += h[t].T @ back
            back = back @ p["V"].T
        norm = np.sqrt(sum((a**2).sum() for a in g.values()))
        for k, a in g.items():
            a = a * min(1.0, 1.0 / norm)
            m[k], v[k] = 0.9 * m[k] + 0.1 * a, 0.999 * v[k] + 0.001 * a**2
            unbiased = m[k] / (1 - 0.9 ** (n + 1)), v[k] / (1 - 0.999 ** (n + 1))
            p[k] = p[k] - 0.01 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)


def test_state_space() -> None:
    w = scope("state_space")
    got = program(w, "jax", B=2, T=9).run()
    channels, states = w["CHANNELS"], w["STATES"]
    to_b, to_c = drawn(channels, states, times=2, by=2)
    to_delta = drawn(channels * (channels + 2 * states), times=1, by=2)[0][-channels * channels :]
    a, h = np.arange(1.0, states + 1), np.zeros((2, channels, states))
    for t in range(9):
        u = got["u"][:, t].astype("f8")
        delta = np.log1p(np.exp(u @ to_delta.reshape(channels, channels)))
        h = np.exp(-delta[..., None] * a) * h + (delta * u)[..., None] * (u @ to_b)[:, None]
        close(got["y"][:, t], np.einsum("bcs,bs->bc", h, u @ to_c))


def test_linear_attention() -> None:
    got = program(scope("linear_attention"), B=2, T=6).run()
    q, k, v = (got["x"] @ x for x in drawn(8, 8, times=3, by=3))
    q, k = np.exp(q), np.exp(k)
    for t in range(6):
        scores = np.einsum("bd,bnd->bn", q[:, t], k[:, : t + 1])
        want = np.einsum("bn,bne->be", scores, v[:, : t + 1]) / scores.sum(axis=1, keepdims=True)
        close(got["y"][:, t], want)


@pytest.mark.parametrize("T", [8, 400])
def test_linear_attention_keeps_a_state_of_constant_size(T: int) -> None:
    rows = program(scope("linear_attention"), B=2, T=T).store_rows
    kept = {r["store"]: (r["slots"], r["bytes"]) for r in rows if r["class"] != "output"}
    assert kept == {"state": ("1", 2 * 8 * 8 * 4), "state_2": ("1", 2 * 8 * 4)}


def test_diffusion() -> None:
    p = program(scope("diffusion"), B=3, T=8)
    assert "for t backwards:" in p.schedule_text
    x, T = p.run()["x"].astype("f8"), 8
    beta = 1e-3 + 0.06 * np.arange(T) / T
    kept = np.cumprod(1 - beta)
    noises: list[Any] = []
    for t in reversed(range(1, T)):
        densities = [
            np.exp(-((x[:, t] - s * np.sqrt(kept[t])) ** 2) / (2 * var))
            for s, var in ((c, kept[t] * 0.3**2 + 1 - kept[t]) for c in (2.0, -2.0))
        ]
        odds = densities[0] / sum(densities)
        clean = np.sqrt(kept[t]) * 2.0 * (2 * odds - 1)
        eps = (x[:, t] - clean) * np.sqrt(1 - kept[t]) / (kept[t] * 0.3**2 + 1 - kept[t])
        mean = (x[:, t] - beta[t] / np.sqrt(1 - kept[t]) * eps) / np.sqrt(1 - beta[t])
        noises.append((x[:, t - 1] - mean) / np.sqrt(beta[t]))
    close(noises[-1], 0.0, 1e-2)  # the last step adds none
    assert np.abs(np.std(noises[:-1]) - 1) < 0.4
    many = program(scope("diffusion"), B=500, T=60).run()["sample"]
    assert np.mean(np.abs(np.abs(many) - 2.0) < 1.0) > 0.97
    assert 0.4 < np.mean(many > 0) < 0.6


def test_td_lambda() -> None:
    B, T, n = 2, 40, scope("td_lambda")["N"]
    got = program(scope("td_lambda"), "jax", B=B, T=T).run()
    assert got["over"].any()
    for b in range(B):
        w, e = np.full(n, 0.5), np.zeros(n)
        for t in range(T - 1):
            s, over = got["s"][b, t], got["over"][b, t]
            after = 0.0 if over else w[got["s"][b, t + 1]]
            e = 0.8 * e
            e[s] += 1
            w = w + 0.05 * (got["r"][b, t] + after - w[s]) * e
            e = e * (not over)
        close(got["w"][b], w)


def test_edit_distance() -> None:
    of = scope("edit_distance")
    for gain in (Tuning.min_skew_gain, 0.0):
        edit_distance(program(of, B=3, I=6, J=7, min_skew_gain=gain))
    assert slots(program(of, B=3, I=6, J=7))["d"] == "i: 2, j: 7", "two rows, not the table"
    wide = program(of, B=2, I=60, J=70)
    found = [row["slots"] for row in wide.store_rows if row["store"] == "d_wave"]
    assert found == ["ijw: 3", "1"], "three diagonals, not the table"


def edit_distance(p: Any) -> None:
    got = p.run()
    for x, y, found in zip(got["x"], got["y"], got["distance"], strict=True):
        d = np.add.outer(np.arange(7), np.arange(8)).astype(float)
        for i in range(1, 7):
            for j in range(1, 8):
                replaced = d[i - 1, j - 1] + (x[i - 1] != y[j - 1])
                d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, replaced)
        assert found == d[-1, -1]


def test_newton() -> None:
    of = scope("newton")
    got = of["ctx"].compile({of["B"]: 20, of["T"]: of["converged"]}, backend="numpy").run()
    close(got["root"], np.cbrt(got["a"]))
    close(got["slope"], 1 / (3 * got["root"] ** 2), rtol=1e-3)
    for a, root, steps in zip(got["a"], got["root"], got["steps"], strict=True):
        x, n = np.float32(a), 0
        while abs(x**3 - a) >= np.float32(1e-5) * a:
            x, n = x - (x**3 - a) / (np.float32(3) * x**2), n + 1
        assert abs(n - steps) <= 1, "as many steps as it needs, but for rounding"
        close(root, x)
    assert len(set(got["steps"])) > 2


def test_kalman_filter() -> None:
    """The means are those of the joint normal of all states and what was seen, conditioned."""
    B, T = 2, 6
    got = program(scope("kalman_filter"), B=B, T=T).run()
    F, push, noise = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([0.0, 0.01]), 4.0
    cov = np.zeros((T, 2, T, 2))
    cov[0, :, 0] = 10 * np.eye(2)
    for t in range(1, T):
        cov[t, :, :t] = np.einsum("ac,csd->asd", F, cov[t - 1, :, :t])
        cov[:t, :, t] = np.moveaxis(cov[t, :, :t], 0, -1)
        cov[t, :, t] = F @ cov[t - 1, :, t - 1] @ F.T + push

    def given(at: int, seen: int) -> Any:
        inside = cov[:seen, 0, :seen, 0] + noise * np.eye(seen)
        across = cov[at][:, :seen, 0]
        return got["z"][:, :seen] @ np.linalg.solve(inside, across.T)

    for t in range(T):
        close(got["m"][:, t], given(t, t + 1), 2e-3)
        close(got["x"][:, t], given(t, T), 2e-3)


@pytest.mark.slow
def test_ppo() -> None:
    """Learning itself: see test_ppo."""
    got = program(scope("ppo", "k"), B=2, I=2, E=3, M=2, N=4, T=4).run()
    assert np.isfinite(got["mean_return"]).all()
    for epoch in got["k"].reshape(6, 8):
        assert sorted(epoch) == list(range(8))
