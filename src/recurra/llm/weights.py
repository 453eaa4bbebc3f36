"""Load a Hugging Face folder as packed weights: [in, out], with queries, keys and values in one.

Each weight is one array [L, ..] of all layers, which is filled from the files, some rows of
a tensor at a time: only these are in memory beside the result. As i8, matrices are rounded to 8
bits, with a scale for each output channel: w ≈ q · scale, scale = max |w| / 127.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

from recurra.errors import RecurraError, either
from recurra.llm import config as configs
from recurra.llm.config import DecoderConfig
from recurra.llm.tensor_files import TensorEntry, entries
from recurra.report.progress import track
from recurra.support.aligned_array import aligned
from recurra.support.free_memory import free_bytes

DTYPES: dict[str, type] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
LOADED = (*DTYPES, "i8")  # types of weights in memory
MATRICES = ("emb", "head", "qkv", "o", "gate_up", "down")
LEVELS = 127  # of 8 bits, to either side of 0
SLOW = 500_000_000  # bytes above which progress is shown
SHOWN = 4  # tensors that a message names; others are counted


@dataclass(frozen=True)
class WeightPart:
    """A tensor of the files, and its place: columns `at`.. of the packed weight `into`, in `layer`.

    A matrix is [out, in] in the files, and transposed in the packed weight.
    """

    name: str
    shape: tuple[int, ...]
    target: str
    offset: int = 0
    layer: int | None = None
    transposed: bool = True

    def place(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """The view of the packed weight for this tensor, with axes as in the file."""
        packed = weights[self.target] if self.layer is None else weights[self.target][self.layer]
        width = self.shape[0] if self.transposed else self.shape[-1]
        view = packed[..., self.offset : self.offset + width]
        return view.T if self.transposed else view


@dataclass(frozen=True)
class Weights:
    """The packed weights: `emb` [V, D], `norm` [D], `head` [V, D] if not tied; by layer, [L, ..]:

    `ln1`, `ln2` [D], `qkv` [D, (H + 2 KV) HD], `o` [H HD, D], `gate_up` [D, 2 F], `down` [F, D];
    if the model has them, `.._bias` [out], `q_norm` and `k_norm` [HD], `ln1_post` and `ln2_post`
    [D], `sinks` [H]. Matrices in 8 bits have `.._scale` [out]; of `emb` and `head`, [V].
    """

    config: DecoderConfig
    arrays: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


def parts(config: DecoderConfig) -> Iterator[WeightPart]:
    """Yield every tensor in the files of a model, with its place."""
    d = config.hidden_size
    yield WeightPart("model.embed_tokens.weight", (config.vocab_size, d), "emb", transposed=False)
    yield WeightPart("model.norm.weight", (d,), "norm", transposed=False)
    if not config.tied:
        yield WeightPart("lm_head.weight", (config.vocab_size, d), "head", transposed=False)
    for layer in range(len(config.layers)):
        yield from _layer(config, layer)


def _layer(config: DecoderConfig, layer: int) -> Iterator[WeightPart]:
    d, f, q, kv = (
        config.hidden_size,
        config.intermediate_size,
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    )
    before = f"model.layers.{layer}."

    def vector(name: str, size: int, into: str) -> WeightPart:
        return WeightPart(f"{before}{name}", (size,), into, 0, layer, transposed=False)

    def matrix(
        name: str, out: int, inputs: int, into: str, at: int, bias: str
    ) -> Iterator[WeightPart]:
        yield WeightPart(f"{before}{name}.weight", (out, inputs), into, at, layer)
        if bias in config.biases:
            yield WeightPart(
                f"{before}{name}.bias", (out,), f"{into}_bias", at, layer, transposed=False
            )

    yield vector("input_layernorm.weight", d, "ln1")
    yield from matrix("self_attn.q_proj", q, d, "qkv", 0, "q")
    yield from matrix("self_attn.k_proj", kv, d, "qkv", q, "k")
    yield from matrix("self_attn.v_proj", kv, d, "qkv", q + kv, "v")
    yield from matrix("self_attn.o_proj", d, q, "o", 0, "o")
    if config.heads_normed:
        yield vector("self_attn.q_norm.weight", config.head_dim, "q_norm")
        yield vector("self_attn.k_norm.weight", config.head_dim, "k_norm")
    if config.sink_logits:
        yield vector("self_attn.sinks", config.heads, "sinks")
    if config.sandwich:
        yield vector("post_attention_layernorm.weight", d, "ln1_post")
        yield vector("pre_feedforward_layernorm.weight", d, "ln2")
        yield vector("post_feedforward_layernorm.weight", d, "ln2_post")
    else:
        yield vector("post_attention_layernorm.weight", d, "ln2")
    yield from matrix("mlp.gate_proj", f, d, "gate_up", 0, "m")
    yield from matrix("mlp.up_proj", f, d, "gate_up", f, "m")
    yield from matrix("mlp.down_proj", d, f, "down", 0, "m")


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the packed weights, by name; their last axes join those of the parts."""
    out: dict[str, tuple[int, ...]] = {}
    for p in parts(config):
        own = p.shape[::-1] if p.transposed else p.shape
        lead = () if p.layer is None else (len(config.layers),)
        out[p.target] = (*lead, *own[:-1], p.offset + own[-1])
    return out


