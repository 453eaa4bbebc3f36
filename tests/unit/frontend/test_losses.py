"""Several losses, optimizers and leaves in one program, against JAX and numbers by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError

Arrays = dict[str, Any]


def assert_close(got: Arrays, want: Arrays, rtol: float = 1e-5) -> None:
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=1e-6, err_msg=name)


def stacked(rows: list[Arrays]) -> Arrays:
    """The rows of every iteration, one array for each name."""
    return {k: np.stack([np.asarray(r[k]) for r in rows]) for k in rows[0]}


# ---- two players

ORDERS = {
    "backward, step, backward, step": ("gw", "sw", "gu", "su"),
    "the other player first": ("gu", "su", "gw", "sw"),
    "backward, backward, step, step": ("gw", "gu", "sw", "su"),
    "steps turned round": ("gw", "gu", "su", "sw"),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_loss_stops_at_the_parameters_of_the_others(order: tuple[str, ...]) -> None:
    """Both players move at the same time, in whatever order backward and step are written."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="w")
        u = rc.nn.Parameter(rc.constant(2.0), domain=(i,), name="u")
        write = {
            "gw": lambda: (w * u - 1.0).square().backward(wrt=[w]),
            "gu": lambda: (w * w * u).square().backward(wrt=[u]),
            "sw": lambda: rc.optim.SGD([w], lr=0.1).step(),
            "su": lambda: rc.optim.SGD([u], lr=0.1).step(),
        }
        for name in order:
            write[name]()
        rc.output(w=w, u=u, gw=w.grad, gu=u.grad)
    rows, a, b = list[Arrays](), 1.0, 2.0
    for _ in range(4):
        da, db = 2 * (a * b - 1) * b, 2 * (a * a * b) * a * a
        rows.append({"w": a, "u": b, "gw": da, "gu": db})
        a, b = a - 0.1 * da, b - 0.1 * db
    assert_close(ctx.run({I: 4}, backend="numpy"), stacked(rows))


# ---- an actor, a critic and its target

RNG = np.random.default_rng(5)
X = RNG.normal(size=(3,)).astype("f4")
REWARD = np.float32(0.7)


