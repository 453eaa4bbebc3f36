"""The paper's measurements beside the simulator's, and their sensitivity to the assumptions.

The simulator is calibrated, not validated. For each family, kernel times, blocks per kernel and
chains were chosen so that serial occupancy, ACS-SW and ACS-HW come near the paper's averages; the
cost of a graph's node so that building takes the share of figure 9; the registers of the contact
kernels so that persistent threads are as slow as in the paper; the share of simulation in training
so that ACS-SW speeds it up as in figure 23. All else is predicted: the order of all policies,
graphs, window 32 against 16, training with ACS-HW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, geometric_mean

from recurra.window.gpu import TABLE_V
from recurra.window.simulate import simulate
from recurra.window.simulated_gpu import LaunchCosts, SimulatedGpu
from recurra.window.synthetic import Chains
from recurra.window.trace import Trace

# Section V. Bodies are chains: five to eleven of them move independently between contacts.
PHYSICS = (
    Chains("ant", chains=8, ctas=105, us=17, block=8, cross=0.3),
    Chains("grasp", chains=10, ctas=115, us=17, block=8, cross=0.4),
    Chains("human", chains=10, ctas=120, us=17, block=7, cross=0.35),
    Chains("ct", chains=7, ctas=95, us=18, block=7, cross=0.35),
    Chains("w2d", chains=7, ctas=95, us=17, block=8, cross=0.3),
)
DYNAMIC = (
    Chains("I-NAS", chains=2, ctas=115, us=17, block=3, cross=0.45),
    Chains("DR", chains=3, ctas=140, us=24, block=3, cross=0.8),
    Chains("CC", chains=2, ctas=120, us=27, block=3, cross=0.4),
)
STATIC = (
    Chains("NASNet", chains=3, ctas=170, us=38, block=3, cross=0.7),
    Chains("Amoeba", chains=3, ctas=170, us=38, block=3, cross=0.75),
    Chains("Squeeze", chains=2, ctas=150, us=42, block=2, cross=0.5),
    Chains("RW", chains=3, ctas=180, us=40, block=3, cross=0.7),
)
FAMILIES: Mapping[str, tuple[Chains, ...]] = dict(physics=PHYSICS, dynamic=DYNAMIC, static=STATIC)
WORKLOADS: Mapping[str, Chains] = {c.name: c for family in FAMILIES.values() for c in family}

# Contacts between pairs of bodies: another kernel, with other needs, for every pair of shapes.
CONTACTS = Chains(
    "contacts", chains=12, ctas=330, us=10, block=1, cross=0.0, registers=(40, 48, 64, 80)
)

SHARE = 0.58  # share of simulation in training: 1 / (1 - s + s / 1.66) = 1.30


@dataclass(frozen=True)
class ComparedFigure:
    """One number of the paper and ours; `within` is the tolerance, None for an upper bound."""

    what: str
    paper: float
    ours: float
    within: float | None
    calibrated: bool

    @property
    def holds(self) -> bool:
        """Tell whether the number is within the tolerance."""
        return self.off < 0 if self.within is None else abs(self.off) <= self.within

    @property
    def off(self) -> float:
        """The relative difference from the paper's."""
        return self.ours / self.paper - 1

    def __str__(self) -> str:
        word = "calibrated" if self.calibrated else "predicted"
        paper = f"{'<' if self.within is None else ''}{self.paper:.2f}"
        off = "      " if self.within is None else f"{self.off:+6.1%}"
        return f"{self.what:<46} {paper:>6} {self.ours:6.2f} {off}  {word}"


def speedups(
    family: Iterable[Chains], policy: str, machine: SimulatedGpu, against: str = "serial"
) -> list[float]:
    """Return the speed-up of a policy over `against`, for each workload."""
    return [
        duration(workload, against, machine) / duration(workload, policy, machine)
        for workload in family
    ]


@lru_cache(maxsize=4096)
def duration(workload: Chains, policy: str, machine: SimulatedGpu) -> float:
    """Return the duration of a workload under a policy, in µs."""
    return simulate(_trace(workload), policy, machine).us


@lru_cache(maxsize=64)
def _trace(workload: Chains) -> Trace:
    return workload.trace()


def end_to_end(simulation: float, share: float = SHARE) -> float:
    """Return the speed-up of training with a `share` of simulation that becomes faster (Amdahl)."""
    return 1 / (1 - share + share / simulation)


def build_share(family: Iterable[Chains], machine: SimulatedGpu) -> float:
    """Return the share of building a graph in building it and running the program serially."""
    builds = [(w, machine.costs.node * w.kernels) for w in family]
    return fmean(build / (build + duration(w, "serial", machine)) for w, build in builds)


