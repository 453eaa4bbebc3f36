"""Session: a nest that is edited step by step, its GFLOPS, and its history.

    session + word -> session

Words are those of `Actions` (up, down, swap_up, swap_down, split_8), `[B]` to pack B before the
loop of the cursor or to unpack it, `parallel`, `undo`, `redo`, and a whole order, as in
"n/64 m/6 k m n".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recurra.errors import RecurraError, ScheduleError
from recurra.nest.actions import Actions
from recurra.nest.loops import Nest, Pack, scheduled
from recurra.nest.measure import Evaluator, measure_peak, verify_kernel
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
        speed = f"{self.gflops:.1f} GFLOPS, {self.gflops / self.peak:.0%} of peak"
        ratio = f", {self.gflops / self.first:.2f} times the first" if self.first else ""
        return speed + ratio


class Bench:
    """Applies words to sessions and measures their nests.

    A nest's code is compared with the oracle before it is timed.
    """

    def __init__(self, nest: Nest, on: VectorTarget, actions: Actions | None = None) -> None:
        self.target, self.actions = on, actions or Actions(write_loops=True)
        self.evaluate, self.peak = Evaluator(nest.problem, on), measure_peak(on, nest.problem.dtype)
        self.verified: set[str] = set()

    def begin(self, nest: Nest) -> Session:
        gflops = self.gflops(nest)
        return Session(nest, gflops, gflops, self.peak)

    def gflops(self, nest: Nest) -> float:
        """Return 0 where a nest makes too much code; raise KernelCheckError where it is wrong."""
        plain = replace(nest, parallel=False)  # one thread measures
        if plain.order not in self.verified:
            try:
                verify_kernel(plain, self.target)
            except ScheduleError:
                return 0.0
            self.verified.add(plain.order)
        return self.evaluate(plain)

    def after(self, session: Session, word: str) -> Session:
        """Return the session after one word; one that is refused changes only the note."""
        try:
            if word in ("undo", "redo"):
                return self.travel(session, word)
            nest = self.edit(session.nest, word)
        except RecurraError as error:
            return replace(session, note=str(error))
        if nest == session.nest:
            return replace(session, note="")
        here = self.gflops(nest) if nest.order != session.nest.order else session.gflops
        return replace(
            session, nest=nest, gflops=here, past=(*session.past, session.nest), future=(), note=""
        )

    def travel(self, session: Session, word: str) -> Session:
        back = word == "undo"
        there, here = (session.past, session.future) if back else (session.future, session.past)
        if not there:
            raise RecurraError(f"there is nothing to {word}")
        nest, here = there[-1], (*here, session.nest)
        past, future = (there[:-1], here) if back else (here, there[:-1])
        return replace(
            session, nest=nest, gflops=self.gflops(nest), past=past, future=future, note=""
        )

    def edit(self, nest: Nest, word: str) -> Nest:
        if word in self.actions.names:
            return self.actions.apply(nest, word)
        if word == "parallel":
            return replace(nest, parallel=not nest.parallel)
        if word[:1] == "[" and word[-1:] == "]" and " " not in word:
            return _toggle_pack(nest, word[1:-1])
        known = {i for i, _ in nest.problem.sizes}
        if {part.split("/")[0] for part in word.split()} & known:
            return scheduled(nest.problem, word)
        raise RecurraError(
            f"there is no word {word!r}",
            facts=f"there are {', '.join(self.actions.names)}, [A], parallel, undo, redo",
            hint='or a whole order, as in "n/64 m/6 k m n"',
        )


def _toggle_pack(nest: Nest, tensor: str) -> Nest:
    """Pack an input before the cursor's loop; unpack it if it was packed."""
    others = [x for x in nest.packs if x.tensor != tensor]
    if len(others) == len(nest.packs):
        if nest.cursor >= len(nest.compute):
            raise ScheduleError("inputs are packed before compute loops")
        others.append(Pack(tensor, nest.cursor))
    return replace(nest, packs=tuple(sorted(others, key=lambda x: x.level)))


def legal(bench: Bench, session: Session) -> Sequence[str]:
    """Return the words that would have an effect now."""
    names = [n for n in bench.actions.names if bench.actions.refusal(session.nest, n) is None]
    return [*names, *(["undo"] if session.past else []), *(["redo"] if session.future else [])]


def described(bench: Bench, session: Session) -> dict[str, object]:
    """Return the session as plain data for JSON."""
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
