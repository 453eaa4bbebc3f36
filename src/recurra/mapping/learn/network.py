"""Representation, dynamics, policy, value and reward networks of section 4.3, as JAX functions.

Values and rewards are categorical over a grid of signed square roots (two-hot), so that small
differences stay distinct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from recurra.mapping.game import Action
from recurra.mapping.learn.network_inputs import (
    NUMBERS,
    RELATIVE,
    AnyArray,
    GameView,
    ProgramFeatures,
)
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.observation import GRID

ACTIONS = len(Action)
EMBEDDED = 24  # width of the embedding of each observed buffer
Weights = Mapping[str, Array]


class Prediction(NamedTuple):
    """The logits of a policy [B, 3] and of a value [B, bins]."""

    policy: Array
    value: Array


def initial(settings: AgentSettings, program: ProgramFeatures, seed: int) -> dict[str, Array]:
    """Draw random weights; the heads' last layers are zero, so that all actions start equal."""
    random, w = np.random.default_rng(seed), dict[str, Array]()

    def layer(name: str, shape: tuple[int, ...], scale: float = 1.0) -> None:
        spread = scale * np.sqrt(2 / np.prod(shape[:-1]))
        w[f"{name}_w"] = jnp.asarray(random.standard_normal(shape) * spread, jnp.float32)
        w[f"{name}_b"] = jnp.zeros(shape[-1], jnp.float32)

    before, side = 1, GRID
    for k, width in enumerate(settings.channels):
        stride = settings.patch if k == 0 else 2
        layer(f"down{k}", (max(3, stride), max(3, stride), before, width))
        layer(f"residual{k}a", (3, 3, width, width))
        layer(f"residual{k}b", (3, 3, width, width), 0.5)
        before, side = width, -(-side // stride)
    h = settings.hidden
    layer("grid", (side * side * before, h))
    layer("profile", (settings.cells, h))
    layer("buffer", (program.table.shape[1] + RELATIVE, EMBEDDED))
    layer("state", (program.rows.shape[1] * EMBEDDED + NUMBERS, h))
    layer("join", (3 * h, h))
    layer("embedding", (h, h))
    layer("act", (h + ACTIONS, h))
    layer("next", (h, h), 0.5)
    layer("policy", (h, h))
    layer("value", (h, h))
    for name, width in (
        ("reward_out", settings.bins),
        ("policy_out", ACTIONS),
        ("value_out", settings.bins),
    ):
        layer(name, (h, width), 0.0)
    return w


def represent(
    settings: AgentSettings, weights: Weights, program: ProgramFeatures, view: GameView
) -> Array:
    """Encode observations to hidden states [B, hidden] (figure 4)."""
    grid = _grid(settings, weights, bits(view.grid).reshape(-1, GRID, GRID, 1))
    profile = _dense(weights, "profile", bits(view.profile))
    table, relative = program.table[program.rows[view.index]], _relative(program, view.index)
    inputs = jnp.concatenate([table, relative], -1)
    buffers = jax.nn.relu(_dense(weights, "buffer", inputs)).reshape(len(view.index), -1)
    state = _dense(weights, "state", jnp.concatenate([buffers, view.numbers], -1))
    joined = _dense(weights, "join", jax.nn.relu(jnp.concatenate([grid, profile, state], -1)))
    return _normal(_dense(weights, "embedding", jax.nn.relu(joined)))


def bits(packed: AnyArray) -> Array:
    """Unpack bytes [.., n] of `numpy.packbits` to zeros and ones [.., 8 n]."""
    shifts = jnp.arange(7, -1, -1, dtype=jnp.uint8)
    unpacked = jnp.asarray(packed[..., None]) >> shifts & 1
    return unpacked.reshape(*packed.shape[:-1], -1).astype(jnp.float32)


def _relative(program: ProgramFeatures, index: AnyArray) -> Array:
    """Return [B, rows, RELATIVE]: distances of uses and ends of lives from the current use."""
    times = program.times[program.rows[index]]
    t = times[:, :1, :1]
    gap = (times - t) / (GRID / 2)
    return jnp.clip(gap, -2, 2) * (program.rows[index] < len(program.times) - 1)[..., None]


def _grid(settings: AgentSettings, weights: Weights, array: Array) -> Array:
    for k in range(len(settings.channels)):
        array = jax.nn.relu(convolved(weights, f"down{k}", array, settings.patch if k == 0 else 2))
        inner = jax.nn.relu(convolved(weights, f"residual{k}a", array, 1))
        array = jax.nn.relu(array + convolved(weights, f"residual{k}b", inner, 1))
    return _dense(weights, "grid", array.reshape(len(array), -1))


def convolved(weights: Weights, name: str, array: Array, stride: int) -> Array:
    """Convolve [B, side, side, channels], with padding.

    Windows that do not overlap become rows of a matrix: their gradient takes XLA a fifth of the
    time on a CPU.
    """
    kernel, bias = weights[f"{name}_w"], weights[f"{name}_b"]
    size, _, before, _ = kernel.shape
    side = array.shape[1]
    if size == stride and side % size == 0:
        n = side // size
        windows = array.reshape(-1, n, size, n, size, before)
        return jnp.einsum("bihjwc,hwcd->bijd", windows, kernel) + bias
    kind = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    return lax.conv_general_dilated(array, kernel, strides, "SAME", dimension_numbers=kind) + bias


def dynamics(weights: Weights, hidden: Array, action: AnyArray) -> tuple[Array, Array]:
    """Return the next state [B, hidden], and the logits of the reward."""
    x = jnp.concatenate([hidden, jax.nn.one_hot(action, ACTIONS)], -1)
    x = jax.nn.relu(_dense(weights, "act", x))
    return _normal(hidden + _dense(weights, "next", x)), _dense(weights, "reward_out", x)


def predict(weights: Weights, hidden: Array) -> Prediction:
    """Return the policy and value of states [B, hidden]."""
    policy, value = (jax.nn.relu(_dense(weights, name, hidden)) for name in ("policy", "value"))
    return Prediction(_dense(weights, "policy_out", policy), _dense(weights, "value_out", value))


def expected_value(logits: Array) -> Array:
    """Return the mean [..] of categorical distributions [.., bins]."""
    places = jnp.linspace(-1, 1, logits.shape[-1])
    root = jax.nn.softmax(logits) @ places
    return jnp.sign(root) * root**2


def two_hot(array: AnyArray, bins: int) -> Array:
    """Return distributions [.., bins] over two neighboring bins, with means [..] in [-1, 1]."""
    array = jnp.clip(array, -1, 1)
    place = (jnp.sign(array) * jnp.sqrt(jnp.abs(array)) + 1) / 2 * (bins - 1)
    low = jnp.clip(jnp.floor(place), 0, bins - 2)
    part = (place - low)[..., None]
    low = low.astype(jnp.int32)
    return (1 - part) * jax.nn.one_hot(low, bins) + part * jax.nn.one_hot(low + 1, bins)


def _dense(weights: Weights, name: str, array: Array) -> Array:
    return array @ weights[f"{name}_w"] + weights[f"{name}_b"]


def _normal(array: Array) -> Array:
    array = array - array.mean(-1, keepdims=True)
    return array / jnp.sqrt((array**2).mean(-1, keepdims=True) + 1e-5)
