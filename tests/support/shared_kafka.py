"""One real Kafka for all workers of pytest-xdist: the process that started the workers starts it.

A worker asks for the address. The first who does so has the Kafka started, and the others wait.
"""

from __future__ import annotations

import contextlib
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import Final

from tests.support.real_kafka import KafkaUnavailableError, RealKafka

INPUT: Final = "real_kafka_listener"
"""The key of a worker's input by which it finds the process that starts the Kafka."""


class SharedKafka:
    """Starts a real Kafka when the first worker asks for one.

    Attributes:
        asked_at: The address at which workers ask.
    """

    def __init__(self) -> None:
        self._listener = Listener()
        self.asked_at = str(self._listener.address)
        self._kafka: RealKafka | None = None
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._answer, name="shared-kafka", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the Kafka."""
        with contextlib.suppress(OSError), Client(self.asked_at) as connection:
            connection.send("close")
        self._thread.join()

    def _answer(self) -> None:
        with self._listener, contextlib.ExitStack() as stack:
            while True:
                with self._listener.accept() as connection:
                    if connection.recv() == "close":
                        return
                    self._start(stack)
                    self._send(connection)

    def _start(self, stack: contextlib.ExitStack) -> None:
        if self._kafka is not None or self._problem is not None:
            return
        try:
            self._kafka = stack.enter_context(RealKafka())
        except KafkaUnavailableError as error:
            self._problem = str(error)

    def _send(self, connection: Connection) -> None:
        address = None if self._kafka is None else self._kafka.bootstrap_servers
        with contextlib.suppress(OSError):  # the worker has ended
            connection.send((address, self._problem))


def shared_address(asked_at: str) -> str:
    """Return the address of the Kafka that all workers share.

    Raises:
        KafkaUnavailableError: It cannot be started.
    """
    with Client(asked_at) as connection:
        connection.send("start")
        address, problem = connection.recv()
    if problem is not None:
        raise KafkaUnavailableError(problem)
    return str(address)
