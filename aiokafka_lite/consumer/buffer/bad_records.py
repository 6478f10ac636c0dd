"""What becomes of an error in the line, and of a batch that cannot be read.

The poison rule: an error stands behind its partition's records, is raised without moving the
position, and is met again by the next get, until the application seeks or the log is mended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.consumer.buffer.line import Line
from aiokafka_lite.errors import CorruptRecordException, KafkaError
from aiokafka_lite.structs import ConsumerRecord

log = logging.getLogger(__name__)

# How long a partition that stays corrupt is not fetched.
CORRUPT_PAUSE_S: Final = 0.5


class PoisonRule:
    """Raises errors of shares, and goes on where it was decided to.

    `on_room(partition)` is told that a partition has room for another response.
    """

    def __init__(
        self, state: SubscriptionState, line: Line, on_room: Callable[[Cursor], None]
    ) -> None:
        self._state = state
        self._line = line
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()

    def fail(self, part: Chunk, error: KafkaError) -> None:
        """Raise a share's error, unless it is to be tried again; other partitions come next."""
        partition = part.partition
        self._line.move_to_end(partition)
        if part.is_undecided:
            return  # on_bad_record comes first, and may not want it raised
        if part.is_error_only and not part.is_sticky:
            self._line.remove_first(partition)
            self._on_room(partition)
        part.raised()
        if isinstance(error, CorruptRecordException):
            if self.fetch_again(part, error):
                return
            # It may be mended in the log; but a loop of gets must not ask without a pause.
            partition.back_off(self._loop.time() + CORRUPT_PAUSE_S, type(error).__name__)
            self._state.refetch(partition)
        self._state.note_raised(error)
        raise error.with_traceback(None)

    def fetch_again(self, part: Chunk, error: CorruptRecordException) -> bool:
        """Fetch once more what is corrupt; return False if that was done already."""
        partition = part.partition
        offset = partition.position if error.offset is None else error.offset
        if partition.corrupt_at == offset:
            return False
        partition.corrupt_at = -1 if offset is None else offset
        log.warning("%s; fetching it again", error)
        self._state.refetch(partition)
        return True

    def skip_batch(self, part: Chunk, next_offset: int) -> None:
        """Go on fetching behind a batch that cannot be read."""
        self._state.pass_over(part.partition, next_offset)
        self._state.refetch(part.partition)

    def replace_batch(
        self, part: Chunk, next_offset: int, record: ConsumerRecord[object, object]
    ) -> None:
        """Deliver a record instead of a batch that cannot be read, and go on fetching behind it."""
        partition = part.partition
        self._state.refetch(partition)
        substitute = Chunk(partition, part.delivery, end_offset=next_offset)
        substitute.decoded.append(record)  # type: ignore[arg-type]  # of the application's types
        self._line.add(substitute)
        self._on_room(partition)
