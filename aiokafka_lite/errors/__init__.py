"""All errors of the public API, under aiokafka's names.

::

    KafkaError(RuntimeError)          .retriable  .invalid_metadata  .tp  .offset
    ├─ BrokerResponseError            a broker's response: .errno .message .description
    │  └─ one class per error code    (_broker.py); UnsupportedVersionError
    │     └─ IncompatibleBrokerVersion    found before a request was sent
    ├─ IllegalStateError, IllegalArgumentError, KafkaConfigurationError      the caller's mistake
    │  ├─ WrongLoopError, ForkedError, AutoCommitError (an IllegalOperation, too)
    │  └─ InsecureConfigError, OptionError
    ├─ KafkaConnectionError, NoBrokersAvailable, KafkaTimeoutError …         the network
    │  └─ TLSError
    ├─ KafkaProtocolError             the peer violates the protocol
    │  └─ CorrelationIdError, FrameTooLargeError
    ├─ UnsupportedCodecError, UnsupportedMagicError, DecompressionLimitError,
    │  RecordTooLargeError, DeserializationError                             a record at .tp .offset
    │  └─ DeserializerUnavailableError
    └─ CommitFailedError, NoOffsetForPartitionError, LogTruncationError …    offsets and groups
       └─ MaxPollIntervalError, BatchRevokedError
    ConsumerStoppedError, IllegalOperation (plain Exceptions, as in aiokafka)

A read raises at most one error of a record or batch. The position stays before it, other
partitions are read on, and ``seek(error.tp, error.next_offset)`` skips it. The consumer's argument
`on_bad_record` does this automatically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# In these forms type checkers take the names for public; a computed `__all__` hides them.
from aiokafka_lite.errors._base import BrokerResponseError as BrokerResponseError
from aiokafka_lite.errors._base import KafkaError as KafkaError
from aiokafka_lite.errors._broker import *  # noqa: F403 -- the table of codes
from aiokafka_lite.errors._broker import UnknownError
from aiokafka_lite.errors._client import *  # noqa: F403 -- the client's own errors


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Return the class for one of Kafka's error codes; UnknownError for unknown codes."""
    return BrokerResponseError.by_code.get(error_code, UnknownError)


# aiokafka's name for the table.
kafka_errors = BrokerResponseError.by_code

if not TYPE_CHECKING:
    __all__ = ["for_code"]
    for name, value in list(globals().items()):
        if isinstance(value, type) and issubclass(value, Exception):
            value.__module__ = __name__  # the path that programs import: tracebacks show it
            __all__.append(name)
    del name, value
