"""Programs for streams of the stub driver, and what they did."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from built import FOLDER
from random_tasks import random_program
from recurra.window import KernelError, Segment, Task
from recurra.window.history_checker import events, violations
from recurra.window.stream_issuer import GpuKernel, StreamLaunch, Streams, stub


def issue(
    program: Sequence[Task], slots: int, streams: int, *, fail_at: int | None = None, seed: int = 0
) -> tuple[Any, Streams, KernelError | None]:
    """All of it, or as much as the driver takes; kernels take a random time."""
    driver, rng, failed = stub(FOLDER), random.Random(seed), None
    if fail_at is not None:
        driver.fail_at = fail_at
    issuer = Streams(driver, slots, streams, folder=FOLDER)
    try:
        for task in program:
            issuer.launch(task, GpuKernel(us=rng.choice((0.1, 3.0, 40.0))))
        issuer.settle()
    except KernelError as error:
        failed = error
    settle(issuer)
    return driver, issuer, failed


def settle(issuer: Streams) -> KernelError | None:
    """The thread that issues has nothing to do from here on."""
    try:
        issuer.settle()
    except KernelError as error:
        return error
    return None


def broken(program: Sequence[Task], driver: Any) -> tuple[str, ...]:
    """What went wrong among those that ran, which are the first of the program. Workspaces are
    memory that is written, and that no barrier knows of."""
    happened = events(driver.spans)
    spaces = [Task("k") for _ in driver.ran]
    for ran in driver.ran:
        if size := ran.kernel.workspace:
            spaces[ran.ticket] = Task("k", writes=(Segment(ran.kernel.parameters[-1], size),))
    found = violations(program[: len(driver.ran)], happened) + violations(spaces, happened)
    return (*found, *driver.misuses)


def let_go_in_time(driver: Any, issuer: Streams) -> bool:
    """No memory was let go of while a kernel runs."""
    ended = {ticket for ticket, _, end in driver.spans if end <= driver.now}
    return {ticket for ticket, _, _ in driver.spans} - set(issuer.held()) <= ended


def segments(seed: int, known: int = 3, count: int = 14) -> list[list[StreamLaunch]]:
    """A few segments that come again and again with other parameters, and some that do not."""
    rng = random.Random(seed)

    def fresh() -> list[StreamLaunch]:
        tasks = random_program(rng.randrange(10**9), rng.randint(1, 12))
        return [
            StreamLaunch(
                task,
                GpuKernel(
                    rng.randrange(1, 4),
                    parameters=(rng.randrange(5),),
                    workspace=rng.choice((0, 0, rng.randrange(1, 3000))),
                    us=rng.choice((0.1, 3.0, 40.0)),
                ),
            )
            for task in tasks
        ]

    again = [fresh() for _ in range(known)]
    return [
        [replace(x, kernel=replace(x.kernel, parameters=(rng.randrange(3),))) for x in chosen]
        for chosen in (rng.choice(again) if rng.random() < 0.85 else fresh() for _ in range(count))
    ]


def send(parts: Iterable[Sequence[StreamLaunch]], issuer: Streams) -> KernelError | None:
    try:
        for part in parts:
            issuer.segment(part)
    except KernelError:
        pass
    return settle(issuer)


def flat(parts: Iterable[Sequence[StreamLaunch]]) -> list[StreamLaunch]:
    return [launch for part in parts for launch in part]


def same_kernels(parts: Iterable[Sequence[StreamLaunch]], driver: Any) -> bool:
    """Each ran as it was launched this time, not as its graph was made or launched before."""
    program = flat(parts)
    return all(
        (ran.kernel.function, *ran.kernel.parameters[:1])
        == (program[ran.ticket].kernel.function, *program[ran.ticket].kernel.parameters)
        for ran in driver.ran
    )
