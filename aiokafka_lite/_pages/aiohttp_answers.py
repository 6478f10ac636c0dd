"""Answers by way of aiohttp."""

from __future__ import annotations

from aiohttp import web

from aiokafka_lite._pages.answers import Answer


def hosts_of(request: web.Request) -> list[str]:
    return request.headers.getall("Host", [])


def response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)
