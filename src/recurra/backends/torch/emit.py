"""Recorded code as Python source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from recurra.backends.torch.cuda_graphs import CapturedLoop
from recurra.backends.torch.recorded_code import Bind, For, Item, StraightLineCode, Write, kernels
from recurra.backends.torch.recorder import Recorder
from recurra.support.source_text import moves, tuple_of


def emit(
    region: str,
    takes: list[str],
    gives: list[str],
    recorder: Recorder,
    loops: Sequence[CapturedLoop] = (),
) -> str:
    """The source of a region: constants, a function per kernel and captured loop, and its own.

    To be called after `finish`.
    """
    out = [f"{name} = {text}" for text, name in recorder.constants.items()]
    for k in kernels(recorder.items):
        out += ["", *_kernel(k, recorder.aliases)]
    for c in loops:
        out += ["", f"def {c.name}({', '.join((*c.takes, *c.stores))}):"]
        out += [f"    {line}" for line in _items([c.loop])]
        out.append(f"    return {tuple_of(c.gives)}")
    apart = {c.name: c for c in loops}
    out += ["", f"def {region}({', '.join(takes)}):"]
    out += [f"    {line}" for line in _items(recorder.items, apart)]
    out.append(f"    return {tuple_of(gives)}")
    return "\n".join(out) + "\n"


def _kernel(kernel: StraightLineCode, aliases: set[str]) -> list[str]:
    """The source of a kernel; results that are views of a store, which will change, are cloned."""
    head = f"def {kernel.name}({', '.join((*kernel.takes, *kernel.views))}):"
    lines = [f"    {name} = {text}" for name, text in kernel.lines]
    gives = [f"{n}.clone()" if n in aliases else n for n in kernel.gives]
    return [head, *lines, f"    return {tuple_of(gives)}"]


def _items(
    items: list[Item], apart: Mapping[str, CapturedLoop] = MappingProxyType({})
) -> list[str]:
    out: list[str] = []
    for it in items:
        if isinstance(it, For) and (c := apart.get(it.name)) is not None:
            call = f"{c.name}({', '.join((*c.takes, *c.stores))})"
            out.append(f"{_targets(c.gives)} = {call}" if c.gives else call)
            continue
        match it:
            case StraightLineCode():
                takes = ", ".join((*it.takes, *it.views.values()))
                out.append(f"{_targets(it.gives)} = {it.name}({takes})")
            case Write():
                out.append(f"{it.target}.copy_({it.value})")
            case Bind():
                out.append(f"{it.name} = {it.text}")
            case For():
                out += [f"{n} = {start}" for n, start in it.starts]
                out.append(f"for {it.clock} in range({it.lo}, {it.hi}):")
                body = [f"if {it.stop}:", "    break"] if it.stop else []
                body += _items(it.body, apart)
                body += moves(it.steps)
                out += [f"    {line}" for line in body or ["pass"]]
    return out


def _targets(names: Iterable[str]) -> str:
    found = list(names)
    return f"{found[0]}," if len(found) == 1 else ", ".join(found)