def forward(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["layers.0.weight"] + p["layers.0.bias"]) @ p["layers.2.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("stepped", ["at once", "at the end"])
def test_an_actor_a_critic_and_a_target(stepped: str) -> None:
    """Two modules with an optimizer each, a target that follows, and one that is frozen."""

    def net(*sizes: int) -> Any:
        a, b, c = sizes
        return rc.nn.Sequential(
            rc.nn.Linear(a, b, domain=(i,)),
            rc.nn.Tanh(),
            rc.nn.Linear(b, c, domain=(i,), bias=False),
        )

    def values(sizes: tuple[int, ...]) -> Arrays:
        a, b, c = sizes
        shapes = {"layers.0.weight": (a, b), "layers.0.bias": (b,), "layers.2.weight": (b, c)}
        return {k: (RNG.normal(size=s) / 2).astype("f4") for k, s in shapes.items()}

    start = {"actor": values((3, 4, 2)), "critic": values((5, 4, 1)), "frozen": values((5, 4, 1))}
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        actor, critic, frozen = net(3, 4, 2), net(5, 4, 1), net(5, 4, 1)
        for module, name in ((actor, "actor"), (critic, "critic"), (frozen, "frozen")):
            module.load(start[name])
        x = rc.constant(X)
        slow = rc.like(rc.f32[5, 4], domain=(i,), name="slow")
        slow[0] = critic.params[0][0]
        slow[i + 1] = 0.5 * slow + 0.5 * critic.params[0][i + 1]
        a = actor(x)
        sa = rc.concat([x, a])
        target = REWARD + frozen(sa).index(0) + (sa @ slow).sum()
        steps: list[Any] = []

        def learn(loss: Any, module: Any) -> None:
            loss.backward(wrt=module.params)
            optimizer = rc.optim.Adam(module.params, lr=0.05)
            optimizer.step() if stepped == "at once" else steps.append(optimizer)

        learn((critic(sa.detach()).index(0) - target.detach()).square(), critic)
        learn(-critic(sa).index(0), actor)
        for optimizer in steps:
            optimizer.step()
        rc.output(
            **{f"a.{k}": p for k, p in actor.named_params()},
            **{f"c.{k}": p for k, p in critic.named_params()},
            kept=frozen.params[0],
        )
    got = ctx.run({I: 5}, backend="numpy")

    import optax

    adam = optax.adam(0.05)
    pa, pc, pf = start["actor"], start["critic"], start["frozen"]
    sa_, sc, w, rows = adam.init(pa), adam.init(pc), pc["layers.0.weight"], list[Arrays]()
    for _ in range(5):
        rows.append(
            {**{f"a.{k}": v for k, v in pa.items()}, **{f"c.{k}": v for k, v in pc.items()}}
        )
        rows[-1]["kept"] = pf["layers.0.weight"]
        seen = jnp.concatenate([X, forward(pa, X)])
        want = REWARD + forward(pf, seen)[0] + (seen @ w).sum()
        gc = jax.grad(lambda p, seen=seen, want=want: (forward(p, seen)[0] - want) ** 2)(pc)
        ga = jax.grad(lambda p, pc=pc: -forward(pc, jnp.concatenate([X, forward(p, X)]))[0])(pa)
        dc, sc = adam.update(gc, sc)
        da, sa_ = adam.update(ga, sa_)
        pc, pa = optax.apply_updates(pc, dc), optax.apply_updates(pa, da)
        w = 0.5 * w + 0.5 * pc["layers.0.weight"]
    assert_close(got, stacked(rows), rtol=2e-4)


# ---- leaves


def test_a_leaf_behind_another() -> None:
    """As torch.autograd.grad: each of `wrt` gets the whole derivative."""
    ctx = rc.Context()
    with ctx:
        x = rc.constant(1.5)
        h = (x + 1.0).sqrt()
        (h.sigmoid() * x).backward(wrt=[x, h])
        rc.output(x=x.grad, h=h.grad)

    def f(h: Any, x: Any) -> Any:
        return jax.nn.sigmoid(h) * x

    def g(x: Any) -> Any:
        return jnp.sqrt(x + 1.0)

    want = {"x": jax.grad(lambda x: f(g(x), x))(1.5), "h": jax.grad(f)(g(1.5), 1.5)}
    assert_close(ctx.run({}, backend="numpy"), want)


def test_the_states_of_a_recurrence_and_what_drives_it() -> None:
    """h[t+1] = tanh(w·h[t] + x[t]): every h counts what the later ones make of it."""
    xs = RNG.normal(size=5).astype("f4")
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        w, x = rc.constant(0.8), rc.input(rc.f32, (t,), name="x")
        h = rc.like(rc.f32, domain=(t,), name="h")
        h[0] = x[0]
        h[t + 1] = (w * h + x[t + 1]).tanh()
        h[T - 1].square().backward(wrt=[w, h, x])
        rc.output(w=w.grad, h=h.grad, x=x.grad)
    got = ctx.compile({T: 5}, backend="numpy").run(inputs={"x": xs})

    def loss(w: Any, x: Any, moved: Any) -> Any:
        h = x[0] + moved[0]
        for t in range(1, 5):
            h = jnp.tanh(w * h + x[t]) + moved[t]
        return h**2

    dw, dx, dh = jax.grad(loss, (0, 1, 2))(0.8, xs, np.zeros(5, "f4"))
    assert_close(got, {"w": dw, "x": dx, "h": dh})


def test_a_detached_tensor_can_be_a_leaf() -> None:
    ctx = rc.Context()
    with ctx:
        x = rc.constant(3.0)
        y = (x * x).detach()
        (y.square() * x).backward(wrt=[x, y])
        rc.output(x=x.grad, y=y.grad)
    assert_close(ctx.run({}, backend="numpy"), {"x": 81.0, "y": 54.0})


def test_gradients_of_other_losses_stay() -> None:
    """backward() gives gradients to what the loss depends on, and takes none from the others."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="w")
        u = rc.nn.Parameter(rc.constant(2.0), domain=(i,), name="u")
        (w * 3.0).backward()
        (u * 5.0).backward()
        rc.optim.SGD([w, u], lr=0.1).step()
        rc.output(w=w, u=u)
    assert_close(ctx.run({I: 3}, backend="numpy"), {"w": [1.0, 0.7, 0.4], "u": [2.0, 1.5, 1.0]})


def test_what_stands_behind_a_parameter_is_told() -> None:
    with rc.Context(dims="i") as ((i, _),):
        w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="w")
        u = rc.nn.Parameter(w[0] * 2.0, domain=(i,), name="u")
        with pytest.raises(RecurraError) as refused:
            u.square().backward(wrt=[w])
    assert "parameters: w; gradients stop at u" in str(refused.value)
    assert "through_updates=True" in str(refused.value)


@pytest.mark.parametrize("given", ["read", "module", "one module"])
def test_what_is_no_leaf_is_refused(given: str) -> None:
    with rc.Context(dims="i") as ((i, _),):
        net = rc.nn.Linear(1, 1, domain=(i,))
        loss = net(rc.constant([1.0])).index(0)
        wrt: Any = {"read": net.weight[0], "module": [net], "one module": net}[given]
        with pytest.raises(
            RecurraError, match=r"backward\(wrt=\.\.\.\) (is given the read|takes)|net\.params"
        ):
            loss.backward(wrt=wrt)


# ---- branches that are written after backward


def test_a_branch_after_backward_is_noticed() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        w = rc.nn.Parameter(rc.constant(2.0), domain=(), name="w")
        h = rc.like(rc.f32, domain=(t,), name="h")
        h[0] = w * 1.0
        h[T - 1].square().backward()
        h[t + 1] = h * w
        rc.output(g=w.grad)
    with pytest.raises(RecurraError) as refused:
        ctx.compile({T: 4}, backend="numpy")
    assert "a branch of h comes after the backward() that should go through it" in str(
        refused.value
    )
    assert "h[t + 1] = h * w" in str(refused.value)


def test_a_target_that_follows_later_is_detached() -> None:
    def program(detached: bool) -> Any:
        ctx = rc.Context(dims="i")
        with ctx as ((i, I),):
            w = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="w")
            slow = rc.like(rc.f32, domain=(i,), name="slow")
            slow[0] = 3.0
            (w - (slow.detach() if detached else slow)).square().backward(wrt=[w])
            rc.optim.SGD([w], lr=0.1).step()
            slow[i + 1] = 0.5 * slow + 0.5 * w[i + 1]
            rc.output(w=w, slow=slow)
        return ctx.run({I: 4}, backend="numpy")

    with pytest.raises(RecurraError, match="a branch of slow comes after the backward"):
        program(detached=False)
    rows, w, slow = list[Arrays](), 1.0, 3.0
    for _ in range(4):
        rows.append({"w": w, "slow": slow})
        w -= 0.1 * 2 * (w - slow)
        slow = 0.5 * slow + 0.5 * w
    assert_close(program(detached=True), stacked(rows))


def test_an_update_by_hand_may_come_after_backward() -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.like(rc.f32, domain=(i,), name="w")
        w[0] = 1.0
        w.square().backward(wrt=[w])
        assert w.grad is not None
        w[i + 1] = w - 0.25 * w.grad
        rc.output(w=w)
    assert_close(ctx.run({I: 3}, backend="numpy"), {"w": [1.0, 0.5, 0.25]})


def test_what_the_host_gives_may_come_after_backward() -> None:
    """An observation is defined by a step that is taken after the loss is written."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(0.5), domain=(i,), name="w")
        o = rc.like(rc.f32, domain=(i, t), name="o")
        o[i, 0] = w * 2.0
        (o * w)[i, 0:T].sum().backward()
        rc.optim.SGD([w], lr=0.1).step()
        o[i, t + 1] = rc.call(lambda x: x + np.float32(1.0), rc.f32, o)
        rc.output(w=w, o=o)
    rows, w = list[Arrays](), 0.5
    for _ in range(3):
        o = 2 * w + np.arange(3)
        rows.append({"w": w, "o": o})
        w -= 0.1 * (o.sum() + 2 * w)
    assert_close(ctx.run({I: 3, T: 3}, backend="numpy"), stacked(rows))


# ---- inner loops and gradients of gradients


def meta_loss(p: Arrays, steps: int, target: float) -> Any:
    phi = p["theta"]
    for _ in range(steps):
        phi = phi - p["rate"] * jax.grad(lambda q: (jnp.sum(q**2) - target) ** 2)(phi)
    return (phi @ jnp.array([1.0, 2.0]) - target) ** 2


@pytest.mark.parametrize("dims", ["i n k", "k n i"])
def test_an_inner_loop_is_followed_through_its_updates(dims: str) -> None:
    """MAML with two outer parameters: phi starts at theta and steps along k, for every task n."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        (i, I), (k, K), (n, N) = sorted(pairs, key=lambda pair: str(pair[0]))
        theta = rc.nn.Parameter(rc.constant([1.0, -0.5]), domain=(i,), name="theta")
        rate = rc.nn.Parameter(rc.constant(0.05), domain=(i,), name="rate")
        phi = rc.nn.Parameter(theta, domain=(i, n, k), name="phi")
        target = rc.value(n) + 1.0
        (phi.square().sum() - target).square().backward(wrt=[phi])
        rc.optim.SGD([phi], lr=rate).step()

        def at(**places: Any) -> tuple[Any, ...]:
            return tuple(places.get(str(d), d) for d, _ in pairs if str(d) in places or d is i)

        end = phi[at(k=K - 1, n=n)]
        error = ((end * rc.constant([1.0, 2.0])).sum() - target).square()
        loss = error[at(n=slice(0, N))].mean()
        loss.backward(wrt=[theta, rate], through_updates=True)
        rc.optim.SGD([theta, rate], lr=0.01).step()
        rc.output(theta=theta, rate=rate, loss=loss)
    got = ctx.run({I: 3, K: 3, N: 2}, backend="numpy")

    def mean(p: Arrays) -> Any:
        return (meta_loss(p, 2, 1.0) + meta_loss(p, 2, 2.0)) / 2

    p, rows = {"theta": jnp.array([1.0, -0.5]), "rate": jnp.float32(0.05)}, list[Arrays]()
    for _ in range(3):
        value, grads = jax.value_and_grad(mean)(p)
        rows.append({**p, "loss": value})
        p = jax.tree.map(lambda x, g: x - 0.01 * g, p, grads)
    assert_close(got, stacked(rows), rtol=1e-4)


def test_a_penalty_on_a_gradient() -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.nn.Parameter(rc.constant(0.7), domain=(i,), name="w")
        v = rc.nn.Parameter(rc.constant(-0.4), domain=(i,), name="v")
        x = rc.like(rc.f32, domain=(i,), name="x")  # one for each i: its gradient sums over none
        x[i] = 1.2
        y = (w * x).tanh() * v + w * x * x
        y.backward(wrt=[x])
        assert x.grad is not None
        (y.square() + (x.grad - 1.0).square()).backward()
        rc.optim.SGD([w, v], lr=0.05).step()
        rc.output(w=w, v=v)

    def f(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(w * x) * v + w * x * x

    def loss(w: Any, v: Any) -> Any:
        return f(1.2, w, v) ** 2 + (jax.grad(f)(1.2, w, v) - 1.0) ** 2

    a, b, rows = jnp.float32(0.7), jnp.float32(-0.4), list[Arrays]()
    for _ in range(3):
        rows.append({"w": a, "v": b})
        da, db = jax.grad(loss, (0, 1))(a, b)
        a, b = a - 0.05 * da, b - 0.05 * db
    assert_close(ctx.run({I: 3}, backend="numpy"), stacked(rows), rtol=1e-4)
