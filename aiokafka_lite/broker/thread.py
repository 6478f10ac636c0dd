"""A broker on an event loop and a thread of its own, for callers without a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TypeVar

from aiokafka_lite._compat import Self
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.server import Broker
from aiokafka_lite.errors import UnknownTopicOrPartitionError

T = TypeVar("T")


class BrokerThread:
    """Runs a `Broker` between entering and leaving a `with`; see there for what it raises.

    Its methods may be called from any thread but the broker's own, also from a coroutine: they
    take well under a millisecond.

    Args:
        config: The broker's settings.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._config = config or BrokerConfig()
        self._broker: Broker | None = None
        # Made on entering.
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    @property
    def broker(self) -> Broker:
        """The broker itself, which belongs to another thread: `call` into it, or only look."""
        if self._broker is None:
            raise RuntimeError("the broker was not started: use `with BrokerThread() as broker:`")
        return self._broker

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, "host:port"."""
        return self.broker.bootstrap_servers

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="kafka-broker", daemon=True
        )
        self._thread.start()
        try:
            self._broker = self._await(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._await(self.broker.stop())
        finally:
            self._end()

    async def _start(self) -> Broker:
        broker = Broker(config=self._config)
        await broker.start()
        return broker

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _await(self, coro: Coroutine[object, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call a function with the broker, in the broker's thread, and return what it returns."""

        async def called() -> T:
            return function(self.broker)

        return self._await(called())

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; see `Broker.create_topic` for what it raises."""
        self.call(lambda broker: broker.create_topic(name, partitions, configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and the offsets committed for it.

        Raises:
            UnknownTopicOrPartitionError: There is none of that name.
        """

        def delete(broker: Broker) -> None:
            topic = broker.topic(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            broker.delete_topic(topic)

        self.call(delete)

    @property
    def topics(self) -> dict[str, int]:
        """The number of partitions of every topic, internal ones included."""
        return self.call(
            lambda broker: {name: topic.partition_count for name, topic in broker.topics.items()}
        )

    def end_offsets(self, topic: str) -> list[int]:
        """Return the end offset of each partition of a topic.

        Raises:
            UnknownTopicOrPartitionError: There is none of that name.
        """

        def look(broker: Broker) -> list[int]:
            known = broker.topic(topic)
            if known is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
            return [partition.high_watermark for partition in known.partitions]

        return self.call(look)

    def raise_if_failed(self) -> None:
        """Raise the first exception that the broker did not expect, if there was one."""
        if self._broker is not None and self._broker.failure is not None:
            raise self._broker.failure
