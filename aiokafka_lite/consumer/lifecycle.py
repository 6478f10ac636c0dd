"""The consumer's beginning and end: its façade's part that starts, stops, and cannot be copied."""

from __future__ import annotations

import asyncio
import traceback
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NoReturn, SupportsIndex

from aiokafka_lite._compat import Self, timeout
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.state import SubscriptionState
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

DEFAULT_STOP_TIMEOUT_S: Final = 10.0


class Lifecycle:
    """Start and stop, `async with`, and what happens to a consumer that nobody stopped."""

    _engine: Engine
    _state: SubscriptionState
    _config: ConsumerConfig
    _loop: asyncio.AbstractEventLoop
    _group_id: str | None
    _closed: bool
    # What the stop could not commit, once it is over.
    _stopping: asyncio.Future[Mapping[TopicPartition, OffsetAndMetadata]] | None
    _source_traceback: traceback.StackSummary | None

    async def start(self) -> None:
        """Connect, wait for the topics, and with a group for the first assignment.

        May be tried again after it failed or was cancelled; nothing is left of the attempt.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            UnknownTopicOrPartitionError: A topic did not appear within request_timeout_ms.
            TopicAuthorizationFailedError: A topic may not be read.
            InvalidTopicError: A topic's name is not allowed.
            GroupAuthorizationFailedError: The group may not be joined.
            ConsumerStoppedError: It was stopped meanwhile.
            ValueError: isolation_level is unknown.
            AssertionError: It was started before, or on another loop (WrongLoopError).
            ForkedError: It was made in another process.
        """
        self._engine.owner.check()
        self._prepare_gets()
        await self._engine.start()

    def _prepare_gets(self) -> None:
        """Look what others have wrapped around the gets."""
        raise NotImplementedError

    async def stop(
        self, timeout: float = DEFAULT_STOP_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit all that was handed out (with auto-commit), leave the group, disconnect.

        Returns within `timeout` seconds, whatever the brokers do. Gets that wait meanwhile raise
        ConsumerStoppedError. A second call waits for the first, within its own timeout, and
        returns the same; a rebalance listener, for which the first waits, is not kept waiting.

        When it is cancelled, what was not committed by then is not, and the group finds out by
        the session timeout; but no task and no socket is left, and a second call tells what was
        not committed.

        Returns:
            Offsets that should have been committed and could not be.

        Raises:
            WrongLoopError: It belongs to another loop.
            ForkedError: It was made in another process.
        """
        return await self._stop(timeout, is_clean=True)

    async def _stop(
        self, timeout_s: float, *, is_clean: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._engine.owner.check()
        if self._stopping is not None:
            return await self._await_stop(self._stopping, timeout_s)
        self._closed = True
        stopping = self._stopping = self._loop.create_future()
        offsets: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._config.enable_auto_commit and self._group_id is not None:
            handed_out = self._state.handed_out_offsets
            offsets = handed_out() if is_clean else self._state.processed_offsets()
        try:
            await self._engine.stop(self._loop.time() + timeout_s, offsets)
        finally:
            stopping.set_result(self._engine.uncommitted)
        return dict(stopping.result())

    async def _await_stop(
        self,
        stopping: asyncio.Future[Mapping[TopicPartition, OffsetAndMetadata]],
        timeout_s: float,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self._engine.is_called_by_listener():
            try:
                async with timeout(timeout_s):
                    await asyncio.shield(stopping)
            except asyncio.TimeoutError:
                pass
        return dict(self._engine.uncommitted)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop. Left by an exception, the latest get's records are not committed."""
        if isinstance(exc, Exception):
            self._engine.note_left_by(exc)
        await self._stop(DEFAULT_STOP_TIMEOUT_S, is_clean=exc_type is None)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, as it holds connections and a "
            "place in a group: give its settings away, and make another one there"
        )

    def __del__(self) -> None:
        # In a forked child it is the parent's to stop it.
        if getattr(self, "_closed", True) or self._engine.owner.is_forked:
            return
        self._engine.abandon()  # first of all: a warning may be an error
        warnings.warn(
            f"Unclosed {type(self).__name__} {self!r}",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        context: dict[str, object] = {
            "consumer": self,
            "message": f"Unclosed {type(self).__name__}",
        }
        if self._source_traceback is not None:
            context["source_traceback"] = self._source_traceback
        self._loop.call_exception_handler(context)
