"""`recurra tune`: search a schedule for one contraction and report its speed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from recurra.errors import RecurraError
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.agents.policy import bundled_policy, load
from recurra.nest.check import Examination
from recurra.nest.default_schedule import standard, tiles
from recurra.nest.einsum import from_sizes
from recurra.nest.kernel_store import StoredNest, expect_writable, path, save
from recurra.nest.loops import Nest, scheduled, untiled
from recurra.nest.measure import LONG, Evaluator, Standing, measure_in_turns, verify_kernel
from recurra.nest.packing import search_packings
from recurra.nest.problem import Combine, NestProblem, Post, expect_problem, expect_seconds
from recurra.nest.search import Budget, FoundNest, strategy
from recurra.nest.search import search_nests as searched
from recurra.nest.target import VectorTarget, host_target
from recurra.nest.threads import parallelize
from recurra.support import atomic_write

Tell = Callable[[float, float, int], None]

FINALISTS = 3  # of each search
TILED, SEARCHED, PACKED = 0.3, 0.6, 0.7  # shares of the time at which these phases end
VERIFIED = 0.5  # share of the rest for checking the finalists; then they are compared
LEAST_S = 0.5  # seconds for checking and comparing: with fewer, the order is noise


@dataclass(frozen=True)
class Tuned:
    """The finalists of a search, measured in turns.

    They are the untiled nest, the standard one, and the best few found from either.
    """

    target: VectorTarget
    search: str
    found: FoundNest
    """The search from the untiled nest"""
    refined: FoundNest
    """The search from the standard one"""
    measured: int
    """Programs that were compiled and run"""
    finalists: Mapping[str, tuple[Nest, Standing]]

    @property
    def best(self) -> str:
        """The name of the fastest."""
        return min(self.finalists, key=lambda name: self.finalists[name][1].seconds)

    @property
    def nest(self) -> Nest:
        return self.finalists[self.best][0]

    def __str__(self) -> str:
        ranked = sorted(self.finalists.items(), key=lambda entry: entry[1][1].seconds)
        rows = (
            f"{s.gflops:8.1f} GFLOPS, {s.of_peak:4.0%} of the peak  {name}: {nest.order}"
            for name, (nest, s) in ranked
        )
        return "\n".join([str(self.nest.problem.statement), *rows])

    def report(self) -> dict[str, object]:
        """Return the result as plain data for JSON."""
        return {
            "problem": str(self.nest.problem),
            "target": self.target.name,
            "search": self.search,
            "seconds": self.found.seconds + self.refined.seconds,
            "evaluated": self.found.evaluated + self.refined.evaluated,
            "measured": self.measured,
            "finished": self.found.finished and self.refined.finished,
            "nests": {
                name: {"order": nest.order, **asdict(standing)}
                for name, (nest, standing) in self.finalists.items()
            },
            "best": self.best,
        }


def tune_nest(
    problem: NestProblem,
    on: VectorTarget | None = None,
    *,
    search: str = "beam4bfs",
    actions: Actions | None = None,
    seconds: float = 10.0,
    seed: int = 0,
    beside: Mapping[str, Nest] | None = None,
    threads: int = 1,
    tell: Tell | None = None,
) -> Tuned:
    """Search from the untiled and from the standard nest, try tiles and copies, compare the best.

    `beside` are further finalists, by name; so are the best one with inputs packed, where that
    was faster, and all of them for `threads`. `seconds` are for everything: where they do not
    suffice, there are fewer finalists, one at least, and fewer rounds of measuring them in turns.

    Every finalist's answer is compared with the oracle first; raises KernelError if one is wrong.
    """
    expect_problem(problem, "tune_nest")
    expect_seconds(seconds, "tune_nest")
    on = on or host_target()
    budget = Budget(seconds)
    evaluate = Evaluator(problem, on)
    nests = {"untiled": untiled(problem), "standard": standard(problem, on), **(beside or {})}
    evaluate(nests["standard"])  # nests that take far longer are given up
    nests.update(_tiles(problem, evaluate, lambda: budget.left(TILED) > 0))
    short = evaluate.best is not None and evaluate.best < LONG  # a nest takes no time
    results: list[FoundNest] = []
    for start, name in (("untiled", "found"), ("standard", "refined")):
        begin = start if short or budget.left(SEARCHED) > 0 else "standard"
        result = searched(
            strategy(search),
            replace(nests[begin], packs=()),  # annotations come last
            evaluate,
            actions or Actions(),
            seconds=max(0.0, budget.left(SEARCHED)) / (2 - len(results)),
            seed=seed,
            tell=tell and _offset(tell, results),
        )
        results.append(result)
        good = [order for gflops, order in result.ranking if gflops > result.gflops / 2]
        for k, order in enumerate(good[: FINALISTS if begin == start else 0]):
            nests[f"{name} {k + 1}" if k else name] = scheduled(problem, order)
    for nest in takewhile(lambda _: short or budget.left(SEARCHED) > 0, (beside or {}).values()):
        evaluate(nest)
    known = [name for name, nest in nests.items() if evaluate.knows(nest)] or ["standard"]
    ranked = sorted(known, key=lambda name: -evaluate(nests[name]))
    best = search_packings(nests[ranked[0]], evaluate, lambda: budget.left(PACKED) > 0)
    if best != nests[ranked[0]]:
        nests["packed"] = best
        ranked.insert(0, "packed")
    if threads > 1:
        teams = {f"{name}, {threads} threads": parallelize(nests[name], threads) for name in ranked}
        nests.update({name: x for name, x in teams.items() if x is not None})
        ranked = [*(name for name in teams if name in nests), *ranked]
    oracle = Examination(problem, at_end=True)
    rest = Budget(max(LEAST_S, budget.left()))
    finalists = set[str]()
    for name in ranked:
        if rest.left(VERIFIED) > 0 or not finalists:
            verify_kernel(nests[name], on, threads, oracle)
            finalists.add(name)
    nests = {name: nest for name, nest in nests.items() if name in finalists}
    standings = measure_in_turns(
        list(nests.values()),
        on,
        threads=threads,
        workload=evaluate.workload,
        more=lambda: rest.left() > 0,
    )
    pairs = dict(zip(nests, zip(nests.values(), standings, strict=True), strict=True))
    found, refined = results
    return Tuned(on, search, found, refined, evaluate.measured, pairs)


def _tiles(problem: NestProblem, evaluate: Evaluator, more: Callable[[], bool]) -> dict[str, Nest]:
    """Return the fastest few of the cheapest tiles, by name, while `more` returns True."""
    usual = standard(problem, evaluate.target).order
    tried = takewhile(lambda _: more(), tiles(problem, evaluate.target))
    found = [nest for nest in tried if evaluate(nest) and nest.order != usual]
    best = sorted(found, key=evaluate)[-FINALISTS:]
    return {f"tile {nest.order.split(' | ')[0]}": nest for nest in best}


def _offset(tell: Tell, before: Sequence[FoundNest]) -> Tell:
    """Wrap `tell` so that it counts from the beginning of the first search."""
    spent, evaluated = sum(f.seconds for f in before), sum(f.evaluated for f in before)
    return lambda seconds, best, count: tell(spent + seconds, best, evaluated + count)


@dataclass(frozen=True)
class Tune:
    """Search a schedule for a contraction, on this machine.

    Example: recurra tune "mk,kn->mn" --sizes 128,128,128 --seconds 5
    """

    words: Positional[str]
    """What is contracted: "mk,kn->mn", or "n(2h+r)(2w+s)c,rsck->nhwk"."""
    sizes: str
    """Extents in order of first mention, 128,64,32, or by letter, m=128,k=64,n=32."""
    search: str = "beam4bfs"
    """greedy1, greedy2, beam<WIDTH>bfs, beam<WIDTH>dfs, random or exhaustive."""
    policy: Path | None = None
    """Of `recurra tune train`: its nest is a finalist, too; by default the shipped policy's."""
    seconds: Annotated[float, arg(metavar="S")] = 10.0
    """How long searching, checking and comparing may take, all in all."""
    actions: Literal["full", "paper"] = "full"
    """Which splits: by 2, 3, 4, 6, 8, 16, 32, or the paper's 4, 8, 16."""
    backend: Literal["avx512", "avx2"] | None = None
    """The vector instructions; by default the widest that this machine runs."""
    dtype: Literal["f32", "f64", "bf16"] = "f32"
    """Of the inputs; products of bf16 are added up in f32."""
    combine: Combine = "sum"
    """How reduced indices are joined."""
    post: Post | None = None
    """A function of each result."""
    threads: int = 1
    """So many share the outermost loop of some finalists."""
    seed: int = 0
    """Of random searches."""
    json: bool = False
    """Print one JSON object; progress is on standard error."""
    out: Path | None = None
    """Write the nest to this file, as text."""
    keep: bool = True
    """Keep the nest in RECURRA_KERNELS, where recurra.nest.compile finds it, unless a better one is
    there."""

    def __call__(self) -> int:
        extents = read_sizes(self.sizes)
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise RecurraError("a search needs time", facts=f"--seconds {self.seconds}")
        if self.threads < 1:
            raise RecurraError("a nest needs a thread", facts=f"--threads {self.threads}")
        problem = from_sizes(
            self.words, extents, dtype=self.dtype, combine=self.combine, post=self.post
        )
        expect_file(self.out)
        on = host_target(self.backend)
        if self.keep:
            expect_writable(problem, on.name, self.threads)
        with progress_bar(self.search) as show:

            def tell(spent: float, best: float, count: int) -> None:
                show(spent, self.seconds, f"{best:.1f} GFLOPS, {count} nests")

            best = tune_nest(
                problem,
                on,
                search=self.search,
                seconds=self.seconds,
                beside=_policy(self.policy or bundled_policy(on), problem),
                threads=self.threads,
                tell=tell,
                actions=PRESETS[self.actions],
                seed=self.seed,
            )
        if self.out is not None:
            atomic_write.save(self.out, f"{best.nest}\n")
        failed: RecurraError | None = None
        stored = None
        try:
            stored = self.store(best) if self.keep else None
        except RecurraError as error:  # the result is printed all the same
            failed = error
        report = json.dumps({**best.report(), "kept": stored}) if self.json else _summary(best)
        if self.keep and not self.json and not failed:
            report += "\n\n"
            report += f"kept in {stored}" if stored else "not kept: a nest that is as good is"
        print(report)
        if failed:
            raise failed
        return 0

    def store(self, best: Tuned) -> str | None:
        """Store the nest and return its path; None if one that is as good was there."""
        standing = best.finalists[best.best][1]
        share = standing.of_peak / self.threads
        entry = StoredNest(
            best.nest, best.target.name, self.threads, standing.seconds, standing.gflops, share,
            self.search,
        )  # fmt: skip
        return str(path(best.nest.problem, best.target.name, self.threads)) if save(entry) else None


