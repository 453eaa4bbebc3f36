"""The spaces of an environment, as a network uses them: a vector in, a distribution out.

| a part of the actions | is drawn from |
| --- | --- |
| one of n | `Categorical`, n outputs |
| several counts, or truth values | `MultiCategorical`, an output for each value |
| numbers | `Gaussian`, an output for each mean; their deviations are parameters |

The parts of a tuple or dict are drawn independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import add
from typing import Any

from recurra.errors import RecurraError
from recurra.frontend.dims import Dims
from recurra.frontend.functions import concat
from recurra.frontend.nn.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.types import Type, is_float


class Spaces:
    """The observation and action spaces of an environment, as sizes of a network."""

    def __init__(self, env: Any) -> None:
        self.observation, self.action = env.observation_space, env.action_space
        leaves = self.action.leaves()
        self.sizes = [_outputs(leaf, self.action) for leaf in leaves]
        self.normal = [x.actions is None and is_float(x.type.dtype) for x in leaves]
        self.width = sum(_count(x.type) for x in self.observation.leaves())
        self.outputs = sum(self.sizes)
        for kind, space, count in (
            ("observation", self.observation, self.width),
            ("action", self.action, self.outputs),
        ):
            if not count:
                raise RecurraError.at_user_line(
                    f"the {kind} space has no {kind}s",
                    facts=f"it is {space}, which holds no number",
                    hint=f"give the environment a wrapper with an {kind} space that does",
                )
        sizes = zip(self.sizes, self.normal, strict=True)
        self.deviations = sum(n for n, is_normal in sizes if is_normal)

    def vector(self, observation: Any) -> RecurrentTensor:
        """Flatten an observation to a vector, f32[width]; bytes are scaled to 0 .. 1."""
        parts = [_vector(x) for x in self.observation.tensors(observation)]
        return concat(parts) if len(parts) > 1 else parts[0]

    def distribution(
        self, outputs: RecurrentTensor, log_std: RecurrentTensor | None
    ) -> Distribution:
        """The distribution over actions, from the outputs of a network."""
        parts: list[Distribution] = []
        at = std_at = 0
        for leaf, n, is_normal in zip(self.action.leaves(), self.sizes, self.normal, strict=True):
            part = outputs if n == self.outputs else outputs.cut(at, at + n)
            at += n
            if is_normal:
                assert log_std is not None
                std = log_std if n == self.deviations else log_std.cut(std_at, std_at + n)
                std_at += n
                parts.append(_shaped(Gaussian(part, std), leaf.type, "f32"))
            elif leaf.actions is not None:
                parts.append(Categorical(part))
            else:
                counts = leaf.counts or (2,) * _count(leaf.type)
                parts.append(_shaped(MultiCategorical(part, counts), leaf.type, "i32"))
        whole = self.action.tree(parts)
        return parts[0] if whole is parts[0] else Joint(parts, self.action)


class Joint(Distribution):
    """Independent distributions over the parts of a space"""

    def __init__(self, parts: Sequence[Distribution], space: Any) -> None:
        self.parts, self.space = parts, space

    def sample(self, domain: Dims | None = None) -> Any:
        """A value of the space"""
        return self.space.tree([p.sample(domain) for p in self.parts])

    def mode(self) -> Any:
        """The most likely value of the space"""
        return self.space.tree([p.mode() for p in self.parts])

    def log_prob(self, value: Any) -> RecurrentTensor:
        """Σ ln p[a], f32[]"""
        pairs = zip(self.parts, self.space.tensors(value), strict=True)
        return reduce(add, (p.log_prob(x) for p, x in pairs))

    def entropy(self) -> RecurrentTensor:
        return reduce(add, (p.entropy() for p in self.parts))


class Shaped(Distribution):
    """A distribution over vectors, with values converted to another shape or type"""

    def __init__(self, vector: Distribution, type_: Type, dtype: str) -> None:
        self.vector, self.type, self.dtype = vector, type_, dtype

    def sample(self, domain: Dims | None = None) -> RecurrentTensor:
        """A value of the type"""
        return self._of_type(self.vector.sample(domain))

    def mode(self) -> RecurrentTensor:
        """The most likely value of the type"""
        return self._of_type(self.vector.mode())

    def log_prob(self, value: RecurrentTensor) -> RecurrentTensor:
        return self.vector.log_prob(value.cast(self.dtype).reshape(_count(self.type)))

    def entropy(self) -> RecurrentTensor:
        return self.vector.entropy()

    def _of_type(self, tensor: RecurrentTensor) -> RecurrentTensor:
        return tensor.reshape(*self.type.shape).cast(self.type.dtype)


def _shaped(vector: Distribution, type_: Type, dtype: str) -> Distribution:
    return vector if (type_.rank, type_.dtype) == (1, dtype) else Shaped(vector, type_, dtype)


def _count(type_: Type) -> int:
    return prod(n for n in type_.shape if isinstance(n, int))


def _outputs(leaf: Any, space: Any) -> int:
    """The number of network outputs for a part of the actions; raises RecurraError if unknown."""
    if leaf.actions is not None:
        return leaf.actions
    if leaf.counts or is_float(leaf.type.dtype) or leaf.type.dtype == "bool":
        own = 2 if leaf.type.dtype == "bool" else 1
        return sum(leaf.counts) or own * _count(leaf.type)
    raise RecurraError.at_user_line(
        f"no distribution gives actions {leaf.type}",
        facts=f"the action space is {space}, and how many whole numbers there are is not known",
        hint="give the environment a wrapper with Discrete or MultiDiscrete actions, or build the "
        "network of rc.nn.Linear and round what rc.nn.Gaussian draws",
    )


def _vector(tensor: RecurrentTensor) -> RecurrentTensor:
    """Flatten a tensor to f32[n], with bytes scaled to 0 .. 1."""
    is_bytes = tensor.dtype == "u8"
    tensor = tensor if tensor.dtype == "f32" else tensor.cast("f32")
    tensor = tensor / 255.0 if is_bytes else tensor
    return tensor if tensor.type.rank == 1 else tensor.reshape(_count(tensor.type))