def is_global(name: str) -> bool:
    """Tell whether a weight belongs to no single layer."""
    return name.removesuffix("_scale") in ("emb", "norm", "head")


def weight_types(config: DecoderConfig, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape of each packed weight; with i8, only matrices have 8 bits."""
    if dtype != "i8":
        return {name: (dtype, shape) for name, shape in shapes(config).items()}
    out: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in shapes(config).items():
        out[name] = ("i8" if name in MATRICES else "f32", shape)
        if name in MATRICES:
            out[f"{name}_scale"] = ("f32", shape[:-1] if is_global(name) else (shape[0], shape[-1]))
    return out


def quantize(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round [out, in] to i8 [out, in] and a scale f32 [out], which is not finite if a weight is
    not."""
    weights = np.asarray(weights, np.float32)
    scale = np.abs(weights).max(axis=1, initial=0.0) / np.float32(LEVELS)
    safe = np.where((scale > 0) & np.isfinite(scale), scale, np.float32(1))
    steps = np.clip(np.nan_to_num(weights / safe[:, None]), -LEVELS, LEVELS)
    return np.rint(steps).astype(np.int8), scale


def load(folder: str | Path, dtype: str = "f32") -> Weights:
    """Load the weights of a folder, as f32, bf16, or i8 with scales.

    Raises RecurraError before anything is read: for config.json as `config.load`; for missing,
    superfluous or misshaped tensors, with their file and shapes; or if memory does not suffice.
    """
    c = configs.load(folder)
    if dtype not in LOADED:
        raise RecurraError(f"weights cannot be {dtype!r}", facts=f"there is {', '.join(LOADED)}")
    files = entries(folder)
    by_name = {p.name: p for p in parts(c)}
    _expect_tensors(Path(folder), c, by_name, files)
    arrays = _allocate(folder, weight_types(c, dtype), dtype)
    _fill(arrays, by_name, files)
    if c.tied and "lm_head.weight" in files:
        _expect_tied(files["lm_head.weight"], files["model.embed_tokens.weight"])
    return Weights(c, arrays)


def _fill(
    arrays: Mapping[str, np.ndarray],
    parts: Mapping[str, WeightPart],
    files: Mapping[str, TensorEntry],
) -> None:
    """Read every part into its place; show progress for large files."""
    size = sum(files[name].nbytes for name in parts)
    with track(size // 10**6, "reading MB") if size > SLOW else nullcontext() as progress:
        done = 0
        for name, part in parts.items():
            for rows, values in files[name].rows():
                _expect_finite(files[name], values, put(arrays, part, rows, values))
            done += files[name].nbytes
            if progress is not None:
                progress.update(done // 10**6)


def _expect_finite(entry: TensorEntry, values: np.ndarray, converted: np.ndarray) -> None:
    """Raise RecurraError if a number is NaN or inf, in the file or after conversion."""
    if is_finite(converted):
        return
    if is_finite(values):
        raise RecurraError(
            f"{entry.file}: {entry.name} has a number too large for {converted.dtype.name}",
            facts=f"it has {np.abs(values).max():.3g}",
            hint=_as("f32") if converted.dtype != np.float32 else "",
        )
    raise RecurraError(
        f"{entry.file}: {entry.name} has NaN or inf",
        hint="the file is damaged, or training has diverged: take another one",
    )


def is_finite(values: np.ndarray) -> bool:
    """Tell whether every number is finite; by its bits for bfloat16, for which NumPy is slow."""
    if values.dtype == ml_dtypes.bfloat16:
        return not ((values.view(np.uint16) & 0x7F80) == 0x7F80).any()
    return bool(np.isfinite(values).all())


def put(
    arrays: Mapping[str, np.ndarray], part: WeightPart, rows: slice, values: np.ndarray
) -> np.ndarray:
    """Convert rows of a tensor of the files, and write them into their place.

    Returns the converted floats, or the scales of quantized ones.
    """
    place, scales = part.place(arrays)[rows], arrays.get(f"{part.target}_scale")
    with np.errstate(over="ignore"):  # the caller checks the result
        if scales is None:
            place[...] = converted = values.astype(place.dtype, copy=False)
            return converted
        place[...], scale = quantize(values)
    own = scales if part.layer is None else scales[part.layer]
    own[part.offset + rows.start : part.offset + rows.stop] = scale
    return scale


def _expect_tensors(
    folder: Path,
    config: DecoderConfig,
    parts: Mapping[str, WeightPart],
    files: Mapping[str, TensorEntry],
) -> None:
    if missing := [n for n in parts if n not in files]:
        part = parts[missing[0]]
        raise RecurraError(
            f"{folder} lacks {_named(missing)}",
            facts=f"{configs.FILE} asks for {config}, where {part.name} is {list(part.shape)}",
        )
    unknown = [n for n in files if n not in parts and not _is_redundant(n, config)]
    if unknown:
        entry = files[unknown[0]]
        raise RecurraError(
            f"{entry.file} has {_named(unknown)}, which {config} has no place for",
            facts=f"{entry.name} is {list(entry.shape)}",
            hint=f"see whether {configs.FILE} is that of these weights",
        )
    for name, part in parts.items():
        entry = files[name]
        if entry.shape != part.shape:
            raise RecurraError(
                f"{entry.file}: {name} is {list(entry.shape)}, not {list(part.shape)}",
                facts=f"{configs.FILE} asks for {config}",
            )
        if not entry.dtype.endswith(("F16", "F32", "F64")):
            raise RecurraError(f"{entry.file}: {name} is {entry.dtype}, no floating-point numbers")


def _is_redundant(name: str, config: DecoderConfig) -> bool:
    """Tell whether a tensor is a leftover of old checkpoints: frequencies, or a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight")


def _expect_tied(head: TensorEntry, table: TensorEntry) -> None:
    pairs = zip(head.rows(), table.rows(), strict=False)
    if head.shape != table.shape or not all(np.array_equal(a, b) for (_, a), (_, b) in pairs):
        raise RecurraError(
            f"{head.file}: lm_head.weight is not model.embed_tokens.weight",
            facts=f"{configs.FILE} ties them, with tie_word_embeddings true or missing",
            hint="write tie_word_embeddings: false",
        )


def _allocate(
    folder: str | Path, types: Mapping[str, tuple[str, tuple[int, ...]]], dtype: str
) -> dict[str, np.ndarray]:
    kinds = {**DTYPES, "i8": np.int8}
    arrays = {name: (shape, np.dtype(kinds[kind])) for name, (kind, shape) in types.items()}
    need = sum(kind.itemsize * prod(shape) for shape, kind in arrays.values())
    free = free_bytes()
    try:
        if free is not None and need > free:
            raise MemoryError
        return {name: aligned(shape, kind) for name, (shape, kind) in arrays.items()}
    except MemoryError:
        have = "" if free is None else f", {free / 1e9:.2f} GB are free"
        raise RecurraError(
            f"the weights of {folder} do not fit into memory",
            facts=f"as {dtype} they take {need / 1e9:.2f} GB{have}",
            hint={"f32": f"{_as('bf16')}, half of that", "bf16": _as("i8")}.get(dtype, ""),
        ) from None


def _as(dtype: str) -> str:
    return "take " + either(f"--dtype {dtype}", f"dtype={dtype!r}")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
