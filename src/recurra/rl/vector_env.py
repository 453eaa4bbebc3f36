"""Gymnasium vector environments as rows that reset in the step that ends their episode.

    SameStep   the environment does so itself; the last observation is in its info, `final_obs`
    Disabled   rows that ended are reset at once, by mask
    NextStep   the step after the end of a row is only its reset. SyncVectorEnv and AsyncVectorEnv
               can be reset by mask; in others the row has a step that is not `real`, from the last
               observation of one episode to the first of the next

The environment's metadata has the mode.
"""

from __future__ import annotations

import importlib
import reprlib
import sysconfig
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from recurra.errors import Loc, RecurraError
from recurra.ir.value_conversion import fitted
from recurra.rl.gym_spaces import Array, Values, odd_part
from recurra.runtime.checkpointing import Unsaved

Vector = gymnasium.vector.VectorEnv
OTHERS = (  # the folders of code that is not the user's
    *(str(Path(f).parent) for f in (gymnasium.__file__, np.__file__, __file__)),
    sysconfig.get_path("stdlib"),
)
MODES = ("NextStep", "SameStep", "Disabled")
RAISED = (Exception, SystemExit, GeneratorExit)  # that an environment may raise: not Ctrl-C
OF_VECTORS = ("vectorization_mode", "vector_kwargs", "wrappers")  # options of only make_vec


@dataclass(frozen=True)
class Spec:
    """An environment: the arguments of `gymnasium.make_vec`, and the kind of its episodes."""

    id: str
    options: Mapping[str, Any]
    episodes: str = "absorbing"

    def __str__(self) -> str:
        shown = [f"{k}={v!r}" for k, v in self.options.items()]
        if self.episodes != "absorbing":
            shown.append(f"episodes={self.episodes!r}")
        return f"{self.id}({', '.join(shown)})"

    def make(self, rows: int) -> Vector:
        """`rows` environments: the native vector form if there is one, else one after another."""
        self._expect_options()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*AutoresetMode.*")  # `mode` says it better
            try:
                return with_number_checks(
                    gymnasium.make_vec(self.id, num_envs=rows, **self._make_options())
                )
            except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
                raise self._cannot_make(error) from None
            except RAISED as error:
                if traceback.extract_tb(error.__traceback__)[-1].filename == registration.__file__:
                    raise self._cannot_make(error) from None
                raise self.failed("make", error) from error

    def _expect_options(self) -> None:
        """Raise RecurraError for options that Gymnasium would only refuse later, by other names."""
        steps: Any = self.options.get("max_episode_steps")
        whole = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
        if steps is not None and not (whole and (steps > 0 or steps == -1)):
            raise RecurraError.at_user_line(
                f"max_episode_steps is {steps!r}",
                facts="an episode of so many steps is cut off: a whole number, from 1",
                hint="max_episode_steps=200, or leave it out: the environment has its own",
            )
        more: object = self.options.get("vector_kwargs")
        if more is not None and not isinstance(more, Mapping):
            raise RecurraError.at_user_line(
                f"vector_kwargs is {more!r}",
                facts="it has the options of the vector environment, by name",
                hint="vector_kwargs={'shared_memory': False}",
            )
        reset = (more or {}).get("autoreset_mode", MODES[0])
        if getattr(reset, "value", reset) not in MODES:
            raise RecurraError.at_user_line(
                f"autoreset_mode is {reset!r}",
                facts=f"an environment resets in one of three ways: {', '.join(MODES)}",
                hint="vector_kwargs={'autoreset_mode': 'SameStep'}",
            )

    def _cannot_make(self, error: BaseException) -> RecurraError:
        """The error for an id or options that Gymnasium does not accept."""
        if "num_envs" in self.options:
            hint = (
                "rows are a dim, o[b, i, 0] = env.reset(domain=(b, i)), and their number is its "
                "bound: leave out num_envs, and compile({B: 4, ..})"
            )
        elif self.id.startswith("gym."):
            hint = f"write rc.rl.env.make({self.id.removeprefix('gym.')!r})"
        elif "vectorization_mode" in self.options and not _is_of_id(error):
            hint = "vectorization_mode='sync'"
        elif self.options and not _is_of_id(error):
            hint = f"leave out what it does not take of {', '.join(self.options)}"
        else:
            hint = (
                "gymnasium.pprint_registry() lists the ids; one of your own is found by its "
                "module: mymodule:Corridor-v0"
            )
        return RecurraError.at_user_line(
            f"Gymnasium cannot make {self}", facts=str(error), hint=hint
        )

    def _make_options(self) -> Mapping[str, Any]:
        """The options; rows in processes of their own are checked there, by a wrapper."""
        if self.options.get("vectorization_mode") not in ("async", gymnasium.VectorizeMode.ASYNC):
            return self.options
        return {**self.options, "wrappers": (*self.options.get("wrappers", ()), NumberCheck)}

    def close(self, env: Vector) -> None:
        """Close an environment."""
        try:
            env.close()
        except RAISED as error:
            raise self.failed("close", error) from error

    def failed(self, what: str, error: BaseException) -> RecurraError:
        """The error for an exception that the environment raised, with its place."""
        if isinstance(error, NotANumber):
            inner = error.args[0] if isinstance(error.args[0], NotANumber) else error
            facts, hint, loc = inner.args
            return RecurraError(f"{self} fails in {what}", facts=facts, hint=hint, loc=loc)
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [x for x in frames if not x.filename.startswith(OTHERS)] or frames
        if what in ("reset", "step") and (odd := self._odd_shape(what)) is not None:
            return odd
        return RecurraError(
            f"{self} fails in {what}",
            facts=f"{type(error).__name__}: {error}",
            hint="gymnasium.utils.env_checker.check_env(env) says what an environment must give",
            loc=Loc(theirs[-1].filename, theirs[-1].lineno or 0),
        )

    def _odd_shape(self, what: str) -> RecurraError | None:
        """The error of an environment whose observation has another shape than its space."""
        known = {k: x for k, x in self.options.items() if k not in OF_VECTORS}
        with warnings.catch_warnings(), suppress(*RAISED):
            warnings.simplefilter("ignore")
            with closing(gymnasium.make(self.id, disable_env_checker=True, **known)) as env:
                observation = env.reset(seed=0)[0]
                if what == "step":
                    observation = env.step(env.action_space.sample())[0]
                odd = odd_part(env.observation_space, observation)
                code = getattr(env.unwrapped, what)
            if odd is None:
                return None
            where, shape, space = odd
            return RecurraError(
                f"{self} fails in {what}",
                facts=f"it gives an observation{where} of shape {shape}, and its "
                f"observation_space{where} is {space}",
                hint=f"write the shape that it has: gymnasium.spaces.Box(-np.inf, np.inf, {shape})",
                loc=_line_of(code),
            )
        return None

    def start(self, env: Vector, seed: int) -> tuple[Vector, object]:
        """Start an episode in all rows of `env`, or of its replacement; returns both."""
        return env, env.reset(seed=seed)[0]


