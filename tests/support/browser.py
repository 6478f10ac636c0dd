"""A real browser without a window, driven by its own protocol (CDP) over a web socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias, cast

import aiohttp

from aiokafka_lite import _compat
from aiokafka_lite._compat import Self

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
KEY_CODES: Final = {"Tab": 9, "Enter": 13}
OPTIONS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
    "--window-size=1280,800",
)  # fmt: skip
START_S: Final = 60.0
WAIT_S: Final = 30.0


def find_browser() -> str | None:
    """Return the path of an installed browser, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def running_browser(path: str, profile: Path) -> Iterator[None]:
    """Run a browser, whose pages are those of `Browser`."""
    with subprocess.Popen(
        [path, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield
        finally:
            process.kill()


class Browser:
    """A new page of a running browser; use it in an `async with`.

    Args:
        profile: The folder of the browser's profile.

    Attributes:
        complaints: What the page wrote to its console, threw, or was refused by its policy.
    """

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Json]]] = {}
        self.complaints: list[str] = []
        # Made on entering.
        self._session: aiohttp.ClientSession
        self._socket: aiohttp.ClientWebSocketResponse[bool]
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        try:
            async with _compat.timeout(START_S):
                self._socket = await self._session.ws_connect(
                    await self._page_url(), max_msg_size=0
                )
        except BaseException:
            await self._session.close()
            raise
        self._reading = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.call("Page.close")
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._socket.close()
        await self._session.close()

    async def _page_url(self) -> str:
        """Wait until the browser says where it listens; open a page and return its address."""
        port_file = self._profile / "DevToolsActivePort"
        while True:
            try:
                port = (await asyncio.to_thread(port_file.read_text)).split()[0]
                address = f"http://127.0.0.1:{port}/json/new?about:blank"
                async with self._session.put(address) as answer:
                    return cast("str", (await answer.json())["webSocketDebuggerUrl"])
            except (OSError, IndexError, aiohttp.ClientError):
                pass
            await asyncio.sleep(0.05)

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] in (
                "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
            ):  # fmt: skip
                self.complaints.append(json.dumps(event["params"])[:1_000])

    async def call(self, method: str, **parameters: Json) -> dict[str, Json]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        event = await asyncio.wait_for(answer, WAIT_S)
        if "error" in event:
            raise RuntimeError(f"{method}: {event['error']}")
        return cast("dict[str, Json]", event["result"])

    async def goto(self, url: str) -> None:
        """Open an address and wait until its scripts have run once."""
        await self.call("Page.navigate", url=url)
        await self.wait_for(
            "location.href.startsWith('http') && document.readyState === 'complete'"
        )

    async def evaluate(self, expression: str) -> Json:
        """Return what an expression is worth on the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return cast("dict[str, Json]", result["result"]).get("value")

    async def wait_for(self, expression: str) -> None:
        """Wait until an expression is true on the page."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while not await self.evaluate(f"Boolean({expression})"):
            if loop.time() > deadline:
                shown = await self.evaluate("document.body.innerText")
                raise TimeoutError(f"{expression} did not come true; the page shows:\n{shown}")
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        code = KEY_CODES[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    async def screenshot(self, path: Path) -> None:
        """Write what the page looks like to a PNG file."""
        result = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(cast("str", result["data"])))
