"""`recurra map train`: train an agent for one program, with checkpoints to resume from."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Literal

from tyro.conf import Positional

from recurra.errors import Interrupted, RecurraError
from recurra.mapping.commands import fast_size_of, problem_of
from recurra.mapping.engine_choice import Which, engine
from recurra.mapping.learn.settings import PRESETS, AgentSettings, Planning
from recurra.mapping.search import Search, solver
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, Solution
from recurra.support import atomic_write
from recurra.support.command_line_text import command_line
from recurra.support.workers.cluster import check_address
from recurra.support.workers.supervisor import Where

AGENTS: dict[str, Planning] = {"muzero": "learned", "alphazero": "true", "policy": "none"}


@dataclass(frozen=True)
class MapTrainCommand:
    """Train an agent that plays the memory-mapping game of one program; its best game is validated.

    The folder gets checkpoint.npz, curve.jsonl (CPU seconds, reward) and answer.json, also at
    Ctrl-C.

    Example: recurra map train alexnet_train --seconds 120 --folder runs/alexnet
    """

    file: Positional[str]
    """A problem (JSON), or an instance of the library."""
    agent: Literal["muzero", "alphazero", "policy"] = "muzero"
    """Plans with learned dynamics, with the game itself, or not at all."""
    preset: Literal["small", "paper"] = "small"
    """For one CPU, or the paper's table 6."""
    seconds: float = 120.0
    """CPU time, that of actors included."""
    seed: int = 0
    """Of all random numbers."""
    actors: int | None = None
    """So many processes play; by default the preset's, of which small has none."""
    pool: Where | None = None
    """Where they are: here, in turns; in processes; or on the machines of a cluster, by ray."""
    address: str | None = None
    """With --pool ray: of the cluster, say 10.0.0.1:6379; if left out, a Ray of its own here."""
    demonstrate: float | None = None
    """Part of the time that the default solver shows what to do; 0: none."""
    fast_size: str | None = None
    """Fast memory, say 128MiB."""
    engine: Which = "auto"
    """auto: the native one where it can be built."""
    folder: Path = Path("runs/mapping")
    """Where checkpoint, curve and answer are kept."""
    resume: bool = False
    """Go on from the folder's checkpoint."""
    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> int:
        from recurra.mapping.learn.search_by_learning import play_and_learn
        from recurra.storage.mapping_problem_text import solution_to_json

        settings = self.settings()
        problem = problem_of(self.file, fast_size_of(self.fast_size))
        chosen = engine(self.engine)
        print(f"{problem}\n{chosen.description}", file=sys.stderr)
        curve, checkpoint = self.prepare_folder()
        lines = curve.read_text().splitlines() if curve.exists() else []
        total = max(1, problem.total)

        def progress(spent: float, reward: int, solution: Solution) -> None:
            lines.append(json.dumps({"cpu_s": round(spent, 3), "share": reward / total}))
            atomic_write.save(curve, "".join(f"{line}\n" for line in lines))

        stopped = Event()

        @solver
        def solve(search: Search) -> None:
            try:
                play_and_learn(search, settings, checkpoint)
            except KeyboardInterrupt:
                stopped.set()
                raise
            if search.stopped:
                stopped.set()

        with redirect_stdout(sys.stderr):  # Ray prints there that workers die
            answer = solve(problem, self.seconds, self.seed, progress, chosen)
        answer = self.best(problem, answer)
        atomic_write.save(self.folder / "answer.json", solution_to_json(problem, answer))
        if stopped.is_set():
            raise self.interrupted(checkpoint)
        share = answer.reward(problem) / total
        if self.json:
            run = {"problem": problem.name, "agent": self.agent, "seed": self.seed}
            print(json.dumps({**run, "share": share, "folder": str(self.folder)}))
        else:
            print(f"{answer}\ngains {share:.4f} of all there is to gain; kept in {self.folder}")
        return 0

    def best(self, problem: Problem, answer: Solution) -> Solution:
        """This answer, or that of the resumed run if it gains more."""
        from recurra.storage.mapping_problem_text import solution_from_json

        file = self.folder / "answer.json"
        if not self.resume or not file.exists():
            return answer
        try:
            before = solution_from_json(problem, file.read_text(), str(file))
            validate(problem, before)
        except (RecurraError, UnicodeDecodeError) as error:
            print(f"{error}\n{file} is passed over", file=sys.stderr)
            return answer
        return before if before.reward(problem) > answer.reward(problem) else answer

    def interrupted(self, checkpoint: Path) -> Interrupted:
        """The error of Ctrl-C, with the command that resumes."""
        if not checkpoint.exists():
            facts = f"nothing is learned yet; the best answer so far is in {self.folder}"
            return Interrupted("interrupted", facts=facts, hint="start it again")
        return Interrupted(
            "interrupted",
            facts=f"what was learned, and the best answer so far, are in {self.folder}",
            hint=f"go on with: {command_line('recurra map train', replace(self, resume=True))}",
        )

    def settings(self) -> AgentSettings:
        """The settings of the preset, changed by the options."""
        s = replace(PRESETS[self.preset], planning=AGENTS[self.agent])
        if self.actors is not None and self.actors < 1:
            raise RecurraError(f"somebody must play, not {self.actors} actors")
        s = replace(s, actors=self.actors or s.actors, address=self.address)
        s = replace(s, pool=self.pool or ("processes" if self.actors else s.pool))
        check_address(s.pool, s.address)
        if self.demonstrate is not None:
            if not 0 <= self.demonstrate < 1:
                raise RecurraError(
                    f"--demonstrate {self.demonstrate} is no part of the time",
                    facts="it is from 0, none, to less than 1",
                )
            s = replace(s, demonstrate=self.demonstrate)
        return s

    def prepare_folder(self) -> tuple[Path, Path]:
        """The files of curve and checkpoint; raises RecurraError if earlier ones would be lost."""
        curve, checkpoint = self.folder / "curve.jsonl", self.folder / "checkpoint.npz"
        if self.resume and not checkpoint.exists():
            raise RecurraError(
                f"there is nothing to go on with in {self.folder}",
                facts="checkpoint.npz is not there",
                hint="leave out --resume",
            )
        if not self.resume and checkpoint.exists():
            again = command_line("recurra map train", replace(self, resume=True))
            raise RecurraError(
                f"what was learned before is in {self.folder}",
                facts=f"{checkpoint.name} is there, and would be lost",
                hint=f"go on with it: {again}; or name another --folder",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.resume:
                curve.write_text("")
        except OSError as error:
            raise RecurraError(f"{self.folder} cannot be written", facts=str(error)) from None
        return curve, checkpoint
