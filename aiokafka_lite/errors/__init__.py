"""All errors of the public API, under aiokafka's names.

::

    KafkaError(RuntimeError)          .retriable  .invalid_metadata  .tp  .offset
    ├─ BrokerResponseError            a broker's response: .errno .message .description
    │  └─ one class per error code    (_broker.py); UnsupportedVersionError
    │     └─ IncompatibleBrokerVersion    found before a request was sent
    ├─ IllegalStateError, IllegalArgumentError, KafkaConfigurationError      the caller's mistake
    │  ├─ WrongLoopError, ForkedError, NoHandlerError
    │  ├─ AutoCommitError (an IllegalOperation, too)
    │  └─ InsecureConfigError, OptionError
    ├─ KafkaConnectionError, NoBrokersAvailable, KafkaTimeoutError …         the network
    │  └─ TLSError
    ├─ KafkaProtocolError             the peer violates the protocol
    │  └─ CorrelationIdError, FrameTooLargeError
    ├─ UnsupportedCodecError, UnsupportedMagicError, DecompressionLimitError,
    │  RecordTooLargeError, DeserializationError                             a record at .tp .offset
    │  └─ DeserializerUnavailableError, InvalidValueError
    └─ CommitFailedError, NoOffsetForPartitionError, LogTruncationError,    offsets and groups
       LeaseLostError …
       └─ MaxPollIntervalError, BatchRevokedError
    ConsumerStoppedError, IllegalOperation (plain Exceptions, as in aiokafka)

A read raises at most one error of a record or batch. The position stays before it, other
partitions are read on, and ``seek(error.tp, error.next_offset)`` skips it. The consumer's argument
`on_bad_record` does this automatically.
"""

# ruff: noqa: F405 -- most names come from two star imports

from __future__ import annotations

from aiokafka_lite.errors._broker import *  # noqa: F403 -- the table of codes
from aiokafka_lite.errors._broker import UnknownError
from aiokafka_lite.errors._client import *  # noqa: F403 -- the client's own errors
from aiokafka_lite.errors._client import BrokerResponseError, KafkaError

