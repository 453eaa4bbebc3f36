"""A folder of Hugging Face → packed weights: [in, out], queries, keys and values side by side.

All layers of one weight lie in one array [L, ..]; it is filled from the files, some rows of a
tensor at a time: beside the result no more than these are in memory. As i8, matrices are rounded to
8 bits, each output channel by a scale of its own: w ≈ q · scale, scale = max |w| / 127.
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
from recurra.llm.checkpoint import TensorEntry, entries
from recurra.llm.config import DecoderConfig
from recurra.report.progress import track
from recurra.support.aligned_array import aligned
from recurra.support.free_memory import free_bytes

DTYPES: dict[str, type] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
HELD = (*DTYPES, "i8")  # in what weights may be held
MATRICES = ("emb", "head", "qkv", "o", "gate_up", "down")
LEVELS = 127  # of 8 bits, to either side of 0
SLOW = 500_000_000  # bytes, above which reading is watched
SHOWN = 4  # tensors named in a message; the others are counted


@dataclass(frozen=True)
class WeightPart:
    """A tensor of the files, and where it lies: columns `at`.. of our weight `into`

    In `layer`, unless it is of none. A matrix is [out, in] in the files, and turned in ours.
    """

    name: str
    shape: tuple[int, ...]
    into: str
    at: int = 0
    layer: int | None = None
    turned: bool = True

    def place(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """The place of the tensor in our weights, with axes as in the file."""
        whole = weights[self.into] if self.layer is None else weights[self.into][self.layer]
        width = self.shape[0] if self.turned else self.shape[-1]
        mine = whole[..., self.at : self.at + width]
        return mine.T if self.turned else mine


@dataclass(frozen=True)
class Weights:
    """The weights: `emb` [V, D], `norm` [D], `head` [V, D] if not tied; of all layers, [L, ..]:

    `ln1`, `ln2` [D], `qkv` [D, (H + 2 KV) HD], `o` [H HD, D], `gate_up` [D, 2 F], `down` [F, D];
    where the model has them, `.._bias` [out], `q_norm` and `k_norm` [HD], `ln1_post` and `ln2_post`
    [D], `sinks` [H]. Of matrices in 8 bits, `.._scale` [out], of `emb` and `head` [V].
    """

    config: DecoderConfig
    arrays: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def of_layer(self, layer: int) -> dict[str, np.ndarray]:
        """Views of the weights of one layer."""
        return {n: self.arrays[n][layer] for n in self.arrays if not of_all(n)}


def parts(config: DecoderConfig) -> Iterator[WeightPart]:
    """Every tensor that the files of such a model have, and where it goes."""
    d = config.hidden_size
    yield WeightPart("model.embed_tokens.weight", (config.vocab_size, d), "emb", turned=False)
    yield WeightPart("model.norm.weight", (d,), "norm", turned=False)
    if not config.tied:
        yield WeightPart("lm_head.weight", (config.vocab_size, d), "head", turned=False)
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
        return WeightPart(f"{before}{name}", (size,), into, 0, layer, turned=False)

    def matrix(
        name: str, out: int, inputs: int, into: str, at: int, bias: str
    ) -> Iterator[WeightPart]:
        yield WeightPart(f"{before}{name}.weight", (out, inputs), into, at, layer)
        if bias in config.biases:
            yield WeightPart(
                f"{before}{name}.bias", (out,), f"{into}_bias", at, layer, turned=False
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
    """The shapes of our weights, by name: as wide as their parts together."""
    out: dict[str, tuple[int, ...]] = {}
    for p in parts(config):
        own = p.shape[::-1] if p.turned else p.shape
        lead = () if p.layer is None else (len(config.layers),)
        out[p.into] = (*lead, *own[:-1], p.at + own[-1])
    return out


def of_all(name: str) -> bool:
    """Is it a weight of no layer?"""
    return name.removesuffix("_scale") in ("emb", "norm", "head")


def weight_types(config: DecoderConfig, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each of our weights, held as `dtype`; of 8 bits, only matrices are."""
    if dtype != "i8":
        return {name: (dtype, shape) for name, shape in shapes(config).items()}
    out: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in shapes(config).items():
        out[name] = ("i8" if name in MATRICES else "f32", shape)
        if name in MATRICES:
            out[f"{name}_scale"] = ("f32", shape[:-1] if of_all(name) else (shape[0], shape[-1]))
    return out


