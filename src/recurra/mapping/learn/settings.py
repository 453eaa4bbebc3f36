"""Settings of an agent and of its learning: the paper's, and some for one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from recurra.support.workers.supervisor import Where

Planning = Literal["learned", "true", "none"]
"""A search with the learned dynamics (MuZero), one with the game itself (AlphaZero), or none."""

COMPILING = 6.0
"""The CPU seconds in which XLA compiles the network's update, or its search, on a slow core"""


@dataclass(frozen=True)
class AgentSettings:
    """Settings of the agent, its network, games and learning, by default for one CPU."""

    planning: Planning = "learned"
    search: Literal["gumbel", "classic"] = "gumbel"
    """Gumbel MuZero (Danihelka et al., 2022), or PUCT with visit counts as the paper has it"""
    simulations: int = 12
    trust: float = 0.02
    """Gumbel: the weight of the searched values beside the policy (its c_scale)"""
    discount: float = 0.9999
    temperature: float = 0.3
    final_temperature: float = 0.15
    temperature_decay: int = 2000
    """Updates until the temperature is final"""
    coolest: float = 0.0
    """The factor of the temperature in the first of an actor's games; in the last one it is 1"""
    again: float = 0.5
    """The share of an actor's games that begin somewhere in its best game so far"""
    noise_fraction: float = 0.25
    noise_alpha: float = 0.3
    """Classic: Dirichlet noise on the policy at the root"""

    cells: int = 512
    """Cells of the occupancy at the target time; a multiple of 8"""
    patch: int = 8
    """Stride of the first convolution over the memory window; later ones have stride 2"""
    channels: tuple[int, ...] = (8, 16)
    hidden: int = 96
    bins: int = 101
    """Bins of the categorical values and rewards"""

    lanes: int = 16
    """Games that an actor plays at once"""
    buffers: int = 2000
    """In programs with more buffers fewer games are played at once, with fewer updates"""
    segment: int = 15
    """Decisions of each game per answer"""
    actors: int = 1
    pool: Where = "turns"
    address: str | None = field(default=None, repr=False)
    """Address of the cluster, with the pool ray; by default a new Ray on this machine"""
    patience: float = 600.0
    """Seconds after which a silent actor's process is replaced"""

    batch: int = 128
    updates: int = 8
    """Updates per answer of an actor"""
    unroll: int = 3
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    replay: int = 12_000
    """Decisions that are kept"""
    reanalyse: float = 0.5
    """The share of a batch from demonstrations and old games, with fresh targets"""
    demonstrate: float = 0.15
    """The share of the time for demonstrations"""
    shown: int = 8
    """Games that are kept as demonstrations; the agent's own best ones replace the others"""
    imitate: float = 1.0
    """The weight of a demonstration's own action in its policy target; the rest is planned"""
    warmup: int = 200
    """Updates on demonstrations alone, before the first own game"""
    rounds: int = 1_000_000
    """The most answers of actors"""

    def scaled_to(self, buffers: int) -> AgentSettings:
        """The settings for a program with so many buffers."""
        if buffers <= self.buffers:
            return self
        part = self.buffers / buffers
        lanes, updates = max(2, int(part * self.lanes)), max(1, int(part * self.updates))
        return replace(self, lanes=lanes, updates=updates, buffers=buffers)


PAPER = AgentSettings(
    search="classic",
    simulations=400,
    temperature=1.0,
    final_temperature=0.2,
    temperature_decay=400_000,
    coolest=1.0,
    again=0.0,
    noise_alpha=0.03,
    cells=32768,
    patch=2,
    channels=(32, 64, 64, 128),
    hidden=512,
    buffers=20_000,
    actors=8,
    pool="processes",
    batch=512,
    unroll=5,
    learning_rate=2e-4,
    replay=20_000,
    imitate=0.0,
    warmup=0,
)
"""Table 6; the widths of the network, which it leaves open, are ours."""


PRESETS: Mapping[str, AgentSettings] = {"small": AgentSettings(), "paper": PAPER}
