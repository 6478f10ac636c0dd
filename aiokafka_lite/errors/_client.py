"""Errors that the client finds: misuse, connections, protocol, records, group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite.errors._base import KafkaError

if TYPE_CHECKING:
    from aiokafka_lite.structs import TopicPartition


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
