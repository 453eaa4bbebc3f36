"""The editor in a browser: one page, served on this machine to whoever has its secret."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files

from recurra.errors import RecurraError
from recurra.nest.editor.session import Bench, Session, described

LONGEST = 4096  # bytes of a request


class Served(HTTPServer):
    """The session, and what may be asked: the page, and the session after a word."""

    def __init__(self, bench: Bench, session: Session, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.bench, self.session = bench, session
        self.secret = secrets.token_urlsafe(16)
        self.ended = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.secret}"

    def word(self, word: str) -> dict[str, object]:
        if word == "quit":
            self.ended = True
        elif word:
            self.session = self.bench.after(self.session, word)
        return described(self.bench, self.session)


class Handler(BaseHTTPRequestHandler):
    server: Served  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.path == f"/{self.server.secret}":
            self.give(200, "text/html; charset=utf-8", page())
        else:
            self.give(404, "text/plain", "not here")

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != f"/{self.server.secret}" or size > LONGEST:
            self.give(404, "text/plain", "not here")
            return
        word = self.rfile.read(size).decode(errors="replace").strip()
        self.give(200, "application/json", json.dumps(self.server.word(word)))

    def give(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""


@cache
def page() -> str:
    return (files("recurra.nest.editor") / "page.html").read_text(encoding="utf-8")


def edited(bench: Bench, session: Session, port: int, say: Callable[[str], None]) -> Session:
    """Serves until the page, or an interrupt, ends it."""
    try:
        server = Served(bench, session, port)
    except (OSError, OverflowError) as error:
        raise RecurraError(f"port {port} cannot be served", facts=str(error)) from None
    say(f"edit at {server.address}; end with the page's button, or Ctrl-C")
    with server:
        try:
            while not server.ended:
                server.handle_request()
        except KeyboardInterrupt:
            pass
    return server.session
