"""What becomes of a blocking client in a forked child."""

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
from tests.client.blocking.conftest import TIMEOUT_S, config_of


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
        cluster = new_cluster(config)
        cluster.refresh([])
        connection = cluster.connection(1)
        request = MetadataRequest(topics=[])

        def child(pipe: Pipe) -> None:
            try:
                connection.send(request, timeout_s=TIMEOUT_S)
                pipe.send("the parent's connection can be used")
            except ForkedError as error:
                cluster.refresh([])
                own = cluster.connection(1)
                assert own is not connection
                assert cluster.request(1, request).brokers
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
        assert cluster.receive(exchange).brokers
        assert cluster.connection(1) is connection
        assert cluster.request(1, request).brokers


EXITING_CHILD = """
import asyncio, os, sys, threading
from aiokafka_lite import _forks
from aiokafka_lite.client.blocking_cluster import OwnLoop

own = OwnLoop()
own.run(asyncio.sleep(0))
child = os.fork()
if child == 0:
    _forks._inherited.clear()  # as at a later time of the exit
    sys.exit()
os.waitpid(child, 0)

async def posted() -> float:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    begun = loop.time()
    threading.Timer(0.1, own.post, [event.set]).start()
    loop.call_later(5, event.set)
    await event.wait()
    return loop.time() - begun

print(own.run(posted()) < 3)
own.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_that_exits_leaves_the_parents_loop_as_it_is() -> None:
    command = [sys.executable, "-X", "dev", "-c", EXITING_CHILD]
    parent = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert parent.stdout == "True\n"
