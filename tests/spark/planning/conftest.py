"""Planners of queries on the cluster of a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import pytest

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.offsets import EARLIEST
from aiokafka_lite.spark.options import Position, SourceOptions, Subscribed
from aiokafka_lite.spark.planner import Planner

P = ParamSpec("P")
T = TypeVar("T")


class Planners:
    """Makes planners, and closes their connections after the test."""

    def __init__(self) -> None:
        self.clusters: list[BlockingCluster] = []

    def __call__(
        self,
        servers: str,
        subscribe: str | Subscribed,
        *,
        starting: Position | None = None,
        is_streaming: bool = False,
        request_timeout_s: float = 20.0,
        sleep: Callable[[float], None] = time.sleep,
        **settings: object,
    ) -> Planner:
        """Make the planner of a query on a topic, or on a subscription, from its beginning."""
        client = ClientConfig(bootstrap_servers=servers, request_timeout_s=request_timeout_s)
        settings.setdefault("fetch_retry_interval_s", 0.01)
        options = SourceOptions(
            is_streaming=is_streaming,
            subscription=Subscribed("subscribe", topics=(subscribe,))
            if isinstance(subscribe, str)
            else subscribe,
            starting=starting or Position(EARLIEST),
            client=client,
            **settings,  # type: ignore[arg-type] # each has its type
        )
        self.clusters.append(BlockingCluster(client))
        return Planner(options, self.clusters[-1], sleep=sleep)


@pytest.fixture
def new_planner() -> Iterator[Planners]:
    """Makes planners, and closes their connections after the test."""
    planners = Planners()
    yield planners
    for cluster in planners.clusters:
        cluster.close()
