"""LoopNest-v0: a Gymnasium environment in which an agent edits a nest (LoopTune, section 3).

    env = gymnasium.make("LoopNest-v0", problems=[matmul(128, 128, 128)])

Observations are `state.vector`s [loops, 20]; `info` has the mask of legal actions, the nest and its
GFLOPS. An illegal action changes nothing and its reward is 0, as in the published code. An episode
is truncated after `actions.steps` actions: none of them ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import gymnasium
import numpy as np

from recurra.errors import RecurraError
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, measure_peak
from recurra.nest.observation import WIDTH, Vector, state_graph, vector
from recurra.nest.problem import NestProblem
from recurra.nest.search import Evaluate
from recurra.nest.target import host_target

ID = "LoopNest-v0"
MOST = 2.0**31  # points of a loop: a tensor has fewer elements


class LoopNestEnv(gymnasium.Env[Vector, np.int64]):
    """An environment whose rewards are differences of GFLOPS, as shares of the machine's peak.

    Every reset draws one of `problems`, unless `options={"problem": k}` chooses it. `evaluator`
    returns the evaluator of a problem, by default measurements on `backend`; `peak_gflops` is the
    unit of rewards, by default measured too. With both, an episode depends on the seed and the
    actions only.
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
            on = host_target(backend)
            peak_gflops = peak_gflops or measure_peak(on, self.problems[0].dtype)
            evaluator = evaluator or (lambda p: Evaluator(p, on))
        self._new_evaluator, self.peak = evaluator, peak_gflops
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
        """Begin with an untiled nest, the cursor on its first loop."""
        super().reset(seed=seed)
        k = (options or {}).get("problem")
        k = int(self.np_random.integers(len(self.problems))) if k is None else int(k)
        if k not in self._evaluators:
            self._evaluators[k] = self._new_evaluator(self.problems[k])
        self.evaluate = self._evaluators[k]
        self.nest = untiled(self.problems[k])
        self.gflops = self.evaluate(self.nest)
        self.left = self.actions.steps
        return self._observation(), self._info()

    def step(self, action: int | np.int64) -> tuple[Vector, float, bool, bool, dict[str, object]]:
        """Apply one action; the reward is (GFLOPS after - GFLOPS before) / peak."""
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
        """Return the nest, its GFLOPS and its graph as text."""
        assert self.nest is not None, "reset() comes first"
        return f"{self.nest}\n{self.gflops:.1f} GFLOPS\n\n{state_graph(self.nest)}"


def _actions(option: Actions | str) -> Actions:
    if isinstance(option, Actions):
        return option
    if option not in PRESETS:
        raise RecurraError(
            f"there is no set of actions {option!r}", facts=f"there are: {', '.join(PRESETS)}"
        )
    return PRESETS[option]


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="recurra.nest.gymnasium_env:LoopNestEnv")
