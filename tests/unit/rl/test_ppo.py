"""PPO as dims: epochs and minibatches beside a learner by hand, and what is left of one of each."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from ppo_program import (
    ACTIONS,
    CLIP,
    ENTROPY,
    GAMMA,
    LAM,
    LR,
    MAX_NORM,
    VALUE,
    Arrays,
    context,
    net,
    program,
)
from recurra.ops.permutation import Permutation
from recurra.reference.interpreter import run
from recurra.rl.recipes import Ppo
from recurra.runtime.executable import Executable
from recurra.transforms.strip_mine import tiling


def log_softmax(y: np.ndarray) -> np.ndarray:
    y = y - y.max(axis=-1, keepdims=True)
    return y - np.log(np.exp(y).sum(axis=-1, keepdims=True))


def advantages(p: Arrays, got: Arrays, i: int) -> tuple[np.ndarray, ...]:
    """Advantages and values [B, T] of the steps that were made."""
    v = net(p, got["o"][:, i].astype("f8"))[1]
    after = np.concatenate([v[:, 1:], net(p, got["end"][:, i].astype("f8"))[1][:, None]], axis=1)
    going = 1.0 - got["d"][:, i]
    delta = got["r"][:, i] + GAMMA * going * after - v
    adv = np.zeros_like(delta)
    carry = np.zeros(len(v))
    for t in reversed(range(v.shape[1])):
        carry = adv[:, t] = delta[:, t] + GAMMA * LAM * going[:, t] * carry
    return adv, v


def learn(p: Arrays, batch: tuple[np.ndarray, ...]) -> tuple[float, Arrays]:
    """The loss of a minibatch, and the parameters after it: gradients worked out by hand."""
    o, a, logp, old_v, adv, returns = batch
    n = len(a)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    logits, v, ha, hc = net(p, o)
    ls = log_softmax(logits)
    probs, hot = np.exp(ls), np.eye(ACTIONS)[a]
    ratio = np.exp((ls * hot).sum(axis=1) - logp)
    near = np.clip(ratio, 1 - CLIP, 1 + CLIP)
    near_v = old_v + np.clip(v - old_v, -CLIP, CLIP)
    far, close = (v - returns) ** 2, (near_v - returns) ** 2
    entropy = -(probs * ls).sum(axis=1)
    policy = np.maximum(-adv * ratio, -adv * near)
    loss = (policy + VALUE * 0.5 * np.maximum(far, close) - ENTROPY * entropy).mean()
    moves = (-adv * ratio >= -adv * near) | (np.abs(ratio - 1) < CLIP)
    d_logp = np.where(moves, -adv * ratio, 0.0)
    d_logits = d_logp[:, None] * (hot - probs) + ENTROPY * probs * (ls + entropy[:, None])
    inside = np.abs(v - old_v) < CLIP
    d_v = np.where(far >= close, v - returns, np.where(inside, near_v - returns, 0.0)) * VALUE
    g: Arrays = {}
    for name, h, d in (("a", ha, d_logits / n), ("c", hc, d_v[:, None] / n)):
        g[f"W{name}2"], g[f"b{name}2"] = h.T @ d, d.sum(axis=0)
        d = d @ p[f"W{name}2"].T * (1 - h**2)
        g[f"W{name}1"], g[f"b{name}1"] = o.T @ d, d.sum(axis=0)
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    return loss, {k: x - LR * g[k] * min(1.0, MAX_NORM / norm) for k, x in p.items()}


SIZES = ((2, 3, 2, 2, 4), (3, 2, 1, 1, 5), (2, 2, 3, 1, 3), (2, 2, 1, 4, 4))
RUNS = [*((s, "numpy") for s in SIZES), (SIZES[0], "jax"), (SIZES[1], "torch")]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize(("sizes", "backend"), RUNS, ids=str)
def test_learning_is_that_of_a_learner_by_hand(sizes: tuple[int, ...], backend: str) -> None:
    B, I, E, M, T = sizes
    got = program(*sizes, backend=backend).run(seed=5)
    names = [k for k in got if k[0] in "Wb"]
    p = {k: got[k][0, 0, 0].astype("f8") for k in names}
    for i in range(I):
        adv, v = advantages(p, got, i)
        o, a = got["o"][:, i].astype("f8"), got["a"][:, i]
        logp = np.take_along_axis(log_softmax(net(p, o)[0]), a[..., None], -1)[..., 0]
        every = (o, a, logp, v, adv, adv + v)
        flat = [x.reshape(B * T, *x.shape[2:]) for x in every]
        for e in range(E):
            assert np.array_equal(np.sort(got["k"][i, e].ravel()), np.arange(B * T))
            for m in range(M):
                for k in names:
                    np.testing.assert_allclose(got[k][i, e, m], p[k], rtol=2e-3, atol=2e-4)
                loss, p = learn(p, tuple(x[got["k"][i, e, m]] for x in flat))
                assert got["loss"][i, e, m] == pytest.approx(loss, rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_every_way_to_compile_it_has_the_answer_of_the_oracle(sizes: tuple[int, ...]) -> None:
    want = None
    for options in ({}, {"vectorized": False}, {"memory_price": 0.0}):
        p = program(*sizes, backend="numpy", **options)
        want = want or run(p.source_graph, p.sizes, {}, seed=5)
        got = p.run(seed=5)
        for name, o in p.logs.items():
            np.testing.assert_allclose(got[name], want[o], rtol=1e-4, atol=1e-5, err_msg=name)


def without_outputs(
    tile_rows: int | None = None, backend: str = "jax", **bounds: int
) -> Executable:
    """The program with little put out: outputs are kept at every point."""
    ctx, (b, i, e, m, n, t) = context()
    kept = dict(ctx.builder.logs)
    try:
        ctx.builder.logs = {"mean_return": kept["mean_return"], "Wa1": kept["Wa1"]}
        s = bounds
        return ctx.compile(
            {b: s["b"], i: 3, e: s["e"], m: s["m"], n: s["b"] * s["t"] // s["m"], t: s["t"]},
            backend=backend,
            **({} if tile_rows is None else {"tile_rows": tile_rows}),
        )
    finally:
        ctx.builder.logs = kept


def test_one_epoch_of_one_minibatch_shuffles_nothing_and_has_no_ratio() -> None:
    p = without_outputs(b=512, e=1, m=1, t=50)  # rows enough: no tiles of t
    graph = p.compiled.plan.graph
    assert not [n for n in graph.nodes.values() if isinstance(n.op, Permutation)]
    numbers = {n.op.name for n in graph.nodes.values() if str(n.type).startswith("f")}
    assert not numbers & {"exp", "minimum"}  # of positions there is one, in the gradient of take
    lines = [x.strip() for x in p.schedule_text.splitlines()]
    inside = lines[lines.index("for t backwards:") + 1].split()
    assert {"adv", "+d_Wc1", "+d_Wc2"} <= set(inside)  # advantages and the critic's gradients


def test_many_minibatches_keep_the_parameters_in_place() -> None:
    """They are variables: a store of them would hold all epochs and minibatches."""
    p = without_outputs(b=4, e=3, m=2, t=8)
    held = {s.name for s in p.compiled.plan.stores.values()}
    assert not [s for s in held if s.startswith(("Wc", "Wa2", "bc", "ba"))]


@pytest.mark.slow
def test_the_recipe_of_cartpole_compiles_and_counts_its_samples() -> None:
    with pytest.raises(rc.errors.RecurraError, match="--minibatches 3 does not divide 512 samples"):
        Ppo(minibatches=3).program()
    ctx, bounds = Ppo(iterations=2, rows=2, steps=6, minibatches=2, epochs=2, hidden=(4,)).program()
    got = ctx.compile(bounds, backend="numpy").run(seed=1)
    assert got["mean_return"].shape == (2,)
    assert np.isfinite(got["value_loss"]).all()


@pytest.mark.slow
def test_long_minibatches_run_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer over all samples of one fits no cache; nothing of that size is left."""
    monkeypatch.setattr(tiling, "MAX_BLOCK_LAYER_BYTES", 1 << 10)
    monkeypatch.setattr(tiling, "MIN_BLOCK_POINTS", 8)
    p = without_outputs(b=4, e=2, m=2, t=128, backend="numpy")
    assert "n: tiles of 32 for" in " ".join(p.compiled.stages.decisions)
    plain = without_outputs(b=4, e=2, m=2, t=128, tile_rows=0, backend="numpy")
    assert "n: tiles" not in " ".join(plain.compiled.stages.decisions)
    got = p.run(seed=5)
    for o, want in plain.run(seed=5).items():
        np.testing.assert_allclose(got[o], want, rtol=1e-3, atol=1e-5)
    wide = [n for n in p.compiled.plan.graph.nodes.values() if n.op.name == "einsum"]
    assert max(n.type.nbytes(p.compiled.plan.sizes) for n in wide) <= 4 * 1 << 10