@dataclass(frozen=True)
class PoolSpec(Spec):
    """An environment of EnvPool: the arguments of `envpool.make`.

    A pool can only be seeded when it is created, so each seeded reset creates another.
    """

    def make(self, rows: int, **more: object) -> Vector:
        """`rows` environments in one pool."""
        options = {**self.options, **more}
        try:
            pool = importlib.import_module("envpool")
            return pool.make(self.id, env_type="gymnasium", num_envs=rows, **options)
        except Exception as error:  # its import reads files of every environment it knows
            raise RecurraError.at_user_line(
                f"EnvPool cannot make {self}",
                facts=f"{type(error).__name__}: {error}",
                hint="pip install envpool; python -c 'import envpool' must work",
            ) from None

    def start(self, env: Vector, seed: int) -> tuple[Vector, object]:
        rows = env.num_envs
        self.close(env)
        env = self.make(rows, seed=seed % (1 << 31))
        return env, env.reset()[0]


class Stepped(NamedTuple):
    """A step of all rows: arrays [B, ..] as the environment has them.

    The next action is chosen from `o`; `final` is the observation after this one. They differ in
    rows whose episode ended. The step of a row that is not `real` is only a reset.
    """

    o: Sequence[Array]
    final: Sequence[Array]
    reward: Array
    term: Array
    trunc: Array
    ended: Array
    real: Array


