"""Answers by way of aiohttp."""

from __future__ import annotations

from aiohttp import web

from aiokafka_lite._pages.answers import Answer


def hosts_of(request: web.Request) -> list[str]:
    """Return the names that a request asks for."""
    return request.headers.getall("Host", [])


def response(answer: Answer) -> web.Response:
    """Return an answer as aiohttp sends it."""
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)
