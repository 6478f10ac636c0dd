"""The pages as an ASGI application, which takes nothing but Python."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import TypeAlias, cast
from urllib.parse import parse_qsl, quote

from aiokafka_lite._pages import Answer
from aiokafka_lite.extras.web.measured import Shown
from aiokafka_lite.extras.web.pages import Pages

Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


def asgi(consumer: Shown, *, hosts: Collection[str] = ()) -> Application:
    """Return an ASGI application that shows a consumer; see the module for what it serves.

    For FastAPI and Starlette, `app.mount("/kafka", asgi(…))`, or for a server such as uvicorn by
    itself; it has to run in the loop of the consumer, which may be started before or after. It
    neither starts nor stops it, nor keeps it alive. The limit of connections is the server's.

    Args:
        consumer: It is only read. Or a function that returns the one to show, or None while
            there is none: a consumer is made in a running loop, and an application often before.
        hosts: Names, without a port, under which it is asked for besides IP addresses and
            "localhost": "consumer.svc.cluster.local".
    """
    return _Asgi(Pages(consumer, hosts))


class _Asgi:
    """Translates; what is answered is up to the pages."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                told = str((await receive())["type"])  # lifespan.startup, lifespan.shutdown
                await send({"type": f"{told}.complete"})
                if told == "lifespan.shutdown":
                    return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        method = str(scope["method"])
        answer = await self._answer(scope, method)
        headers = {**answer.headers, "Content-Length": str(len(answer.body))}
        del headers["Server"]  # it names itself
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [
                    (name.lower().encode(), value.encode("latin-1"))
                    for name, value in headers.items()
                ],
            }
        )
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})

    async def _answer(self, scope: Message, method: str) -> Answer:
        root_path, path = _split(scope)
        if not path:  # the page's own paths begin where it is
            last = quote(root_path.rpartition("/")[2])
            return Answer(b"", status=307, more_headers=(("Location", f"{last}/"),))
        given = cast("list[tuple[bytes, bytes]]", scope["headers"])
        hosts = [value.decode("latin-1") for name, value in given if name == b"host"]
        query = parse_qsl(cast("bytes", scope["query_string"]).decode("latin-1"))
        return await self._pages.answer(method, hosts, path[1:], dict(reversed(query)))


def _split(scope: Message) -> tuple[str, str]:
    """Return under which path it is mounted, and what is asked for below that."""
    path, root_path = str(scope["path"]), str(scope.get("root_path", ""))
    # By the specification the path has both; there are servers and frameworks that strip it.
    if root_path and (path == root_path or path.startswith(f"{root_path}/")):
        path = path[len(root_path) :]
    return root_path, path
