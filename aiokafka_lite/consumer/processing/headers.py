"""The headers of dead letters and delayed records, and the record that they describe.

The names are those of share groups' dead letters in Kafka's brokers (KIP-1191,
ShareGroupDLQStateManager), and further ones with the same prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka_lite.consumer.buffer.chunk import SERIALIZED
from aiokafka_lite.structs import ConsumerRecord

Header: TypeAlias = tuple[str, bytes]
Headers: TypeAlias = Sequence[Header]

PREFIX: Final = "__dlq.errors."
TOPIC: Final = PREFIX + "topic"
PARTITION: Final = PREFIX + "partition"
OFFSET: Final = PREFIX + "offset"
TIMESTAMP: Final = PREFIX + "timestamp"
GROUP: Final = PREFIX + "group"
DELIVERY_COUNT: Final = PREFIX + "delivery.count"
MESSAGE: Final = PREFIX + "message"
EXCEPTION: Final = PREFIX + "exception"
# Of a stub, which has no value.
VALUE_SHA256: Final = PREFIX + "value.sha256"
VALUE_SIZE: Final = PREFIX + "value.size"
# Of a record that was delayed: how often, and the error and the time (ms) of the first delay.
DELAY_COUNT: Final = PREFIX + "delay.count"
FIRST_EXCEPTION: Final = PREFIX + "first.exception"
FIRST_MESSAGE: Final = PREFIX + "first.message"
FIRST_TIMESTAMP: Final = PREFIX + "first.timestamp"
HISTORY: Final = (DELAY_COUNT, FIRST_EXCEPTION, FIRST_MESSAGE, FIRST_TIMESTAMP)
# Of a record in a delay topic, and of no dead letter: it may wait there for its retry.
STATE: Final = PREFIX + "state"
WAITING: Final = (STATE, b"delayed")
# The beginning of the names in a delay topic of a record's own headers with PREFIX.
KEPT: Final = "__delayed."


def without_death(headers: Headers) -> list[Header]:
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


class Origin(NamedTuple):
    """A delayed record as the handler receives it, and its failures before."""

    record: ConsumerRecord[Any, Any]
    group_id: str
    attempts: int
    delay_count: int
    history: Headers

    @classmethod
    def of(cls, record: ConsumerRecord[Any, Any]) -> Origin | None:
        """Read the headers. None: another application has written the record."""
        found = {
            name: value
            for name, value in record.headers
            if name.startswith(PREFIX) and value is not None
        }
        try:
            original = ConsumerRecord(
                found[TOPIC].decode(),
                int(found[PARTITION]),
                int(found[OFFSET]),
                int(found[TIMESTAMP]) if TIMESTAMP in found else None,  # type: ignore[arg-type]
                0,
                record.key,
                record.value,
                None,
                record.serialized_key_size,
                record.serialized_value_size,
                tuple(
                    (name.removeprefix(KEPT), value)
                    for name, value in without_death(record.headers)
                ),
            )
            attempts, delay_count = int(found[DELIVERY_COUNT]), int(found[DELAY_COUNT])
            group_id = found[GROUP].decode()
        except (KeyError, ValueError):
            return None
        kept = getattr(record, SERIALIZED, None)
        if kept is not None:
            setattr(original, SERIALIZED, kept)
        history = [(name, found[name]) for name in HISTORY if name in found]
        return cls(original, group_id, attempts, delay_count, history)