__all__ = [
    "AuthenticationFailedError", "AuthenticationMethodNotSupported", "AutoCommitError",
    "BatchRevokedError", "BrokerIdNotRegisteredError", "BrokerNotAvailableError",
    "BrokerResponseError", "Cancelled", "ClientClosedError", "ClusterAuthorizationFailedError",
    "CommitFailedError", "ConcurrentTransactions", "ConsumerStoppedError",
    "CoordinatorLoadInProgressError", "CoordinatorNotAvailableError", "CorrelationIdError",
    "CorruptRecordException", "DecompressionLimitError", "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed", "DelegationTokenExpired", "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch", "DelegationTokenRequestNotAllowed", "DeserializationError",
    "DeserializerUnavailableError", "DuplicateBrokerRegistrationError", "DuplicateResourceError",
    "DuplicateSequenceNumber", "DuplicateVoterError", "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError", "FeatureUpdateFailedError", "FencedInstanceIdError",
    "FencedLeaderEpochError", "FencedMemberEpochError", "FencedStateEpochError",
    "FetchSessionIdNotFound", "FetchSessionTopicIdError", "ForkedError", "FrameTooLargeError",
    "GroupAuthorizationFailedError", "GroupCoordinatorNotAvailableError", "GroupIdNotFound",
    "GroupLoadInProgressError", "GroupMaxSizeReachedError", "GroupSubscribedToTopicError",
    "IllegalArgumentError", "IllegalGenerationError", "IllegalOperation", "IllegalSaslStateError",
    "IllegalStateError", "IncompatibleBrokerVersion", "InconsistentClusterIdError",
    "InconsistentGroupProtocolError", "InconsistentTopicIdError", "InconsistentVoterSetError",
    "IneligibleReplicaError", "InsecureConfigError", "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError", "InvalidFetchRequestError", "InvalidFetchSessionEpoch",
    "InvalidGroupIdError", "InvalidMessageError", "InvalidPartitionsError", "InvalidPrincipalType",
    "InvalidProducerEpoch", "InvalidProducerIdMapping", "InvalidRecordError",
    "InvalidRecordStateError", "InvalidRegistrationError", "InvalidRegularExpressionError",
    "InvalidReplicationAssignmentError", "InvalidReplicationFactorError", "InvalidRequestError",
    "InvalidRequiredAcksError", "InvalidSessionTimeoutError", "InvalidShareSessionEpochError",
    "InvalidTimestampError", "InvalidTopicError", "InvalidTransactionTimeout", "InvalidTxnState",
    "InvalidUpdateVersionError", "InvalidValueError", "InvalidVoterKeyError",
    "KafkaConfigurationError", "KafkaConnectionError", "KafkaError", "KafkaProtocolError",
    "KafkaStorageError", "KafkaTimeoutError", "KafkaUnavailableError", "LeaderNotAvailableError",
    "LeaseLostError",
    "ListenerNotFound",
    "LogDirNotFound", "LogTruncationError", "MaxPollIntervalError", "MemberIdRequired",
    "MessageSizeTooLargeError", "MetadataEmptyBrokerList", "MismatchedEndpointTypeError",
    "NewLeaderElectedError", "NoBrokersAvailable", "NoError", "NoHandlerError",
    "NoOffsetForPartitionError",
    "NoReassignmentInProgressError", "NodeNotReadyError", "NonEmptyGroup", "NotControllerError",
    "NotCoordinatorError", "NotCoordinatorForGroupError", "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError", "NotLeaderForPartitionError", "OffsetMetadataTooLargeError",
    "OffsetMovedToTieredStorageError", "OffsetNotAvailableError", "OffsetOutOfRangeError",
    "OperationNotAttempted", "OptionError", "OutOfOrderSequenceNumber", "PolicyViolationError",
    "PositionOutOfRangeError", "PreferredLeaderNotAvailableError", "PrincipalDeserializationError",
    "ProducerClosed", "ProducerFenced", "ProducerFencedError", "QuotaViolationError",
    "ReassignmentInProgress", "RebalanceInProgressError", "RebootstrapRequiredError",
    "RecordListTooLargeError", "RecordTooLargeError", "ReplicaNotAvailableError",
    "RequestTimedOutError", "ResourceNotFoundError", "SaslAuthenticationFailed", "SecurityDisabled",
    "ShareSessionLimitReachedError", "ShareSessionNotFoundError", "SnapshotNotFoundError",
    "StaleBrokerEpochError", "StaleControllerEpochError", "StaleLeaderEpochCodeError",
    "StaleMemberEpochError", "StaleMetadata", "StreamsInvalidTopologyEpochError",
    "StreamsInvalidTopologyError", "StreamsTopologyFencedError", "TLSError",
    "TelemetryTooLargeError", "ThrottlingQuotaExceededError", "TooManyInFlightRequests",
    "TopicAlreadyExistsError", "TopicAuthorizationFailedError", "TopicDeletionDisabledError",
    "TransactionAbortableError", "TransactionCoordinatorFenced",
    "TransactionalIdAuthorizationFailed", "TransactionalIdNotFoundError",
    "UnacceptableCredentialError", "UnknownControllerIdError", "UnknownError",
    "UnknownLeaderEpochError", "UnknownMemberIdError", "UnknownProducerId",
    "UnknownSubscriptionIdError", "UnknownTopicIdError", "UnknownTopicOrPartitionError",
    "UnrecognizedBrokerVersion", "UnreleasedInstanceIdError", "UnstableOffsetCommitError",
    "UnsupportedAssignorError", "UnsupportedCodecError", "UnsupportedCompressionTypeError",
    "UnsupportedEndpointTypeError", "UnsupportedForMessageFormatError", "UnsupportedMagicError",
    "UnsupportedSaslMechanismError", "UnsupportedVersionError", "VoterNotFoundError",
    "WrongLoopError", "for_code",
]  # fmt: skip


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Return the class for one of Kafka's error codes; UnknownError for unknown codes."""
    return BrokerResponseError.by_code.get(error_code, UnknownError)


# aiokafka's name for the table.
kafka_errors = BrokerResponseError.by_code

for _value in list(globals().values()):
    if isinstance(_value, type) and issubclass(_value, Exception):
        _value.__module__ = __name__  # the path that programs import: tracebacks show it
del _value
