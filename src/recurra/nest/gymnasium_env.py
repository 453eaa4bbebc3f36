"""LoopNest-v0: a Gymnasium environment in which an agent edits a nest (LoopTune, section 3).

    env = gymnasium.make("LoopNest-v0", problems=[matmul(128, 128, 128)])

Observations are `state.vector`s [loops, 20]; `info` has the mask of legal actions, the nest and its
GFLOPS. An illegal action changes nothing and earns nothing, as in the published code. An episode is
`actions.steps` actions long, and is then truncated: there is no action that ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import gymnasium
import numpy as np

from recurra.errors import RecurraError
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, peak
from recurra.nest.problem import NestProblem
from recurra.nest.search import Evaluate
from recurra.nest.state import WIDTH, Vector, graph, vector
from recurra.nest.target import target

ID = "LoopNest-v0"
MOST = 2.0**31  # points of a loop: more do not fit into a tensor


class LoopNestEnv(gymnasium.Env[Vector, np.int64]):
    """Rewards are differences of GFLOPS, as shares of the machine's peak.

    `problems` are drawn from at every reset, or chosen by `options={"problem": k}`. `evaluator`
    gives GFLOPS of a problem's nests, by default measured on `backend`; `peak_gflops` is what
    rewards are divided by, by default measured too. With both given, nothing is measured and an
    episode depends on seed and actions alone.
    """

    metadata: dict[str, object] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012, as Gymnasium has it

    def __init__(
        self,
        problems: NestProblem | Sequence[NestProblem],
        *,
        actions: Actions | str = "full",
        backend: Literal["avx512", "avx2"] | None = None,
        evaluator: Callable[[NestProblem], Evaluate] | None = None,
        peak_gflops: float | None = None,
        render_mode: Literal["ansi"] | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.problems = [problems] if isinstance(problems, NestProblem) else list(problems)
        self.actions = _actions(actions)
        self._check()
        if evaluator is None or peak_gflops is None:
            on = target(backend)
            peak_gflops = peak_gflops or peak(on, self.problems[0].dtype)
            evaluator = evaluator or (lambda p: Evaluator(p, on))
        self._make, self.peak = evaluator, peak_gflops
        self._evaluators: dict[int, Evaluate] = {}
        loops = self.actions.max_loops
        self.observation_space = gymnasium.spaces.Box(0, MOST, (loops, WIDTH), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions.names))
        self.nest: Nest | None = None

    def _check(self) -> None:
        if not self.problems:
            raise RecurraError(
                "an environment needs a problem", hint="problems=[matmul(64, 64, 64)]"
            )
        for p in self.problems:
            if (n := len(untiled(p).loops)) > self.actions.max_loops:
                raise RecurraError(
                    f"{p.statement} has too many loops for these actions",
                    facts=f"{n} untiled, at most {self.actions.max_loops}",
                    hint="actions=Actions(max_loops=..)",
                )

    def reset(
        self, *, seed: int | None = None, options: dict[str, int] | None = None
    ) -> tuple[Vector, dict[str, object]]:
        """An untiled nest, with the cursor on its first loop."""
        super().reset(seed=seed)
        chosen = (options or {}).get("problem")
        which = int(self.np_random.integers(len(self.problems))) if chosen is None else int(chosen)
        if which not in self._evaluators:
            self._evaluators[which] = self._make(self.problems[which])
        self.evaluate = self._evaluators[which]
        self.nest = untiled(self.problems[which])
        self.gflops = self.evaluate(self.nest)
        self.left = self.actions.steps
        return self._observation(), self._info()

    def step(self, action: int | np.int64) -> tuple[Vector, float, bool, bool, dict[str, object]]:
        """Applies one action; the reward is (GFLOPS after - GFLOPS before) / peak."""
        assert self.nest is not None, "reset() comes first"
        name, before = self.actions.names[int(action)], self.gflops
        if self.actions.refusal(self.nest, name) is None:
            self.nest = self.actions.apply(self.nest, name)
            self.gflops = self.evaluate(self.nest)
        self.left -= 1
        reward = (self.gflops - before) / self.peak
        return self._observation(), float(reward), False, self.left <= 0, self._info()

    def _observation(self) -> Vector:
        assert self.nest is not None
        return vector(self.nest, self.actions.max_loops)

    def _info(self) -> dict[str, object]:
        assert self.nest is not None
        mask = np.array(self.actions.legal(self.nest), np.int8)
        return {"action_mask": mask, "gflops": self.gflops, "nest": self.nest}

    def render(self) -> str:
        """The nest, its GFLOPS and its graph, as text."""
        assert self.nest is not None, "reset() comes first"
        return f"{self.nest}\n{self.gflops:.1f} GFLOPS\n\n{graph(self.nest)}"


def _actions(given: Actions | str) -> Actions:
    if isinstance(given, Actions):
        return given
    if given not in PRESETS:
        raise RecurraError(
            f"there is no set of actions {given!r}", facts=f"there are: {', '.join(PRESETS)}"
        )
    return PRESETS[given]


def register() -> None:
    """Makes `gymnasium.make("LoopNest-v0", problems=..)` work; called when this is imported."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point="recurra.nest.gymnasium_env:LoopNestEnv")


register()
