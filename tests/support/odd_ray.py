"""What we call of Ray, in this process: actors are threads, and what they are sent is pickled.

Refs in place of arguments arrive as what they stand for, arrays read-only, as out of its store. An
actor dies of `SystemExit`, or when it is killed: what it owes is an error then, as in Ray.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class RayError(Exception): ...


class RayTaskError(RayError): ...


class ActorDiedError(RayError): ...


class Ref:
    """Something that will be there."""

    def __init__(self) -> None:
        self.done, self.value = threading.Event(), None

    def put(self, value: Any) -> Ref:
        if not self.done.is_set():  # who has died before it answered does not answer any more
            self.value = value
            self.done.set()
        return self


class Buffers:
    """Pickled, with arrays outside, which arrive read-only."""

    def __init__(self, value: Any) -> None:
        self.arrays: list[pickle.PickleBuffer] = []
        self.words = pickle.dumps(value, protocol=5, buffer_callback=self.arrays.append)

    def opened(self) -> Any:
        return pickle.loads(self.words, buffers=[x.raw().toreadonly() for x in self.arrays])


class Ray:
    """The module."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.actors: list[Handle] = []
        self.puts = 0
        self.begun: dict[str, Any] | None = None
        self.options: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return self.begun is not None

    def init(self, address: str, **options: Any) -> None:
        if address != "local":
            raise ConnectionError(f"Could not find any running Ray instance at {address}\nmore")
        assert options["runtime_env"]["py_modules"][0].endswith("/recurra")
        self.begun = {"address": address, **options}

    def shutdown(self) -> None:
        self.begun = None

    def put(self, value: Any) -> Ref:
        self.puts += 1
        return Ref().put(Buffers(value))

    def get(self, ref: Ref) -> Any:
        ref.done.wait()
        if isinstance(ref.value, Exception):
            raise ref.value
        assert isinstance(ref.value, Buffers)
        return ref.value.opened()

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout: float
    ) -> tuple[list[Ref], list[Ref]]:
        end = time.monotonic() + timeout
        while True:
            done = [x for x in refs if x.done.is_set()][:num_returns]
            if len(done) == num_returns or time.monotonic() >= end:
                return done, [x for x in refs if x not in done]
            time.sleep(0.001)

    def kill(self, actor: Handle, *, no_restart: bool) -> None:
        assert no_restart
        actor.die()

    def end(self) -> None:
        """Of the test: no thread is left."""
        for actor in self.actors:
            actor.die()
            actor.thread.join()

    def remote(self, kind: type) -> Kind:
        return Kind(self, kind)


class Kind:
    """What `ray.remote` makes of a class."""

    def __init__(self, ray: Ray, kind: type) -> None:
        self.ray, self.kind = ray, kind

    def options(self, **options: Any) -> Kind:
        self.ray.options = options
        return self

    def remote(self, *arguments: Any) -> Handle:
        handle = Handle(self.kind, [Buffers(x) if not isinstance(x, Ref) else x for x in arguments])
        self.ray.actors.append(handle)
        return handle


class Handle:
    """An actor from outside."""

    def __init__(self, kind: type, arguments: Sequence[Any]) -> None:
        self.todo: queue.Queue[tuple[Ref, Any] | None] = queue.Queue()
        self.owed: list[Ref] = []
        self.dead = False
        self.answer = SimpleNamespace(remote=self.asked)
        self.thread = threading.Thread(target=self.live, args=(kind, arguments), daemon=True)
        self.thread.start()

    def asked(self, request: Any) -> Ref:
        ref = Ref()
        self.owed.append(ref)
        if self.dead:
            return ref.put(ActorDiedError("the actor is dead"))
        self.todo.put((ref, request))
        return ref

    def live(self, kind: type, arguments: Sequence[Any]) -> None:
        one = kind(*map(_opened, arguments))
        while (found := self.todo.get()) is not None and not self.dead:
            ref, request = found
            if (answered := self.done(one.answer, request)) is not None:
                ref.put(answered)

    def done(self, answer: Callable[[Any], Any], request: Any) -> Any:
        try:
            return Buffers(answer(_opened(request)))
        except SystemExit:
            print("(raylet) A worker died or was killed")  # as Ray does, on standard output
            self.die()
            return None
        except Exception as error:
            return RayTaskError(str(error))

    def die(self) -> None:
        self.dead = True
        self.todo.put(None)
        for ref in self.owed:
            ref.put(ActorDiedError("The actor died unexpectedly before finishing this task."))


def _opened(argument: Any) -> Any:
    found = argument.value if isinstance(argument, Ref) else argument
    assert isinstance(found, Buffers)
    return found.opened()
