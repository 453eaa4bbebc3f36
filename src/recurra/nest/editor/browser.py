"""The editor in a browser: one page, served on this machine under a secret path."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files

from recurra.errors import RecurraError
from recurra.nest.editor.session import Bench, Session, described

LONGEST = 4096  # bytes of a request


class EditorServer(HTTPServer):
    """A server of the page, and of the session after a word."""

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
    server: EditorServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.path == f"/{self.server.secret}":
            page = (files("recurra.nest.editor") / "page.html").read_text(encoding="utf-8")
            self.reply(200, "text/html; charset=utf-8", page)
        else:
            self.reply(404, "text/plain", "not here")

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != f"/{self.server.secret}" or size > LONGEST:
            self.reply(404, "text/plain", "not here")
            return
        word = self.rfile.read(size).decode(errors="replace").strip()
        self.reply(200, "application/json", json.dumps(self.server.word(word)))

    def reply(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal is the user's."""


def run_editor(bench: Bench, session: Session, port: int, report: Callable[[str], None]) -> Session:
    """Serve until the page or Ctrl-C ends it; return the last session."""
    try:
        server = EditorServer(bench, session, port)
    except (OSError, OverflowError) as error:
        raise RecurraError(f"port {port} cannot be served", facts=str(error)) from None
    report(f"edit at {server.address}; end with the page's button, or Ctrl-C")
    with server:
        try:
            while not server.ended:
                server.handle_request()
        except KeyboardInterrupt:
            pass
    return server.session
