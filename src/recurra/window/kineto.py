"""A GPU profile by torch.profiler (Chrome's trace events) → a trace of its kernels.

    with torch.profiler.profile() as p: ...
    p.export_chrome_trace("run.json")        →   recurra window profile run.json

Grid, block, registers and shared memory are those of the launches, and the time of a block is that
of the kernel over its number of waves. Profiles do not record the memory of kernels: a kernel
follows the one before it on its stream, and, where events between streams were recorded
(`enable_cuda_sync_events`), the one that it waited for. Copies are kernels of one block.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from recurra.support import json_text
from recurra.window.gpu import Gpu
from recurra.window.task import Segment, WindowError
from recurra.window.trace import Kernel, Trace

TOKEN = 64  # bytes of the segment that represents a kernel's end
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_WAITS = re.compile(r"cu(da)?(Device|Ctx|Stream|Event)Synchronize")

Event = Mapping[str, Any]


def read_profile(data: bytes, gpu: Gpu, name: str) -> Trace:
    """Return the trace of a profile, JSON or gzipped JSON; `gpu` is the default GPU.

    Raises WindowError for what is no profile of one GPU.
    """
    profile = _parsed(data, name)
    events: list[Event] = [
        e for e in profile["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X"
    ]
    ran = [e for e in events if e.get("cat") in _ON_GPU]
    devices = sorted({_args(e).get("device", 0) for e in ran})
    if len(devices) != 1:
        raise WindowError(
            f"{name} has kernels of {'no GPU' if not devices else f'the GPUs {devices}'}",
            facts=f"{len(events)} events of {_kinds(events)}",
            hint="profile one process that uses one GPU, with ProfilerActivity.CUDA",
        )
    try:
        return Trace(name, tuple(_kernels(events, ran, _device(profile, devices[0], gpu))))
    except (KeyError, TypeError, ValueError) as error:
        raise WindowError(
            f"{name} is no profile as torch.profiler writes it",
            facts=f"{type(error).__name__}: {error}",
        ) from None


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        profile = json_text.parse(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, OSError, EOFError) as error:
        raise WindowError(f"{name} is no JSON", facts=str(error)) from None
    profile = {"traceEvents": profile} if isinstance(profile, list) else profile
    if not isinstance(profile, dict) or not isinstance(profile.get("traceEvents"), list):
        raise WindowError(f"{name} is no profile", facts="it has no list of traceEvents")
    return profile


def _args(event: Event) -> Event:
    return event.get("args", {})


def _kinds(events: Iterable[Event]) -> str:
    return ", ".join(sorted({str(e.get("cat")) for e in events})) or "no kind"


def _device(profile: Event, id_: int, gpu: Gpu) -> Gpu:
    """Return the GPU of the profile, with the limits that determine waves."""
    for p in profile.get("deviceProperties", ()):
        if p["id"] == id_:
            warps = p["maxThreadsPerMultiprocessor"] // p["warpSize"]
            registers, shared = p["regsPerMultiprocessor"], p["sharedMemPerMultiprocessor"]
            return Gpu(p["name"], p["numSms"], gpu.ghz, warps, 32, registers, shared)
    return gpu


def _kernels(events: list[Event], ran: list[Event], gpu: Gpu) -> list[Kernel]:
    """Return the kernels in the order in which the host launched them."""
    called = {
        _args(e)["correlation"]: float(e["ts"])
        for e in events
        if e.get("cat") in _CALLS and "correlation" in _args(e)
    }

    def launched(event: Event) -> float:
        return called.get(_args(event).get("correlation"), float(event["ts"]))

    ran = sorted(ran, key=lambda e: (launched(e), float(e["ts"])))
    after = _after(events, ran)
    last = _read_by_host(events, [launched(e) for e in ran])
    return [_kernel(e, k, after[k], k in last, gpu) for k, e in enumerate(ran)]


def _kernel(event: Event, index: int, after: Iterable[int], host: bool, gpu: Gpu) -> Kernel:
    args = _args(event)
    head = re.split(r"[<(]", str(event["name"]).removeprefix("void "))[0]
    kernel = Kernel(
        name=re.sub(r"[\s#=]+", "_", head.strip()) or "kernel",
        ctas=prod(args.get("grid", (1,))),
        threads=prod(args.get("block", (32,))),
        registers=max(1, int(args.get("registers per thread", 1))),
        shared=int(args.get("shared memory", 0)),
        us=max(float(event["dur"]), 1e-3),
        reads=tuple(Segment(TOKEN * j, TOKEN) for j in sorted(after)),
        writes=(Segment(TOKEN * index, TOKEN),),
        host=host,
    )
    waves = -(-kernel.ctas // (gpu.sms * max(1, gpu.per_sm(kernel))))
    return replace(kernel, us=kernel.us / waves)


def _after(events: Iterable[Event], ran: list[Event]) -> list[set[int]]:
    """Return the upstream kernels: the one before on its stream, and those that it waited for."""
    waits: dict[int, list[Event]] = {}
    for e in events:
        if e.get("cat") == "cuda_sync" and "Stream Wait" in str(e["name"]):
            waits.setdefault(_args(e)["stream"], []).append(_args(e))
    for queue in waits.values():
        queue.sort(key=lambda w: w["correlation"], reverse=True)
    streams: dict[int, list[tuple[int, int]]] = {}  # (number of the launch, kernel) so far
    found: list[set[int]] = []
    for k, e in enumerate(ran):
        stream, number = _args(e)["stream"], _args(e).get("correlation", -1)
        mine, queue = streams.get(stream, []), waits.get(stream, [])
        follows = {j for _, j in mine[-1:]}
        while queue and queue[-1]["correlation"] < number:
            w = queue.pop()
            follows |= _recorded(
                streams, w["wait_on_stream"], w["wait_on_cuda_event_record_corr_id"]
            )
        streams.setdefault(stream, []).append((number, k))
        found.append(follows)
    return found


def _recorded(streams: Mapping[int, list[tuple[int, int]]], on: int, number: int) -> set[int]:
    """Return the last kernel before an event on a stream; if unknown, the last of each stream."""
    if on < 0 or number < 0:
        return {queue[-1][1] for queue in streams.values()}
    queue = streams.get(on, [])
    at = bisect_left(queue, (number, -1))
    return {queue[at - 1][1]} if at else set()


def _read_by_host(events: Iterable[Event], launched: list[float]) -> set[int]:
    """Return the last kernel before every call in which the host waits."""
    at = [float(e["ts"]) for e in events if e.get("cat") in _CALLS and _WAITS.match(str(e["name"]))]
    return {bisect_left(launched, x) - 1 for x in at} - {-1}
