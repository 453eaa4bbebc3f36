"""Pictures of a mapping: steps to the right, addresses upwards, one color per tensor.

They follow figures 1 and 8 of the paper; the reward over time follows figure 5. The page is
self-contained, with details under the pointer. The PNG has the layout alone.
"""

from __future__ import annotations

import colorsys
import itertools
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.simulate import simulate
from recurra.storage.mapping_problem import Placement, Problem, Solution, copy_steps

WIDE, HIGH = 1200, 520  # size of the drawing
GOLDEN = 0.618034  # the golden ratio
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1280px; padding: 0 1rem;
  color: light-dark(#1c1c1c, #e8e8e8); background: light-dark(#fdfcf9, #12151b);
  color-scheme: light dark; }
svg { width: 100%; height: auto; background: light-dark(#fff, #181c24); }
rect.b:hover { stroke: light-dark(#000, #fff); stroke-width: 2; }
text { font-size: 13px; fill: currentColor; }
.axis { stroke: currentColor; stroke-opacity: .4; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
"""


def page(
    problem: Problem,
    solution: Solution,
    curve: Sequence[tuple[float, int]] = (),
    bound: int | None = None,
) -> str:
    """Return a self-contained page; `curve`: (CPU seconds, best reward) of the solver."""
    parts = [
        f"<h1>{escape(problem.name)}</h1><p>{escape(str(problem))}</p>",
        f"<p>{escape(str(solution))}; {_summary(problem, solution, bound)}</p>",
        "<h2>Fast memory: steps to the right, addresses upwards, one color per tensor</h2>",
        layout(problem, solution),
    ]
    if curve:
        parts += ["<h2>Share of what there is to gain, by seconds of CPU</h2>"]
        parts += [reward_over_time(problem, curve, bound)]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(problem.name)}'
        f"</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _summary(problem: Problem, solution: Solution, bound: int | None) -> str:
    reward, total = solution.reward(problem), max(1, problem.total)
    run = simulate(problem, solution, contention=True)
    text = f"{reward / total:.4f} of all there is to gain"
    if bound is not None:
        text += f", at most {bound / total:.4f} can be had"
    return (
        f"{text}; simulated {run.latency / 1e6:,.1f} µs, of which {run.stalls / 1e6:,.1f} waiting"
    )


def layout(problem: Problem, solution: Solution) -> str:
    """Return the drawing alone, as SVG."""
    x, y = WIDE / problem.steps, HIGH / max(1, problem.fast_size)
    shapes: list[str] = []
    for i, (b, p) in enumerate(zip(problem.buffers, solution.placements, strict=True)):
        if p is None:
            continue
        wide, high = (p.end - p.start + 1) * x, b.size * y
        r, g, blue = color(b.tensor_id)
        shapes.append(
            f'<rect class="b" x="{p.start * x:.1f}" y="{HIGH - (p.offset + b.size) * y:.1f}" '
            f'width="{max(wide, 0.6):.1f}" height="{max(high, 0.6):.1f}" '
            f'fill="#{r:02x}{g:02x}{blue:02x}">'
            f"<title>{escape(_tooltip(problem, i, p))}</title></rect>"
        )
    mebibytes = problem.fast_size / 2**20
    labels = (
        f'<text x="0" y="{HIGH + 18}">step 0</text>'
        f'<text x="{WIDE}" y="{HIGH + 18}" text-anchor="end">step {problem.steps - 1}</text>'
        f'<text x="4" y="-6">{mebibytes:,.3g} MiB</text>'
        f'<path class="axis" d="M0 0V{HIGH}H{WIDE}" fill="none"/>'
    )
    box = f'viewBox="-2 -24 {WIDE + 4} {HIGH + 48}"'
    return f'<svg {box} role="img" aria-label="layout">{"".join(shapes)}{labels}</svg>'


def _tooltip(problem: Problem, index: int, placement: Placement) -> str:
    b = problem.buffers[index]
    lines = [
        f"tensor {b.tensor_id}, {'output' if b.is_output else 'operand'} of "
        f"{problem.instructions[b.target_time].name} (step {b.target_time})",
        f"{b.size:,} B at {placement.offset:,}, steps {placement.start} to {placement.end}",
        f"gains {b.benefit / 1e6:,.3f} µs alone",
    ]
    if steps := copy_steps(b, placement):
        way = "out" if b.is_output else "in"
        lines.append(f"copied {way} in steps {steps[0]} to {steps[-1]}")
    return "\n".join(lines)


def color(tensor: int) -> tuple[int, int, int]:
    """Return red, green and blue; consecutive tensors are far apart in hue."""
    light = 0.55 + 0.1 * (tensor % 3 - 1)
    rgb = colorsys.hls_to_rgb(tensor * GOLDEN % 1.0, light, 0.3 / min(light, 1 - light))
    red, green, blue = (round(255 * x) for x in rgb)
    return red, green, blue


def reward_over_time(
    problem: Problem, curve: Sequence[tuple[float, int]], bound: int | None
) -> str:
    """Return a step curve of the reward, with the bound above it, as SVG."""
    high, total = 220, max(1, problem.total)
    last = max(1e-9, max(t for t, _ in curve))
    top = max(1e-9, max(reward for _, reward in curve) / total, (bound or 0) / total)

    def at(t: float, reward: float) -> str:
        return f"{t / last * WIDE:.1f} {high * (1 - reward / total / top):.1f}"

    path = f"M{at(curve[0][0], curve[0][1])}"
    for (_, before), (t, reward) in itertools.pairwise(curve):
        path += f"L{at(t, before)}L{at(t, reward)}"
    lines = f'<path d="{path}" fill="none" stroke="#0b7a80" stroke-width="2"/>'
    if bound is not None:
        lines += (
            f'<path d="M{at(0, bound)}L{at(last, bound)}" stroke="#b8456b" stroke-dasharray="6"/>'
        )
        lines += f'<text x="4" y="14">bound {bound / total:.4f}</text>'
    lines += f'<text x="{WIDE}" y="{high + 18}" text-anchor="end">{last:.3g} s, best '
    lines += f"{curve[-1][1] / total:.4f}</text>"
    lines += f'<path class="axis" d="M0 0V{high}H{WIDE}" fill="none"/>'
    return f'<svg viewBox="-2 -4 {WIDE + 4} {high + 28}" role="img">{lines}</svg>'


def png(problem: Problem, solution: Solution, wide: int = WIDE, high: int = HIGH) -> bytes:
    """Return the layout as an image, white where nothing is placed."""
    pixels = np.full((high, wide, 3), 255, np.uint8)
    for b, p in zip(problem.buffers, solution.placements, strict=True):
        if p is not None:
            left, right = p.start * wide // problem.steps, (p.end + 1) * wide // problem.steps
            bottom = p.offset * high // max(1, problem.fast_size)
            top = (p.offset + b.size) * high // max(1, problem.fast_size)
            rows = slice(high - max(top, bottom + 1), high - bottom)
            pixels[rows, left : max(right, left + 1)] = color(b.tensor_id)
    return _encode_png(pixels)


def _encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode [H, W, 3] as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    high, wide, _ = pixels.shape
    lines = np.concatenate([np.zeros((high, 1), np.uint8), pixels.reshape(high, -1)], axis=1)
    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines.tobytes()))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")
