"""One class per error code of Kafka 4.3; the docstring is the error's description.

References: org.apache.kafka.common.protocol.Errors (codes, names, which are retriable, and
which ask for fresh metadata: those are retriable too). Class names are aiokafka's where it
has one.
"""

from __future__ import annotations

from aiokafka_lite.errors._base import BrokerResponseError
from aiokafka_lite.errors._client import ProducerFenced

# A table.
# fmt: off

class UnknownError(BrokerResponseError, code=-1, name="UNKNOWN_SERVER_ERROR"):
    """The broker failed with an unexpected error; see the broker's log for details."""

class NoError(BrokerResponseError, code=0, name="NONE"):
    """Success; never raised."""

class OffsetOutOfRangeError(BrokerResponseError, code=1, name="OFFSET_OUT_OF_RANGE"):
    """The offset asked for lies outside the partition's log."""

class CorruptRecordException(BrokerResponseError, code=2, name="CORRUPT_MESSAGE", retriable=True):
    """A record batch does not match its checksum, is too large, or is malformed."""

class UnknownTopicOrPartitionError(
    BrokerResponseError, code=3, name="UNKNOWN_TOPIC_OR_PARTITION", invalid_metadata=True
):
    """This broker does not host the topic or partition."""

class InvalidFetchRequestError(BrokerResponseError, code=4, name="INVALID_FETCH_SIZE"):
    """The fetch size asked for is invalid."""

class LeaderNotAvailableError(
    BrokerResponseError, code=5, name="LEADER_NOT_AVAILABLE", invalid_metadata=True
):
    """The partition has no leader while one is being elected."""

class NotLeaderForPartitionError(
    BrokerResponseError, code=6, name="NOT_LEADER_OR_FOLLOWER", invalid_metadata=True
):
    """The broker asked is neither leader nor follower of the partition."""

class RequestTimedOutError(BrokerResponseError, code=7, name="REQUEST_TIMED_OUT", retriable=True):
    """The broker gave up on the request within its own time limit."""

class BrokerNotAvailableError(BrokerResponseError, code=8, name="BROKER_NOT_AVAILABLE"):
    """The broker is not available."""

class ReplicaNotAvailableError(
    BrokerResponseError, code=9, name="REPLICA_NOT_AVAILABLE", invalid_metadata=True
):
    """The replica asked for is not available on this broker."""

class MessageSizeTooLargeError(BrokerResponseError, code=10, name="MESSAGE_TOO_LARGE"):
    """The message is larger than the broker accepts."""

class StaleControllerEpochError(BrokerResponseError, code=11, name="STALE_CONTROLLER_EPOCH"):
    """The controller's epoch has moved on."""

class OffsetMetadataTooLargeError(BrokerResponseError, code=12, name="OFFSET_METADATA_TOO_LARGE"):
    """The metadata string given with a committed offset is too long."""

class StaleLeaderEpochCodeError(
    BrokerResponseError, code=13, name="NETWORK_EXCEPTION", invalid_metadata=True
):
    """The broker lost its connection before it could answer."""

class CoordinatorLoadInProgressError(
    BrokerResponseError, code=14, name="COORDINATOR_LOAD_IN_PROGRESS", retriable=True
):
    """The coordinator is still loading this group or transaction."""

class CoordinatorNotAvailableError(
    BrokerResponseError, code=15, name="COORDINATOR_NOT_AVAILABLE", retriable=True
):
    """The coordinator is not up, or its internal topic is still being created."""

class NotCoordinatorError(BrokerResponseError, code=16, name="NOT_COORDINATOR", retriable=True):
    """The broker asked does not coordinate this group or transaction."""