def _policy(path: Path | None, problem: NestProblem) -> dict[str, Nest]:
    """Return the last nest of a policy's episode, if there is a policy for so many loops."""
    policy = load(path) if path else None
    if policy is None or len(untiled(problem).loops) > policy.actions.max_loops:
        return {}
    return {"policy": policy.path(problem)[-1]}


def expect_file(path: Path | None) -> None:
    """Raise RecurraError unless a result can be written there, before the work for it begins."""
    try:
        if path is not None:
            path.touch()
    except OSError as error:
        raise RecurraError(f"{path} cannot be written", facts=str(error)) from None


def read_sizes(text: str) -> Mapping[str, int] | list[int]:
    """Parse `128,64,32` or `m=128,k=64,n=32`; raise RecurraError for anything else."""
    words = [word.strip() for word in text.split(",")]
    if all(re.fullmatch(r"-?\d+", word) for word in words):
        return [int(word) for word in words]
    facts = "sizes are numbers, in order of first mention or by letter"
    if all(re.fullmatch(r"[a-z]=-?\d+", word) for word in words):
        sizes = {word[0]: int(word[2:]) for word in words}
        if len(sizes) == len(words):
            return sizes
        facts = "a letter is given twice"
    raise RecurraError(
        f"not understood: --sizes {text}",
        facts=facts,
        hint="as in --sizes 128,64,32 or --sizes m=128,k=64,n=32",
    )


@contextmanager
def progress_bar(name: str) -> Generator[Callable[[float, float, str], None]]:
    """Show a bar on standard error, updated by calls with (done, total, note)."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(name, note="")
        yield lambda done, total, note: bars.update(task, completed=done, total=total, note=note)


def _summary(tuned: Tuned) -> str:
    report, nest = tuned.report(), tuned.nest
    width = 2 + max(map(len, tuned.finalists))
    end = "all it could reach" if report["finished"] else "until its time was up"
    lines = [
        str(nest.problem).replace("\n", "\n  "),
        f"{tuned.search}: {report['evaluated']} nests, {tuned.measured} of them programs "
        f"of their own, in {report['seconds']:.1f} s, {end}",
        "",
        f"{'':<{width}}{'us':>10}{'GFLOPS':>9}{'of peak':>9}   order",
    ]
    for name, (one, standing) in tuned.finalists.items():
        lines.append(
            f"{name:<{width}}{standing.seconds * 1e6:>10.2f}{standing.gflops:>9.1f}"
            f"{standing.of_peak:>8.0%}    {one.order}" + ("  <- best" if one is nest else "")
        )
    return "\n".join([*lines, "", str(nest).split("\n\n")[1]])
