"""Workers on the machines of a cluster, through Ray.

Shared data and this package go to each machine once, through Ray's object store; the package's
dependencies must be installed there. A worker is a Ray actor that Ray does not restart: the crew
replaces workers that die.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from recurra.errors import RecurraError
from recurra.support.optional_packages import needed_by
from recurra.support.workers.supervisor import Start, Where, WorkerGone


def installed() -> ModuleType:
    """Import Ray; raises RecurraError if it is not installed."""
    with needed_by("a cluster of actors"):
        return importlib.import_module("ray")


def check_address(pool: Where | None, address: str | None) -> None:
    """Raise RecurraError for an address without the pool ray, or if Ray is not installed."""
    if pool == "ray":
        installed()
    elif address is not None:
        raise RecurraError(
            "only actors on a cluster have an address",
            facts=f"--address {address}, but --pool {pool or 'is left out'}",
            hint="--pool ray",
        )


class AnsweringActor:
    """The Ray actor; an error is answered as text, as processes do."""

    def __init__(self, start: Start, arguments: object, shared: object) -> None:
        self.start, self.work = partial(start, arguments, shared), None

    def answer(self, request: object) -> object:
        try:
            self.work = self.work or self.start()
            return self.work(request)
        except Exception:
            return traceback.format_exc()


class RemoteWorker:
    """A Ray actor, and the reference to its next answer."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        self.ray, self.actor, self.pending = ray, actor, None

    def send(self, request: object) -> None:
        self.pending = self.actor.answer.remote(request)

    def receive(self) -> object:
        try:
            return self.ray.get(self.pending)
        except self.ray.exceptions.RayTaskError as error:
            return str(error)
        except self.ray.exceptions.RayError as error:
            raise WorkerGone(f"has died ({type(error).__name__})", str(error)) from None

    def stop(self) -> None:
        self.ray.kill(self.actor, no_restart=True)


class Cluster:
    """A factory of workers on the cluster at `address`; by default a new Ray on this machine.

    If Ray is already running in this process, that one is used, and is not shut down.
    """

    def __init__(
        self, start: Start, shared: object, address: str | None = None, **env: str
    ) -> None:
        self.ray = installed()
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, address)
        self.create, self.shared = start, self.ray.put(shared)
        self.actor = self.ray.remote(AnsweringActor).options(
            max_restarts=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": env}
        )

    def start(self, arguments: object) -> RemoteWorker:
        return RemoteWorker(self.ray, self.actor.remote(self.create, arguments, self.shared))

    def prepare(self, request: object) -> object:
        return self.ray.put(request)

    def wait(self, workers: Sequence[RemoteWorker], seconds: float) -> Sequence[RemoteWorker]:
        pending = {x.pending: x for x in workers}
        ready, _ = self.ray.wait(list(pending), num_returns=1, timeout=seconds)
        return [pending[x] for x in ready]

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
    except Exception as error:  # Ray raises many kinds, Exception among them
        raise RecurraError(
            f"there is no Ray cluster at {address}" if address else "Ray does not start here",
            facts=str(error).partition("\n")[0],
            hint="`ray start --head` starts one, and tells its address",
        ) from None
