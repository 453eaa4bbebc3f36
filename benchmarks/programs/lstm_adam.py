"""An LSTM is trained by Adam to add the two numbers that are marked in a sequence.

Hochreiter and Schmidhuber, 1997, section 5.4; Kingma and Ba, 2015.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 32, "I": 8, "T": 30, "H": 32}
SMALL = {"B": 3, "I": 2, "T": 4, "H": 3}
RATE, BETA1, BETA2, EPSILON = 0.01, 0.9, 0.999, 1e-8


def inputs(rng, B, I, T, H):
    x = rng.random((B, I, T, 2), "f4")
    x[..., 1] = 0.0
    x[:, :, [1, T - 1], 1] = 1.0
    return {"x": x, "y": (x[..., 0] * x[..., 1]).sum(-1)}


def weights(H):
    """First values of all parameters, by their names in the module."""
    shapes = {
        "layers.0.cell.weight_ih": (2, 4 * H),
        "layers.0.cell.weight_hh": (H, 4 * H),
        "layers.0.cell.bias_ih": (4 * H,),
        "layers.0.cell.bias_hh": (4 * H,),
        "layers.1.weight": (H, 1),
        "layers.1.bias": (1,),
    }
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape, "f4") / H**0.5 for name, shape in shapes.items()}


def recurra_program(backend, B, I, T, H):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (i, iterations), (t, steps)):
        x, y = rc.input(rc.f32[2], (b, i, t)), rc.input(rc.f32, (b, i))
        net = rc.nn.Sequential(rc.nn.LSTM(2, H, domain=(i,)), rc.nn.Linear(H, 1, domain=(i,)))
        net.load(weights(H))
        answer = net(x)[b, i, steps - 1].index(0)
        loss = (answer - y).square()[0:rows, i].mean()
        loss.backward()
        rc.optim.Adam(net.params, lr=RATE).step()
        rc.output(loss=loss)
    return ctx.compile({rows: B, iterations: I, steps: T}, backend=backend)


def by_hand(B, I, T, H):
    def loss(parameters, x, y):
        to_gates, hidden, bias_ih, bias_hh, out, c = parameters
        given = x @ to_gates + (bias_ih + bias_hh)

        def step(carry, now):
            h, cell = carry
            i, f, g, o = jnp.split(now + h @ hidden, 4, axis=1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

        zeros = jnp.zeros((B, H))
        (h, _), _ = jax.lax.scan(step, (zeros, zeros), given)
        return jnp.square((h @ out + c)[:, 0] - y).mean()

    def iterate(carry, now):
        parameters, mean, spread, k = carry
        value, slopes = jax.value_and_grad(loss)(parameters, *now)
        k = k + 1
        mean = [BETA1 * m + (1 - BETA1) * g for m, g in zip(mean, slopes, strict=True)]
        spread = [BETA2 * v + (1 - BETA2) * g * g for v, g in zip(spread, slopes, strict=True)]
        parameters = [
            p - RATE * (m / (1 - BETA1**k)) / (jnp.sqrt(v / (1 - BETA2**k)) + EPSILON)
            for p, m, v in zip(parameters, mean, spread, strict=True)
        ]
        return (parameters, mean, spread, k), value

    first = [jnp.asarray(w) for w in weights(H).values()]
    zeros = [jnp.zeros_like(w) for w in first]

    @jax.jit
    def train(x, y):
        given = jnp.transpose(x, (1, 2, 0, 3)), y.T
        return {"loss": jax.lax.scan(iterate, (first, zeros, zeros, 0), given)[1]}

    return train
