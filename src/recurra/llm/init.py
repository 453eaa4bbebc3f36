"""Write a folder like those of Hugging Face, with random weights, for tests and experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recurra.errors import RecurraError, either
from recurra.llm import config as configs
from recurra.llm.config import DecoderConfig
from recurra.llm.presets import preset, tiny
from recurra.llm.tensor_files import INDEX, ONE
from recurra.llm.weights import DTYPES, WeightPart, parts
from recurra.support import atomic_write
from recurra.support.optional_packages import needed_by
from recurra.support.renamed_names import old_names
from recurra.support.safetensors_file import write

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("<s>", "</s>", "<pad>")  # bos, eos, pad
SHARD = 2_000_000_000  # the most bytes of a file, unless one tensor is larger


def init_model(
    name: str,
    out: str | Path,
    *,
    small: bool = False,
    dtype: str = "f32",
    seed: int = 0,
    shard: int = SHARD,
) -> DecoderConfig:
    """Write config.json, safetensors (several, with an index, above `shard` bytes) and tokenizer.

    Raises RecurraError if the name is not known, or the folder has a model already.
    """
    out, config = Path(out), preset(name)
    if dtype not in DTYPES:
        raise RecurraError(f"weights cannot be {dtype!r}", facts=f"there is {', '.join(DTYPES)}")
    if seed < 0:
        raise RecurraError(
            f"seed is {seed}, and must be 0 or more", hint=either("--seed 0", "seed=0")
        )
    if (out / configs.FILE).exists():
        raise RecurraError(f"{out} has a model already", hint="name another folder, or remove it")
    tokenizer = byte_tokenizer()
    if small:
        config = tiny(config, tokenizer.get_vocab_size())
    bos, eos, pad = (tokenizer.token_to_id(word) for word in SPECIAL)
    config |= {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    config["torch_dtype"] = str(np.dtype(DTYPES[dtype]))
    c = configs.from_dict(config, str(out / configs.FILE))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecurraError(
            f"{out} cannot be made", facts=str(error.strerror), hint="name another folder"
        ) from None
    atomic_write.save(out / "tokenizer.json", tokenizer.to_str(pretty=True))
    words = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    _write(out / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **words})
    save(out, c, dtype, seed, shard)
    _write(out / configs.FILE, config)
    return c


def byte_tokenizer() -> Tokenizer:
    """A tokenizer in which every byte is a token, so that any text survives a round trip."""
    with needed_by("a model's tokenizer"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: k for k, word in enumerate((*SPECIAL, *letters))}
    out = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens(list(SPECIAL))
    bos = SPECIAL[0]
    out.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocab[bos])]
    )
    return out


def save(out: Path, config: DecoderConfig, dtype: str, seed: int, shard: int) -> None:
    """Write random tensors of all parts of a model, with one file at a time in memory."""
    files = list(_files(config, dtype, shard))
    places: dict[str, str] = {}
    for k, names in enumerate(files):
        name = ONE if len(files) == 1 else f"model-{k + 1:05}-of-{len(files):05}.safetensors"
        tensors = {p.name: random_weights(p, config, dtype, [seed, at]) for at, p in names}
        write(out / name, tensors, {"format": "pt"})
        places |= dict.fromkeys(tensors, name)
    if len(files) > 1:
        _write(out / INDEX, {"metadata": {}, "weight_map": places})


def _files(config: DecoderConfig, dtype: str, shard: int) -> Iterator[list[tuple[int, WeightPart]]]:
    """The numbered parts of each file."""
    width, now, size = np.dtype(DTYPES[dtype]).itemsize, list[tuple[int, WeightPart]](), 0
    for at, part in enumerate(parts(config)):
        more = width * int(np.prod(part.shape))
        if now and size + more > shard:
            yield now
            now, size = [], 0
        now.append((at, part))
        size += more
    yield now


def random_weights(
    part: WeightPart, config: DecoderConfig, dtype: str, seed: list[int]
) -> np.ndarray:
    """Values that preserve the scale of activations: N(0, 1/in), norms around 1."""
    x = np.random.default_rng(seed).standard_normal(part.shape, np.float32)
    if len(part.shape) > 1:
        x *= part.shape[-1] ** -0.5
    elif part.name.endswith("norm.weight"):
        x = 0.1 * x + (0.0 if config.one_plus else 1.0)
    else:
        x *= 0.1
    return x.astype(DTYPES[dtype])


def _write(path: Path, content: object) -> None:
    atomic_write.save(path, json.dumps(content, indent=2) + "\n")


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"init": "init_model"})
