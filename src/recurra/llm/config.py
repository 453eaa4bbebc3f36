"""Read config.json of a Hugging Face model; errors name the file and the key.

Families: Llama 2 to 3.2, Mistral, Gemma 2 and 3 (text), Qwen 2 and 3. Missing keys have the default
of their family in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recurra.errors import RecurraError, either
from recurra.llm import rope
from recurra.llm.patterns import Causal, Chunk, Pattern, SlidingWindow
from recurra.llm.rope import Rope
from recurra.support import json_text

FILE = "config.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Family:
    """The properties of the models of a `model_type` that the file does not have."""

    activation: str = "hidden_act"  # the key with its name
    biases: str = ""  # of "qkvo" those that exist; "?": all of them, if attention_bias is true
    heads_normed: bool = False  # queries and keys, head by head
    sandwich: bool = False  # norms also after attention and after the MLP
    one_plus: bool = False  # norms scale by 1 + w; embeddings by √hidden_size
    every: int = 0  # layer l is full where (l + 1) % every == 0, else sliding
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])


_ANY: dict[str, object] = {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
_GEMMA: dict[str, object] = _ANY | {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2: dict[str, object] = _GEMMA | {
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_MISTRAL: dict[str, object] = _ANY | {
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}
_QWEN: dict[str, object] = _ANY | {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
}
FAMILIES: dict[str, Family] = {
    "llama": Family(biases="?", defaults=_ANY | {"max_position_embeddings": 2048}),
    "mistral": Family(defaults=_MISTRAL),
    "gemma2": Family("hidden_activation", "?", False, True, True, 2, _GEMMA2),
    "gemma3_text": Family(
        "hidden_activation", "?", True, True, True, 6, _GEMMA | {"max_position_embeddings": 131072}
    ),
    "qwen2": Family(biases="qkv", defaults=_QWEN),
    "qwen3": Family(biases="?", heads_normed=True, defaults=_QWEN | {"head_dim": 128}),
}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu"}
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # of 32 bits, as are their inverses
MAX_LAYERS = 10_000  # known models have a few hundred
KINDS = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True)
class Layer:
    """The differences between layers: their attention pattern, and their rotary positions."""

    pattern: Pattern
    rope: Rope


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a decoder."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    max_positions: int
    eps: float
    tied: bool
    activation: str = "silu"
    score_scale: float = 1.0  # of q·k
    score_cap: float | None = None  # s → cap · tanh(s / cap), of q·k and of logits
    logit_cap: float | None = None
    biases: str = ""  # of "qkvo" and "m" (the MLP) those that exist
    heads_normed: bool = False
    sandwich: bool = False
    one_plus: bool = False
    sink_logits: bool = False  # a learned score per head that has weight and no value
    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None

    def __str__(self) -> str:
        shape = f"L{len(self.layers)} D{self.hidden_size} H{self.heads} KV{self.kv_heads}"
        return (
            f"{self.family} {shape} HD{self.head_dim} F{self.intermediate_size} V{self.vocab_size}"
        )

    @property
    def reach(self) -> float:
        """The positions that a row may have, including stretched ones."""
        return min(layer.rope.reach(self.max_positions) for layer in self.layers)

    @property
    def embedding_scale(self) -> float:
        return self.hidden_size**0.5 if self.one_plus else 1.0


def load(folder: str | Path) -> DecoderConfig:
    """Read the configuration of a folder. Raises RecurraError with the file and the wrong key.

    If there is a generation_config.json, it has the tokens that end a text, as in transformers.
    """
    path, other = Path(folder) / FILE, Path(folder) / GENERATION
    c = from_dict(read_json(path), str(path))
    if not other.exists():
        return c
    keys = _Keys(read_json(other), str(other))
    pad = keys.token("pad_token_id")
    ends = keys.ends(c.vocab_size) or c.eos
    return replace(c, eos=ends, pad=c.pad if pad is None else pad)


def read_json(path: Path) -> Any:
    """Read a file of JSON, with or without a byte order mark.

    Raises RecurraError if the file is missing or is not JSON.
    """
    try:
        return json_text.parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RecurraError(
            f"there is no file {path}",
            facts="a model is a folder with config.json, *.safetensors and tokenizer.json",
            hint="`recurra llm init --config llama-3.2-1b --tiny OUT` makes one",
        ) from None
    except NotADirectoryError:
        raise RecurraError(
            f"{path.parent} is a file",
            facts="a model is a folder with config.json, *.safetensors and tokenizer.json",
            hint=f"name the folder that it is in: {path.parent.parent}",
        ) from None
    except OSError as error:
        raise RecurraError(f"{path} cannot be read", facts=str(error.strerror)) from None
    except ValueError as error:
        raise RecurraError(f"{path} is no JSON", facts=str(error)) from None


def from_dict(content: Mapping[str, object], file: str = FILE) -> DecoderConfig:
    """Return the configuration in a file's content, as `load` does."""
    keys = _Keys(content, file)
    name = keys.one_of("model_type", FAMILIES)
    family = FAMILIES[name]
    keys = _Keys({**family.defaults, **content}, file)
    if keys.get("quantization_config") is not None:
        raise RecurraError(
            f"{file}: quantization_config says that the weights are packed",
            facts=f"it is {keys.get('quantization_config')!r:.80}; only f32, f16 and bf16 are read",
            hint="take the model as it was before, and " + either("--dtype i8", "dtype='i8'"),
        )
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads)
    head_dim = keys.size("head_dim", None if hidden % heads else hidden // heads)
    keys.expect(heads % kv_heads == 0, "num_key_value_heads", f"does not divide {heads} heads")
    keys.expect(head_dim % 2 == 0, "head_dim", "is odd, and rotary positions turn pairs")
    bidirectional = keys.flag("use_bidirectional_attention")
    keys.expect(not bidirectional, "use_bidirectional_attention", "is no decoder's")
    activation = keys.one_of(family.activation, ACTIVATIONS)
    bias = "?" in family.biases and keys.flag("attention_bias")
    scale = keys.number("query_pre_attn_scalar", head_dim) if family.one_plus else head_dim
    vocab_size, layers = keys.size("vocab_size"), _layers(keys, family)
    dynamic = any(layer.rope.type == "dynamic" for layer in layers)
    keys.expect(head_dim > 2 or not dynamic, "head_dim", "is less than 4, which dynamic rope needs")
    return DecoderConfig(
        family=name,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=keys.size("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layers=layers,
        max_positions=keys.size("max_position_embeddings"),
        eps=keys.number("rms_norm_eps"),
        tied=keys.flag("tie_word_embeddings"),
        activation=ACTIVATIONS[activation],
        score_scale=scale**-0.5,
        score_cap=keys.maybe("attn_logit_softcapping") if family.one_plus else None,
        logit_cap=keys.maybe("final_logit_softcapping") if family.one_plus else None,
        biases=("qkvo" if bias else family.biases.strip("?"))
        + ("m" if name == "llama" and keys.flag("mlp_bias") else ""),
        heads_normed=family.heads_normed,
        sandwich=family.sandwich,
        one_plus=family.one_plus,
        bos=keys.token("bos_token_id"),
        eos=keys.ends(vocab_size),
        pad=keys.token("pad_token_id"),
    )


def _layers(keys: _Keys, family: Family) -> tuple[Layer, ...]:
    kinds = _kinds(keys, family)
    ropes = {kind: _rope(keys, kind) for kind in dict.fromkeys(kinds)}
    return tuple(Layer(_pattern(keys, kind), ropes[kind]) for kind in kinds)


def _kinds(keys: _Keys, family: Family) -> Sequence[str]:
    """One of KINDS per layer."""
    count = keys.size("num_hidden_layers")
    keys.expect(count <= MAX_LAYERS, "num_hidden_layers", f"is more than {MAX_LAYERS}")
    name = keys.get("model_type")
    kinds = None if name == "mistral" else keys.get("layer_types")
    if kinds is not None:
        has_all = isinstance(kinds, list) and len(kinds) == count
        keys.expect(has_all, "layer_types", f"has not {count} items")
        for kind in kinds:
            keys.expect(kind in KINDS, "layer_types", f"is not made of {', '.join(KINDS)}", kind)
        return kinds
    if family.every:
        every = keys.size("sliding_window_pattern", family.every)
        return [KINDS[bool((layer + 1) % every)] for layer in range(count)]
    slides = keys.get("sliding_window") is not None
    if name == "mistral":
        return [KINDS[slides]] * count
    first = count
    if name != "llama" and slides and keys.flag("use_sliding_window"):
        first = keys.size("max_window_layers")
    return [KINDS[layer >= first] for layer in range(count)]


def _pattern(keys: _Keys, kind: str) -> Pattern:
    if kind == "sliding_attention":
        return SlidingWindow(keys.size("sliding_window"))
    if kind == "chunked_attention":
        return Chunk(keys.size("attention_chunk_size"))
    return Causal()


def _rope(keys: _Keys, kind: str) -> Rope:
    """The rope of layers of a kind, by rope_parameters, of all or of each kind, or older keys."""
    length = keys.size("max_position_embeddings")
    name = "rope_parameters" if keys.get("rope_parameters") is not None else "rope_scaling"
    params = keys.get(name) or {}
    keys.expect(isinstance(params, dict), name, "is no object")
    theta = keys.number("rope_theta", 10_000.0)
    if keys.get("model_type") == "gemma3_text":
        local = kind == "sliding_attention"
        theta = keys.number("rope_local_base_freq", 10_000.0) if local else theta
        if not local:
            theta = keys.number("rope_theta", 1_000_000.0)
        if name == "rope_scaling" and local:
            params = {}
    if any(k in params for k in KINDS):
        name, params = f"{name}.{kind}", params.get(kind) or {}
    inner = _Keys(params, keys.file, f"{name}.")
    key = "type" if params.get("rope_type") is None and "type" in params else "rope_type"
    type_ = inner.one_of(key, rope.KEYS, "default")
    _expect_stretch(inner, type_)
    theta = inner.number("rope_theta", theta)
    inner.expect(theta > 1, "rope_theta", "is no number above 1", theta)
    if type_ in ("llama3", "yarn"):
        outer = keys if keys.get("original_max_position_embeddings") is not None else inner
        length = outer.size("original_max_position_embeddings", length)
    for level in (keys, inner):
        full = level.number("partial_rotary_factor", 1.0) == 1.0
        why = "leaves part of a head as it is, which none here does"
        level.expect(full, "partial_rotary_factor", why)
    return rope.from_dict(params, theta, length)


def _expect_stretch(keys: _Keys, type_: str) -> None:
    """Check the keys of a type of rope, without its base: numbers above 0, and one flag."""
    needed, optional = rope.KEYS[type_]
    for name in needed:
        keys.number(name)
    for name in optional:
        default = getattr(Rope, name)
        if default is True:
            keys.flag(name, default)
        elif keys.get(name) != default:
            keys.maybe(name)
    if type_ == "llama3":
        low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
        keys.expect(high > low, "high_freq_factor", f"is not above low_freq_factor {low}")


class _Keys:
    """Access to a file's content by key, with errors for missing and wrong values."""

    def __init__(self, content: object, file: str, prefix: str = ""):
        if not isinstance(content, Mapping):
            raise RecurraError(
                f"{file} is no object of keys and values", facts=f"it is {content!r:.60}"
            )
        self.content, self.file, self.prefix = content, file, prefix

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def expect(self, holds: bool, key: str, why: str, value: object = None) -> None:
        if not holds:
            shown = self.get(key) if value is None else value
            raise RecurraError(f"{self.file}: {self.prefix}{key} {shown!r:.60} {why}")

    def need(self, key: str) -> Any:
        if self.get(key) is None:
            raise RecurraError(
                f"{self.file}: {self.prefix}{key} is missing",
                facts=f"it has {', '.join(sorted(self.content)) or 'no keys'}",
            )
        return self.content[key]

    def one_of(self, key: str, known: Mapping[str, object], default: str | None = None) -> str:
        value = default if default and self.get(key) is None else self.need(key)
        if value not in list(known):
            raise RecurraError(
                f"{self.file}: {self.prefix}{key} {value!r:.60} is not known",
                facts=f"there are {', '.join(known)}",
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = default if default is not None and self.get(key) is None else self.need(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number and SMALLEST <= value <= LARGEST
        self.expect(fits, key, "is no number above 0 that 32 bits hold")
        return float(value)

    def maybe(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def size(self, key: str, default: int | None = None) -> int:
        value = default if default is not None and self.get(key) is None else self.need(key)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
        self.expect(fits, key, "is no integer above 0 that 64 bits hold")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = default if self.get(key) is None else self.get(key)
        self.expect(isinstance(value, bool), key, "is neither true nor false")
        return value

    def tokens(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        tokens = [] if value is None else value if isinstance(value, list) else [value]
        legal = all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in tokens)
        self.expect(legal, key, "is no token, nor a list of tokens")
        return tuple(tokens)

    def ends(self, vocab_size: int) -> tuple[int, ...]:
        """The tokens that end a text."""
        tokens = self.tokens("eos_token_id")
        known = all(x < vocab_size for x in tokens)
        self.expect(known, "eos_token_id", f"is none of the {vocab_size} tokens that there are")
        return tokens

    def token(self, key: str) -> int | None:
        return next(iter(self.tokens(key)), None)
