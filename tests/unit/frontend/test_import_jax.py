"""Functions of JAX as equations: the same numbers as in JAX, and gradients by our autodiff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from test_optim import agree, by_optax, ours

import recurra as rc
from recurra.errors import RecurraError
from recurra.frontend.jax.jaxpr import CALLS, PRIMITIVES

RNG = np.random.default_rng(0)
X = RNG.uniform(0.3, 1.7, (3, 4)) * RNG.choice([-1.0, 1.0], (3, 4))
POSITIVE = np.abs(X)
Y = RNG.normal(size=(4, 2))
TIES = np.array([[-1.0, 0.0, 0.5, 2.0], [0.0, 2.0, -1.0, 0.5]])

# ---- primitives, in float64: by name, a function and its operands

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "arithmetic": (lambda x, y: (x + y) * x - y / x, (X, POSITIVE)),
    "signs": (lambda x: -jnp.abs(x) + jnp.sign(x) * jnp.floor(x), (X,)),
    "powers": (lambda x: x**2 + x**3 + x**7 + x**-2 + x**0.5, (POSITIVE,)),
    "integer powers": (lambda x: x**5 + x**6 + lax.integer_pow(x, 1), (X,)),
    "a power by a count": (lambda x: x ** jnp.asarray(3, "int32"), (POSITIVE,)),
    "roots": (lambda x: jnp.sqrt(x) + lax.rsqrt(x) + jnp.square(x), (POSITIVE,)),
    "transcendental": (
        lambda x: jnp.exp(x) + jnp.log(x) + jnp.sin(x) * jnp.cos(x) + jnp.tanh(x),
        (POSITIVE,),
    ),
    "logistic": (lambda x: jax.nn.sigmoid(x) + jax.nn.silu(x), (X,)),
    "relu": (jax.nn.relu, (X,)),
    "relu at 0": (jax.nn.relu, (TIES,)),
    "extremes at ties": (
        lambda x, y: jnp.maximum(x, y) + jnp.minimum(x, 0.5) + x.max(0) + jnp.abs(x),
        (TIES, np.abs(TIES)),
    ),
    "clamped at its ends": (lambda x: lax.clamp(-1.0, x, 0.5) + jnp.clip(x, 0.0, 2.0), (TIES,)),
    "a derivative of its own": (lambda x, y: y * jax.nn.relu6(x), (TIES, TIES)),
    "integers": (
        lambda x: (
            x * ((jnp.arange(4) - 2) // 2 + (jnp.arange(4) - 2) % 3 + jnp.argmin(x, axis=1)[0])
        ),
        (X,),
    ),
    "bits": (
        lambda x: x * ((jnp.arange(4) << 2 | 1) ^ (jnp.arange(4) & 6) + ~(jnp.arange(4) >> 1)),
        (X,),
    ),
    "quotients and rests": (
        lambda x: (
            x * lax.div(jnp.arange(-2, 2), 2) + x * lax.rem(jnp.arange(-2, 2), 3) + lax.rem(x, 0.7)
        ),
        (X,),
    ),
    "gelu": (jax.nn.gelu, (X,)),
    "softmax": (lambda x: jax.nn.softmax(x) + x.max(axis=0), (X,)),
    "extremes": (
        lambda x, y: jnp.maximum(x, y) - jnp.minimum(x, 0.5) + x.min(),
        (X, POSITIVE + 0.1),
    ),
    "clamped": (lambda x: lax.clamp(-0.5, x, 0.7), (X,)),
    "choices": (
        lambda x, y: jnp.where((x < y) & ~(x >= 0.5) | (y == x), x, 2 * y),
        (X, POSITIVE),
    ),
    "more comparisons": (
        lambda x, y: jnp.where((x > y) | (y <= 0.9), x, y) + (x != y) * y,
        (X, POSITIVE),
    ),
    "all and any": (lambda x: jnp.where((x > 0).all(0) | (x > 1).any(), x, -x), (X,)),
    "a scalar choice": (lambda x: lax.select(x[0, 0] > 0, x, 2 * x), (X,)),
    "sums": (lambda x: x.sum(axis=0) + x.mean() + jnp.cumsum(x, axis=1)[-1], (X,)),
    "a sum from behind": (lambda x: lax.cumsum(x, axis=0, reverse=True), (X,)),
    "a product": (lambda x: x.prod(axis=0) + jnp.flip(x).prod(), (X,)),
    "products": (lambda x, y: x @ y + jnp.dot(x[0], y)[None], (X, Y)),
    "a batched product": (
        lambda x, y: jnp.einsum("abc,bcd->bad", x, y),
        (RNG.normal(size=(2, 3, 4)), RNG.normal(size=(3, 4, 5))),
    ),
    "shapes": (
        lambda x: x.T.reshape(2, 6)[:, 1:5] + jnp.concatenate([x[0, :2], x[1, 2:]])[None],
        (X,),
    ),
    "apart and together": (
        lambda x: jnp.stack([a * k for k, a in enumerate(jnp.unstack(x, axis=1))], axis=-1),
        (X,),
    ),
    "axes of one": (lambda x: x[:1] * x + x[:, :1], (X,)),
    "a squeeze": (lambda x: lax.squeeze(x[1:2], (0,)) + x, (X,)),
    "a flip": (lambda x: jnp.flip(x, 1) + x, (X,)),
    "numbers": (lambda x: x * jnp.arange(4) + lax.iota("int32", 3)[:, None], (X,)),
    "a type": (lambda x: x * (x > 0).astype(x.dtype) + jnp.argmax(x, axis=0), (X,)),
    "a stop": (lambda x: x * lax.stop_gradient(x) + jnp.copy(x), (X,)),
    "a constant array": (lambda x: x * jnp.asarray(POSITIVE), (X,)),
    "every other element": (lambda x: x[::2, 1::3] + x[1, ::-2][:1], (X,)),
    "rows by data": (lambda x: x[jnp.array([2, 0, 2])] * x[jnp.array([-1])], (X,)),
    "elements by data": (lambda x: x[jnp.array([2, 0]), jnp.array([[1], [3]])], (X,)),
    "columns by data": (lambda x: jnp.take(x, jnp.array([[3, 0], [1, 1]]), axis=1), (X,)),
    "what is outside": (
        lambda x: (
            jnp.take(x, jnp.array([0, 5, -9]), axis=1, mode="fill", fill_value=0.5)
            + jnp.take(x, jnp.array([0, 5, -9]), axis=1, mode="clip")
        ),
        (X,),
    ),
    "an element of each row": (
        lambda x: jnp.take_along_axis(x, jnp.array([[3], [0], [1]]), axis=1),
        (X,),
    ),
    "a part from a start by data": (
        lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0]) + 2, jnp.argmax(-x[0])), (2, 3)),
        (X,),
    ),
    "parts from starts by data": (
        lambda x: jax.vmap(lambda k: lax.dynamic_slice(x, (k, 0), (2, 4)))(jnp.array([1, 0, 9])),
        (X,),
    ),
    "parts of rows from starts by data": (
        lambda x: jax.vmap(lambda r, k: lax.dynamic_slice(r, (k,), (2,)))(x, jnp.array([1, 0, 9])),
        (X,),
    ),
    "pieces": (lambda x: jnp.split(x, [1, 3], axis=1)[1] * x[:, :2], (X,)),
    "error functions": (lambda x: lax.erf(x) + lax.erfc(3 * x) + jax.nn.gelu(x, False), (X,)),
    "a scan": (
        lambda x, y: lax.scan(lambda c, r: (jnp.tanh(c @ y + r[:2]), c), x[0, :2], x)[1],
        (X, Y[:2]),
    ),
    "a scan from behind": (
        lambda x: sum(lax.scan(lambda c, r: (c * r, c + r), x[0], x, reverse=True)),
        (X,),
    ),
    "a loop of three": (lambda x: lax.fori_loop(0, 3, lambda k, c: jnp.sin(c) * x[k], x[1]), (X,)),
    "a convolution": (
        lambda x, w: lax.conv(x, w, (2, 1), "SAME"),
        (RNG.normal(size=(2, 3, 5, 6)), RNG.normal(size=(4, 3, 2, 3))),
    ),
    "a convolution of groups, with gaps, channels last": (
        lambda x, w: lax.conv_general_dilated(
            x,
            w,
            window_strides=(1, 2),
            padding=((1, 2), (-1, 0)),
            rhs_dilation=(2, 1),
            feature_group_count=2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        (RNG.normal(size=(2, 6, 7, 4)), RNG.normal(size=(3, 2, 2, 6))),
    ),
    "a transposed convolution": (
        lambda x, w: lax.conv_general_dilated(
            x,
            w,
            window_strides=(1, 1),
            padding=((2, 2), (1, 0)),
            lhs_dilation=(2, 3),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        ),
        (RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(2, 3, 3, 2))),
    ),
    "a call": (jax.jit(lambda x: jnp.tanh(x)), (X,)),
}


def primitives(closed: Any) -> set[str]:
    found = set[str]()
    for e in closed.jaxpr.eqns:
        name = e.primitive.name
        found |= primitives(e.params[CALLS[name]]) if name in CALLS else {name}
    return found


def test_every_primitive_has_a_case() -> None:
    with jax.enable_x64(True):
        found = set[str]().union(*(primitives(jax.make_jaxpr(f)(*xs)) for f, xs in CASES.values()))
    unseen = {"add_any", "copy_p"}  # of transposed and of older programs
    unseen |= {"dim_as_value"}  # of sizes that come with compile: test_jax_sizes
    assert set(PRIMITIVES) - found == unseen


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    f, xs = CASES[name]
    ctx = rc.Context()
    with ctx:
        tensors = [rc.input(rc.Type("f64", x.shape), name=f"x{k}") for k, x in enumerate(xs)]
        y = rc.import_jax(f, "f")(*tensors)
        weights = np.random.default_rng(1).uniform(0.5, 1.5, [int(n) for n in y.shape])
        (y * rc.constant(weights, "f64")).sum().backward(wrt=tensors)
        rc.output(y=y, **{f"d{k}": x.grad for k, x in enumerate(tensors)})
    got = ctx.compile({}, backend="numpy").run(inputs={f"x{k}": x for k, x in enumerate(xs)})
    with jax.enable_x64(True):
        args = tuple(map(jnp.asarray, xs))
        every = tuple(range(len(xs)))
        both = jax.jit(lambda *a: (f(*a), jax.grad(lambda *b: jnp.sum(f(*b) * weights), every)(*a)))
        want, grads = both(*args)
    np.testing.assert_allclose(got["y"], want, rtol=1e-12, atol=1e-12)
    for k, d in enumerate(grads):
        np.testing.assert_allclose(got[f"d{k}"], d, rtol=1e-10, atol=1e-12)


# ---- modules


def flax_mlp() -> tuple[Callable[..., Any], Any]:
    class MLP(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.first = nnx.Linear(4, 8, rngs=rngs)
            self.norm = nnx.LayerNorm(8, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(nnx.gelu(self.norm(self.first(x))))

    definition, state = nnx.split(MLP(nnx.Rngs(0)))
    return lambda s, x: nnx.merge(definition, s)(x), state


def equinox_mlp() -> tuple[Callable[..., Any], Any]:
    return lambda m, x: m(x), eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(0))


WORDS = jnp.array([2, 0, 1, 2])


def equinox_reader() -> tuple[Callable[..., Any], Any]:
    """Words by a table, a convolution of groups with gaps, a GRU along them, an exact gelu."""
    keys = jax.random.split(jax.random.key(0), 4)
    model = {
        "table": eqx.nn.Embedding(3, 4, key=keys[0]),
        "along": eqx.nn.Conv1d(4, 6, 2, groups=2, dilation=2, padding=1, key=keys[1]),
        "cell": eqx.nn.GRUCell(6, 5, key=keys[2]),
        "last": eqx.nn.Linear(5, 2, key=keys[3]),
    }

    def f(m: Any, x: Any) -> Any:
        seen = m["along"]((jax.vmap(m["table"])(WORDS) * x).T).T
        h, _ = lax.scan(lambda h, y: (m["cell"](y, h), None), jnp.zeros(5), seen)
        return m["last"](jax.nn.gelu(h, approximate=False))

    return f, model


def flax_reader() -> tuple[Callable[..., Any], Any]:
    class Reader(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.table = nnx.Embed(3, 4, rngs=rngs)
            options = {"feature_group_count": 2, "kernel_dilation": 2, "rngs": rngs}
            self.along = nnx.Conv(4, 6, (2,), **options)
            self.cell = nnx.GRUCell(6, 5, rngs=rngs)
            self.last = nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            seen = self.along(self.table(WORDS) * x)
            h, _ = lax.scan(lambda h, y: (self.cell(h, y)[0], None), jnp.zeros(5), seen)
            return self.last(nnx.gelu(h, approximate=False))

    definition, state = nnx.split(Reader(nnx.Rngs(0)), nnx.Param)[:2]
    return lambda s, x: nnx.merge(definition, s)(x), state


def arrays(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("make", [equinox_mlp, flax_mlp, equinox_reader, flax_reader])
def test_a_module_is_trained(make: Any) -> None:
    """Two steps of gradient descent over a batch: as by jax.grad."""
    f, model = make()
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (i, I)):
        net = rc.import_jax(f, params=model, domain=(i,))
        loss = net(rc.constant(X).index(b)).square().sum()
        total = loss[0:B, i].mean()
        total.backward()
        rc.optim.SGD(net.params, lr=0.1).step()
        rc.output(loss=total, **{f"p{k}": p for k, p in enumerate(net.params)})
    got = ctx.run({B: 3, I: 3})

    trained, static = eqx.partition(model, eqx.is_inexact_array)
    rows = jnp.asarray(X, jnp.float32)

    def by_jax(p: Any) -> Any:
        out = jax.vmap(lambda x: f(eqx.combine(p, static), x))(rows)
        return jnp.mean(jnp.sum(out**2, axis=1))

    step = jax.jit(jax.value_and_grad(by_jax))
    for n in range(3):
        value, grads = step(trained)
        np.testing.assert_allclose(got["loss"][n], value, rtol=2e-5)
        for k, p in enumerate(arrays(trained)):
            np.testing.assert_allclose(got[f"p{k}"][n], p, rtol=1e-4, atol=1e-6)
        trained = jax.tree.map(lambda p, g: p - 0.1 * g, trained, grads)


@pytest.mark.slow
def test_parameters_have_the_names_of_their_places() -> None:
    with rc.Context(num_dims=1) as ((i, I),):
        f, model = equinox_mlp()
        net = rc.import_jax(f, params=model, domain=(i,))
        names = [k for k, _ in net.named_params()]
    assert names[:2] == ["layers_0_weight", "layers_0_bias"]


# ---- optax


@pytest.mark.slow
@pytest.mark.parametrize(
    "tx",
    [
        optax.adam(0.1),
        optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 6))
        ),
        optax.lamb(0.05),
        optax.nadam(0.1),
        optax.adagrad(0.2),
    ],
    ids=["adam", "clipped adamw", "lamb", "nadam", "adagrad"],
)
def test_optimizers_as_equations(tx: Any) -> None:
    opaque = ours(lambda params, i: rc.optim.from_optax(tx, params).step())
    open_ = ours(lambda params, i: rc.optim.from_optax(tx, params, rc.import_jax).step())
    agree(open_, opaque)
    agree(open_, by_optax(tx))


def test_an_update_can_be_differentiated() -> None:
    """The loss after one step of momentum, by the learning rate."""

    def step(lr: Any) -> Any:
        tx = optax.trace(0.9)
        g = jnp.asarray([1.0, -2.0], jnp.float32)
        u, _ = tx.update(g, tx.init(g))
        return jnp.sum((g - lr * u) ** 2)

    ctx = rc.Context()
    with ctx:
        lr = rc.input(rc.f32, name="lr")
        rc.import_jax(step)(lr).backward(wrt=lr)
        rc.output(d=lr.grad)
    got = ctx.compile({}, backend="numpy").run(inputs={"lr": np.float32(0.3)})
    np.testing.assert_allclose(got["d"], jax.grad(step)(0.3), rtol=1e-6)


# ---- as they are


@pytest.mark.slow
def test_an_opaque_function_has_a_gradient_too() -> None:
    """Of each result, by each operand that is a float; over dims that become axes."""

    def f(x: Any, k: Any, y: Any) -> Any:
        return {"a": lax.fori_loop(0, 3, lambda n, c: jnp.sin(c) * y, x), "b": x[k] * y.sum()}

    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.input(rc.f32[3], (t,), name="x")
        k, y = rc.input(rc.i32, (t,), name="k"), rc.input(rc.f32[3], name="y")
        out = rc.jax_fn(f)(x, k, y)
        (out["a"].sum() * 2.0 + out["b"].square()).sum().backward(wrt=[x, y])
        rc.output(dx=x.grad, dy=y.grad)
    rows = RNG.normal(size=(5, 3)).astype("f4")
    given = {"x": rows, "k": np.arange(5, dtype="i4") % 3, "y": rows[0] + 1}

    def loss(x: Any, y: Any) -> Any:
        out = jax.vmap(f, (0, 0, None))(x, given["k"], y)
        return 2 * out["a"].sum() + (out["b"] ** 2).sum()

    want = jax.grad(loss, (0, 1))(given["x"], given["y"])
    for backend in ("numpy", "jax", "torch"):
        got = ctx.compile({T: 5}, backend=backend).run(inputs=given)
        np.testing.assert_allclose(got["dx"], want[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["dy"], want[1], rtol=1e-4, atol=1e-5)


# ---- what is refused


def refusal(f: Callable[..., Any], *types: Any) -> str:
    with rc.Context(), pytest.raises(RecurraError) as e:
        rc.import_jax(f, "f")(*(rc.input(t) for t in types))
    return str(e.value)


def test_refusals() -> None:
    text = refusal(lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x)[1], rc.f32[65])
    assert "f uses scan of 65 steps, which cannot be imported\n" in text
    assert "at most 64 are written out one by one" in text
    assert "rc.jax_fn(f) takes the function as it is" in text
    text = refusal(lambda x: lax.while_loop(lambda c: c < 9, lambda c: c * 2, x), rc.f32)
    assert "f uses while" in text
    assert "write it as a recurrence, rc.until(done)" in text
    text = refusal(lambda x: lax.cond(x > 0, lambda: x, lambda: -x), rc.f32)
    assert "compute both, and choose by jnp.where" in text
    image, kernel = rc.f32[2, 1, 4], rc.f32[2, 1, 2]
    assert "f uses a convolution of groups of images" in refusal(
        lambda x, w: lax.conv_general_dilated(x, w, (1,), ((0, 0),), batch_group_count=2),
        image,
        kernel,
    )
    assert "f uses lgamma" in refusal(jax.scipy.special.gammaln, rc.f32[3])
    assert "f cannot be traced: TypeError" in refusal(lambda x: x @ x, rc.f32[2, 3])
