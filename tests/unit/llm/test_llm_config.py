"""config.json → Config: families, old and new spellings, and what is refused in which words."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.errors import RecurraError
from recurra.llm import config, patterns
from recurra.llm.patterns import Causal, Chunk, Sinks, SlidingWindow

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
GEMMA = {**LLAMA, "model_type": "gemma2", "head_dim": 16, "sliding_window": 64}
GEMMA["hidden_activation"] = "gelu_pytorch_tanh"
GEMMA["query_pre_attn_scalar"] = 256
QWEN = {**LLAMA, "model_type": "qwen2", "sliding_window": 64}


def read(given: dict[str, Any], **changed: Any) -> config.DecoderConfig:
    return config.from_dict({**given, **changed})


def text_of(pattern: patterns.Pattern) -> str:
    """The inverse of `parse`."""
    numbers = "+".join(map(str, astuple(pattern)))
    (name,) = (name for name, kind in patterns.PATTERNS.items() if kind is type(pattern))
    return name + (f":{numbers}" if numbers else "")


def kinds(c: config.DecoderConfig) -> str:
    return ",".join(text_of(layer.pattern) for layer in c.layers)


def test_llama():
    c = read(LLAMA, eos_token_id=[1, 2], tie_word_embeddings=True)
    assert str(c) == "llama L4 D32 H4 KV2 HD8 F48 V99"
    assert (c.tied, c.eos, c.score_scale, c.biases) == (True, (1, 2), 8**-0.5, "")
    assert kinds(c) == "causal,causal,causal,causal"
    assert read(LLAMA, num_key_value_heads=None).kv_heads == 4
    assert read(LLAMA, attention_bias=True, mlp_bias=True).biases == "qkvom"


@pytest.mark.parametrize(
    ("given", "changed", "want"),
    [
        (GEMMA, {}, "window:64,causal,window:64,causal"),
        (GEMMA, {"model_type": "gemma3_text"}, "window:64,window:64,window:64,window:64"),
        (
            GEMMA,
            {"model_type": "gemma3_text", "sliding_window_pattern": 2},
            "window:64,causal,window:64,causal",
        ),
        (LLAMA, {"model_type": "mistral", "sliding_window": 8}, ",".join(["window:8"] * 4)),
        (LLAMA, {"model_type": "mistral", "sliding_window": None}, ",".join(["causal"] * 4)),
        (QWEN, {}, "causal,causal,causal,causal"),
        (
            QWEN,
            {"use_sliding_window": True, "max_window_layers": 3},
            "causal,causal,causal,window:64",
        ),
        (
            LLAMA,
            {
                "layer_types": ["chunked_attention", "full_attention"] * 2,
                "attention_chunk_size": 8,
            },
            "chunk:8,causal,chunk:8,causal",
        ),
    ],
)
def test_layers(given: dict[str, Any], changed: dict[str, Any], want: str):
    assert kinds(read(given, **changed)) == want


def test_gemma():
    c = read(GEMMA, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    assert (c.score_cap, c.logit_cap, c.activation, c.tied) == (50.0, 30.0, "gelu", True)
    assert (c.head_dim, c.score_scale, c.embedding_scale) == (16, 256**-0.5, 32**0.5)
    assert (c.one_plus, c.sandwich, c.heads_normed) == (True, True, False)


LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16}


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("default", {}),
        ("linear", {"factor": 2.0}),
        ("dynamic", {"factor": 2.0}),
        ("llama3", LLAMA3),
        ("yarn", YARN),
    ],
)
def test_old_and_new_spelling_of_rope_say_the_same(kind: str, extra: dict[str, Any]):
    theta = {"rope_theta": 5e5}
    new = read(LLAMA, rope_parameters={"rope_type": kind, **extra, **theta})
    old = read(LLAMA, rope_scaling={"rope_type": kind, **extra}, **theta)
    oldest = read(LLAMA, rope_scaling={"type": kind, **extra}, **theta)
    assert new == old == oldest
    assert {layer.rope.type for layer in new.layers} == {kind}


def test_rope_by_kind_of_layer():
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    text = {"model_type": "gemma3_text", "sliding_window_pattern": 2}
    new = read(GEMMA, rope_parameters=kinds, **text)
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = read(GEMMA, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=scaling, **text)
    assert new == old
    assert [layer.rope.theta for layer in new.layers] == [1e4, 1e6, 1e4, 1e6]
    assert [layer.rope.factor for layer in new.layers] == [1.0, 8.0, 1.0, 8.0]


def test_frequencies_by_hand():
    """θ = 10⁴, 4 elements: 1 and 1/100 radians per position."""
    plain = read(LLAMA).layers[0].rope
    np.testing.assert_allclose(plain.frequencies(4), [1, 0.01], rtol=1e-12)
    half = read(LLAMA, rope_scaling={"type": "linear", "factor": 2.0}).layers[0].rope
    np.testing.assert_allclose(half.frequencies(4), [0.5, 0.005], rtol=1e-12)
    # 1024 positions hold 163 turns of the first (kept) and 1.63 of the second (2.37 of 3 stretched)
    mixed = read(LLAMA, rope_scaling={"type": "llama3", **LLAMA3}).layers[0].rope
    kept = (1024 * 0.01 / (2 * np.pi) - 1) / 3
    second = 0.01 * (kept + (1 - kept) / 32)
    np.testing.assert_allclose(mixed.frequencies(4), [1, second], rtol=1e-12)
    yarn = read(LLAMA, rope_scaling={"type": "yarn", **YARN}).layers[0].rope
    assert yarn.scale == pytest.approx(1 + 0.1 * np.log(4))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "bert"}, "config.json: model_type 'bert' is not known\n  there are llama,"),
        ({"model_type": None}, "config.json: model_type is missing"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "32"}, "config.json: hidden_size '32' is no integer above 0"),
        ({"vocab_size": 0}, "config.json: vocab_size 0 is no integer above 0"),
        ({"hidden_size": 33}, "config.json: head_dim is missing"),
        ({"head_dim": 7}, "config.json: head_dim 7 is odd, and rotary positions turn pairs"),
        ({"num_key_value_heads": 3}, "config.json: num_key_value_heads 3 does not divide 4 heads"),
        ({"hidden_act": "gelu"}, "config.json: hidden_act 'gelu' is not known\n  there are silu"),
        ({"rms_norm_eps": None}, "config.json: rms_norm_eps is missing"),
        ({"eos_token_id": "x"}, "config.json: eos_token_id 'x' is no token, nor a list of tokens"),
        ({"layer_types": ["full_attention"]}, "layer_types ['full_attention'] has not 4 items"),
        ({"layer_types": ["odd"] * 4}, "layer_types 'odd' is not made of full_attention, "),
        ({"layer_types": ["sliding_attention"] * 4}, "config.json: sliding_window is missing"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "config.json: rope_scaling.rope_type 'longrope' is not known\n"
            "  there are default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_scaling": {"type": "mine"}}, "config.json: rope_scaling.type 'mine' is not known"),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            "config.json: rope_parameters.factor is missing",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 leaves"),
        ({"rope_scaling": 3}, "config.json: rope_scaling 3 is no object"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is no decoder's"),
    ],
)
def test_refused(changed: dict[str, Any], message: str):
    with pytest.raises(RecurraError) as error:
        read(LLAMA, **changed)
    assert message in str(error.value)


def test_files(tmp_path: Path):
    with pytest.raises(RecurraError, match=r"there is no file .*config\.json"):
        config.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RecurraError, match=r"config\.json is no JSON"):
        config.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RecurraError, match=r"config\.json is no object of keys and values"):
        config.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert config.load(tmp_path) == read(LLAMA)


def test_another_file_says_what_ends_a_text(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 2}))
    assert config.load(tmp_path).eos == (2,)
    other = tmp_path / "generation_config.json"
    other.write_text(json.dumps({"eos_token_id": [3, 4], "pad_token_id": 5}))
    assert (config.load(tmp_path).eos, config.load(tmp_path).pad) == ((3, 4), 5)
    other.write_text(json.dumps({"eos_token_id": "x"}))
    with pytest.raises(
        RecurraError, match=r"generation_config\.json: eos_token_id 'x' is no token"
    ):
        config.load(tmp_path)


def test_patterns():
    words = "causal window:256 chunk:64 sinks:4+252 dilated:3 prefix:10 linear"
    for word in words.split():
        assert text_of(patterns.parse(word)) == word
    assert patterns.parse("sinks:4+252") == Sinks(4, 252)
    mix = patterns.parse_mix("window:8,chunk:4,causal", 4)
    assert mix == (SlidingWindow(8), Chunk(4), Causal(), SlidingWindow(8))


@pytest.mark.parametrize(
    "word", ["", "windw:3", "window", "window:0", "window:-1", "sinks:4", "a:"]
)
def test_no_pattern(word: str):
    said = r"is no attention pattern\n  --> .*\n  there are causal, window:W"
    with pytest.raises(RecurraError, match=said):
        patterns.parse(word)


def test_what_a_family_means_where_keys_are_missing():
    plain = {k: GEMMA[k] for k in GEMMA if k not in ("hidden_activation", "query_pre_attn_scalar")}
    c = read(plain)
    assert (c.activation, c.score_cap, c.logit_cap, c.score_scale) == ("gelu", 50.0, 30.0, 1 / 16)
    c = read(plain, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (c.score_cap, c.logit_cap) == (None, None)
    assert read(plain, model_type="gemma3_text").score_cap is None
    assert kinds(read(LLAMA, model_type="mistral")) == ",".join(["window:4096"] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", config.FAMILIES)
def test_what_is_missing_means_what_it_means_in_transformers(name: str):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    theirs: Any = CONFIG_MAPPING[name]
    for key, value in config.FAMILIES[name].defaults.items():
        if hasattr(theirs, key):
            assert getattr(theirs, key) == value, key


def test_what_stands_beside_the_parameters_of_rope():
    """As in transformers: the length that was trained counts first where it stands outside."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    c = read(LLAMA, rope_scaling=yarn, original_max_position_embeddings=32)
    assert c.layers[0].rope.length == 32
    assert read(LLAMA, rope_scaling=yarn).layers[0].rope.length == 16
    for given in ({"partial_rotary_factor": 0.5}, {"rope_scaling": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(RecurraError, match=r"partial_rotary_factor 0.5 leaves part of a head"):
            read(LLAMA, **given)
