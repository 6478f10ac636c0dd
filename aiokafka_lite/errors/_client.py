"""The base classes, and errors that the client finds itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from aiokafka_lite._compat import Self

if TYPE_CHECKING:
    from aiokafka_lite.structs import TopicPartition


class KafkaError(RuntimeError):
    """Root of this package's errors.

    Attributes:
        retriable: The same call may succeed later without any change.
        invalid_metadata: The cluster's metadata should be refreshed before another attempt.
        tp: The partition, if the error concerns one.
        offset: The offset, if the error concerns one record or batch.
        next_offset: The position after that record or batch, to skip it with a seek.
        batch_indexes: The indexes of the records of a batch that a broker rejects (KIP-467).
    """

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    tp: TopicPartition | None = None
    offset: int | None = None
    next_offset: int | None = None
    batch_indexes: tuple[int, ...] = ()

    def __init_subclass__(
        cls, *, retriable: bool | None = None, invalid_metadata: bool = False
    ) -> None:
        """Set the flags, unless they are inherited. Stale metadata make an error retriable."""
        super().__init_subclass__()
        if invalid_metadata or retriable is not None:
            cls.retriable = invalid_metadata or bool(retriable)
            cls.invalid_metadata = invalid_metadata

    def at(
        self, tp: TopicPartition, offset: int | None = None, next_offset: int | None = None
    ) -> Self:
        """Set the error's partition and offsets, and return it, for use in a raise."""
        self.tp = tp
        self.offset = offset
        self.next_offset = next_offset
        return self

    def __str__(self) -> str:
        name = type(self).__name__
        text = super().__str__()
        return f"{name}: {text}" if text else name


class BrokerResponseError(KafkaError):
    """A broker responded with an error code.

    Attributes:
        errno: Kafka's error code.
        message: Kafka's name of the code.
        description: Its meaning, in a sentence.
    """

    errno: ClassVar[int] = -1
    message: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    description: ClassVar[str] = ""

    by_code: ClassVar[dict[int, type[BrokerResponseError]]] = {}

    def __init_subclass__(
        cls,
        *,
        code: int | None = None,
        name: str = "",
        retriable: bool | None = None,
        invalid_metadata: bool = False,
    ) -> None:
        super().__init_subclass__(retriable=retriable, invalid_metadata=invalid_metadata)
        if code is None:  # a user's subclass: it inherits its parent's code
            return
        if code in BrokerResponseError.by_code:
            raise TypeError(f"error code {code} is declared twice")
        cls.errno = code
        cls.message = name or _name_of_code(cls.__name__)
        cls.description = cls.__doc__ or cls.message
        BrokerResponseError.by_code[code] = cls

    def __str__(self) -> str:
        return f"[Error {self.errno}] {super().__str__()}"


def _name_of_code(class_name: str) -> str:
    """Return "OFFSET_OUT_OF_RANGE" for OffsetOutOfRangeError."""
    words = class_name.removesuffix("Exception").removesuffix("Error")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).upper()


# --- The caller's mistakes -----------------------------------------------------------------
class IllegalStateError(KafkaError):
    """The consumer's present state does not allow the call."""


class IllegalArgumentError(KafkaError):
    """An argument's value is invalid."""


class KafkaConfigurationError(KafkaError):
    """The configuration is invalid or contradictory."""


class InsecureConfigError(KafkaConfigurationError):
    """Credentials would be sent over the network without TLS."""


class OptionError(KafkaConfigurationError):
    """An option of a Spark source is unknown, malformed, or not allowed with the others."""


class WrongLoopError(IllegalStateError, AssertionError):
    """The consumer was used on another event loop or thread than its own."""


class ForkedError(IllegalStateError):
    """A consumer or producer was used in a forked child: its sockets belong to the parent."""


class ConsumerStoppedError(Exception):
    """The consumer was stopped: it returns no more records."""


class IllegalOperation(Exception):
    """The operation needs an argument that the consumer does not have, such as a group id."""


class NoHandlerError(IllegalStateError):
    """`run` has read a record of a topic without a handler. The record is not committed.

    Or a handler that is a plain function has returned a coroutine, which no thread can await.
    """


class AutoCommitError(IllegalStateError, IllegalOperation):
    """Auto-commit may commit the records of a transaction even if it is aborted.

    Give the consumer ``enable_auto_commit=False``, or read with ``consumer.batch()``.
    """


# --- Brokers and connections ---------------------------------------------------------------
class KafkaConnectionError(KafkaError, invalid_metadata=True):
    """A connection failed or was lost."""


class ClientClosedError(KafkaConnectionError, retriable=False):
    """The client was closed, so waiting for its brokers is useless."""


class NoBrokersAvailable(KafkaError, invalid_metadata=True):
    """No broker could be reached."""


class NodeNotReadyError(KafkaError, retriable=True):
    """The node has no usable connection now."""


class KafkaTimeoutError(KafkaError, retriable=True):
    """A call exceeded its timeout."""


class KafkaUnavailableError(KafkaError):
    """The cluster cannot serve the request now."""


