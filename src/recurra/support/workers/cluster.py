"""Workers on the machines of a cluster, through Ray.

What they share goes to each machine once, through Ray's object store, and so does this package;
what it imports must be installed there. A worker is a Ray actor without restarts of its own: the
crew replaces those that die as it replaces processes.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from recurra.errors import RecurraError
from recurra.support.optional_packages import needed_by
from recurra.support.workers.supervisor import Gone, Start, Where


def installed() -> ModuleType:
    """Ray; raises RecurraError where it is not installed."""
    with needed_by("a cluster of actors"):
        return importlib.import_module("ray")


def check_address(pool: Where | None, address: str | None) -> None:
    """Raises RecurraError where an address is given and no pool of Ray's, or Ray is missing."""
    if pool == "ray":
        installed()
    elif address is not None:
        raise RecurraError(
            "only actors on a cluster have an address",
            facts=f"--address {address}, but --pool {pool or 'is left out'}",
            hint="--pool ray",
        )


class Answering:
    """The actor. What fails is told in words, as processes tell it."""

    def __init__(self, start: Start, given: object, shared: object) -> None:
        self.made_of, self.work = (start, given, shared), None

    def answer(self, request: object) -> object:
        try:
            if self.work is None:
                start, given, shared = self.made_of
                self.work = start(given, shared)
            return self.work(request)
        except Exception:
            return traceback.format_exc()


class Remote:
    """An actor, and the answer that it owes."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        self.ray, self.actor, self.owed = ray, actor, None

    def ask(self, request: object) -> None:
        self.owed = self.actor.answer.remote(request)

    def heard(self) -> object:
        try:
            return self.ray.get(self.owed)
        except self.ray.exceptions.RayTaskError as error:
            return str(error)
        except self.ray.exceptions.RayError as error:
            raise Gone(f"has died ({type(error).__name__})", str(error)) from None

    def end(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class Cluster:
    """Workers on the cluster at `address`; by default a Ray of its own on this machine.

    Where Ray has been started in this process before, it is that one, and goes on.
    """

    def __init__(
        self, start: Start, shared: object, address: str | None = None, **env: str
    ) -> None:
        self.ray = installed()
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, address)
        self.start, self.shared = start, self.ray.put(shared)
        self.kind = self.ray.remote(Answering).options(
            max_restarts=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": env}
        )

    def born(self, given: object) -> Remote:
        return Remote(self.ray, self.kind.remote(self.start, given, self.shared))

    def sent(self, request: object) -> object:
        return self.ray.put(request)

    def ready(self, workers: Sequence[Remote], seconds: float) -> Sequence[Remote]:
        owed = {x.owed: x for x in workers}
        found, _ = self.ray.wait(list(owed), num_returns=1, timeout=seconds)
        return [owed[x] for x in found]

    def close(self) -> None:
        if self.ours:
            self.ray.shutdown()


def _connect(ray: ModuleType, address: str | None) -> None:
    package = {"py_modules": [str(Path(__file__).parents[2])]}
    options = {} if address else {"include_dashboard": False}
    try:
        ray.init(
            address or "local", logging_level="WARNING", log_to_driver=False, runtime_env=package,
            **options,
        )  # fmt: skip
    except Exception as error:  # of many kinds, one of them Exception itself
        raise RecurraError(
            f"there is no Ray cluster at {address}" if address else "Ray does not start here",
            facts=str(error).partition("\n")[0],
            hint="`ray start --head` starts one, and tells its address",
        ) from None