class Rows:
    """The rows of an environment, with the same behavior in every autoreset mode."""

    def __init__(self, spec: Spec, env: Vector, observations: Values, actions: Values):
        self.spec, self.env = spec, env
        self.observations, self.actions = observations, actions
        self.reward_name = f"a reward of {spec}"
        self.mode = mode(spec, env)
        self.masked = self.mode == "Disabled" or (
            self.mode == "NextStep" and isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        )
        self.has_unreal_steps = self.mode == "NextStep" and not self.masked
        self.wait_for(np.zeros(env.num_envs, bool))

    def wait_for(self, rows: Array) -> None:
        """Note that the next step of these rows is only a reset."""
        self.waiting, self.real = rows, ~rows

    def expect_at_hand(self) -> None:
        """Raise Unsaved unless the state of the environment is accessible in this process."""
        if isinstance(self.env.unwrapped, AsyncVectorEnv):
            raise Unsaved(
                f"the state of {self.spec} cannot be saved",
                facts="its rows live in processes of their own",
                hint="use vectorization_mode='sync'",
            )
        if isinstance(self.spec, PoolSpec):
            raise Unsaved(
                f"the state of {self.spec} cannot be saved", facts="EnvPool gives no access to it"
            )

    def reset(self, seed: int) -> list[Array]:
        """Start all rows anew; returns their observations."""
        try:
            self.env, raw = self.spec.start(self.env, seed)
        except RecurraError:
            raise
        except RAISED as error:
            raise self.spec.failed("reset", error) from error
        self.wait_for(np.zeros(self.env.num_envs, bool))
        return self.observations.arrays(raw)

    def step(self, actions: Sequence[Array]) -> Stepped:
        """Step every row by an action, in the form of the program."""
        nested = self.actions.nested(actions)
        try:
            raw, reward, term, trunc, info = self.env.step(nested)
        except RAISED as error:
            raise self.spec.failed("step", error) from error
        o = final = self.observations.arrays(raw)
        term, trunc = np.asarray(term, bool), np.asarray(trunc, bool)
        ended, real = term | trunc, self.real
        if self.has_unreal_steps:
            self.real, self.waiting = ~ended, ended
            reward = np.where(real, reward, 0.0)
            term, trunc, ended = term & real, trunc & real, ended & real
        elif np.count_nonzero(ended) == 0:  # it takes a quarter of the time of any()
            pass
        elif self.masked:
            o = self._restarted(ended, final)
        else:
            last = self._final(info, ended)
            final = [_with_rows(x, ended, rows) for x, rows in zip(o, last, strict=True)]
        reward = fitted(reward, "f32", self.reward_name, hint="scale it in a wrapper")
        return Stepped(o, final, reward, term, trunc, ended, real)

    def _final(self, info: Mapping[str, object], ended: Array) -> list[Array]:
        """The last observations of the rows that ended."""
        for key in ("final_obs", "final_observation"):
            final = info.get(key)
            if isinstance(final, np.ndarray) and final.dtype == object:
                return self.observations.of_rows(list(final[ended]))
            if final is not None:
                return [x[ended] for x in self.observations.arrays(final)]
        raise RecurraError(
            f"{self.spec} hides the last observation of an episode",
            facts="it resets in the same step, and its info has no 'final_obs'",
            hint="mend the environment, or use vectorization_mode='sync'",
        )

    def _restarted(self, rows: Array, before: Sequence[Array]) -> list[Array]:
        """The observations after a reset of some rows."""
        try:
            raw, _ = self.env.reset(options={"reset_mask": rows.copy()})
        except RAISED as error:
            raise self.spec.failed("reset", error) from error
        after = self.observations.arrays(raw)
        for x, y in zip(before, after, strict=True):
            if not np.array_equal(x[~rows], y[~rows], equal_nan=x.dtype.kind == "f"):
                raise RecurraError(
                    f"{self.spec} resets rows that it should leave alone",
                    facts=f"its autoreset mode is {self.mode}, "
                    "but it ignores options['reset_mask']",
                    hint="mend the environment, or use vectorization_mode='sync'",
                )
        return after


class NotANumber(Exception):
    """An environment's row returned something else than numbers and truth values.

    Its arguments are facts, hint and place, or, from another process, an exception with these.
    """