class TooManyInFlightRequests(KafkaError, retriable=True):
    """The connection has the maximum number of requests in flight."""


class StaleMetadata(KafkaError, invalid_metadata=True):
    """The client's metadata are too old to use."""


class MetadataEmptyBrokerList(KafkaError, retriable=True):
    """A metadata response contains no brokers."""


class Cancelled(KafkaError, retriable=True):
    """The request was cancelled before its response arrived."""


class QuotaViolationError(KafkaError):
    """A quota was exceeded."""


class TLSError(KafkaConnectionError, retriable=False):
    """The TLS handshake failed with a permanent error."""


class AuthenticationFailedError(KafkaError):
    """The broker rejected the credentials."""


class AuthenticationMethodNotSupported(KafkaError):
    """The broker does not offer the configured SASL mechanism."""


# --- A peer that breaks the protocol -------------------------------------------------------
class KafkaProtocolError(KafkaError, retriable=True):
    """The peer violated the Kafka protocol."""


class CorrelationIdError(KafkaProtocolError):
    """A response has a correlation id that was never sent."""


class FrameTooLargeError(KafkaProtocolError):
    """The size of a frame exceeds the limit.

    Attributes:
        size_bytes: The size, or None if the bytes are not a frame of a Kafka broker.
        limit_bytes: The limit.
    """

    size_bytes: int | None = None
    limit_bytes: int = 0


class UnrecognizedBrokerVersion(KafkaError):
    """The broker's version is unknown."""


# --- Records -------------------------------------------------------------------------------
class UnsupportedCodecError(KafkaError):
    """The batch's compression codec is unknown or not installed."""


class UnsupportedMagicError(KafkaError):
    """The batch's message format does not exist."""


class DecompressionLimitError(KafkaError):
    """The batch's decompressed size exceeds the limit."""


class RecordTooLargeError(KafkaError):
    """A record batch exceeds the size of a fetch response."""


class DeserializationError(KafkaError):
    """A key or value deserialiser failed. ``__cause__`` is its exception.

    Attributes:
        record: The record, with key and value as bytes.
        is_key: Whether the key was rejected.
    """

    record: object = None
    is_key: bool = False

    @property
    def raw(self) -> bytes | None:
        """The rejected bytes."""
        raw: bytes | None = getattr(self.record, "key" if self.is_key else "value", None)
        return raw


class DeserializerUnavailableError(DeserializationError, retriable=True):
    """A deserialiser failed temporarily. The record is not rejected."""


class InvalidValueError(DeserializationError):
    """A value does not fit the annotation of its handler. ``__cause__`` is the reason."""


# --- Offsets and groups --------------------------------------------------------------------
class NoOffsetForPartitionError(KafkaError):
    """No offset is committed and ``auto_offset_reset`` is "none"."""


class LogTruncationError(KafkaError):
    """The log was truncated below the position by an unclean leader election (KIP-320).

    Attributes:
        divergent_offset: The first offset at which the logs differ, or None if it is unknown.
    """

    def __init__(self, *args: object, divergent_offset: int | None = None) -> None:
        super().__init__(*args)
        self.divergent_offset = divergent_offset


class LeaseLostError(KafkaError):
    """A share group may deliver a record to another member, although a handler still runs.

    The cause of the CancelledError in that handler. `tp` and `offset` name the record.
    """


class CommitFailedError(KafkaError):
    """The group has rebalanced: the new owners read the records again.

    The consumer continues: its next read returns records of its new assignment.
    """

    cause = "the group has rebalanced and assigned the partitions to another member"
    remedy = (
        "process faster, raise max_poll_interval_ms or session_timeout_ms, or set "
        "max_poll_records to return fewer records per poll"
    )

    def __init__(self, *args: object) -> None:
        super().__init__(*args or (f"{self.cause}. To avoid this, {self.remedy}",))


class MaxPollIntervalError(CommitFailedError):
    """The time between two reads exceeded ``max_poll_interval_ms``."""

    cause = (
        "the application requested no records within max_poll_interval_ms, so the partitions were "
        "revoked"
    )
    remedy = (
        "process faster, set max_poll_records to return fewer records per poll, or raise "
        "max_poll_interval_ms"
    )


class BatchRevokedError(CommitFailedError):
    """A batch lost partitions before the commit of their records, which are read again.

    The batch took longer than ``max_hold_ms``, or the group removed this member. The other
    partitions are committed.
    """

    cause = "partitions of the batch are no longer assigned to this member"
    remedy = (
        "await batch.revoking to finish early when a rebalance starts, raise max_hold_ms, "
        "rebalance_timeout_ms or session_timeout_ms, or request fewer records"
    )

    def __init__(self, *args: object, partitions: frozenset[TopicPartition] = frozenset()) -> None:
        super().__init__(*args)
        self.partitions = partitions


# --- Producers -----------------------------------------------------------------------------
class ProducerClosed(KafkaError):
    """The producer was closed."""


class ProducerFenced(KafkaError):
    """A newer producer has the same transactional id: aiokafka's name for it.

    A `ProducerFencedError`, which derives from this class, is raised.
    """
