"""Errors that the client itself finds: misuse, connections, protocol, records, group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite.errors._base import KafkaError

if TYPE_CHECKING:
    from aiokafka_lite.structs import TopicPartition


# --- The caller's mistakes -----------------------------------------------------------------
class IllegalStateError(KafkaError):
    """The call does not fit the consumer's present state."""


class IllegalArgumentError(KafkaError):
    """An argument's value cannot be used."""


class KafkaConfigurationError(KafkaError):
    """The configuration contradicts itself or cannot be used."""


class InsecureConfigError(KafkaConfigurationError):
    """Credentials would cross the network without TLS."""


class OptionError(KafkaConfigurationError):
    """An option of a Spark source cannot be used: unknown, malformed, or not with the others."""


class WrongLoopError(IllegalStateError, AssertionError):
    """The consumer was used from another event loop or thread than the one it started on."""


class ForkedError(IllegalStateError):
    """A consumer or producer was used in a forked child: sockets belong to the parent."""


class ConsumerStoppedError(Exception):
    """The consumer was stopped: no call can get records from it any more."""


class IllegalOperation(Exception):
    """The operation needs something that the consumer was made without, as a group id."""


class AutoCommitError(IllegalStateError, IllegalOperation):
    """A transaction is to commit records that auto-commit may commit though it is aborted.

    Give the consumer ``enable_auto_commit=False``, or read by ``consumer.batch()``.
    """


# --- Brokers and connections ---------------------------------------------------------------
class KafkaConnectionError(KafkaError):
    """A connection could not be made, or was lost."""

    retriable = True
    invalid_metadata = True


class ClientClosedError(KafkaConnectionError):
    """This client was closed: whatever waits for its brokers waits in vain."""

    retriable = False
    invalid_metadata = False


class NoBrokersAvailable(KafkaError):
    """None of the brokers could be reached."""

    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    """The node has no usable connection just now."""

    retriable = True


class KafkaTimeoutError(KafkaError):
    """A call did not finish within its time."""

    retriable = True


class KafkaUnavailableError(KafkaError):
    """The cluster cannot serve the request now."""


class TooManyInFlightRequests(KafkaError):
    """The connection already has as many requests in flight as it may."""

    retriable = True


class StaleMetadata(KafkaError):
    """The metadata at hand is too old to act on."""

    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    """A broker answered with metadata that names no brokers."""

    retriable = True


class Cancelled(KafkaError):
    """The request was given up before its answer came."""

    retriable = True


class QuotaViolationError(KafkaError):
    """A quota was exceeded."""


class TLSError(KafkaConnectionError):
    """The TLS handshake failed, for a reason that does not pass by itself."""

    retriable = False
    invalid_metadata = False


class AuthenticationFailedError(KafkaError):
    """The broker refused the credentials."""


class AuthenticationMethodNotSupported(KafkaError):
    """The broker does not offer the configured SASL mechanism."""


# --- A peer that breaks the protocol -------------------------------------------------------
class KafkaProtocolError(KafkaError):
    """The peer sent bytes that are not the Kafka protocol."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """An answer carries a correlation id that was never sent."""


class FrameTooLargeError(KafkaProtocolError):
    """A frame claims a size beyond the limit.

    Attributes:
        size_bytes: What it claims; None when it is no frame of a Kafka broker at all.
        limit_bytes: What is accepted.
    """

    size_bytes: int | None = None
    limit_bytes: int = 0


class UnrecognizedBrokerVersion(KafkaError):
    """The broker's version could not be told."""


# --- Records -------------------------------------------------------------------------------
class UnsupportedCodecError(KafkaError):
    """The batch is compressed with a codec that is unknown or not installed."""


class UnsupportedMagicError(KafkaError):
    """The batch has a message format that does not exist."""


class DecompressionLimitError(KafkaError):
    """The batch decompresses to more than the limit."""


class RecordTooLargeError(KafkaError):
    """A record batch does not fit into what one fetch may bring."""


class DeserializationError(KafkaError):
    """A key or value deserialiser failed; ``__cause__`` is what it raised.

    Attributes:
        record: The record with key and value still as bytes.
        is_key: Whether it is the key that was refused.
    """

    record: object = None
    is_key: bool = False

    @property
    def raw(self) -> bytes | None:
        """The bytes that were refused."""
        raw: bytes | None = getattr(self.record, "key" if self.is_key else "value", None)
        return raw


class DeserializerUnavailableError(DeserializationError):
    """A deserialiser could not do its work now, which says nothing of the record."""

    retriable = True


# --- Offsets and groups --------------------------------------------------------------------
class NoOffsetForPartitionError(KafkaError):
    """No offset is committed and ``auto_offset_reset`` is "none"."""


class LogTruncationError(KafkaError):
    """The log was cut below the position after an unclean leader election (KIP-320).

    Attributes:
        divergent_offset: The first offset whose record is not the one that was read there, or
            would have been; None when the leader cannot tell.
    """

    def __init__(self, *args: object, divergent_offset: int | None = None) -> None:
        super().__init__(*args)
        self.divergent_offset = divergent_offset


class CommitFailedError(KafkaError):
    """The group rebalanced: its new owners will read the offsets' records again.

    The consumer goes on: the next get has the records of what it is assigned by then.

    Args:
        args: Why, if more is known than that.
    """

    cause = "the group has rebalanced and assigned the partitions to another member"
    remedy = (
        "process faster, raise max_poll_interval_ms or session_timeout_ms, or set "
        "max_poll_records to return fewer records per poll"
    )

    def __init__(self, *args: object) -> None:
        super().__init__(*args or (f"{self.cause}; {self.remedy}",))


class MaxPollIntervalError(CommitFailedError):
    """The time between two gets exceeded ``max_poll_interval_ms``."""

    cause = "no records were requested within max_poll_interval_ms, so the partitions were revoked"
    remedy = (
        "process faster, set max_poll_records to return fewer records per poll, or raise "
        "max_poll_interval_ms"
    )


class BatchRevokedError(CommitFailedError):
    """A batch has lost partitions before its records were committed: others read them again.

    Its ``max_hold_ms`` was over, or the group went on without this member.

    Attributes:
        partitions: Those that it has lost; the others are committed.
    """

    cause = "the batch no longer owns its partitions"
    remedy = (
        "await batch.revoking to finish early when a rebalance starts, raise max_hold_ms, "
        "rebalance_timeout_ms or session_timeout_ms, or take fewer records"
    )

    def __init__(self, *args: object, partitions: frozenset[TopicPartition] = frozenset()) -> None:
        super().__init__(*args)
        self.partitions = partitions


# --- Producers -----------------------------------------------------------------------------
class ProducerClosed(KafkaError):
    """The producer was closed."""


class ProducerFenced(KafkaError):
    """A newer producer with the same transactional id took over: aiokafka's name for it.

    What is raised is a `ProducerFencedError`, which is one of these.
    """
