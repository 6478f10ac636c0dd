"""The pages as an ASGI application, which needs no other package."""

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
    """Return an ASGI application that shows a consumer's state, as `application` does.

    Mount it in FastAPI or Starlette with `app.mount("/kafka", asgi(…))`, or run it in a server such
    as uvicorn, which limits the connections.

    Args:
        consumer: As for `application`. A function, if the application is created before a loop
            runs.
        hosts: As for `application`.
    """
    return _Asgi(Pages(consumer, hosts))


class _Asgi:
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
        del headers["Server"]  # the server sends its own
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
        if not path:  # the page's relative paths need the slash
            last = quote(root_path.rpartition("/")[2])
            return Answer(b"", status=307, more_headers=(("Location", f"{last}/"),))
        given = cast("list[tuple[bytes, bytes]]", scope["headers"])
        hosts = [value.decode("latin-1") for name, value in given if name == b"host"]
        query = parse_qsl(cast("bytes", scope["query_string"]).decode("latin-1"))
        return await self._pages.answer(method, hosts, path[1:], dict(reversed(query)))


def _split(scope: Message) -> tuple[str, str]:
    path, root_path = str(scope["path"]), str(scope.get("root_path", ""))
    # By the specification the path includes root_path; some servers and frameworks strip it.
    if root_path and (path == root_path or path.startswith(f"{root_path}/")):
        path = path[len(root_path) :]
    return root_path, path