class NumberCheck(gymnasium.Wrapper):
    """A wrapper that checks that observations and rewards are numbers, and ends are truth values:
    NumPy would read None as NaN, any text as true, and masked elements.

    It drops the info, which programs do not read, and which arrays of all rows cannot always hold.
    """

    def __init__(self, env: gymnasium.Env, row: int | None = None) -> None:
        super().__init__(env)
        self.of_row = "" if row is None else f" of row {row}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result: Any = self.env.reset(seed=seed, options=options)
        if isinstance(result, tuple) and len(result) == 2:
            self._expect_numbers(result[0], "reset")
            return result[0], {}
        return result

    def step(self, action: object) -> Any:
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result  # Gymnasium refuses it
        o, reward, term, trunc, _info = result
        if type(o) is not np.ndarray or o.dtype.kind not in "biuf":
            self._expect_numbers(o, "step")
        if type(reward) is float and type(term) is bool and type(trunc) is bool:
            return o, reward, term, trunc, {}
        ends = self._truth("terminated", term), self._truth("truncated", trunc)
        return o, self._number(reward), *ends, {}

    def _expect_numbers(self, observation: object, method: str, where: str = "") -> None:
        """Raise NotANumber for None and masked elements, in any part of an observation."""
        if isinstance(observation, (dict, tuple)):
            parts = observation.items() if isinstance(observation, dict) else enumerate(observation)
            for k, x in parts:
                self._expect_numbers(x, method, f"{where}[{k!r}]")
            return
        is_text = isinstance(observation, str)
        none = not is_text and any(x is None for x in np.ravel(_objects(observation)))
        if none or np.ma.is_masked(observation):
            what = "has no number" if none else "is masked in part"
            raise NotANumber(
                f"observation{where}{self.of_row} is {_short(observation)}, and {what}",
                "give a number for every element; x.filled(0) of a masked array",
                _line_of(getattr(self.env.unwrapped, method)),
            )

    def _truth(self, word: str, value: object) -> bool:
        """Convert a truth value of NumPy, None, 0 or 1."""
        array = np.asarray(value)
        if value is None or (array.size == 1 and array.dtype.kind in "biuf" and array in (0, 1)):
            return bool(value)
        raise self._wrong(word, value, "no truth value")

    def _number(self, value: Any) -> float:
        if np.ndim(value) == 0 and not isinstance(value, (str, bytes, complex, np.datetime64)):
            with suppress(TypeError, ValueError, OverflowError):
                return float(value)
        raise self._wrong("reward", value, "no number of 64 bits")

    def _wrong(self, word: str, value: object, what: str) -> NotANumber:
        return NotANumber(
            f"{word}{self.of_row} is {_short(value)}, and {what}",
            "return observation, reward, terminated, truncated, info: one number and two "
            "truth values",
            _line_of(self.env.unwrapped.step),
        )


def _is_of_id(error: BaseException) -> bool:
    """Tell whether Gymnasium does not know the environment."""
    return isinstance(error, (gymnasium.error.UnregisteredEnv, ModuleNotFoundError))


def _short(value: object) -> str:
    """The value in one short line."""
    return " ".join(reprlib.repr(value).split())


def _objects(value: object) -> Array:
    """The elements of an array that may hold other objects than numbers."""
    array = value if isinstance(value, np.ndarray) else np.array(value, object)
    return array if array.dtype.kind == "O" else np.empty(0, object)


def with_number_checks(env: Vector) -> Vector:
    """Wrap the rows of a SyncVectorEnv in `NumberCheck`; return the environment.

    It no longer copies its observations, as `Values.arrays` does.
    """
    inner = env.unwrapped
    if isinstance(inner, (SyncVectorEnv, AsyncVectorEnv)):
        inner.copy = False
    if isinstance(inner, SyncVectorEnv):
        inner.envs = [NumberCheck(x, row=k) for k, x in enumerate(inner.envs)]
    return env


def _line_of(method: MethodType) -> Loc:
    """The place of a method's definition."""
    return Loc(method.__code__.co_filename, method.__code__.co_firstlineno)


def _with_rows(array: Array, which: Array, rows: Array) -> Array:
    """`array` with other values in some rows."""
    out = array.copy()
    out[which] = rows
    return out


def mode(spec: Spec, env: Vector) -> str:
    """The autoreset mode in the environment's metadata."""
    value = (env.metadata or {}).get("autoreset_mode")
    name = getattr(value, "value", value)
    if name not in MODES:
        raise RecurraError.at_user_line(
            f"{spec} does not say when it resets",
            facts=f"metadata['autoreset_mode'] is {value!r}, not one of {', '.join(MODES)}",
            hint="set it in the environment's metadata, or use vectorization_mode='sync'",
        )
    return name
