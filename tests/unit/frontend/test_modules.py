"""Modules against torch.nn: the same weights, the same values, the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import RecurraError, ShapeError

B, T = 2, 5
RNG = np.random.default_rng(0)


def array(x: Any) -> np.ndarray:
    return x.detach().numpy()


@dataclass(frozen=True)
class Pair:
    """A module of ours and torch's; what torch gives for x [B, T, *shape] (or [B, *shape])."""

    ours: Callable[[Any], Any]
    theirs: Callable[[], Any]
    weights: dict[str, str]  # ours -> theirs; a leading "'" transposes
    shape: tuple[int, ...] = (3,)
    call: Callable[[Any, Any], Any] = lambda m, x: m(x)
    time: bool = True


def same(*names: str) -> dict[str, str]:
    return {n: n for n in names}


GATES = {
    "cell.weight_ih": "'weight_ih_l0",
    "cell.weight_hh": "'weight_hh_l0",
    "cell.bias_ih": "bias_ih_l0",
    "cell.bias_hh": "bias_hh_l0",
}
ATTENTION = {
    "in_proj_weight": "'in_proj_weight",
    "in_proj_bias": "in_proj_bias",
    "out_proj.weight": "'out_proj.weight",
    "out_proj.bias": "out_proj.bias",
}


def attend(m: Any, x: Any, window: int = T) -> Any:
    at = torch.arange(T)
    hidden = (at[None] > at[:, None]) | (at[None] <= at[:, None] - window)
    return m(x, x, x, attn_mask=hidden, need_weights=False)[0]


nn = rc.nn
PAIRS: dict[str, Pair] = {
    "linear": Pair(
        lambda d: nn.Linear(3, 4, d),
        lambda: torch.nn.Linear(3, 4),
        {"weight": "'weight", "bias": "bias"},
    ),
    "layer norm": Pair(
        lambda d: nn.LayerNorm(4, d),
        lambda: torch.nn.LayerNorm(4),
        same("weight", "bias"),
        shape=(2, 4),
    ),
    "layer norm of two axes": Pair(
        lambda d: nn.LayerNorm((2, 4), d, bias=False),
        lambda: torch.nn.LayerNorm((2, 4), bias=False),
        same("weight"),
        shape=(2, 4),
    ),
    "rms norm": Pair(
        lambda d: nn.RMSNorm(4, d), lambda: torch.nn.RMSNorm(4), same("weight"), shape=(4,)
    ),
    "convolution": Pair(
        lambda d: nn.Conv2d(2, 3, 3, domain=d),
        lambda: torch.nn.Conv2d(2, 3, 3),
        same("weight", "bias"),
        shape=(2, 5, 4),
        time=False,
    ),
    "strided convolution": Pair(
        lambda d: nn.Conv2d(2, 3, (4, 3), stride=(2, 3), padding=(1, 2), domain=d, bias=False),
        lambda: torch.nn.Conv2d(2, 3, (4, 3), stride=(2, 3), padding=(1, 2), bias=False),
        same("weight"),
        shape=(2, 7, 6),
        time=False,
    ),
    "max pool": Pair(
        lambda d: nn.Sequential(nn.Conv2d(1, 2, 1, domain=d), nn.MaxPool2d(3, 2)),
        lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.MaxPool2d(3, 2)),
        {"layers.0.weight": "0.weight", "layers.0.bias": "0.bias"},
        shape=(1, 6, 7),
        time=False,
    ),
    "average pool": Pair(
        lambda d: nn.Sequential(nn.Conv2d(1, 2, 1, domain=d), nn.AvgPool2d(2)),
        lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.AvgPool2d(2)),
        {"layers.0.weight": "0.weight", "layers.0.bias": "0.bias"},
        shape=(1, 5, 4),
        time=False,
    ),
    "rnn": Pair(
        lambda d: nn.RNN(3, 4, d),
        lambda: torch.nn.RNN(3, 4, batch_first=True),
        GATES,
        call=lambda m, x: m(x)[0],
    ),
    "gru": Pair(
        lambda d: nn.GRU(3, 4, d),
        lambda: torch.nn.GRU(3, 4, batch_first=True),
        GATES,
        call=lambda m, x: m(x)[0],
    ),
    "lstm": Pair(
        lambda d: nn.LSTM(3, 4, d),
        lambda: torch.nn.LSTM(3, 4, batch_first=True),
        GATES,
        call=lambda m, x: m(x)[0],
    ),
    "attention": Pair(
        lambda d: nn.MultiheadAttention(4, 2, d),
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
        ATTENTION,
        shape=(4,),
        call=attend,
    ),
    "attention to a window": Pair(
        lambda d: nn.MultiheadAttention(4, 1, d, window=2),
        lambda: torch.nn.MultiheadAttention(4, 1, batch_first=True),
        ATTENTION,
        shape=(4,),
        call=lambda m, x: attend(m, x, 2),
    ),
}


