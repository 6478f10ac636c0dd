"""pytest fixtures: a Kafka broker per test, for synchronous and asynchronous tests alike.

pytest finds this by the package's entry point; there is nothing to import::

    def test_my_service(kafka_broker):
        kafka_broker.create_topic("orders", partitions=3)
        run_my_service(bootstrap_servers=kafka_broker.bootstrap_servers)

The broker runs on an event loop and a thread of its own, so that blocking clients, other loops
and other processes can all use it. Nothing is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aiokafka_lite.broker.thread import BrokerThread


@pytest.fixture
def kafka_broker() -> Iterator[BrokerThread]:
    """A fresh, empty broker on a free port of 127.0.0.1; topics are created when asked for.

    The test fails if the broker met an exception it did not expect.
    """
    from aiokafka_lite.broker.thread import BrokerThread

    with BrokerThread() as broker:
        yield broker
    broker.raise_if_failed()
