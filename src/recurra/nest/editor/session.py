"""Session: a nest that is edited step by step, its GFLOPS, and the way back.

    session + word -> session

Words are those of `Actions` (up, down, swap_up, swap_down, split_8), `[B]` to pack B before the
loop of the cursor and to undo that, `parallel`, `undo`, `redo`, and a whole order, as in
"n/64 m/6 k m n".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recurra.errors import RecurraError, ScheduleError
from recurra.nest.actions import Actions
from recurra.nest.loops import Nest, Pack, scheduled, untiled
from recurra.nest.measure import Evaluator, peak, verified
from recurra.nest.problem import NestProblem
from recurra.nest.target import VectorTarget


@dataclass(frozen=True)
class Session:
    """`past` and `future` are nests, the newest last; `note` says why a word did nothing."""

    nest: Nest
    gflops: float
    first: float
    """GFLOPS of the nest that editing began with"""
    peak: float
    past: tuple[Nest, ...] = ()
    future: tuple[Nest, ...] = ()
    note: str = ""

    @property
    def status(self) -> str:
        """`93.1 GFLOPS, 80 % of peak, 2.1 times the first`"""
        if not self.gflops:
            return "too much code: not measured"
        share, times = self.gflops / self.peak, self.gflops / self.first if self.first else 0.0
        told = f"{self.gflops:.1f} GFLOPS, {share:.0%} of peak"
        return f"{told}, {times:.2f} times the first" if times else told


class Bench:
    """The bench on which nests are edited: actions, and a measured machine.

    A nest's code is compared with the oracle before it is timed.
    """

    def __init__(self, nest: Nest, on: VectorTarget, actions: Actions | None = None) -> None:
        self.target, self.actions = on, actions or Actions(write_loops=True)
        self.evaluate, self.peak = Evaluator(nest.problem, on), peak(on, nest.problem.dtype)
        self.right: set[str] = set()

    def begin(self, nest: Nest) -> Session:
        gflops = self.gflops(nest)
        return Session(nest, gflops, gflops, self.peak)

    def gflops(self, nest: Nest) -> float:
        """0 where a nest makes too much code. Raises KernelError where its code is wrong."""
        plain = replace(nest, parallel=False)  # one thread measures
        if plain.order not in self.right:
            try:
                verified(plain, self.target)
            except ScheduleError:
                return 0.0
            self.right.add(plain.order)
        return self.evaluate(plain)

    def after(self, session: Session, word: str) -> Session:
        """The session after one word; one that is refused changes nothing but the note."""
        try:
            match word:
                case "undo" | "redo":
                    return self.traveled(session, word)
                case _:
                    nest = self.edited(session.nest, word)
        except RecurraError as error:
            return replace(session, note=str(error))
        if nest == session.nest:
            return replace(session, note="")
        here = self.gflops(nest) if nest.order != session.nest.order else session.gflops
        return replace(
            session, nest=nest, gflops=here, past=(*session.past, session.nest), future=(), note=""
        )

    def traveled(self, session: Session, word: str) -> Session:
        back = word == "undo"
        there, here = (session.past, session.future) if back else (session.future, session.past)
        if not there:
            raise RecurraError(f"there is nothing to {word}")
        nest, here = there[-1], (*here, session.nest)
        past, future = (there[:-1], here) if back else (here, there[:-1])
        return replace(
            session, nest=nest, gflops=self.gflops(nest), past=past, future=future, note=""
        )

    def edited(self, nest: Nest, word: str) -> Nest:
        if word in self.actions.names:
            return self.actions.apply(nest, word)
        if word == "parallel":
            return replace(nest, parallel=not nest.parallel)
        if word[:1] == "[" and word[-1:] == "]" and " " not in word:
            return _packed(nest, word[1:-1])
        known = {i for i, _ in nest.problem.sizes}
        if {part.split("/")[0] for part in word.split()} & known:
            return scheduled(nest.problem, word)
        raise RecurraError(
            f"there is no word {word!r}",
            facts=f"there are {', '.join(self.actions.names)}, [A], parallel, undo, redo",
            hint='or a whole order, as in "n/64 m/6 k m n"',
        )


def _packed(nest: Nest, tensor: str) -> Nest:
    """Pack an input before the cursor's loop; unpack it if it was packed."""
    others = [x for x in nest.packs if x.tensor != tensor]
    if len(others) == len(nest.packs):
        if nest.cursor >= len(nest.compute):
            raise ScheduleError("inputs are packed before compute loops")
        others.append(Pack(tensor, nest.cursor))
    return replace(nest, packs=tuple(sorted(others, key=lambda x: x.level)))


def legal(bench: Bench, session: Session) -> Sequence[str]:
    """The words that would do something now."""
    names = [n for n in bench.actions.names if bench.actions.refusal(session.nest, n) is None]
    return [*names, *(["undo"] if session.past else []), *(["redo"] if session.future else [])]


def described(bench: Bench, session: Session) -> dict[str, object]:
    """The session as a browser shows it."""
    return {
        "nest": str(session.nest),
        "order": session.nest.order,
        "cursor": session.nest.cursor,
        "status": session.status,
        "gflops": session.gflops,
        "peak": session.peak,
        "note": session.note,
        "words": list(legal(bench, session)),
        "inputs": [t.name for t in session.nest.problem.inputs],
    }


def start(problem: NestProblem, order: str | None) -> Nest:
    """The nest that editing begins with."""
    return scheduled(problem, order) if order else untiled(problem)