def comparison(
    machine: SimulatedGpu | None = None, kernels: int = 900, tell: Callable[[str], object] = str
) -> tuple[ComparedFigure, ...]:
    """Return the paper's averages beside ours; `tell` is called for every step."""
    machine = machine or SimulatedGpu()
    found: list[ComparedFigure] = []
    short = {
        name: tuple(replace(c, kernels=kernels) for c in family)
        for name, family in FAMILIES.items()
    }

    def add(what: str, paper: float, ours: float, within: float | None, calibrated: bool) -> None:
        found.append(ComparedFigure(what, paper, ours, within, calibrated))
        tell(what)

    def gain(name: str, policy: str) -> float:
        return geometric_mean(speedups(short[name], policy, machine))

    def occupancy(name: str) -> float:
        return fmean(simulate(_trace(c), "serial", machine).occupancy for c in short[name])

    add("physics: occupancy of one stream", 0.34, occupancy("physics"), 0.15, True)
    add("dynamic: occupancy of one stream", 0.39, occupancy("dynamic"), 0.15, True)
    physics = {p: gain("physics", p) for p in ("acs-sw", "acs-hw", "graph", "graph-reused")}
    add("physics: ACS-SW", 1.66, physics["acs-sw"], 0.15, True)
    add("physics: ACS-HW (mean implied by fig. 23)", 2.04, physics["acs-hw"], 0.15, True)
    best = max(speedups(short["physics"], "acs-hw", machine))
    add("physics: ACS-HW, best workload", 2.19, best, 0.15, False)
    add("dynamic: ACS-SW", 1.05, gain("dynamic", "acs-sw"), 0.15, True)
    add("dynamic: ACS-HW", 1.30, gain("dynamic", "acs-hw"), 0.15, True)
    add("static: ACS-SW", 1.16, gain("static", "acs-sw"), 0.20, True)
    hardware = gain("static", "acs-hw")
    add("static: ACS-HW", 1.31, hardware, 0.15, True)
    add("physics: CUDA graph, rebuilt", 1.0, physics["graph"], None, False)
    share = build_share(short["physics"], machine)
    add("physics: graph built / (built + run), fig. 9", 0.47, share, 0.15, True)
    reused = gain("static", "graph-reused")
    add("static: graph reused over ACS-HW", 1.00, reused / hardware, 0.15, False)
    narrow = replace(machine, slots=16, scheduled=32)
    wider = physics["acs-hw"] / geometric_mean(speedups(short["physics"], "acs-hw", narrow))
    add("physics: window 32 over 16, ACS-HW", 1.045, wider, 0.15, False)
    contacts = replace(CONTACTS, kernels=min(kernels, 300))
    slower = 1 / speedups([contacts], "persistent", machine)[0]
    add("contacts: persistent threads, times slower", 1.35, slower, 0.15, True)
    add("training: ACS-SW", 1.30, end_to_end(physics["acs-sw"]), 0.15, True)
    add("training: ACS-HW", 1.42, end_to_end(physics["acs-hw"]), 0.15, False)
    return tuple(found)


# Alternatives of the assumptions.
ASSUMPTIONS: Mapping[str, Callable[[SimulatedGpu], SimulatedGpu]] = {
    "as calibrated": lambda m: m,
    "sync 5 µs": lambda m: _cost(m, sync=5.0),
    "sync 20 µs": lambda m: _cost(m, sync=20.0),
    "launch 2.5 µs": lambda m: _cost(m, launch=2.5),
    "launch 10 µs": lambda m: _cost(m, launch=10.0),
    "dispatch 4 µs": lambda m: _cost(m, dispatch=4.0),
    "check 1.64 µs": lambda m: _cost(m, check=1.64),
    "graph node 0.6 µs": lambda m: _cost(m, node=0.6),
    "graph node 30 µs": lambda m: _cost(m, node=30.0),
    "front end 8 µs": lambda m: _cost(m, frontend=8.0),
    "2 streams": lambda m: replace(m, streams=2),
    "4 streams": lambda m: replace(m, streams=4),
    "16 streams": lambda m: replace(m, streams=16),
    "window 8": lambda m: replace(m, slots=8, scheduled=16),
    "window 16": lambda m: replace(m, slots=16, scheduled=32),
    "window 64": lambda m: replace(m, slots=64, scheduled=128),
    "scheduled list of N": lambda m: replace(m, scheduled=m.slots),
    "limits of table V": lambda m: replace(m, gpu=TABLE_V),
}


@dataclass(frozen=True)
class Sensitivity:
    """Speed-ups over one stream under an assumption, by policy."""

    family: str
    assumption: str
    gains: Mapping[str, float]


def sensitivity(
    policies: Sequence[str] = ("acs-sw", "acs-hw", "graph", "graph-reused"),
    kernels: int = 400,
    tell: Callable[[str], object] = str,
) -> tuple[Sensitivity, ...]:
    """Return every family's speed-ups under every assumption, one changed at a time."""
    rows: list[Sensitivity] = []
    for name, family in FAMILIES.items():
        short = [replace(c, kernels=kernels) for c in family]
        for words, change in ASSUMPTIONS.items():
            machine = change(SimulatedGpu())
            gains = {p: geometric_mean(speedups(short, p, machine)) for p in policies}
            rows.append(Sensitivity(name, words, gains))
            tell(f"{name}, {words}")
    return tuple(rows)


def _cost(machine: SimulatedGpu, **changed: float) -> SimulatedGpu:
    costs: LaunchCosts = replace(machine.costs, **changed)
    return replace(machine, costs=costs)
