"""`recurra train`: settings → program → a run folder with metrics, checkpoints and a report.

    run = train(Reinforce(env="CartPole-v1", iterations=100))

A run is resumed at its newest checkpoint: all that lives from one iteration to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from recurra.errors import RecurraError
from recurra.report.progress import Progress, track
from recurra.report.runs import RunFolder

if TYPE_CHECKING:
    import numpy as np

    from recurra.session import Context

    Metrics = Mapping[str, np.ndarray]
    OnStep = Callable[[int, Metrics], None]

# CleanRL's tags, for the metrics that a program logs.
TAGS = {
    "mean_return": "charts/episodic_return",
    "length": "charts/episodic_length",
    "loss": "losses/policy_loss",
    "entropy": "losses/entropy",
}


class Program(Protocol):
    """What training needs of a compiled program; the data is that of `report.page`."""

    equations: Mapping[str, str]
    schedule_text: str
    store_rows: list[dict[str, Any]]
    source: str
    pass_rows: list[dict[str, Any]]
    chart: list[dict[str, Any]]

    def run(
        self, *, seed: int, on_step: OnStep, first: int = 0, state: Metrics | None = None
    ) -> Any:
        """Runs the iterations from `first` on, which reads `state`; calls back after launches."""
        ...

    def state(self) -> Metrics:
        """Inside the callback: all that the next iteration reads of those before."""
        ...


Compile = Callable[["Context", Mapping[Any, int]], Program]


@dataclass(frozen=True)
class Reinforce:
    """Train a policy by REINFORCE (Williams, 1992), with returns normalised per iteration.

    Example: recurra train reinforce --env CartPole-v1 --iterations 100
    """

    env: str = "CartPole-v1"
    """A Gymnasium id, with a flat observation and discrete actions."""
    seed: int = 1
    """Decides the parameters, the actions and the environments."""
    iterations: int = 100
    """In total, those before a --resume included."""
    rows: int = 64
    """Environments side by side."""
    steps: int = 200
    """Length of an episode at most."""
    lr: float = 1e-2
    """Learning rate of Adam in the first iteration."""
    lr_decay: float = 0.99
    """Its factor per iteration."""
    gamma: float = 0.99
    """Discount per step."""
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the hidden layers."""
    checkpoint_every: int = 10
    """Iterations between checkpoints."""
    resume: Path | None = None
    """The folder of a run to go on with; its settings are taken from there."""
    out: Path = Path("runs")
    """Where the run folder is made."""
    json: bool = False
    """Print the result as one JSON object."""

    def __call__(self) -> int:
        """The command."""
        result = train(self)
        if self.json:
            import json

            print(json.dumps(result))
        else:
            print(f"report: {result['report']}")
        return 0

    def program(self) -> tuple[Context, dict[Any, int]]:
        """The program, and the bounds to compile it for."""
        import recurra as rc

        ctx = rc.Context(dims="b i t")
        with ctx as ((b, B), (i, I), (t, T)):
            env = rc.rl.env.make(self.env)
            dnn = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=self.hidden).build()
            o = rc.like(env.observation_space, domain=(b, i, t), name="o")
            o[b, i, 0] = env.reset(domain=(b, i))
            pi = dnn(o)
            a = pi.sample()
            o[b, i, t + 1], r, _ = env.step(a)
            assert env.last is not None
            live = env.last.live.cast("f32")
            g = r[b, i, t:T].discounted_sum(self.gamma)
            adv = rc.rl.normalise(g, over=(b, t), where=live)
            loss = (-live * adv * pi.log_prob(a))[0:B, i, 0:T].mean()
            loss.backward()
            rc.optim.Adam(dnn.params, lr=self.lr * self.lr_decay**i).step()
            length = live[0:B, i, 0:T].sum(axis=1).mean()
            rc.log(mean_return=r[0:B, i, 0:T].sum(axis=1).mean(), length=length, loss=loss)
            entropy = pi.entropy() * live
            rc.log(entropy=entropy[0:B, i, 0:T].mean() / length * float(self.steps))
        return ctx, {B: self.rows, I: self.iterations, T: self.steps}


# Fields of a recipe that say how to run it, not what it computes.
RUNNING = ("iterations", "resume", "out", "json")


