"""Every error a user can meet, under aiokafka's names.

::

    KafkaError(RuntimeError)          .retriable  .invalid_metadata  .tp  .offset
    ├─ BrokerResponseError            a broker's answer: .errno .message .description
    │  └─ one class per error code    (_broker.py)
    ├─ IllegalStateError, IllegalArgumentError, KafkaConfigurationError      the caller's mistake
    │  ├─ WrongLoopError, ForkedError
    │  └─ InsecureConfigError, OptionError
    ├─ KafkaConnectionError, NoBrokersAvailable, KafkaTimeoutError …         the network
    │  └─ TLSError
    ├─ KafkaProtocolError             the peer does not speak Kafka
    │  └─ CorrelationIdError, FrameTooLargeError
    ├─ UnsupportedCodecError, UnsupportedMagicError, DecompressionLimitError,
    │  RecordTooLargeError, DeserializationError                             a record at .tp .offset
    │  └─ DeserializerUnavailableError
    └─ CommitFailedError, NoOffsetForPartitionError, LogTruncationError …    offsets and groups
       └─ MaxPollIntervalError, BatchRevokedError
    ConsumerStoppedError, IllegalOperation (plain Exceptions, as in aiokafka)

An error that is tied to one record, or batch, is raised once per get: the position stays on it,
other partitions go on, and ``seek(error.tp, error.next_offset)`` skips it. The consumer's argument
`on_bad_record` has that done for you.
"""

from __future__ import annotations

from aiokafka_lite.errors import _broker, _client
from aiokafka_lite.errors._base import BrokerResponseError, KafkaError
from aiokafka_lite.errors._broker import *  # noqa: F403 -- the table of codes
from aiokafka_lite.errors._client import *  # noqa: F403 -- the client's own errors


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Return the class for one of Kafka's error codes; UnknownError for codes not known."""
    return BrokerResponseError.by_code.get(error_code, _broker.UnknownError)


# aiokafka's name for the table.
kafka_errors = BrokerResponseError.by_code

__all__ = ["BrokerResponseError", "KafkaError", "for_code"]
__all__ += [
    name
    for module in (_broker, _client)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Exception) and value.__module__ != "builtins"
]
