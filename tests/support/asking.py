"""Requests over HTTP, sent as they are written: no client corrects paths, hosts or methods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

Fields: TypeAlias = "dict[str, object]"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def fields(self) -> Fields:
        """Return the JSON object that it holds."""
        fields = json.loads(self.body)
        assert isinstance(fields, dict)
        return fields

    def rows(self) -> list[Fields]:
        """Return the rows of that."""
        rows = self.fields()["rows"]
        assert isinstance(rows, list)
        return rows


async def ask(url: str, request: str | None = None, **headers: str) -> Answer:
    """Send a request and return the answer."""
    parts = urlsplit(url)
    request = request or f"GET {parts.path}?{parts.query} HTTP/1.1"
    lines = {"Host": parts.netloc, "Connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"{request}\r\n{head}\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    first, _, rest = answer.partition(b"\r\n")
    head_bytes, _, body = rest.partition(b"\r\n\r\n")
    fields = (line.partition(": ") for line in head_bytes.decode().split("\r\n"))
    return Answer(int(first.split()[1]), {name: value for name, _, value in fields}, body)
