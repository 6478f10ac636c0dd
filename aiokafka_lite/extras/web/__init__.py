"""A consumer over HTTP: ``/health``, ``/metrics`` for Prometheus, and a page that follows it live.

Around a consumer's life, on a port of its own, or within an application of aiohttp, FastAPI or
Starlette::

    from aiokafka_lite.extras import web

    async with web.serve(consumer, port=8080):
        async with consumer:
            async for record in consumer:
                ...

    app.add_subapp("/kafka/", web.application(consumer))  # aiohttp
    app.mount("/kafka", web.asgi(lambda: app.state.consumer))  # FastAPI, Starlette

It only reads: GET and HEAD, no request changes anything or goes to a broker. It shows the names of
topics, the group and the client, and what the worker has ended by, to everybody who can reach the
port, which by default is this machine. ``/health`` and ``/metrics`` answer under every name. The
page answers to IP addresses and to "localhost"; other names have to be in `hosts`, so that no
foreign web page can read it under a name of its own (DNS rebinding).

=================  =================================================================================
``/``              the page, which reads the three below every second or two
``/health``        `AIOKafkaConsumer.health` as JSON; 503 if the verdict is "dead", else 200
``/metrics``       `AIOKafkaConsumer.metrics` in Prometheus' text format, 1,000 label sets at most
``/api/…``         what the page reads; not for others, and free to change
=================  =================================================================================

However many ask, and however slowly they read: measuring takes 1 % of the event loop's time at
most, after which what was measured last is good enough; and with `serve` 32 connections are open
at most: when another comes, the oldest is closed.

`serve` and `application` need the extra `web`: ``pip install aiokafka-lite[web]``. `asgi` needs
nothing, but for ``/metrics`` prometheus_client, which the extra has, too.
"""

from __future__ import annotations

from aiokafka_lite.extras.web.app import application
from aiokafka_lite.extras.web.asgi_app import asgi
from aiokafka_lite.extras.web.serving import serve

__all__ = ["application", "asgi", "serve"]
