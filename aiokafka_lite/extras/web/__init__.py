"""A consumer's state over HTTP: ``/health``, ``/metrics`` for Prometheus, and a live page.

It runs on its own port, or in an application of aiohttp, FastAPI or Starlette::

    from aiokafka_lite.extras import web

    async with web.serve(consumer, port=8080):
        async with consumer:
            async for record in consumer:
                ...

    app.add_subapp("/kafka/", web.application(consumer))  # aiohttp
    app.mount("/kafka", web.asgi(lambda: app.state.consumer))  # FastAPI, Starlette

Requests change no state and cause no request to a broker. Every client that can reach the port sees
the names of topics, group and client, and the error that stopped the consumer. By default only this
machine can. ``/health``, ``/metrics`` and ``/scale`` accept every host name. The page accepts IP
addresses, "localhost" and the names in `hosts`, so that a foreign web page cannot read it (DNS
rebinding).

=================  =================================================================================
``/``              the page, which reads ``/api/…`` every second or two
``/health``        `AIOKafkaConsumer.health` as JSON; 503 if the verdict is "dead", else 200
``/metrics``       `AIOKafkaConsumer.metrics` in Prometheus' text format, 1,000 label sets at most
``/scale/300/0.8`` for an autoscaler: lag, partitions_with_lag, busy, and how many members it takes
                   to catch up within 300 s if each is busy for 0.8 of its time (scale.py)
``/api/…``         the data of the page, a private format that may change
=================  =================================================================================

Measuring takes at most 1 % of the event loop's time. Above that, responses repeat the latest
values. `serve` closes the oldest connection above 32.

`serve` and `application` need the extra `web`: ``pip install aiokafka-lite[web]``, and `asgi` only
prometheus_client, for ``/metrics``.
"""

from __future__ import annotations

from aiokafka_lite.extras.web.app import application, asgi, serve

__all__ = ["application", "asgi", "serve"]
