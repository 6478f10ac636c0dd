"""A server that gives tokens for credentials, over HTTP."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs

LOGIN = "org.apache.kafka.common.security.oauthbearer"
CREDENTIALS = 'clientId="reader" clientSecret="hunter2/="'


class Asked(NamedTuple):
    """What a client sent."""

    form: dict[str, list[str]]
    login: str


class TokenServer:
    """Answers as it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[], tuple[int, bytes]] = lambda: (200, b"{}")
        self.location: str | None = None
        self.pause_s = 0.0  # after each byte of a body
        # Sent instead of a response: this at once, and then these bytes with such pauses.
        self.head = b""
        self.drips: bytes | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                kind, _, encoded = self.headers["Authorization"].partition(" ")
                assert kind == "Basic"
                outer.asked.append(Asked(form, base64.b64decode(encoded).decode()))
                if outer.drips is not None:
                    self.wfile.write(outer.head)
                    self.drip(outer.drips)
                    return
                status, body = outer.answer()
                self.send_response(status)
                if outer.location is not None:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if not outer.pause_s:
                    self.wfile.write(body)
                    return
                self.drip(body)

            def drip(self, sent: bytes) -> None:
                with suppress(OSError):  # the client does not wait for all
                    for byte in sent:
                        self.wfile.write(bytes([byte]))
                        time.sleep(outer.pause_s)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/token"

    def give(self, token: str, **others: object) -> None:
        body = json.dumps({"access_token": token, **others}).encode()
        self.answer = lambda: (200, body)


def token_server() -> Iterator[TokenServer]:
    """What a fixture yields from: a server in a thread."""
    server = TokenServer()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()
