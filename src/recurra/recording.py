"""Records a run in a folder: metrics as they come, progress, report.html at its end or crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.judged import Launches
from recurra.program.swapped import swapped
from recurra.report.progress import track
from recurra.report.run_page import keep_compiled, keep_contractions, keep_launches, write_page
from recurra.report.runs import RunFolder
from recurra.watched import Span, watching

if TYPE_CHECKING:
    from recurra.executable import Executable, OnStep


def record(
    program: Executable,
    launches: Launches,
    folder: str | Path,
    seed: int,
    on_step: OnStep | None = None,
    **options: Any,
) -> dict[str, Any]:
    """`program.run`, with everything a person wants to see of it in `folder`.

    A resumed run goes on with the metrics that are there.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    run = RunFolder(Path(folder))
    resume = options.get("resume")
    if isinstance(resume, (str, Path)):
        options["resume"], seed = program.saver.load(resume)
        run = RunFolder.resume(run.path, options["resume"][0])
    elif resume is None:
        run.metrics.unlink(missing_ok=True)  # a fresh run of the same name
    run.write_config({"seed": seed, **program.sizes})
    keep_compiled(run, program)
    if program.preflight is not None:
        print(f"memory: {str(program.memory).splitlines()[0]}")
    print(swapped(program.compiled.program), end="")
    total, how = program.iterations, launches.how
    looked = watching(launches.execution, not how)
    with run, track(total, run.path.name) as progress, looked as (watch, seen):

        def step(first: int, metrics: dict[str, Any]) -> None:
            watch.step()
            count = max((len(x) for x in metrics.values()), default=0)
            for k in range(count):
                run.log(first + k + 1, **{name: float(x[k]) for name, x in metrics.items()})
            if count:
                progress.update(first + count, **{n: float(x[-1]) for n, x in metrics.items()})
            if on_step is not None:
                on_step(first, metrics)

        try:
            results = program.run_by(seen, seed, on_step=step, **options)
        finally:
            kernels = keep_contractions(run, program)
            spans = ran(launches) if how else watch.spans(seen)
            keep_launches(run, spans, str(how))
            page = write_page(run)
    if how:
        print(f"launches: {how}")
    if kernels:
        print(f"contractions: {kernels}")
    print(f"report: {page}")
    return results


def ran(launches: Launches) -> list[Span]:
    """What a run through a window did in which thread."""
    return [Span(s.name, f"thread {s.thread}", s.start, s.stop) for s in launches.spans]
