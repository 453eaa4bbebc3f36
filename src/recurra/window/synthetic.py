"""Synthetic traces: chains of kernels, interleaved as in a program.

A program of bodies, joints or branches issues some kernels of one chain, then of the next; some
kernels also read another chain's newest result. Sizes and times are log-normal.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from recurra.window.task import Segment, WindowError
from recurra.window.trace import Kernel, Trace

BUFFER = 4096  # bytes of every result


@dataclass(frozen=True)
class Chains:
    """The shape of a synthetic program.

    chains      independent chains: the parallelism
    block       kernels of one chain that are issued before the next chain's
    cross       the share of kernels that also read another chain
    ctas, us    medians; `spread`, `jitter` are the standard deviations of their logarithms
    registers   choices per thread; `shared` bytes of a block
    seed        of the random numbers
    """

    name: str
    chains: int
    ctas: float
    us: float
    block: int
    cross: float
    kernels: int = 900
    spread: float = 0.9
    jitter: float = 0.35
    threads: tuple[int, ...] = (128, 256, 256)
    registers: tuple[int, ...] = (32, 40, 64)
    shared: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.chains, self.block, self.kernels) < 1 or not 0 <= self.cross <= 1:
            raise WindowError(
                f"{self.name}: chains={self.chains} block={self.block} kernels={self.kernels} "
                f"cross={self.cross} describe no program",
                facts="counts are at least 1, cross is a share from 0 to 1",
            )

    def trace(self) -> Trace:
        """Return the program, a function of these numbers alone."""
        rng = random.Random(f"{self.name} {self.seed}")
        newest: list[Segment | None] = [None] * self.chains
        kernels: list[Kernel] = []
        chain = 0
        while len(kernels) < self.kernels:
            for _ in range(rng.randint(max(1, self.block // 2), self.block + self.block // 2)):
                other = rng.randrange(self.chains) if rng.random() < self.cross else chain
                reads = tuple(s for s in {newest[chain], newest[other]} if s is not None)
                result = Segment(BUFFER * len(kernels), BUFFER)
                kernels.append(self._kernel(rng, chain, tuple(sorted(reads)), result))
                newest[chain] = result
            chain = (chain + 1) % self.chains
        return Trace(self.name, tuple(kernels[: self.kernels]))

    def _kernel(
        self, rng: random.Random, chain: int, reads: tuple[Segment, ...], result: Segment
    ) -> Kernel:
        return Kernel(
            name=f"chain{chain}",
            ctas=max(1, round(rng.lognormvariate(math.log(self.ctas), self.spread))),
            threads=rng.choice(self.threads),
            registers=rng.choice(self.registers),
            shared=self.shared,
            us=round(rng.lognormvariate(math.log(self.us), self.jitter), 3),
            reads=reads,
            writes=(result,),
        )