def rounded(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(i8 [out, in], scale f32 [out]) of [out, in]; what is not finite stays so, in its scale."""
    weights = np.asarray(weights, np.float32)
    scale = np.abs(weights).max(axis=1, initial=0.0) / np.float32(LEVELS)
    safe = np.where((scale > 0) & np.isfinite(scale), scale, np.float32(1))
    steps = np.clip(np.nan_to_num(weights / safe[:, None]), -LEVELS, LEVELS)
    return np.rint(steps).astype(np.int8), scale


def load(folder: str | Path, dtype: str = "f32") -> Weights:
    """The weights of a folder, as f32, bf16, or i8 with scales.

    Raises RecurraError, before anything is read: config.json as in `config.load`; tensors that are
    missing, superfluous or mis-shaped, with their file and shapes; memory that would not suffice.
    """
    c = configs.load(folder)
    if dtype not in HELD:
        raise RecurraError(f"weights cannot be {dtype!r}", facts=f"there is {', '.join(HELD)}")
    found = entries(folder)
    wanted = {p.name: p for p in parts(c)}
    _expect(Path(folder), c, wanted, found)
    arrays = _room(folder, weight_types(c, dtype), dtype)
    _fill(arrays, wanted, found)
    if c.tied and "lm_head.weight" in found:
        _expect_tied(found["lm_head.weight"], found["model.embed_tokens.weight"])
    return Weights(c, arrays)


def _fill(
    arrays: Mapping[str, np.ndarray],
    wanted: Mapping[str, WeightPart],
    found: Mapping[str, TensorEntry],
) -> None:
    """Reads every part into its place; of files that take seconds, progress is shown."""
    size = sum(found[name].nbytes for name in wanted)
    with track(size // 10**6, "reading MB") if size > SLOW else nullcontext() as progress:
        done = 0
        for name, part in wanted.items():
            for rows, values in found[name].rows():
                _expect_finite(found[name], values, put(arrays, part, rows, values))
            done += found[name].nbytes
            if progress is not None:
                progress.update(done // 10**6)


def _expect_finite(entry: TensorEntry, values: np.ndarray, held: np.ndarray) -> None:
    """Raises RecurraError if a number is NaN or inf, in the file or as it is held."""
    if is_finite(held):
        return
    if is_finite(values):
        raise RecurraError(
            f"{entry.file}: {entry.name} has a number too large for {held.dtype.name}",
            facts=f"it has {np.abs(values).max():.3g}",
            hint=_as("f32") if held.dtype != np.float32 else "",
        )
    raise RecurraError(
        f"{entry.file}: {entry.name} has NaN or inf",
        hint="the file is damaged, or training has diverged: take another one",
    )


def is_finite(values: np.ndarray) -> bool:
    """Is every number finite? Of bfloat16, which NumPy is slow at, its bits tell."""
    if values.dtype == ml_dtypes.bfloat16:
        return not ((values.view(np.uint16) & 0x7F80) == 0x7F80).any()
    return bool(np.isfinite(values).all())


def put(
    arrays: Mapping[str, np.ndarray], part: WeightPart, rows: slice, values: np.ndarray
) -> np.ndarray:
    """Writes rows of a tensor of the files into their place, rounded as that is.

    Returns the floats that stand for them there: numbers, or the scales of rounded ones.
    """
    place, scales = part.place(arrays)[rows], arrays.get(f"{part.into}_scale")
    with np.errstate(over="ignore"):  # which the caller finds in what is returned
        if scales is None:
            place[...] = held = values.astype(place.dtype, copy=False)
            return held
        place[...], scale = rounded(values)
    mine = scales if part.layer is None else scales[part.layer]
    mine[part.at + rows.start : part.at + rows.stop] = scale
    return scale


def _expect(
    folder: Path,
    config: DecoderConfig,
    wanted: Mapping[str, WeightPart],
    found: Mapping[str, TensorEntry],
) -> None:
    if missing := [n for n in wanted if n not in found]:
        part = wanted[missing[0]]
        raise RecurraError(
            f"{folder} lacks {_named(missing)}",
            facts=f"{configs.FILE} asks for {config}, where {part.name} is {list(part.shape)}",
        )
    strange = [n for n in found if n not in wanted and not _needless(n, config)]
    if strange:
        entry = found[strange[0]]
        raise RecurraError(
            f"{entry.file} has {_named(strange)}, which {config} has no place for",
            facts=f"{entry.name} is {list(entry.shape)}",
            hint=f"see whether {configs.FILE} is that of these weights",
        )
    for name, part in wanted.items():
        entry = found[name]
        if entry.shape != part.shape:
            raise RecurraError(
                f"{entry.file}: {name} is {list(entry.shape)}, not {list(part.shape)}",
                facts=f"{configs.FILE} asks for {config}",
            )
        if not entry.dtype.endswith(("F16", "F32", "F64")):
            raise RecurraError(f"{entry.file}: {name} is {entry.dtype}, no floating-point numbers")


def _needless(name: str, config: DecoderConfig) -> bool:
    """Is it something that old checkpoints carry along: frequencies, or a head tied to `emb`?"""
    return name.endswith("rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight")


def _expect_tied(head: TensorEntry, table: TensorEntry) -> None:
    pairs = zip(head.rows(), table.rows(), strict=False)
    if head.shape != table.shape or not all(np.array_equal(a, b) for (_, a), (_, b) in pairs):
        raise RecurraError(
            f"{head.file}: lm_head.weight is not model.embed_tokens.weight",
            facts=f"{configs.FILE} ties them, with tie_word_embeddings true or missing",
            hint="write tie_word_embeddings: false",
        )


def _room(
    folder: str | Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]], dtype: str
) -> dict[str, np.ndarray]:
    kinds = {**DTYPES, "i8": np.int8}
    room = {name: (shape, np.dtype(kinds[kind])) for name, (kind, shape) in wanted.items()}
    need = sum(kind.itemsize * prod(shape) for shape, kind in room.values())
    free = free_bytes()
    try:
        if free is not None and need > free:
            raise MemoryError
        return {name: aligned(shape, kind) for name, (shape, kind) in room.items()}
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
