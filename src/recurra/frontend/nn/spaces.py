"""The spaces of an environment as a network has them: observations as a vector, actions drawn.

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

from recurra.errors import RecurraError, here
from recurra.frontend.dims import Dims
from recurra.frontend.functions import concat
from recurra.frontend.nn.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.types import Type, is_float


class Spaces:
    """The spaces of an environment, as numbers of inputs, outputs and deviations of a network."""

    def __init__(self, env: Any) -> None:
        self.observation, self.action = env.observation_space, env.action_space
        leaves = self.action.leaves()
        self.sizes = [_outputs(leaf, self.action) for leaf in leaves]
        self.normal = [_is_normal(leaf) for leaf in leaves]
        self.width = sum(_count(x.type) for x in self.observation.leaves())
        self.outputs = sum(self.sizes)
        for kind, space, count in (
            ("observation", self.observation, self.width),
            ("action", self.action, self.outputs),
        ):
            if not count:
                raise RecurraError(
                    f"the {kind} space has no {kind}s",
                    facts=f"it is {space}, which holds no number",
                    hint=f"give the environment a wrapper with an {kind} space that does",
                    loc=here(),
                )
        self.deviations = sum(n for n, is_so in zip(self.sizes, self.normal, strict=True) if is_so)

    def seen(self, other: Any) -> RecurrentTensor:
        """f32[width]: all of an observation as one vector; bytes are scaled to 0 to 1."""
        parts = [_vector(x) for x in self.observation.tensors(other)]
        return concat(parts) if len(parts) > 1 else parts[0]

    def distribution(
        self, result: RecurrentTensor, log_std: RecurrentTensor | None
    ) -> Distribution:
        """The distribution over actions, by the outputs of a network."""
        made: list[Distribution] = []
        at = wide = 0
        for leaf, n, is_so in zip(self.action.leaves(), self.sizes, self.normal, strict=True):
            part = result if n == self.outputs else result.cut(at, at + n)
            at += n
            if is_so:
                assert log_std is not None
                std = log_std if n == self.deviations else log_std.cut(wide, wide + n)
                wide += n
                made.append(_shaped(Gaussian(part, std), leaf.type, "f32"))
            elif leaf.actions is not None:
                made.append(Categorical(part))
            else:
                counts = leaf.counts or (2,) * _count(leaf.type)
                made.append(_shaped(MultiCategorical(part, counts), leaf.type, "i32"))
        whole = self.action.tree(made)
        return made[0] if whole is made[0] else Joint(made, self.action)


class Joint(Distribution):
    """Independent distributions over the parts of a space"""

    def __init__(self, parts: Sequence[Distribution], space: Any) -> None:
        self.parts, self.space = parts, space

    def sample(self, domain: Dims | None = None) -> Any:
        """A value of the space"""
        return self.space.tree([p.sample(domain) for p in self.parts])

    def mode(self) -> Any:
        """The likeliest value of the space"""
        return self.space.tree([p.mode() for p in self.parts])

    def log_prob(self, value: Any) -> RecurrentTensor:
        """Σ ln p[a], f32[]"""
        pairs = zip(self.parts, self.space.tensors(value), strict=True)
        return reduce(add, (p.log_prob(x) for p, x in pairs))

    def entropy(self) -> RecurrentTensor:
        return reduce(add, (p.entropy() for p in self.parts))


class Shaped(Distribution):
    """A distribution over vectors, whose values have another shape or type"""

    def __init__(self, vector: Distribution, type_: Type, dtype: str) -> None:
        self.vector, self.type, self.dtype = vector, type_, dtype

    def sample(self, domain: Dims | None = None) -> RecurrentTensor:
        """A value of the type"""
        return self._of_type(self.vector.sample(domain))

    def mode(self) -> RecurrentTensor:
        """The likeliest value of the type"""
        return self._of_type(self.vector.mode())

    def log_prob(self, value: RecurrentTensor) -> RecurrentTensor:
        """ln p[a], f32[]"""
        return self.vector.log_prob(value.cast(self.dtype).reshape(_count(self.type)))

    def entropy(self) -> RecurrentTensor:
        return self.vector.entropy()

    def _of_type(self, tensor: RecurrentTensor) -> RecurrentTensor:
        return tensor.reshape(*self.type.shape).cast(self.type.dtype)


def _shaped(vector: Distribution, type_: Type, dtype: str) -> Distribution:
    return vector if (type_.rank, type_.dtype) == (1, dtype) else Shaped(vector, type_, dtype)


def _count(type_: Type) -> int:
    return prod(n for n in type_.shape if isinstance(n, int))


def _is_normal(leaf: Any) -> bool:
    return leaf.actions is None and is_float(leaf.type.dtype)


def _outputs(leaf: Any, space: Any) -> int:
    """Count the numbers that a network gives for a part of the actions."""
    if leaf.actions is not None:
        return leaf.actions
    if leaf.counts or is_float(leaf.type.dtype) or leaf.type.dtype == "bool":
        own = 2 if leaf.type.dtype == "bool" else 1
        return sum(leaf.counts) or own * _count(leaf.type)
    raise RecurraError(
        f"no distribution gives actions {leaf.type}",
        facts=f"the action space is {space}, and how many whole numbers there are is not known",
        hint="give the environment a wrapper with Discrete or MultiDiscrete actions, or build the "
        "network of rc.nn.Linear and round what rc.nn.Gaussian draws",
        loc=here(),
    )


def _vector(tensor: RecurrentTensor) -> RecurrentTensor:
    """f32[n]"""
    is_bytes = tensor.dtype == "u8"
    tensor = tensor if tensor.dtype == "f32" else tensor.cast("f32")
    tensor = tensor / 255.0 if is_bytes else tensor
    return tensor if tensor.type.rank == 1 else tensor.reshape(_count(tensor.type))
