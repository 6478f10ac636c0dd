"""What a blocking client costs to import, and what becomes of it in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.errors import ForkedError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.records import COMPILED
from tests.client.blocking.conftest import TIMEOUT_S, config_of

HEAVY = ("asyncio", "ssl", "hashlib", "dataclasses", "inspect", "concurrent.futures", "pyarrow")

PROGRAM = """
import sys
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
cluster = BlockingCluster(ClientConfig(bootstrap_servers=sys.argv[1], connect_timeout_s=5.0))
assert cluster.refresh(None).nodes
cluster.close()
try:
    cluster.refresh(None)
except Exception as error:
    assert "closed" in str(error)
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


def test_reading_needs_neither_asyncio_nor_ssl(broker: BrokerThread) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.bootstrap_servers, *HEAVY],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # A record in plain Python is a dataclass. From 3.14 on, `logging` needs these modules, too.
    has_dataclasses = not COMPILED or sys.version_info >= (3, 14)
    assert set(done.stdout.split()) <= ({"dataclasses", "inspect"} if has_dataclasses else set())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_forked_child_opens_connections_of_its_own_and_the_parent_goes_on(
    new_cluster: Callable[..., BlockingCluster], protocol: str
) -> None:
    from aiokafka_lite.broker import BrokerConfig
    from aiokafka_lite.helpers import create_ssl_context

    with BrokerThread(BrokerConfig(security_protocol=protocol)) as broker:
        context = None
        if protocol == "SSL":
            context = create_ssl_context(cadata=broker.broker.certificates.ca_pem)
        config = config_of(
            broker.bootstrap_servers, security_protocol=protocol, ssl_context=context
        )
        slept: list[float] = []
        cluster = new_cluster(config, sleep=slept.append)
        cluster.refresh([])
        connection = cluster.connection(1)
        request = MetadataRequest(topics=[])

        def child(pipe: Pipe) -> None:
            try:
                connection.receive(exchange)
                pipe.send("the parent's connection can be used")
            except ForkedError as error:
                own = cluster.connection(1)
                assert own is not connection
                assert slept == []  # nothing has failed
                assert own.request(request, timeout_s=TIMEOUT_S).brokers
                connection.close()
                cluster.close()
                pipe.send(str(error))

        with broker.on("Metadata").hold() as rule:
            exchange = connection.send(request, timeout_s=TIMEOUT_S)
            fork = get_context("fork")
            ours, theirs = fork.Pipe()
            process = fork.Process(target=child, args=(theirs,))
            process.start()
            rule.release()
        assert ours.poll(TIMEOUT_S)
        assert "belongs to the parent process" in ours.recv()
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
        assert connection.receive(exchange).brokers
        assert cluster.connection(1) is connection
        assert connection.request(request, timeout_s=TIMEOUT_S).brokers