def loaded(of: Any, weights: dict[str, str]) -> dict[str, np.ndarray]:
    named = dict(of.named_parameters())
    return {
        k: array(named[v.lstrip("'")]).T if v[0] == "'" else array(named[v])
        for k, v in weights.items()
    }


BACKEND = {
    "convolution": "jax",
    "gru": "jax",
    "attention to a window": "jax",
    "strided convolution": "torch",
    "average pool": "torch",
    "lstm": "torch",
    "attention": "torch",
}


def ours(pair: Pair, weights: dict[str, np.ndarray], x: Any, g: Any, backend: str) -> Any:
    """Value and gradients of Σ g · module(x)."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, Bb), (i, I), (t, Tt)):
        over = (b, t) if pair.time else (b,)
        z = rc.input(rc.f32[x.shape[len(over) :]], over, name="z")
        w = rc.input(rc.f32[g.shape[len(over) :]], over, name="w")
        module = pair.ours((i,))
        module.load(weights)
        y = module(z)
        (y * w).sum().backward(wrt=[z, *module.params])
        grads = {f"d_{k}".replace(".", "_"): p.grad for k, p in module.named_params()}
        rc.output(y=y, d_z=z.grad, **grads)
        del Bb, I, Tt
    bounds = {"B": B, "I": 1, "T": T}
    bounds = {r.hi: bounds[str(r.hi)[0]] for r in ctx.builder.dims}
    return ctx.compile(bounds, backend=backend).run(inputs={"z": x, "w": g})


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradients(name: str) -> None:
    pair = PAIRS[name]
    torch.manual_seed(1)
    m = pair.theirs()
    lead = (B, T) if pair.time else (B,)
    x = torch.tensor(RNG.normal(size=(*lead, *pair.shape)), dtype=torch.float32, requires_grad=True)
    want = pair.call(m, x)
    g = RNG.normal(size=want.shape).astype("f4")
    (want * torch.tensor(g)).sum().backward()
    got = ours(pair, loaded(m, pair.weights), array(x), g, BACKEND.get(name, "numpy"))

    def check(key: str, value: Any, note: str = "") -> None:
        found = got[key].reshape(value.shape)
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=2e-5, err_msg=f"{key} {note}")

    check("y", array(want))
    check("d_z", x.grad.numpy())
    named = dict(m.named_parameters())
    for k, v in pair.weights.items():
        d = named[v.lstrip("'")].grad.numpy()
        check(f"d_{k}".replace(".", "_"), d.T if v[0] == "'" else d)


# ---- along another dim, from another state


def test_a_layer_goes_along_any_dim_from_any_state() -> None:
    torch.manual_seed(2)
    m = torch.nn.LSTM(2, 3, batch_first=True)
    x, h, c = (RNG.normal(size=s).astype("f4") for s in ((T, B, 2), (B, 3), (B, 3)))
    ctx = rc.Context(num_dims=2)
    with ctx as ((t, Tt), (b, Bb)):
        z = rc.input(rc.f32[2], (t, b), name="z")
        layer = nn.LSTM(2, 3, ())
        layer.load(loaded(m, GATES))
        first = [rc.input(rc.f32[3], (b,), name=n) for n in "hc"]
        every, last = layer.unrolled(z, tuple(first), t)
        rc.output(h=every, c=last[Tt - 1, b], along=layer(z, *first, over=t))
    got = ctx.compile({Tt: T, Bb: B}, backend="numpy").run(inputs={"z": x, "h": h, "c": c})
    lead = tuple(torch.tensor(s[None]) for s in (h, c))
    want, (_, end) = m(torch.tensor(x).transpose(0, 1), lead)
    np.testing.assert_allclose(got["h"], array(want).transpose(1, 0, 2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["c"], array(end)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["along"], got["h"])


def test_a_cell_is_one_step() -> None:
    torch.manual_seed(3)
    m = torch.nn.GRUCell(2, 3)
    x, h = RNG.normal(size=2).astype("f4"), RNG.normal(size=3).astype("f4")
    ctx = rc.Context()
    with ctx:
        cell = nn.GRUCell(2, 3, ())
        cell.load(loaded(m, {k.removeprefix("cell."): v[:-3] for k, v in GATES.items()}))
        rc.output(h=cell(rc.constant(x), rc.constant(h)))
    want = m(torch.tensor(x)[None], torch.tensor(h)[None])[0]
    np.testing.assert_allclose(ctx.run({}, backend="numpy")["h"], array(want), rtol=1e-5)


def test_only_a_window_of_keys_is_stored() -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, Tt),):
        x = rc.like(rc.f32[4], domain=(t,))
        x[0] = rc.constant(np.ones(4))
        x[t + 1] = nn.MultiheadAttention(4, 2, (), window=3)(x).tanh()
        rc.output(y=x[Tt - 1])
    program = ctx.compile({Tt: 64}, backend="numpy")
    slots = [row["slots"] for row in program.store_rows if row["kind"].startswith("mirrored")]
    assert slots == ["t: 3 + 3", "t: 3 + 3"]


# ---- embeddings, dropout


def test_embedding() -> None:
    m = torch.nn.Embedding(5, 3)
    k, g = np.array([4, 0, 4, 1], np.int32), RNG.normal(size=(4, 3)).astype("f4")
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, Tt),):
        e = nn.Embedding(5, 3, ())
        e.load({"weight": array(m.weight)})
        y = e(rc.constant(k).index(t))
        (y * rc.constant(g).index(t)).sum().backward()
        rc.output(y=y, d=e.weight.grad)
    got = ctx.run({Tt: 4}, backend="numpy")
    want = m(torch.tensor(k))
    (want * torch.tensor(g)).sum().backward()
    np.testing.assert_array_equal(got["y"], array(want))
    np.testing.assert_allclose(got["d"], m.weight.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_dropout_is_the_same_backwards(backend: str) -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, Tt),):
        x = rc.input(rc.f32[50], (t,), name="x")
        y = nn.Dropout(0.2)(x)
        y.sum().backward(wrt=x)
        rc.output(y=y, d=x.grad, all=nn.Dropout(0.0)(x))
    program = ctx.compile({Tt: 40}, backend=backend)
    x_ = RNG.normal(size=(40, 50)).astype("f4")
    got, other = (program.run(inputs={"x": x_}, seed=s) for s in (0, 1))
    np.testing.assert_allclose(got["y"], got["d"] * x_, rtol=1e-6)
    np.testing.assert_allclose(np.unique(got["d"]), [0.0, 1.25])
    assert np.mean(got["d"] == 0) == pytest.approx(0.2, abs=0.03)
    assert not np.array_equal(got["d"][0], got["d"][1])
    assert not np.array_equal(got["d"], other["d"])
    np.testing.assert_array_equal(got["all"], x_)


# ---- distributions


def test_gaussian() -> None:
    mean, log_std, a = (RNG.normal(size=3).astype("f4") for _ in range(3))
    want = torch.distributions.Normal(torch.tensor(mean), torch.tensor(log_std).exp())
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, Tt),):
        m, s = rc.input(rc.f32[3], name="m"), rc.input(rc.f32[3], name="s")
        pi = nn.Gaussian(m + 0.0 * rc.value(t), s)
        x = pi.rsample()
        x.sum().backward(wrt=[m, s])
        drawn = pi.sample()
        rc.output(log_prob=nn.Gaussian(m, s).log_prob(rc.constant(a)), entropy=pi.entropy())
        rc.output(x=x, dm=m.grad, ds=s.grad, drawn=drawn)
    got = ctx.compile({Tt: 4000}, backend="numpy").run(inputs={"m": mean, "s": log_std})
    np.testing.assert_allclose(got["log_prob"], want.log_prob(torch.tensor(a)).sum(), rtol=1e-5)
    np.testing.assert_allclose(np.unique(got["entropy"]), want.entropy().sum(), rtol=1e-5)
    z = (got["x"] - mean) / np.exp(log_std)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=0.06)
    np.testing.assert_allclose(z.std(axis=0), 1.0, atol=0.06)
    np.testing.assert_allclose(got["dm"], 4000.0, rtol=1e-5)
    np.testing.assert_allclose(got["ds"], (got["x"] - mean).sum(axis=0), rtol=1e-2, atol=0.1)
    assert not np.array_equal(got["drawn"], got["x"])


def test_multi_categorical() -> None:
    logits = RNG.normal(size=5).astype("f4")
    parts = [torch.distributions.Categorical(logits=torch.tensor(x)) for x in np.split(logits, [2])]
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, Tt),):
        pi = nn.MultiCategorical(rc.constant(logits) + 0.0 * rc.value(t), (2, 3))
        rc.output(a=pi.sample(), lp=pi.log_prob(rc.constant([1, 2])), h=pi.entropy())
    got = ctx.run({Tt: 4000}, backend="numpy")
    want = [p.log_prob(torch.tensor(k)) for p, k in zip(parts, (1, 2), strict=True)]
    np.testing.assert_allclose(got["lp"], float(sum(want)), rtol=1e-5)
    np.testing.assert_allclose(got["h"], float(sum(p.entropy() for p in parts)), rtol=1e-5)
    for k, p in enumerate(parts):
        found = np.bincount(got["a"][:, k], minlength=len(p.probs)) / 4000
        np.testing.assert_allclose(found, p.probs, atol=0.03)


def test_heads_give_distributions() -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, Tt)):
        x = rc.value(t) * rc.constant(np.linspace(-1, 1, 6))
        body = nn.Sequential(nn.Linear(6, 8, (i,)), nn.ReLU())
        actions: dict[str, Any] = {}
        for name, head in {
            "one": nn.CategoricalHead(8, 4, (i,)),
            "many": nn.MultiCategoricalHead(8, (2, 3), (i,)),
            "real": nn.GaussianHead(8, 2, (i,)),
        }.items():
            pi = nn.Sequential(body, head)(x)
            actions[name] = pi.sample()
            rc.output(**{f"{name}_entropy": pi.entropy()})
        rc.output(**actions)
    got = ctx.run({I: 1, Tt: 7}, backend="numpy")
    assert got["one"].shape == (1, 7)
    assert got["many"].shape == (1, 7, 2)
    assert got["real"].shape == (1, 7, 2)
    np.testing.assert_allclose(got["one_entropy"], np.log(4), rtol=1e-3)
    np.testing.assert_allclose(got["many_entropy"], np.log(6), rtol=1e-3)
    np.testing.assert_allclose(got["real_entropy"], 1 + np.log(2 * np.pi), rtol=1e-6)


def test_a_policy_of_numbers() -> None:
    """Pendulum: a Gaussian over one number, through which learning passes."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, Bb), (i, I), (t, Tt)):
        env = rc.rl.env.make("Pendulum-v1")
        dnn = nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = dnn(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        (pi.log_prob(a) * r)[0:Bb, i, 0:Tt].mean().backward()
        rc.optim.Adam(dnn.params, lr=0.1).step()
        rc.output(a=a, log_std=dnn.log_std)
    got = ctx.run({Bb: 2, I: 2, Tt: 4}, backend="numpy")
    assert got["a"].shape == (2, 2, 4, 1)
    np.testing.assert_allclose(np.abs(np.diff(got["log_std"], axis=0)), 0.1, rtol=1e-3)


# ---- first values


def test_initializers() -> None:
    make = nn.initializers
    weight = (40, 30, 2, 2)
    kinds = {
        "kaiming_normal": (make.kaiming_normal(), np.sqrt(2 / 120)),
        "kaiming_uniform": (make.kaiming_uniform(), np.sqrt(2 / 120)),
        "xavier_normal": (make.xavier_normal(2.0), 2 * np.sqrt(2 / (120 + 160))),
        "xavier_uniform": (make.xavier_uniform(), np.sqrt(2 / (120 + 160))),
        "normal": (make.normal(0.3), 0.3),
        "uniform": (make.uniform(0.3), 0.3 / np.sqrt(3)),
        "he_normal": (make.he_normal(), np.sqrt(2 / 120)),
    }
    ctx = rc.Context()
    with ctx:
        rc.output(**{k: f(weight) for k, (f, _) in kinds.items()})
        rc.output(zeros=make.zeros()((2, 3)), ones=make.ones()((2,)))
        for name, shape in {"tall": (7, 4), "wide": (4, 7), "conv": (3, 2, 2, 2)}.items():
            rc.output(**{name: make.orthogonal(2.0)(shape)})
    program = ctx.compile({}, backend="numpy")
    got, other = program.run(seed=0), program.run(seed=1)
    for name, (_, std) in kinds.items():
        assert got[name].std() == pytest.approx(std, rel=0.05), name
        assert abs(got[name].mean()) < 0.1 * std, name
    assert np.abs(got["uniform"]).max() <= 0.3
    assert not got["zeros"].any()
    assert (got["ones"] == 1).all()
    for name, q in (("tall", got["tall"]), ("wide", got["wide"].T), ("conv", got["conv"])):
        m = q.reshape(3, 8).T if name == "conv" else q
        np.testing.assert_allclose(m.T @ m, 4 * np.eye(m.shape[1]), atol=1e-5)
    assert not np.allclose(got["tall"], other["tall"]), "another seed, other weights"


def test_default_weights_are_as_large_as_those_of_torch() -> None:
    ctx = rc.Context()
    with ctx:
        for name, module in {
            "linear": nn.Linear(50, 40, ()),
            "conv": nn.Conv2d(8, 40, 3, domain=()),
            "gru": nn.GRU(50, 40, ()),
            "attention": nn.MultiheadAttention(40, 2, ()),
        }.items():
            rc.output(**{f"{name}_{k}": p.initial for k, p in enumerate(module.params)})
    got = ctx.run({}, backend="numpy")
    modules = {
        "linear": torch.nn.Linear(50, 40),
        "conv": torch.nn.Conv2d(8, 40, 3),
        "gru": torch.nn.GRU(50, 40),
        "attention": torch.nn.MultiheadAttention(40, 2),
    }
    for name, m in modules.items():
        for k, p in enumerate(m.parameters()):
            have, want = got[f"{name}_{k}"], array(p)
            assert have.size == want.size
            assert have.std() == pytest.approx(want.std(), rel=0.25, abs=1e-9), (name, k)


# ---- mistakes


def refusal(kind: type[RecurraError], f: Callable[[Any], Any]) -> str:
    with rc.Context(num_dims=2) as ((b, _), (t, _)), pytest.raises(kind) as e:
        f((b, t))
    return str(e.value)


def test_refusals() -> None:
    x = rc.like
    text = refusal(RecurraError, lambda d: nn.Linear(2, 3, ()).load({"weight": np.ones((2, 3))}))
    assert "without array: bias; without parameter: none" in text
    text = refusal(
        ShapeError,
        lambda d: nn.Linear(2, 3, ()).load({"weight": np.ones((3, 2)), "bias": np.ones(3)}),
    )
    assert "weight cannot start at an array [3, 2]" in text
    assert "it is f32[2,3]" in text
    batch = rc.f32[8, 3, 9, 9]
    text = refusal(ShapeError, lambda d: nn.Conv2d(3, 4, 3, domain=())(x(batch, d)))
    assert "a batch is a dim" in text
    text = refusal(ShapeError, lambda d: nn.MaxPool2d(5)(x(rc.f32[1, 4, 9], d)))
    assert "windows: none of (5, 5) fits into (4, 9)" in text
    text = refusal(ShapeError, lambda d: nn.LayerNorm(3, ())(x(rc.f32[4], d)))
    assert "LayerNorm is over the last axes (3,)" in text
    text = refusal(RecurraError, lambda d: nn.GRU(2, 2, ())(x(rc.f32[2], d[:1]), over=d[1]))
    assert "there is no dim t to go along" in text
    text = refusal(RecurraError, lambda d: nn.GRU(2, 2, ())(rc.constant([1.0, 2.0])))
    assert "there is no dim to go along" in text
    assert "3 heads" in refusal(ShapeError, lambda d: nn.MultiheadAttention(4, 3, ()))
    text = refusal(ShapeError, lambda d: nn.Dropout()(x(rc.f32[2], d)[d[0], d[1] :]))
    assert "drop elements before they are read as a range" in text
