"""Contests → mapping.html, and the paper's figures 5, 6 and 8 as PNG beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Row
from recurra.errors import RecurraError
from recurra.mapping.pictures import STYLE, layout
from recurra.mapping.simulate import correlation, simulate
from recurra.report.html import table_html
from recurra.storage.mapping_problem import Solution

if TYPE_CHECKING:
    from benchmarks.mapping.runs import Contest

SHOWN = ("default", "evolution", "random", "xla-like", "mcts")  # figure 5
COLORS = ("#d1495b", "#30638e", "#8d6a4f", "#444444", "#5b8c5a", "#c58b00")
ACROSS, WORST = 4, 3
DOTS = 110  # per inch
_TABLE = """
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .2rem .6rem;
  border-bottom: 1px solid light-dark(#ddd, #333); text-align: left; } img { max-width: 100%;
  background: #fff; } figure { margin: 1rem 0; } figcaption { font-size: 14px; }
"""


def expect_room(out: Path) -> None:
    """Raises `RecurraError`, before anything is measured, if the figures could not be written."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise RecurraError(
            "figures need Matplotlib, which is not installed",
            hint='pip install "recurra[figures]", or leave --out out',
        ) from None
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "mapping.html").touch()
    except OSError as error:
        raise RecurraError(f"{out} cannot be written", facts=str(error)) from None


def write(out: Path, contests: Sequence[Contest], rows: Sequence[Row]) -> None:
    """mapping.html, which holds the figures, and each of them as a file."""
    pictures = {
        "reward.png": (
            _png(reward_over_time(contests)),
            "Reward over time, of all seeds (figure 5)",
        ),
        "correlation.png": (
            rewards_and_latencies(contests),
            "Reward and latency of answers from all stages, where the default solver gains most "
            "and least over the XLA-like one (figure 6, table 5)",
        ),
    }
    parts = _figures(out, pictures)
    parts += [_layouts(c) for c in contests if c.problem.name == "alexnet_train"]
    _write_page(out / "mapping.html", "Memory mapping", parts, rows)


def write_learning(
    out: Path, contests: Sequence[Contest], rows: Sequence[Row], who: Sequence[str]
) -> None:
    """learning.html, .png, .svg: reward over CPU time of agents and those beside them."""
    caption = "Reward over CPU time, of all seeds (figures 5 and 7)"
    figure = reward_over_time(contests, who)
    parts = _figures(out, {"learning.png": (_png(figure), caption)})
    (out / "learning.svg").write_text(_svg(figure), encoding="utf-8")
    _write_page(out / "learning.html", "Agents that learn the mapping game", parts, rows)


def _figures(out: Path, pictures: dict[str, tuple[bytes, str]]) -> list[str]:
    """Writes them; how a page shows them."""
    parts: list[str] = []
    for name, (data, caption) in pictures.items():
        (out / name).write_bytes(data)
        text = base64.b64encode(data).decode()
        parts.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{text}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    return parts


def _write_page(path: Path, title: str, parts: Sequence[str], rows: Sequence[Row]) -> None:
    table = table_html([_shown(row) for row in rows])
    body = "".join([f"<h1>{title}</h1>", *parts, "<h2>All figures</h2>", table])
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}{_TABLE}</style><body>{body}</body></html>\n"
    )


def _shown(row: Row) -> dict[str, Any]:
    limit = "" if row.limit is None else f"{row.limit:.4g}"
    numbers = {"ours": row.ours, "theirs": row.theirs, "ratio": row.ratio}
    shown = {k: f"{v:.4g}" for k, v in numbers.items()}
    low, high = row.ci95
    return {
        **{"case": row.case, "metric": row.metric, "peer": row.peer},
        **shown,
        **{"95 %": f"{low:.3g} to {high:.3g}", "limit": limit},
    }


def _layouts(contest: Contest) -> str:
    """Figure 8: what the two solvers keep in fast memory."""
    drawn = ""
    for who in ("default", "xla-like"):
        answer = contest.found[who][0].answer
        drawn += f"<h2>{escape(contest.problem.name)} by {who} (figure 8)</h2>"
        drawn += layout(contest.problem, answer)
    return drawn


def reward_over_time(contests: Sequence[Contest], shown: Sequence[str] = SHOWN) -> Any:
    """A panel per instance, a line per solver and seed; the dashed line is the bound."""
    figure, panels = _panels(len(contests))
    for ax, c in zip(panels, contests, strict=False):
        ax.set_title(f"{c.problem.name}, {len(c.problem.buffers)} buffers", fontsize=9)
        for who, color in zip(shown, COLORS, strict=False):
            for k, run in enumerate(c.found.get(who, ())):
                if run.curve:
                    times, rewards = (np.array(x, float) for x in zip(*run.curve, strict=True))
                    ends = np.append(times, max(c.seconds, times[-1]))
                    values = np.append(rewards, rewards[-1]) / c.total
                    label = None if k else who
                    ax.step(ends, values, where="post", color=color, lw=1, label=label)
        ax.axhline(c.limit, color="#222", ls="--", lw=0.8)
        ax.set_xlabel("CPU seconds", fontsize=8)
        ax.set_ylabel("share of all to gain", fontsize=8)
    panels[0].legend(fontsize=7, loc="lower right")
    return figure


def rewards_and_latencies(contests: Sequence[Contest]) -> bytes:
    """The best and the worst three by speedup, a point per answer."""
    ranked = sorted(contests, key=lambda c: -c.speedup)
    shown = ranked if len(ranked) <= 2 * WORST else [*ranked[:WORST], *ranked[-WORST:]]
    figure, panels = _panels(len(shown), WORST)
    for ax, c in zip(panels, shown, strict=False):
        answers = c.stages()
        rewards = [s.reward(c.problem) / c.total for s in answers]
        ax.scatter(rewards, [_microseconds(c, s) for s in answers], s=14, color=COLORS[0])
        r = correlation(c.problem, answers)
        title = f"{c.problem.name}: {c.speedup:.2f} times as fast, r = {r:.4f}"
        ax.set_title(title, fontsize=8)
        ax.set_xlabel("share of all to gain", fontsize=8)
        ax.set_ylabel("simulated µs", fontsize=8)
    return _png(figure)


def _microseconds(contest: Contest, answer: Solution) -> float:
    return simulate(contest.problem, answer, contention=True).latency / 1e6


def _panels(count: int, across: int = ACROSS) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(3.2 * across, 2.5 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Any] = list(np.ravel(figure.subplots(down, across, squeeze=False)))
    for ax in panels[count:]:
        ax.axis("off")
    for ax in panels[:count]:
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
    return figure, panels


def _png(figure: Any) -> bytes:
    data = BytesIO()
    figure.savefig(data, format="png", dpi=DOTS)
    return data.getvalue()


def _svg(figure: Any) -> str:
    """Text stays text: small, and drawn by whoever shows it."""
    import matplotlib as mpl

    data = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "recurra"}):
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()
