"""The library's models: they compute what their names say, and steps give back what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recurra.mapping.model_library import LIBRARY
from recurra.mapping.models import recurrent, reinforcement_learning, sequence, vision
from recurra.mapping.models.vision import convolved

Made = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
SMALL: dict[str, Callable[[], Made]] = {
    "ppo_step": lambda: reinforcement_learning.ppo_step(16, 8, 16, 4),
    "alexnet_train": lambda: vision.alexnet(2),
    "resnet50_infer": lambda: vision.resnet_inference(1),
    "resnet50_train": lambda: vision.resnet_training(1),
    "mnasnet_infer": lambda: vision.mnasnet_inference(1),
    "mnasnet_train": lambda: vision.mnasnet_training(1),
    "wavenet": lambda: sequence.wavenet(2, 16, 8, 3),
    "transformer_infer": lambda: sequence.transformer_inference(2, 8, 64, 2, 32),
    "transformer_train": lambda: sequence.transformer_training(2, 8, 64, 2, 32),
    "gpt_decode": lambda: sequence.gpt_decode(2, 16, 128, 2, 32),
    "lstm": lambda: recurrent.lstm(2, 3, 8),
    "gru_infer": lambda: recurrent.gru(2, 3, 8),
    "rnn_train": lambda: recurrent.elman_training(2, 3, 8),
    "bilstm_infer": lambda: recurrent.bidirectional(2, 3, 8),
    "lstm_lm_train": lambda: recurrent.language_model_training(2, 3, 8, 2, 32),
    "nmt_train": lambda: recurrent.translation_training(2, 3, 8, 2, 32),
    "alphatensor": lambda: reinforcement_learning.alphatensor(2, 3, 2, 16, 2),
}


def filled(shapes: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) / 4, s.dtype), shapes)


def test_every_model_is_tried() -> None:
    assert set(SMALL) == set(LIBRARY)
    for name, entry in LIBRARY.items():
        made = SMALL[name].__code__.co_names
        assert (entry.module, entry.function) == made, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_what_is_donated_comes_back(name: str) -> None:
    function, arguments, donated = SMALL[name]()
    results = jax.eval_shape(function, *arguments)
    given = [x for k in donated for x in jax.tree.leaves(arguments[k])]
    made = jax.tree.leaves(results)
    for x in given:
        assert any((x.shape, x.dtype) == (y.shape, y.dtype) for y in made)
    assert all(0 not in y.shape for y in made)


def test_an_lstm_in_a_loop_is_one_written_out() -> None:
    loop, arguments, _ = recurrent.lstm(2, 5, 8, scanned=True)
    p, xs = filled(arguments)
    assert np.allclose(loop(p, xs), recurrent.lstm(2, 5, 8)[0](p, xs), atol=1e-5)


def test_both_ways_is_one_way_and_back() -> None:
    function, arguments, _ = recurrent.bidirectional(2, 4, 8, 1)
    p, xs = filled(arguments)
    (layer,) = p["layers"]
    turned = {"forwards": layer["backwards"], "backwards": layer["forwards"]}
    half = p["out"].shape[0] // 2
    out = jnp.concatenate([p["out"][half:], p["out"][:half]])
    back = function({"layers": [turned], "out": out}, xs[::-1])
    assert np.allclose(function(p, xs), back[::-1], atol=1e-5)


def test_a_gru_by_hand() -> None:
    function, arguments, _ = recurrent.gru(2, 3, 4, 1)
    p, xs = filled(arguments)
    w, u, b = (np.asarray(p[0][k], np.float64) for k in ("x", "h", "b"))
    h, found = np.zeros((2, 4)), list[Any]()
    for x in np.asarray(xs, np.float64):
        given, kept = x @ w + b, h @ u
        r = 1 / (1 + np.exp(-(given + kept)[:, :4]))
        z = 1 / (1 + np.exp(-(given + kept)[:, 4:8]))
        h = (1 - z) * np.tanh(given[:, 8:] + r * kept[:, 8:]) + z * h
        found.append(h)
    assert np.allclose(function(p, xs), np.stack(found), atol=1e-5)


def test_depthwise_is_channel_by_channel() -> None:
    x, kernel = filled([jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 6, 6, 3), (3, 3, 1, 3))])
    one = [convolved(x[..., c : c + 1], kernel[..., c : c + 1], 2) for c in range(3)]
    assert np.allclose(vision.depthwise(x, kernel, 2), jnp.concatenate(one, -1), atol=1e-5)
