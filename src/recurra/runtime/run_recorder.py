"""Record a run in a folder: metrics as they come, progress, report.html at its end or crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from recurra.errors import RecurraError
from recurra.ir.array_protocols import LibraryArray
from recurra.ir.types import Type
from recurra.report.progress import track
from recurra.report.run_page import (
    ShownProgram,
    keep_compiled,
    keep_contractions,
    keep_launches,
    write_page,
)
from recurra.report.runs import RunFolder, expect_free
from recurra.runtime.concurrency_policy import RunLaunches
from recurra.runtime.offload.paged_buffer import offloaded
from recurra.runtime.profiler import Span, watching
from recurra.runtime.run_request import RunRequest
from recurra.runtime.runner import Runner


def record_run(
    runner: Runner, program: ShownProgram, folder: str | Path, request: RunRequest
) -> dict[str, LibraryArray]:
    """Run a program and write metrics, figures and a report to `folder`.

    A resumed run appends to the metrics that are there. The folder of another run is refused.
    """
    if not str(folder):
        raise RecurraError.at_user_line(
            "the folder of a run has no name",
            facts=f"folder is {folder!r}",
            hint='name one: folder="runs/first"; "." is the one that you are in',
        )
    written = runner.compilation.written
    for name, equation in written.logs.items():
        node = written.graph[equation]
        if len(node.domain) == 1 and isinstance(node.type, Type) and not node.type.shape:
            expect_free(name, node.loc)
    with runner.launches(request) as launches:
        resume, seed = runner.start(request)
        identity = {"seed": seed, "program": runner.saver.hash}
        if resume is None or not Path(folder).exists():
            run = RunFolder.begin(folder, request.overwrite)
        elif own := RunFolder(folder).differs(identity):
            run = RunFolder.begin(folder, request.overwrite, own)
        else:
            run = RunFolder.resume(folder, resume[0])
        with run:
            run.write_config({**identity, **runner.compilation.written.sizes})
            keep_compiled(run, program)
            if program.preflight is not None:
                print(f"memory: {program.preflight['text'].splitlines()[0]}")
            print(offloaded(runner.compilation.compiled.program), end="")
            request = replace(request, resume=resume, seed=seed)
            return _recorded(runner, program, run, launches, request)


def _recorded(
    runner: Runner,
    program: ShownProgram,
    run: RunFolder,
    launches: RunLaunches,
    request: RunRequest,
) -> dict[str, LibraryArray]:
    """Run the program and write each step down; return its results."""
    total, how = runner.compilation.iterations, launches.how
    timeline = watching(launches.execution, not how)
    with track(total, run.path.name) as progress, timeline as (watch, watched):

        def step(first: int, metrics: dict[str, np.ndarray]) -> None:
            watch.step()
            count = max((len(x) for x in metrics.values()), default=0)
            for k in range(count):
                run.log(first + k + 1, **{name: float(x[k]) for name, x in metrics.items()})
            if count:
                progress.update(first + count, **{n: float(x[-1]) for n, x in metrics.items()})
            if request.on_step is not None:
                request.on_step(first, metrics)

        try:
            results = runner.run_by(watched, replace(request, on_step=step, folder=run.path))
        finally:
            kernels = keep_contractions(run, program)
            spans = ran(launches) if how else watch.spans(watched)
            keep_launches(run, spans, str(how))
            page = write_page(run)
    if how:
        print(f"launches: {how}")
    if kernels:
        print(f"contractions: {kernels}")
    print(f"report: {page}")
    return results


def ran(launches: RunLaunches) -> list[Span]:
    """The launches of a run through a window, by thread."""
    return [Span(s.name, f"thread {s.thread}", s.start, s.stop) for s in launches.spans]
