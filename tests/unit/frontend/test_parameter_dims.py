"""Parameters step along the last of their dims as written, whatever order the context has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import recurra as rc
from recurra.errors import RecurraError

Arrays = dict[str, Any]
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], "f4")
MEMBERS, STEPS = 3, 5


def stepped(dims: str, domain: tuple[Any, ...], bounds: dict[str, int]) -> Any:
    """A parameter that counts its steps, at every point in the order of the context."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        of = dict(zip(dims.split(), (d for d, _ in pairs), strict=True))

        def held(part: Any) -> Any:
            return tuple(map(held, part)) if isinstance(part, tuple) else of[part]

        w = rc.nn.Parameter(rc.constant(0.0), domain=held(domain), name="w")
        w.update(w + 1.0)
        rc.output(w=w)
    return ctx.run({k: n for (_, k), n in zip(pairs, bounds.values(), strict=True)})["w"]


@pytest.mark.parametrize("dims", ["e i", "i e"])
@pytest.mark.parametrize("domain", [("e", "i"), ("i", "e"), (("e", "i"),), (("i", "e"),)], ids=str)
def test_the_order_that_is_written_counts(dims: str, domain: tuple[Any, ...]) -> None:
    sizes = {"e": 2, "i": 3}
    bounds = {d: sizes[d] for d in dims.split()}
    at = dict(zip(dims.split(), np.indices(tuple(bounds.values())), strict=True))
    if isinstance(domain[-1], tuple):
        slow, fast = domain[-1]
        want = at[slow] * sizes[fast] + at[fast]
    else:
        want = at[domain[-1]]
    np.testing.assert_array_equal(stepped(dims, domain, bounds), want)


# ---- ensembles: every member as if it were trained alone

OPTIMIZERS: dict[str, Callable[[Sequence[Any], Any], Any]] = {
    "momentum": lambda p, i: rc.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True).step(),
    "adam": lambda p, i: rc.optim.Adam(p, lr=0.05 * 0.9**i).step(),
    "rmsprop": lambda p, i: rc.optim.RMSprop(p, lr=0.05, centered=True, momentum=0.5).step(),
    "clipped": lambda p, i: (
        rc.optim.clip_grad_norm(p, 0.3),
        rc.optim.AdamW(p, lr=0.05).step(),
    ),
    "optax": lambda p, i: rc.optim.from_optax(optax.adam(0.05), list(p)).step(),
    "imported": lambda p, i: rc.optim.from_optax(
        optax.adam(0.05), list(p), via=rc.import_jax
    ).step(),
}


def imported(domain: Sequence[Any]) -> Any:
    weights = {"weight": np.ones((3, 2), "f4"), "bias": np.zeros(2, "f4")}
    return rc.import_jax(lambda p, x: x @ p["weight"] + p["bias"], params=weights, domain=domain)


MODULES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "linear": lambda domain: rc.nn.Linear(3, 2, domain=domain),
    "mlp": lambda domain: rc.nn.MLP([3, 4, 2], domain),
    "norm": lambda domain: rc.nn.LayerNorm(3, domain=domain),
    "gru": lambda domain: rc.nn.GRU(3, 2, domain=domain),
    "imported": imported,
}


def trained(
    dims: str, module: str, optimizer: str, folder: Path | None = None
) -> tuple[rc.Context, dict[Any, int]]:
    """Members that differ in their targets, trained along i."""
    ctx = rc.Context(dims=f"{dims} t")
    with ctx as pairs:
        (e, E), (i, I), (t, T) = (
            next((d, n) for d, n in pairs if str(d) == name) for name in ("e", "i", "t")
        )
        net = MODULES[module]((e, i))
        rng = np.random.default_rng(1)
        net.load({k: rng.normal(size=p.shape).astype("f4") for k, p in net.named_params()})
        x = rc.input(rc.f32[3], (t,), name="x")
        loss = (net(x).sum() - rc.value(e)).square()
        total = loss[e, i, 0:T].mean() if dims == "e i" else loss[i, e, 0:T].mean()
        total.backward()
        OPTIMIZERS[optimizer](net.params, i)
        rc.output(loss=total, **{k.replace(".", "_"): p for k, p in net.named_params()})
        if folder is not None:
            net[i % 2 == 0].checkpoint(folder)
    return ctx, {E: MEMBERS, I: STEPS, T: len(X)}


CASES = [("linear", k) for k in OPTIMIZERS] + [(k, "adam") for k in MODULES if k != "linear"]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "optimizer"), CASES, ids="-".join)
def test_the_order_of_the_context_does_not_matter(module: str, optimizer: str) -> None:
    found: list[Arrays] = []
    for dims in ("e i", "i e"):
        ctx, bounds = trained(dims, module, optimizer)
        out = ctx.compile(bounds, backend="numpy").run(inputs={"x": X})
        found.append({k: v if dims == "e i" else np.moveaxis(v, 0, 1) for k, v in out.items()})
    assert found[0]["loss"].shape == (MEMBERS, STEPS)
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    changes = np.abs(np.diff(found[0]["loss"], axis=1)).min(axis=1)
    assert (changes > 0).all(), "every member is trained"


@pytest.mark.slow
def test_members_are_trained_as_in_jax() -> None:
    ctx, bounds = trained("i e", "linear", "optax")
    got = ctx.compile(bounds, backend="jax").run(inputs={"x": X})
    tx = optax.adam(0.05)
    rng = np.random.default_rng(1)
    first = {"weight": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}

    def loss(p: Any, member: int) -> Any:
        return (((X @ p["weight"] + p["bias"]).sum(axis=1) - member) ** 2).mean()

    for member in range(MEMBERS):
        p = jax.tree.map(lambda x: x.astype("f4"), first)
        state = tx.init(p)
        for k in range(STEPS):
            np.testing.assert_allclose(got["weight"][k, member], p["weight"], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got["loss"][k, member], loss(p, member), rtol=1e-4)
            updates, state = tx.update(jax.grad(loss)(p, member), state, p)
            p = optax.apply_updates(p, updates)


