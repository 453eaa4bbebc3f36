"""Recurrent networks, most with their steps written out: Elman, GRU, LSTM one way and both ways, a
language model, and translation with attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recurra.mapping.models.training import adam, cross_entropy, momentum, shapes

Made = tuple[Any, tuple[Any, ...], tuple[int, ...]]


def lstm_cell(q: Any, state: Any, x: Any) -> Any:
    """(h, c) → the next; x [B, D], w [D + H, 4H]."""
    h, c = state
    gates = jnp.concatenate([x, h], axis=-1) @ q["w"] + q["b"]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_layer(inputs: int, width: int) -> Any:
    """Sizes of the parameters of `lstm_cell`."""
    return {"w": (inputs + width, 4 * width), "b": (4 * width,)}


def lstm_outputs(q: Any, xs: list[Any], width: int) -> list[Any]:
    """One layer over a sequence of [B, D]."""
    zero = jnp.zeros((xs[0].shape[0], width))
    state: Any = (zero, zero)
    found: list[Any] = []
    for x in xs:
        state = lstm_cell(q, state, x)
        found.append(state[0])
    return found


def elman_training(batch: int = 64, length: int = 24, width: int = 1024) -> Made:
    """Back-propagation through time of h' = tanh(Wx + Uh + b), with momentum."""
    p = shapes({"w": (width, width), "u": (width, width), "b": (width,), "out": (width, 64)})

    def loss(p: Any, xs: Any, labels: Any) -> Any:
        h = jnp.zeros((batch, width))
        for t in range(length):
            h = jnp.tanh(xs[t] @ p["w"] + h @ p["u"] + p["b"])
        return cross_entropy(h @ p["out"], labels)

    data = (shapes((length, batch, width)), shapes((batch,), jnp.int32))
    return momentum(loss), (p, p, *data), (0, 1)


def gru(batch: int = 32, length: int = 32, width: int = 1024, layers: int = 2) -> Made:
    """Hidden states of a stacked GRU."""
    sizes = {"x": (width, 3 * width), "h": (width, 3 * width), "b": (3 * width,)}
    parameters = shapes([sizes] * layers)

    def states(p: Any, xs: Any) -> Any:
        hidden = [jnp.zeros((batch, width))] * layers
        outputs: list[Any] = []
        for t in range(length):
            y = xs[t]
            for k, q in enumerate(p):
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
) -> Made:
    """Hidden states of a stacked LSTM, its steps written out or in a loop."""
    parameters = shapes([lstm_layer(width, width)] * layers)

    def states(p: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            new: list[Any] = []
            for q, before in zip(p, state, strict=True):
                after = lstm_cell(q, before, x)
                new.append(after)
                x = after[0]
            return new, x

        zero = jnp.zeros((batch, width))
        state: Any = [(zero, zero)] * layers
        if scanned:
            return lax.scan(step, state, xs)[1]
        outputs: list[Any] = []
        for t in range(length):
            state, y = step(state, xs[t])
            outputs.append(y)
        return jnp.stack(outputs)

    return states, (parameters, shapes((length, batch, width))), ()


def bidirectional(batch: int = 32, length: int = 24, width: int = 512, layers: int = 2) -> Made:
    """Logits of a bidirectional LSTM that tags each step."""
    sides = [
        {d: lstm_layer(width if k == 0 else 2 * width, width) for d in ("forwards", "backwards")}
        for k in range(layers)
    ]
    parameters = shapes({"layers": sides, "out": (2 * width, 128)})

    def logits(p: Any, inputs: Any) -> Any:
        xs = [inputs[t] for t in range(length)]
        for q in p["layers"]:
            there = lstm_outputs(q["forwards"], xs, width)
            back = lstm_outputs(q["backwards"], xs[::-1], width)[::-1]
            xs = [jnp.concatenate(pair, axis=-1) for pair in zip(there, back, strict=True)]
        return jnp.stack(xs) @ p["out"]

    return logits, (parameters, shapes((length, batch, width))), ()


def language_model_training(
    batch: int = 32, length: int = 16, width: int = 650, layers: int = 2, words: int = 10000
) -> Made:
    """A training step (Adam) of the LSTM language model of medium size."""
    stack = [lstm_layer(width, width) for _ in range(layers)]
    p = shapes({"words": (words, width), "layers": stack, "out": (width, words)})

    def loss(p: Any, text: Any, following: Any) -> Any:
        xs = [p["words"][text[t]] for t in range(length)]
        for q in p["layers"]:
            xs = lstm_outputs(q, xs, width)
        return cross_entropy(jnp.stack(xs) @ p["out"], following)

    text = shapes((length, batch), jnp.int32)
    return adam(loss), (p, p, p, shapes(()), text, text), (0, 1, 2)


def translation_training(
    batch: int = 64, length: int = 11, width: int = 512, layers: int = 2, words: int = 8192
) -> Made:
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

    def attended(q: Any, keys: Any) -> Any:
        """q [B, D] over keys [S, B, D]."""
        weights = jax.nn.softmax(jnp.einsum("bd,sbd->bs", q, keys) / width**0.5)
        return jnp.einsum("bs,sbd->bd", weights, keys)

    def loss(p: Any, source: Any, target: Any, following: Any) -> Any:
        xs = [p["source"][source[t]] for t in range(length)]
        for q in p["encoder"]:
            xs = lstm_outputs(q, xs, width)
        keys, zero = jnp.stack(xs), jnp.zeros((batch, width))
        states: list[Any] = [(zero, zero)] * layers
        context, found = zero, list[Any]()
        for t in range(length):
            y = jnp.concatenate([p["target"][target[t]], context], axis=-1)
            for k, q in enumerate(p["decoder"]):
                states[k] = lstm_cell(q, states[k], y)
                y = states[k][0]
            context = attended(y @ p["query"], keys)
            found.append(jnp.concatenate([y, context], axis=-1))
        return cross_entropy(jnp.stack(found) @ p["out"], following)

    text = shapes((length, batch), jnp.int32)
    return adam(loss), (p, p, p, shapes(()), text, text, text), (0, 1, 2)