def train(settings: Reinforce, compile: Compile | None = None) -> dict[str, Any]:
    """Trains, writing a run folder all along; its path, its report and the last metrics."""
    from recurra.report.run_page import keep_compiled, write_page

    folder = None if settings.resume is None else RunFolder(settings.resume)
    if folder is not None:
        settings = resumed(settings, folder.read_config())
    ctx, bounds = settings.program()
    graph = str(ctx.graph)
    start, state = (0, None) if folder is None else _last_state(folder, settings, graph)
    program = (compile or _compile)(ctx, bounds)
    if folder is None:
        algo = type(settings).__name__.lower()
        folder = RunFolder.create(settings.out, settings.env, algo, settings.seed, recipe(settings))
    run = folder if settings.resume is None else RunFolder.resume(folder.path, start)
    keep_compiled(run, program)
    with run, track(settings.iterations, settings.env) as progress:
        recorder = Recorder(run, program, settings, progress, graph)
        try:
            program.run(seed=settings.seed, on_step=recorder, first=start, state=state)
        except KeyboardInterrupt:
            raise RecurraError(
                "interrupted",
                facts=f"what was done is in {run.path}",
                hint=f"go on with: recurra train {_name(settings)} --resume {run.path}",
            ) from None
        finally:
            report = write_page(run)
    last = run.rows()[-1:] or [{}]
    return {"run": str(run.path), "report": str(report), **last[0]}


class Recorder:
    """Called after every launch: logs k iterations, shows progress, saves what was promised."""

    def __init__(
        self, run: RunFolder, program: Program, settings: Reinforce, progress: Progress, graph: str
    ):
        self.run, self.program, self.settings = run, program, settings
        self.progress, self.graph = progress, graph
        self.since = time.monotonic()
        self.saved: int | None = None

    def __call__(self, first: int, metrics: Metrics) -> None:
        done = first + min(len(values) for values in metrics.values())
        self._log(first, done, metrics)
        every = self.settings.checkpoint_every
        before = first if self.saved is None else self.saved
        if done // every > before // every or done == self.settings.iterations:
            self._save(done)

    def _log(self, first: int, done: int, metrics: Metrics) -> None:
        now = time.monotonic()
        lived = float(metrics["length"].sum()) * self.settings.rows if "length" in metrics else 0.0
        speed = lived / max(now - self.since, 1e-9)
        self.since = now
        scalars: dict[str, Any] = {}
        for k in range(done - first):
            scalars = {TAGS.get(name, name): values[k] for name, values in metrics.items()}
            self.run.log(first + k + 1, **scalars, **{"charts/SPS": speed})
        main = next(iter(scalars), "")
        self.progress.update(done, **{main: scalars[main]} if main else {})

    def _save(self, done: int) -> None:
        from recurra.report import checkpoint

        meta = {
            "graph_hash": checkpoint.graph_hash(self.graph),
            "counters": {"i": done},
            "seed": self.settings.seed,
        }
        checkpoint.save(self.run.checkpoints, self.program.state(), meta)
        self.saved = done


def recipe(settings: Reinforce) -> dict[str, Any]:
    """What config.json keeps."""
    return {k: v for k, v in asdict(settings).items() if k not in ("resume", "out", "json")}


def resumed(settings: Reinforce, config: Mapping[str, Any]) -> Reinforce:
    """The settings of the run in `config`, gone on with as `settings` says."""
    known = {f.name: f.default for f in fields(settings) if f.name not in RUNNING}
    theirs = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in known}
    for name, value in theirs.items():
        given = getattr(settings, name)
        if given != known[name] and given != value:
            raise RecurraError(
                f"a resumed run keeps its settings, but {name}={given!r} was given",
                facts=f"the run in {settings.resume} has {name}={value!r}",
                hint="leave it out, or start a new run",
            )
    return replace(settings, **theirs)


def _last_state(run: RunFolder, settings: Reinforce, graph: str) -> tuple[int, Metrics]:
    """How many iterations the newest checkpoint has, and what it holds."""
    from recurra.report import checkpoint

    found = checkpoint.load(run.checkpoints, graph_hash=checkpoint.graph_hash(graph))
    done = int(found.meta["counters"]["i"])
    if done >= settings.iterations:
        raise RecurraError(
            f"the run in {run.path} has all its {done} iterations",
            facts=f"it was to have {settings.iterations}",
            hint=f"go on with --iterations {2 * done}",
        )
    return done, found.arrays


def _compile(ctx: Any, bounds: Mapping[Any, int]) -> Program:
    return ctx.compile(bounds)


def _name(settings: Reinforce) -> str:
    return type(settings).__name__.lower()
