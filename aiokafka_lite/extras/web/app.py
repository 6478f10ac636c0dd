"""The pages as an aiohttp application, on its own port or in another application, and for ASGI."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import parse_qsl, quote

from aiokafka_lite._pages import Answer
from aiokafka_lite.extras.web.pages import Pages, Shown
from aiokafka_lite.extras.web.processes import ProcessPages

if TYPE_CHECKING:
    from aiohttp import web


EXTRA: Final = ("aiohttp", "prometheus_client")


def application(consumer: Shown | ProcessPages, *, hosts: Collection[str] = ()) -> web.Application:
    """Return an aiohttp application that shows a consumer's state. The module lists its paths.

    Serve it on its own or mount it with `add_subapp`, in the consumer's event loop. The consumer
    may start before or after, and is not kept alive.

    Args:
        consumer: The consumer, or a function that returns it, or None until the consumer exists.
        hosts: Accepted host names without a port, such as "consumer.svc.cluster.local". IP
            addresses and "localhost" are always accepted.

    Raises:
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    require_web()
    from aiokafka_lite._pages.serving import application_of

    return application_of(_pages_of(consumer, hosts).answer)


def require_web() -> None:
    try:
        for name in EXTRA:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'aiokafka-lite[web]'", name=error.name
        ) from error


LOOPBACK: Final = "127.0.0.1"


@asynccontextmanager
async def serve(
    consumer: Shown | ProcessPages,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    hosts: Collection[str] = (),
) -> AsyncIterator[str]:
    """Serve a consumer's state during an `async with` block, which yields the page's address.

    Enter the block before the consumer starts, in the same event loop, and leave it after the
    consumer has stopped, so that the page can show the cause. Leaving waits at most 0.5 s.

    Args:
        consumer: As for `application`.
        host: The address to listen on. "0.0.0.0" serves every client that can reach this machine.
        port: 0 uses a free port.
        hosts: As for `application`.

    Raises:
        KafkaConnectionError: The address cannot be listened on.
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    require_web()
    from aiokafka_lite._pages.serving import listening

    answer = _pages_of(consumer, hosts).answer
    del consumer  # serving must not keep it alive
    name, hint = "the consumer's page", ", or 0 for a free one"
    async with listening(answer, host, port, name=name, hint=hint) as url:
        yield url


def _pages_of(consumer: Shown | ProcessPages, hosts: Collection[str]) -> Pages | ProcessPages:
    return consumer if isinstance(consumer, ProcessPages) else Pages(consumer, hosts)


# --- ASGI, which needs no other package ------------------------------------------------------
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
