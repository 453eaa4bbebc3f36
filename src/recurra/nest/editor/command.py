"""`recurra tune edit`: edit a nest by hand, and measure every step."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from recurra.nest import kernel_store
from recurra.nest.editor import browser, terminal
from recurra.nest.editor.session import Bench, Session, described
from recurra.nest.einsum import from_sizes
from recurra.nest.loops import scheduled, untiled
from recurra.nest.problem import Post
from recurra.nest.target import host_target
from recurra.nest.tune import expect_file, read_sizes
from recurra.support import atomic_write


@dataclass(frozen=True)
class Edit:
    """Edit a nest by hand, in a terminal or a browser; GFLOPS follow every step.

    Keys: j k move the cursor, J K swap loops, digits split, A B pack, u undoes, q ends. Where
    standard input is no terminal, its lines are words: down, split_8, [B], undo, or an order.

    Example: recurra tune edit "mk,kn->mn" --sizes 128,128,128
    """

    words: Positional[str]
    """What is contracted: "mk,kn->mn", or "n(2h+r)(2w+s)c,rsck->nhwk"."""
    sizes: str
    """Extents in order of first mention, 128,64,32, or by letter, m=128,k=64,n=32."""
    order: str | None = None
    """Begin with this nest, "n/64 m/6 k m n"; by default with the one that was kept, or untiled."""
    backend: Literal["avx512", "avx2"] | None = None
    """The vector instructions; by default the widest that this machine runs."""
    dtype: Literal["f32", "f64", "bf16"] = "f32"
    """Of the inputs."""
    post: Post | None = None
    """A function of each result."""
    browser: bool = False
    """Serve a page on this machine instead; its address is printed."""
    port: int = 0
    """Of the page; by default any that is free."""
    out: Path | None = None
    """Write the nest to this file at the end, as text."""
    json: bool = False
    """Print one JSON object at the end; what is shown on the way is on standard error."""

    def __call__(self) -> int:
        problem = from_sizes(self.words, read_sizes(self.sizes), dtype=self.dtype, post=self.post)
        expect_file(self.out)
        on = host_target(self.backend)
        found = None if self.order else kernel_store.load(problem, on.name)
        start = scheduled(problem, self.order) if self.order else untiled(problem)
        nest = found.nest if found else start
        bench = Bench(nest, on)
        s = self.edited(bench, bench.begin(nest))
        if self.out is not None:
            atomic_write.save(self.out, f"{s.nest}\n")
        print(json.dumps(described(bench, s)) if self.json else f"{s.nest}\n\n{s.status}")
        return 0

    def edited(self, bench: Bench, session: Session) -> Session:
        """Run the editor in a browser, in a terminal, or on the lines of standard input."""
        if self.browser:
            return browser.run_editor(bench, session, self.port, _print_error)
        if sys.stdin.isatty() and sys.stdout.isatty():
            with terminal.screen() as show:
                return terminal.run_editor(bench, session, terminal.keys, show)
        return terminal.run_editor(bench, session, terminal.lines, _print_error)


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