def test_a_checkpoint_has_every_member(tmp_path: Path) -> None:
    ctx, bounds = trained("i e", "linear", "adam", tmp_path)
    whole = ctx.compile(bounds, backend="numpy").run(inputs={"x": X})
    rest = ctx.compile(bounds, backend="numpy").run(inputs={"x": X}, resume=tmp_path)
    assert rest["weight"].shape == (1, MEMBERS, 3, 2)
    np.testing.assert_array_equal(rest["weight"][-1], whole["weight"][-1])


def test_a_checkpoint_goes_by_the_outermost_loop(tmp_path: Path) -> None:
    ctx, bounds = trained("e i", "linear", "adam", tmp_path)
    with pytest.raises(RecurraError) as refused:
        ctx.compile(bounds, backend="numpy").run(inputs={"x": X})
    assert "mentions i" in str(refused.value)
    assert "its outermost loop, along e" in str(refused.value)


# ---- what cannot be meant

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "brackets before the end": (lambda i, e, m: ((i, m), e), "hint: write domain=(e, (i, m))"),
    "a dim twice": (lambda i, e, m: (e, i, e), "e stands 2 times among the dims (e, i, e)"),
    "a dim in brackets, too": (lambda i, e, m: (e, (i, e)), "write domain=(e, i)"),
    "no tuple": (lambda i, e, m: i, "write domain=(i,)"),
    "a name": (lambda i, e, m: "i", "write domain=(i,)"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_domains_that_are_refused(case: tuple[Callable[..., Any], str]) -> None:
    domain, says = case
    ctx = rc.Context(dims="i e m")
    with ctx as ((i, _), (e, _), (m, _)), pytest.raises(RecurraError) as refused:
        rc.nn.Linear(2, 1, domain=domain(i, e, m))
    assert says in str(refused.value)


def test_one_transformation_steps_along_one_dim() -> None:
    with rc.Context(dims="i e") as ((i, _), (e, _)):
        w = rc.nn.Parameter(rc.constant(1.0), domain=(e, i), name="w")
        u = rc.nn.Parameter(rc.constant(1.0), domain=(i, e), name="u")
        with pytest.raises(RecurraError) as refused:
            rc.optim.from_optax(optax.adam(0.1), [w, u])
    assert "u is over (i, e), w over (e, i), and each steps along the last" in str(refused.value)


LAYERS: dict[str, Any] = {
    "linear": lambda d: rc.nn.Linear(3, 2, domain=d),
    "orthogonal": lambda d: rc.nn.Linear(3, 2, domain=d, init=rc.nn.initializers.orthogonal()),
    "of one's own": lambda d: rc.nn.Linear(3, 2, domain=d, init=lambda s: rc.normal((), s) * 9.0),
    "network": lambda d: rc.nn.MLP([3, 4, 2], d),
    "cell": lambda d: rc.nn.GRUCell(3, 2, domain=d),
    "convolution": lambda d: rc.nn.Conv2d(3, 2, 2, domain=d),
    "table": lambda d: rc.nn.Embedding(3, 2, domain=d),
    "attention": lambda d: rc.nn.MultiheadAttention(4, 2, domain=d),
}


@pytest.mark.parametrize("name", LAYERS)
def test_members_start_apart(name: str) -> None:
    """What is drawn is drawn for each; along i, where nothing is trained, it stays."""
    ctx = rc.Context(dims="i e")
    with ctx as ((i, I), (e, E)):
        net = LAYERS[name]((e, i))
        rc.output(**{f"p{k}": p for k, p in enumerate(net.params)})
    got = ctx.run({I: 2, E: 3}, backend="numpy")
    for k, p in enumerate(net.params):
        x = got[f"p{k}"]
        np.testing.assert_array_equal(x[0], x[1])
        is_bias_of_zeros = len(p.shape) == 1 and not x.any()
        assert is_bias_of_zeros or len(np.unique(x[0], axis=0)) == 3, p.name


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_members_are_the_same_on_every_backend(backend: str) -> None:
    def run(backend: str) -> Any:
        ctx = rc.Context(dims="e i")
        with ctx as ((e, E), (i, I)):
            net = rc.nn.Linear(2, 1, domain=(e, i))
            net(rc.constant([1.0, 2.0])).square().sum().backward()
            rc.optim.SGD(net.params, lr=0.01).step()
            rc.output(w=net.weight)
        return ctx.run({E: 3, I: 3}, backend=backend)["w"]

    np.testing.assert_allclose(run(backend), run("numpy"), rtol=1e-5)


def test_given_values_are_those_of_all_members() -> None:
    ctx = rc.Context(dims="e i")
    with ctx as ((e, E), (i, I)):
        net = rc.nn.Linear(2, 1, domain=(e, i), bias=False)
        net.load({"weight": np.array([[1.0], [2.0]], np.float32)})
        half = rc.nn.Linear(2, 1, domain=(e, i), init=rc.nn.initializers.constant(0.5))
        rc.output(w=net.weight, half=half.weight)
    got = ctx.run({E: 3, I: 1}, backend="numpy")
    np.testing.assert_array_equal(got["w"][:, 0, :, 0], [[1.0, 2.0]] * 3)
    np.testing.assert_array_equal(got["half"], np.full((3, 1, 2, 1), 0.5))
