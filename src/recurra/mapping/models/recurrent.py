"""Recurrent networks, most of them unrolled: Elman, GRU, LSTM one way and both ways, a
language model, and translation with attention."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.mapping.models.training import Model, Tree, adam, cross_entropy, momentum, shapes

LstmState = tuple[Array, Array]  # h, c: [B, H] each


def lstm_cell(layer: Tree, state: LstmState, array: Array) -> LstmState:
    """Return the next (h, c); the input is [B, D], the weights [D + H, 4H]."""
    h, c = state
    gates = jnp.concatenate([array, h], axis=-1) @ layer["w"] + layer["b"]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_layer(inputs: int, width: int) -> Tree:
    """Return the sizes of the parameters of `lstm_cell`."""
    return {"w": (inputs + width, 4 * width), "b": (4 * width,)}


def lstm_outputs(layer: Tree, xs: Sequence[Array], width: int) -> list[Array]:
    """Apply one layer to a sequence of [B, D]."""
    zero = jnp.zeros((xs[0].shape[0], width))
    state = (zero, zero)
    outputs: list[Array] = []
    for x in xs:
        state = lstm_cell(layer, state, x)
        outputs.append(state[0])
    return outputs


def elman_training(batch: int = 64, length: int = 24, width: int = 1024) -> Model:
    """Back-propagation through time of h' = tanh(Wx + Uh + b), with momentum."""
    p = shapes({"w": (width, width), "u": (width, width), "b": (width,), "out": (width, 64)})

    def loss(weights: Tree, xs: Array, labels: Array) -> Array:
        h = jnp.zeros((batch, width))
        for t in range(length):
            h = jnp.tanh(xs[t] @ weights["w"] + h @ weights["u"] + weights["b"])
        return cross_entropy(h @ weights["out"], labels)

    data = (shapes((length, batch, width)), shapes((batch,), jnp.int32))
    return momentum(loss, p, *data)


def gru(batch: int = 32, length: int = 32, width: int = 1024, layers: int = 2) -> Model:
    """Hidden states of a stacked GRU."""
    sizes = {"x": (width, 3 * width), "h": (width, 3 * width), "b": (3 * width,)}
    parameters = shapes([sizes] * layers)

    def states(stack: Tree, xs: Array) -> Array:
        hidden = [jnp.zeros((batch, width))] * layers
        outputs: list[Array] = []
        for t in range(length):
            y = xs[t]
            for k, q in enumerate(stack):
                rx, zx, nx = jnp.split(y @ q["x"] + q["b"], 3, axis=-1)
                rh, zh, nh = jnp.split(hidden[k] @ q["h"], 3, axis=-1)
                z = jax.nn.sigmoid(zx + zh)
                n = jnp.tanh(nx + jax.nn.sigmoid(rx + rh) * nh)
                hidden[k] = y = (1 - z) * n + z * hidden[k]
            outputs.append(y)
        return jnp.stack(outputs)

    return states, (parameters, shapes((length, batch, width))), ()


def lstm(
    batch: int = 16, length: int = 64, width: int = 1024, layers: int = 2, scanned: bool = False
) -> Model:
    """Hidden states of a stacked LSTM, its steps unrolled or, if `scanned`, in a loop."""
    parameters = shapes([lstm_layer(width, width)] * layers)

    def states(stack: Tree, xs: Array) -> Array:
        def step(state: list[LstmState], array: Array) -> tuple[list[LstmState], Array]:
            new: list[LstmState] = []
            for layer, before in zip(stack, state, strict=True):
                after = lstm_cell(layer, before, array)
                new.append(after)
                array = after[0]
            return new, array

        zero = jnp.zeros((batch, width))
        state = [(zero, zero)] * layers
        if scanned:
            return lax.scan(step, state, xs)[1]
        outputs: list[Array] = []
        for t in range(length):
            state, y = step(state, xs[t])
            outputs.append(y)
        return jnp.stack(outputs)

    return states, (parameters, shapes((length, batch, width))), ()


def bidirectional(batch: int = 32, length: int = 24, width: int = 512, layers: int = 2) -> Model:
    """Logits of a bidirectional LSTM that tags each step."""
    sides = [
        {d: lstm_layer(width if k == 0 else 2 * width, width) for d in ("forwards", "backwards")}
        for k in range(layers)
    ]
    parameters = shapes({"layers": sides, "out": (2 * width, 128)})

    def logits(weights: Tree, inputs: Array) -> Array:
        xs = [inputs[t] for t in range(length)]
        for q in weights["layers"]:
            forwards = lstm_outputs(q["forwards"], xs, width)
            backwards = lstm_outputs(q["backwards"], xs[::-1], width)[::-1]
            pairs = zip(forwards, backwards, strict=True)
            xs = [jnp.concatenate(pair, axis=-1) for pair in pairs]
        return jnp.stack(xs) @ weights["out"]

    return logits, (parameters, shapes((length, batch, width))), ()


def language_model_training(
    batch: int = 32, length: int = 16, width: int = 650, layers: int = 2, words: int = 10000
) -> Model:
    """A training step (Adam) of the LSTM language model of medium size."""
    stack = [lstm_layer(width, width) for _ in range(layers)]
    p = shapes({"words": (words, width), "layers": stack, "out": (width, words)})

    def loss(weights: Tree, text: Array, following: Array) -> Array:
        xs = [weights["words"][text[t]] for t in range(length)]
        for layer in weights["layers"]:
            xs = lstm_outputs(layer, xs, width)
        return cross_entropy(jnp.stack(xs) @ weights["out"], following)

    text = shapes((length, batch), jnp.int32)
    return adam(loss, p, text, text)


def translation_training(
    batch: int = 64, length: int = 11, width: int = 512, layers: int = 2, words: int = 8192
) -> Model:
    """A training step (Adam) of an LSTM encoder and decoder with attention in between."""
    encoder = [lstm_layer(width, width) for _ in range(layers)]
    decoder = [lstm_layer(2 * width if k == 0 else width, width) for k in range(layers)]
    p = shapes(
        {
            "source": (words, width),
            "target": (words, width),
            "encoder": encoder,
            "decoder": decoder,
            "query": (width, width),
            "out": (2 * width, words),
        }
    )

    def attended(query: Array, keys: Array) -> Array:
        """Attend with queries [B, D] over keys [S, B, D]."""
        weights = jax.nn.softmax(jnp.einsum("bd,sbd->bs", query, keys) / width**0.5)
        return jnp.einsum("bs,sbd->bd", weights, keys)

    def loss(weights: Tree, source: Array, target: Array, following: Array) -> Array:
        xs = [weights["source"][source[t]] for t in range(length)]
        for layer in weights["encoder"]:
            xs = lstm_outputs(layer, xs, width)
        keys, zero = jnp.stack(xs), jnp.zeros((batch, width))
        states = [(zero, zero)] * layers
        context, outputs = zero, list[Array]()
        for t in range(length):
            y = jnp.concatenate([weights["target"][target[t]], context], axis=-1)
            for k, layer in enumerate(weights["decoder"]):
                states[k] = lstm_cell(layer, states[k], y)
                y = states[k][0]
            context = attended(y @ weights["query"], keys)
            outputs.append(jnp.concatenate([y, context], axis=-1))
        return cross_entropy(jnp.stack(outputs) @ weights["out"], following)

    text = shapes((length, batch), jnp.int32)
    return adam(loss, p, text, text, text)