class InvalidTopicError(BrokerResponseError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    """The topic's name is not allowed, or the topic is internal."""

class RecordListTooLargeError(BrokerResponseError, code=18, name="RECORD_LIST_TOO_LARGE"):
    """The batch is larger than a log segment."""

class NotEnoughReplicasError(
    BrokerResponseError, code=19, name="NOT_ENOUGH_REPLICAS", retriable=True
):
    """Fewer replicas are in sync than the topic demands."""

class NotEnoughReplicasAfterAppendError(
    BrokerResponseError, code=20, name="NOT_ENOUGH_REPLICAS_AFTER_APPEND", retriable=True
):
    """The batch was written, but by fewer in-sync replicas than demanded."""

class InvalidRequiredAcksError(BrokerResponseError, code=21, name="INVALID_REQUIRED_ACKS"):
    """The producer asked for an impossible number of acknowledgements."""

class IllegalGenerationError(BrokerResponseError, code=22, name="ILLEGAL_GENERATION"):
    """The member's generation is not the group's current one."""

class InconsistentGroupProtocolError(
    BrokerResponseError, code=23, name="INCONSISTENT_GROUP_PROTOCOL"
):
    """The member's assignment protocols fit no protocol of the group."""

class InvalidGroupIdError(BrokerResponseError, code=24, name="INVALID_GROUP_ID"):
    """The group id is empty or not allowed."""

class UnknownMemberIdError(BrokerResponseError, code=25, name="UNKNOWN_MEMBER_ID"):
    """The coordinator does not know this member id."""

class InvalidSessionTimeoutError(BrokerResponseError, code=26, name="INVALID_SESSION_TIMEOUT"):
    """session_timeout_ms lies outside the broker's group.min. and group.max.session.timeout.ms."""

class RebalanceInProgressError(BrokerResponseError, code=27, name="REBALANCE_IN_PROGRESS"):
    """The group is rebalancing: the member has to join again."""

class InvalidCommitOffsetSizeError(BrokerResponseError, code=28, name="INVALID_COMMIT_OFFSET_SIZE"):
    """The commit's record would exceed the broker's size limit."""

class TopicAuthorizationFailedError(
    BrokerResponseError, code=29, name="TOPIC_AUTHORIZATION_FAILED"
):
    """The principal may not use the topic."""

class GroupAuthorizationFailedError(
    BrokerResponseError, code=30, name="GROUP_AUTHORIZATION_FAILED"
):
    """The principal may not use the group."""

class ClusterAuthorizationFailedError(
    BrokerResponseError, code=31, name="CLUSTER_AUTHORIZATION_FAILED"
):
    """The principal may not do this on the cluster."""

class InvalidTimestampError(BrokerResponseError, code=32, name="INVALID_TIMESTAMP"):
    """A record's timestamp is out of the accepted range."""

class UnsupportedSaslMechanismError(
    BrokerResponseError, code=33, name="UNSUPPORTED_SASL_MECHANISM"
):
    """The broker does not offer this SASL mechanism."""

class IllegalSaslStateError(BrokerResponseError, code=34, name="ILLEGAL_SASL_STATE"):
    """The request does not fit the state of the SASL exchange."""

class UnsupportedVersionError(BrokerResponseError, code=35, name="UNSUPPORTED_VERSION"):
    """The broker does not speak this version of the request."""

class IncompatibleBrokerVersion(UnsupportedVersionError):
    """Client and broker have no version of the request in common, so it was not sent."""

class TopicAlreadyExistsError(BrokerResponseError, code=36, name="TOPIC_ALREADY_EXISTS"):
    """A topic of this name exists already."""

class InvalidPartitionsError(BrokerResponseError, code=37, name="INVALID_PARTITIONS"):
    """The number of partitions is invalid."""

class InvalidReplicationFactorError(
    BrokerResponseError, code=38, name="INVALID_REPLICATION_FACTOR"
):
    """The replication factor is below one or above the number of brokers."""

class InvalidReplicationAssignmentError(
    BrokerResponseError, code=39, name="INVALID_REPLICA_ASSIGNMENT"
):
    """The replica assignment is invalid."""

class InvalidConfigurationError(BrokerResponseError, code=40, name="INVALID_CONFIG"):
    """A configuration value is invalid."""

class NotControllerError(BrokerResponseError, code=41, name="NOT_CONTROLLER", retriable=True):
    """The broker asked is not the controller."""

class InvalidRequestError(BrokerResponseError, code=42, name="INVALID_REQUEST"):
    """The broker rejects the request as malformed; see the broker's log for details."""

class UnsupportedForMessageFormatError(
    BrokerResponseError, code=43, name="UNSUPPORTED_FOR_MESSAGE_FORMAT"
):
    """The topic's message format is too old for this."""

class PolicyViolationError(BrokerResponseError, code=44, name="POLICY_VIOLATION"):
    """The request breaks a policy set on the broker."""

class OutOfOrderSequenceNumber(BrokerResponseError, code=45, name="OUT_OF_ORDER_SEQUENCE_NUMBER"):
    """The producer's sequence number skips ahead."""

class DuplicateSequenceNumber(BrokerResponseError, code=46, name="DUPLICATE_SEQUENCE_NUMBER"):
    """The producer's sequence number was seen before."""

class InvalidProducerEpoch(BrokerResponseError, code=47, name="INVALID_PRODUCER_EPOCH"):
    """The producer's epoch is older than one the broker has seen."""

class InvalidTxnState(BrokerResponseError, code=48, name="INVALID_TXN_STATE"):
    """The transaction's state does not allow this."""

class InvalidProducerIdMapping(BrokerResponseError, code=49, name="INVALID_PRODUCER_ID_MAPPING"):
    """The producer id is not the one registered for the transactional id."""

class InvalidTransactionTimeout(BrokerResponseError, code=50, name="INVALID_TRANSACTION_TIMEOUT"):
    """transaction_timeout_ms exceeds the broker's transaction.max.timeout.ms."""

class ConcurrentTransactions(
    BrokerResponseError, code=51, name="CONCURRENT_TRANSACTIONS", retriable=True
):
    """Another operation on the same transaction is still under way."""

class TransactionCoordinatorFenced(
    BrokerResponseError, code=52, name="TRANSACTION_COORDINATOR_FENCED"
):
    """The transaction coordinator was replaced by a newer one."""

class TransactionalIdAuthorizationFailed(
    BrokerResponseError, code=53, name="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
):
    """The principal may not use the transactional id."""

class SecurityDisabled(BrokerResponseError, code=54, name="SECURITY_DISABLED"):
    """Security features are disabled on the broker."""

class OperationNotAttempted(BrokerResponseError, code=55, name="OPERATION_NOT_ATTEMPTED"):
    """The operation was not tried, because another one in the request failed."""

class KafkaStorageError(
    BrokerResponseError, code=56, name="KAFKA_STORAGE_ERROR", invalid_metadata=True
):
    """The broker could not read or write its disk."""

class LogDirNotFound(BrokerResponseError, code=57, name="LOG_DIR_NOT_FOUND"):
    """The log directory is not in the broker's configuration."""

class SaslAuthenticationFailed(BrokerResponseError, code=58, name="SASL_AUTHENTICATION_FAILED"):
    """The broker refused the credentials."""

class UnknownProducerId(BrokerResponseError, code=59, name="UNKNOWN_PRODUCER_ID"):
    """The broker holds no state for this producer id (its records may have expired)."""

class ReassignmentInProgress(BrokerResponseError, code=60, name="REASSIGNMENT_IN_PROGRESS"):
    """A reassignment of the partition is under way."""

class DelegationTokenAuthDisabled(
    BrokerResponseError, code=61, name="DELEGATION_TOKEN_AUTH_DISABLED"
):
    """Delegation tokens are not enabled."""

class DelegationTokenNotFound(BrokerResponseError, code=62, name="DELEGATION_TOKEN_NOT_FOUND"):
    """The delegation token does not exist."""

class DelegationTokenOwnerMismatch(
    BrokerResponseError, code=63, name="DELEGATION_TOKEN_OWNER_MISMATCH"
):
    """The principal neither owns nor may renew the delegation token."""

class DelegationTokenRequestNotAllowed(
    BrokerResponseError, code=64, name="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
):
    """Delegation tokens are not served on this kind of connection."""

class DelegationTokenAuthorizationFailed(
    BrokerResponseError, code=65, name="DELEGATION_TOKEN_AUTHORIZATION_FAILED"
):
    """The principal may not use delegation tokens."""

class DelegationTokenExpired(BrokerResponseError, code=66, name="DELEGATION_TOKEN_EXPIRED"):
    """The delegation token has expired."""

class InvalidPrincipalType(BrokerResponseError, code=67, name="INVALID_PRINCIPAL_TYPE"):
    """This type of principal is not supported."""

class NonEmptyGroup(BrokerResponseError, code=68, name="NON_EMPTY_GROUP"):
    """The group still has members."""

class GroupIdNotFound(BrokerResponseError, code=69, name="GROUP_ID_NOT_FOUND"):
    """No group of this id exists."""

class FetchSessionIdNotFound(
    BrokerResponseError, code=70, name="FETCH_SESSION_ID_NOT_FOUND", retriable=True
):
    """The broker does not know the fetch session; start a new one."""

class InvalidFetchSessionEpoch(
    BrokerResponseError, code=71, name="INVALID_FETCH_SESSION_EPOCH", retriable=True
):
    """The fetch session's epoch is not the expected one; start a new session."""

class ListenerNotFound(
    BrokerResponseError, code=72, name="LISTENER_NOT_FOUND", invalid_metadata=True
):
    """The leader has no listener that matches the one asked on."""

class TopicDeletionDisabledError(BrokerResponseError, code=73, name="TOPIC_DELETION_DISABLED"):
    """Deleting topics is disabled on the broker."""

class FencedLeaderEpochError(
    BrokerResponseError, code=74, name="FENCED_LEADER_EPOCH", invalid_metadata=True
):
    """The leader epoch sent is older than the broker's: metadata is stale."""

class UnknownLeaderEpochError(
    BrokerResponseError, code=75, name="UNKNOWN_LEADER_EPOCH", retriable=True
):
    """The leader epoch sent is newer than the broker's: the broker lags."""

class UnsupportedCompressionTypeError(
    BrokerResponseError, code=76, name="UNSUPPORTED_COMPRESSION_TYPE"
):
    """The broker cannot use this compression type for the request."""

class StaleBrokerEpochError(BrokerResponseError, code=77, name="STALE_BROKER_EPOCH"):
    """The broker's own epoch has changed."""

class OffsetNotAvailableError(
    BrokerResponseError, code=78, name="OFFSET_NOT_AVAILABLE", retriable=True
):
    """The new leader cannot name its high watermark yet."""

class MemberIdRequired(BrokerResponseError, code=79, name="MEMBER_ID_REQUIRED"):
    """The member has to join again with the member id it was just given."""

class PreferredLeaderNotAvailableError(
    BrokerResponseError, code=80, name="PREFERRED_LEADER_NOT_AVAILABLE", invalid_metadata=True
):
    """The preferred leader is not available."""

class GroupMaxSizeReachedError(BrokerResponseError, code=81, name="GROUP_MAX_SIZE_REACHED"):
    """The group already has its maximum number of members."""

class FencedInstanceIdError(BrokerResponseError, code=82, name="FENCED_INSTANCE_ID"):
    """Another member took over this group instance id."""

class EligibleLeadersNotAvailableError(
    BrokerResponseError, code=83, name="ELIGIBLE_LEADERS_NOT_AVAILABLE", invalid_metadata=True
):
    """None of the eligible leaders is available."""

class ElectionNotNeededError(
    BrokerResponseError, code=84, name="ELECTION_NOT_NEEDED", invalid_metadata=True
):
    """The partition needs no leader election."""

class NoReassignmentInProgressError(
    BrokerResponseError, code=85, name="NO_REASSIGNMENT_IN_PROGRESS"
):
    """No reassignment is under way."""

class GroupSubscribedToTopicError(BrokerResponseError, code=86, name="GROUP_SUBSCRIBED_TO_TOPIC"):
    """The group is subscribed to the topic, so its offsets stay."""

class InvalidRecordError(BrokerResponseError, code=87, name="INVALID_RECORD"):
    """The broker's validation refused a record."""

class UnstableOffsetCommitError(
    BrokerResponseError, code=88, name="UNSTABLE_OFFSET_COMMIT", retriable=True
):
    """Offsets of an open transaction are still undecided."""

class ThrottlingQuotaExceededError(
    BrokerResponseError, code=89, name="THROTTLING_QUOTA_EXCEEDED", retriable=True
):
    """The request exceeds a quota; try again after the throttle time."""

class ProducerFencedError(
    BrokerResponseError, ProducerFenced, code=90, name="PRODUCER_FENCED"
):
    """A newer producer with the same transactional id took over."""

class ResourceNotFoundError(BrokerResponseError, code=91, name="RESOURCE_NOT_FOUND"):
    """The request names something that does not exist."""

class DuplicateResourceError(BrokerResponseError, code=92, name="DUPLICATE_RESOURCE"):
    """The request names the same thing twice."""

class UnacceptableCredentialError(BrokerResponseError, code=93, name="UNACCEPTABLE_CREDENTIAL"):
    """The new credential does not meet the broker's rules."""

class InconsistentVoterSetError(BrokerResponseError, code=94, name="INCONSISTENT_VOTER_SET"):
    """The voters named are not the quorum's."""

class InvalidUpdateVersionError(BrokerResponseError, code=95, name="INVALID_UPDATE_VERSION"):
    """The feature's version is invalid."""

class FeatureUpdateFailedError(BrokerResponseError, code=96, name="FEATURE_UPDATE_FAILED"):
    """The feature could not be updated."""

class PrincipalDeserializationError(
    BrokerResponseError, code=97, name="PRINCIPAL_DESERIALIZATION_FAILURE"
):
    """The forwarded principal could not be read."""

class SnapshotNotFoundError(BrokerResponseError, code=98, name="SNAPSHOT_NOT_FOUND"):
    """The snapshot asked for does not exist."""

class PositionOutOfRangeError(BrokerResponseError, code=99, name="POSITION_OUT_OF_RANGE"):
    """The position lies outside the snapshot."""

class UnknownTopicIdError(
    BrokerResponseError, code=100, name="UNKNOWN_TOPIC_ID", invalid_metadata=True
):
    """This broker does not host a topic of this id."""

class DuplicateBrokerRegistrationError(
    BrokerResponseError, code=101, name="DUPLICATE_BROKER_REGISTRATION"
):
    """A broker of this id is registered already."""

class BrokerIdNotRegisteredError(BrokerResponseError, code=102, name="BROKER_ID_NOT_REGISTERED"):
    """No broker of this id is registered."""

class InconsistentTopicIdError(
    BrokerResponseError, code=103, name="INCONSISTENT_TOPIC_ID", invalid_metadata=True
):
    """The topic's id in the log differs from the one in the request."""

class InconsistentClusterIdError(BrokerResponseError, code=104, name="INCONSISTENT_CLUSTER_ID"):
    """The request was meant for another cluster."""

class TransactionalIdNotFoundError(
    BrokerResponseError, code=105, name="TRANSACTIONAL_ID_NOT_FOUND"
):
    """The transactional id is not known."""

class FetchSessionTopicIdError(
    BrokerResponseError, code=106, name="FETCH_SESSION_TOPIC_ID_ERROR", retriable=True
):
    """The fetch session mixes topic ids and topic names."""

class IneligibleReplicaError(BrokerResponseError, code=107, name="INELIGIBLE_REPLICA"):
    """The replica may not join the in-sync set."""

class NewLeaderElectedError(BrokerResponseError, code=108, name="NEW_LEADER_ELECTED"):
    """The change was applied and moved leadership elsewhere."""

class OffsetMovedToTieredStorageError(
    BrokerResponseError, code=109, name="OFFSET_MOVED_TO_TIERED_STORAGE"
):
    """The offset asked for has moved to tiered storage."""

class FencedMemberEpochError(BrokerResponseError, code=110, name="FENCED_MEMBER_EPOCH"):
    """The member's epoch is not the group's: the member was fenced."""

class UnreleasedInstanceIdError(BrokerResponseError, code=111, name="UNRELEASED_INSTANCE_ID"):
    """The group instance id is still held by a member that has not left."""

class UnsupportedAssignorError(BrokerResponseError, code=112, name="UNSUPPORTED_ASSIGNOR"):
    """The group coordinator does not offer this assignor, or the group cannot use it."""

class StaleMemberEpochError(BrokerResponseError, code=113, name="STALE_MEMBER_EPOCH"):
    """The member's epoch is behind: wait for the next heartbeat's answer and try again."""

class MismatchedEndpointTypeError(BrokerResponseError, code=114, name="MISMATCHED_ENDPOINT_TYPE"):
    """The request reached the wrong kind of endpoint."""

class UnsupportedEndpointTypeError(BrokerResponseError, code=115, name="UNSUPPORTED_ENDPOINT_TYPE"):
    """This kind of endpoint is not supported."""

class UnknownControllerIdError(BrokerResponseError, code=116, name="UNKNOWN_CONTROLLER_ID"):
    """No controller of this id is known."""

class UnknownSubscriptionIdError(BrokerResponseError, code=117, name="UNKNOWN_SUBSCRIPTION_ID"):
    """The client's telemetry subscription is out of date."""

class TelemetryTooLargeError(BrokerResponseError, code=118, name="TELEMETRY_TOO_LARGE"):
    """The telemetry payload exceeds the broker's limit."""

class InvalidRegistrationError(BrokerResponseError, code=119, name="INVALID_REGISTRATION"):
    """The controller finds the broker's registration invalid."""

class TransactionAbortableError(BrokerResponseError, code=120, name="TRANSACTION_ABORTABLE"):
    """The transaction has to be aborted before the producer can go on."""

class InvalidRecordStateError(BrokerResponseError, code=121, name="INVALID_RECORD_STATE"):
    """The record's delivery state does not allow the acknowledgement."""

class ShareSessionNotFoundError(
    BrokerResponseError, code=122, name="SHARE_SESSION_NOT_FOUND", retriable=True
):
    """The broker does not know the share session."""

class InvalidShareSessionEpochError(
    BrokerResponseError, code=123, name="INVALID_SHARE_SESSION_EPOCH", retriable=True
):
    """The share session's epoch is not the expected one."""

class FencedStateEpochError(BrokerResponseError, code=124, name="FENCED_STATE_EPOCH"):
    """The share coordinator's state epoch has moved on."""

class InvalidVoterKeyError(BrokerResponseError, code=125, name="INVALID_VOTER_KEY"):
    """The voter key does not match the receiving replica."""

class DuplicateVoterError(BrokerResponseError, code=126, name="DUPLICATE_VOTER"):
    """The voter is in the set already."""

class VoterNotFoundError(BrokerResponseError, code=127, name="VOTER_NOT_FOUND"):
    """The voter is not in the set."""

class InvalidRegularExpressionError(
    BrokerResponseError, code=128, name="INVALID_REGULAR_EXPRESSION"
):
    """The regular expression is invalid."""

class RebootstrapRequiredError(BrokerResponseError, code=129, name="REBOOTSTRAP_REQUIRED"):
    """The client's metadata cannot be trusted: bootstrap again."""

class StreamsInvalidTopologyError(BrokerResponseError, code=130, name="STREAMS_INVALID_TOPOLOGY"):
    """The streams topology is invalid."""

class StreamsInvalidTopologyEpochError(
    BrokerResponseError, code=131, name="STREAMS_INVALID_TOPOLOGY_EPOCH"
):
    """The streams topology epoch is invalid."""

class StreamsTopologyFencedError(BrokerResponseError, code=132, name="STREAMS_TOPOLOGY_FENCED"):
    """The streams topology epoch is outdated."""

class ShareSessionLimitReachedError(
    BrokerResponseError, code=133, name="SHARE_SESSION_LIMIT_REACHED", retriable=True
):
    """The broker holds no more share sessions."""

# fmt: on

InvalidMessageError = CorruptRecordException
"""The same class, by the name that aiokafka keeps for older programs."""
GroupLoadInProgressError = CoordinatorLoadInProgressError
"""The same class, by the name that aiokafka keeps for older programs."""
GroupCoordinatorNotAvailableError = CoordinatorNotAvailableError
"""The same class, by the name that aiokafka keeps for older programs."""
NotCoordinatorForGroupError = NotCoordinatorError
"""The same class, by the name that aiokafka keeps for older programs."""
