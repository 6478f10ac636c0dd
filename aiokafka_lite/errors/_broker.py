"""One class per error code of Kafka 4.3; the docstring is the error's description.

References: org.apache.kafka.common.protocol.Errors (codes, names, which are retriable, and
which ask for fresh metadata: those are retriable too). Class names are aiokafka's where it
has one. Kafka's name of a code is in the class's name, unless it is given.
"""

from __future__ import annotations

from aiokafka_lite.errors._client import BrokerResponseError, ProducerFenced

# A table.
# fmt: off

class UnknownError(BrokerResponseError, code=-1, name="UNKNOWN_SERVER_ERROR"):
    """The broker failed with an unexpected error; see the broker's log for details."""

class NoError(BrokerResponseError, code=0, name="NONE"):
    """Success; never raised."""

class OffsetOutOfRangeError(BrokerResponseError, code=1):
    """The offset asked for lies outside the partition's log."""

class CorruptRecordException(BrokerResponseError, code=2, name="CORRUPT_MESSAGE", retriable=True):
    """A record batch does not match its checksum, is too large, or is malformed."""

class UnknownTopicOrPartitionError(BrokerResponseError, code=3, invalid_metadata=True):
    """This broker does not host the topic or partition."""

class InvalidFetchRequestError(BrokerResponseError, code=4, name="INVALID_FETCH_SIZE"):
    """The fetch size asked for is invalid."""

class LeaderNotAvailableError(BrokerResponseError, code=5, invalid_metadata=True):
    """The partition has no leader while one is being elected."""

class NotLeaderForPartitionError(
    BrokerResponseError, code=6, name="NOT_LEADER_OR_FOLLOWER", invalid_metadata=True
):
    """The broker asked is neither leader nor follower of the partition."""

class RequestTimedOutError(BrokerResponseError, code=7, retriable=True):
    """The broker gave up on the request within its own time limit."""

class BrokerNotAvailableError(BrokerResponseError, code=8):
    """The broker is not available."""

class ReplicaNotAvailableError(BrokerResponseError, code=9, invalid_metadata=True):
    """The replica asked for is not available on this broker."""

class MessageSizeTooLargeError(BrokerResponseError, code=10, name="MESSAGE_TOO_LARGE"):
    """The message is larger than the broker accepts."""

class StaleControllerEpochError(BrokerResponseError, code=11):
    """The controller's epoch has moved on."""

class OffsetMetadataTooLargeError(BrokerResponseError, code=12):
    """The metadata string given with a committed offset is too long."""

class StaleLeaderEpochCodeError(
    BrokerResponseError, code=13, name="NETWORK_EXCEPTION", invalid_metadata=True
):
    """The broker lost its connection before it could answer."""

class CoordinatorLoadInProgressError(BrokerResponseError, code=14, retriable=True):
    """The coordinator is still loading this group or transaction."""

class CoordinatorNotAvailableError(BrokerResponseError, code=15, retriable=True):
    """The coordinator is not up, or its internal topic is still being created."""

class NotCoordinatorError(BrokerResponseError, code=16, retriable=True):
    """The broker asked does not coordinate this group or transaction."""

class InvalidTopicError(BrokerResponseError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    """The topic's name is not allowed, or the topic is internal."""

class RecordListTooLargeError(BrokerResponseError, code=18):
    """The batch is larger than a log segment."""

class NotEnoughReplicasError(BrokerResponseError, code=19, retriable=True):
    """Fewer replicas are in sync than the topic demands."""

class NotEnoughReplicasAfterAppendError(BrokerResponseError, code=20, retriable=True):
    """The batch was written, but by fewer in-sync replicas than demanded."""

class InvalidRequiredAcksError(BrokerResponseError, code=21):
    """The producer asked for an impossible number of acknowledgements."""

class IllegalGenerationError(BrokerResponseError, code=22):
    """The member's generation is not the group's current one."""

class InconsistentGroupProtocolError(BrokerResponseError, code=23):
    """The member's assignment protocols fit no protocol of the group."""

class InvalidGroupIdError(BrokerResponseError, code=24):
    """The group id is empty or not allowed."""

class UnknownMemberIdError(BrokerResponseError, code=25):
    """The coordinator does not know this member id."""

class InvalidSessionTimeoutError(BrokerResponseError, code=26):
    """session_timeout_ms lies outside the broker's group.min. and group.max.session.timeout.ms."""

class RebalanceInProgressError(BrokerResponseError, code=27):
    """The group is rebalancing: the member has to join again."""

class InvalidCommitOffsetSizeError(BrokerResponseError, code=28):
    """The commit's record would exceed the broker's size limit."""

class TopicAuthorizationFailedError(BrokerResponseError, code=29):
    """The principal may not use the topic."""

class GroupAuthorizationFailedError(BrokerResponseError, code=30):
    """The principal may not use the group."""

class ClusterAuthorizationFailedError(BrokerResponseError, code=31):
    """The principal may not do this on the cluster."""

class InvalidTimestampError(BrokerResponseError, code=32):
    """A record's timestamp is out of the accepted range."""

class UnsupportedSaslMechanismError(BrokerResponseError, code=33):
    """The broker does not offer this SASL mechanism."""

class IllegalSaslStateError(BrokerResponseError, code=34):
    """The request does not fit the state of the SASL exchange."""

class UnsupportedVersionError(BrokerResponseError, code=35):
    """The broker does not speak this version of the request."""

class IncompatibleBrokerVersion(UnsupportedVersionError):
    """Client and broker have no version of the request in common, so it was not sent."""

class TopicAlreadyExistsError(BrokerResponseError, code=36):
    """A topic of this name exists already."""

class InvalidPartitionsError(BrokerResponseError, code=37):
    """The number of partitions is invalid."""

class InvalidReplicationFactorError(BrokerResponseError, code=38):
    """The replication factor is below one or above the number of brokers."""

class InvalidReplicationAssignmentError(
    BrokerResponseError, code=39, name="INVALID_REPLICA_ASSIGNMENT"
):
    """The replica assignment is invalid."""

class InvalidConfigurationError(BrokerResponseError, code=40, name="INVALID_CONFIG"):
    """A configuration value is invalid."""

class NotControllerError(BrokerResponseError, code=41, retriable=True):
    """The broker asked is not the controller."""

class InvalidRequestError(BrokerResponseError, code=42):
    """The broker rejects the request as malformed; see the broker's log for details."""

class UnsupportedForMessageFormatError(BrokerResponseError, code=43):
    """The topic's message format is too old for this."""

class PolicyViolationError(BrokerResponseError, code=44):
    """The request breaks a policy set on the broker."""

class OutOfOrderSequenceNumber(BrokerResponseError, code=45):
    """The producer's sequence number skips ahead."""

class DuplicateSequenceNumber(BrokerResponseError, code=46):
    """The producer's sequence number was seen before."""

class InvalidProducerEpoch(BrokerResponseError, code=47):
    """The producer's epoch is older than one the broker has seen."""

class InvalidTxnState(BrokerResponseError, code=48):
    """The transaction's state does not allow this."""

class InvalidProducerIdMapping(BrokerResponseError, code=49):
    """The producer id is not the one registered for the transactional id."""

class InvalidTransactionTimeout(BrokerResponseError, code=50):
    """transaction_timeout_ms exceeds the broker's transaction.max.timeout.ms."""

class ConcurrentTransactions(BrokerResponseError, code=51, retriable=True):
    """Another operation on the same transaction is still under way."""

class TransactionCoordinatorFenced(BrokerResponseError, code=52):
    """The transaction coordinator was replaced by a newer one."""

class TransactionalIdAuthorizationFailed(BrokerResponseError, code=53):
    """The principal may not use the transactional id."""

class SecurityDisabled(BrokerResponseError, code=54):
    """Security features are disabled on the broker."""

class OperationNotAttempted(BrokerResponseError, code=55):
    """The operation was not tried, because another one in the request failed."""

class KafkaStorageError(
    BrokerResponseError, code=56, name="KAFKA_STORAGE_ERROR", invalid_metadata=True
):
    """The broker could not read or write its disk."""

class LogDirNotFound(BrokerResponseError, code=57):
    """The log directory is not in the broker's configuration."""

class SaslAuthenticationFailed(BrokerResponseError, code=58):
    """The broker refused the credentials."""

class UnknownProducerId(BrokerResponseError, code=59):
    """The broker holds no state for this producer id (its records may have expired)."""

class ReassignmentInProgress(BrokerResponseError, code=60):
    """A reassignment of the partition is under way."""

class DelegationTokenAuthDisabled(BrokerResponseError, code=61):
    """Delegation tokens are not enabled."""

class DelegationTokenNotFound(BrokerResponseError, code=62):
    """The delegation token does not exist."""

class DelegationTokenOwnerMismatch(BrokerResponseError, code=63):
    """The principal neither owns nor may renew the delegation token."""

class DelegationTokenRequestNotAllowed(BrokerResponseError, code=64):
    """Delegation tokens are not served on this kind of connection."""

class DelegationTokenAuthorizationFailed(BrokerResponseError, code=65):
    """The principal may not use delegation tokens."""

class DelegationTokenExpired(BrokerResponseError, code=66):
    """The delegation token has expired."""

class InvalidPrincipalType(BrokerResponseError, code=67):
    """This type of principal is not supported."""

class NonEmptyGroup(BrokerResponseError, code=68):
    """The group still has members."""

class GroupIdNotFound(BrokerResponseError, code=69):
    """No group of this id exists."""

class FetchSessionIdNotFound(BrokerResponseError, code=70, retriable=True):
    """The broker does not know the fetch session; start a new one."""

class InvalidFetchSessionEpoch(BrokerResponseError, code=71, retriable=True):
    """The fetch session's epoch is not the expected one; start a new session."""

class ListenerNotFound(BrokerResponseError, code=72, invalid_metadata=True):
    """The leader has no listener that matches the one asked on."""

class TopicDeletionDisabledError(BrokerResponseError, code=73):
    """Deleting topics is disabled on the broker."""

class FencedLeaderEpochError(BrokerResponseError, code=74, invalid_metadata=True):
    """The leader epoch sent is older than the broker's: metadata is stale."""

class UnknownLeaderEpochError(BrokerResponseError, code=75, retriable=True):
    """The leader epoch sent is newer than the broker's: the broker lags."""

class UnsupportedCompressionTypeError(BrokerResponseError, code=76):
    """The broker cannot use this compression type for the request."""

class StaleBrokerEpochError(BrokerResponseError, code=77):
    """The broker's own epoch has changed."""

class OffsetNotAvailableError(BrokerResponseError, code=78, retriable=True):
    """The new leader cannot name its high watermark yet."""

class MemberIdRequired(BrokerResponseError, code=79):
    """The member has to join again with the member id it was just given."""

class PreferredLeaderNotAvailableError(BrokerResponseError, code=80, invalid_metadata=True):
    """The preferred leader is not available."""

class GroupMaxSizeReachedError(BrokerResponseError, code=81):
    """The group already has its maximum number of members."""

class FencedInstanceIdError(BrokerResponseError, code=82):
    """Another member took over this group instance id."""

class EligibleLeadersNotAvailableError(BrokerResponseError, code=83, invalid_metadata=True):
    """None of the eligible leaders is available."""

class ElectionNotNeededError(BrokerResponseError, code=84, invalid_metadata=True):
    """The partition needs no leader election."""

class NoReassignmentInProgressError(BrokerResponseError, code=85):
    """No reassignment is under way."""

class GroupSubscribedToTopicError(BrokerResponseError, code=86):
    """The group is subscribed to the topic, so its offsets stay."""

class InvalidRecordError(BrokerResponseError, code=87):
    """The broker's validation refused a record."""

class UnstableOffsetCommitError(BrokerResponseError, code=88, retriable=True):
    """Offsets of an open transaction are still undecided."""

class ThrottlingQuotaExceededError(BrokerResponseError, code=89, retriable=True):
    """The request exceeds a quota; try again after the throttle time."""

class ProducerFencedError(BrokerResponseError, ProducerFenced, code=90):
    """A newer producer with the same transactional id took over."""

class ResourceNotFoundError(BrokerResponseError, code=91):
    """The request names something that does not exist."""

class DuplicateResourceError(BrokerResponseError, code=92):
    """The request names the same thing twice."""

class UnacceptableCredentialError(BrokerResponseError, code=93):
    """The new credential does not meet the broker's rules."""

class InconsistentVoterSetError(BrokerResponseError, code=94):
    """The voters named are not the quorum's."""

class InvalidUpdateVersionError(BrokerResponseError, code=95):
    """The feature's version is invalid."""

class FeatureUpdateFailedError(BrokerResponseError, code=96):
    """The feature could not be updated."""

class PrincipalDeserializationError(
    BrokerResponseError, code=97, name="PRINCIPAL_DESERIALIZATION_FAILURE"
):
    """The forwarded principal could not be read."""

class SnapshotNotFoundError(BrokerResponseError, code=98):
    """The snapshot asked for does not exist."""

class PositionOutOfRangeError(BrokerResponseError, code=99):
    """The position lies outside the snapshot."""

class UnknownTopicIdError(BrokerResponseError, code=100, invalid_metadata=True):
    """This broker does not host a topic of this id."""

class DuplicateBrokerRegistrationError(BrokerResponseError, code=101):
    """A broker of this id is registered already."""

class BrokerIdNotRegisteredError(BrokerResponseError, code=102):
    """No broker of this id is registered."""

class InconsistentTopicIdError(BrokerResponseError, code=103, invalid_metadata=True):
    """The topic's id in the log differs from the one in the request."""

class InconsistentClusterIdError(BrokerResponseError, code=104):
    """The request was meant for another cluster."""

class TransactionalIdNotFoundError(BrokerResponseError, code=105):
    """The transactional id is not known."""

class FetchSessionTopicIdError(
    BrokerResponseError, code=106, name="FETCH_SESSION_TOPIC_ID_ERROR", retriable=True
):
    """The fetch session mixes topic ids and topic names."""

class IneligibleReplicaError(BrokerResponseError, code=107):
    """The replica may not join the in-sync set."""

class NewLeaderElectedError(BrokerResponseError, code=108):
    """The change was applied and moved leadership elsewhere."""

class OffsetMovedToTieredStorageError(BrokerResponseError, code=109):
    """The offset asked for has moved to tiered storage."""

class FencedMemberEpochError(BrokerResponseError, code=110):
    """The member's epoch is not the group's: the member was fenced."""

class UnreleasedInstanceIdError(BrokerResponseError, code=111):
    """The group instance id is still held by a member that has not left."""

class UnsupportedAssignorError(BrokerResponseError, code=112):
    """The group coordinator does not offer this assignor, or the group cannot use it."""

class StaleMemberEpochError(BrokerResponseError, code=113):
    """The member's epoch is behind: wait for the next heartbeat's answer and try again."""

class MismatchedEndpointTypeError(BrokerResponseError, code=114):
    """The request reached the wrong kind of endpoint."""

class UnsupportedEndpointTypeError(BrokerResponseError, code=115):
    """This kind of endpoint is not supported."""

class UnknownControllerIdError(BrokerResponseError, code=116):
    """No controller of this id is known."""

class UnknownSubscriptionIdError(BrokerResponseError, code=117):
    """The client's telemetry subscription is out of date."""

class TelemetryTooLargeError(BrokerResponseError, code=118):
    """The telemetry payload exceeds the broker's limit."""

class InvalidRegistrationError(BrokerResponseError, code=119):
    """The controller finds the broker's registration invalid."""

class TransactionAbortableError(BrokerResponseError, code=120):
    """The transaction has to be aborted before the producer can go on."""

class InvalidRecordStateError(BrokerResponseError, code=121):
    """The record's delivery state does not allow the acknowledgement."""

class ShareSessionNotFoundError(BrokerResponseError, code=122, retriable=True):
    """The broker does not know the share session."""

class InvalidShareSessionEpochError(BrokerResponseError, code=123, retriable=True):
    """The share session's epoch is not the expected one."""

class FencedStateEpochError(BrokerResponseError, code=124):
    """The share coordinator's state epoch has moved on."""

class InvalidVoterKeyError(BrokerResponseError, code=125):
    """The voter key does not match the receiving replica."""

class DuplicateVoterError(BrokerResponseError, code=126):
    """The voter is in the set already."""

class VoterNotFoundError(BrokerResponseError, code=127):
    """The voter is not in the set."""

class InvalidRegularExpressionError(BrokerResponseError, code=128):
    """The regular expression is invalid."""

class RebootstrapRequiredError(BrokerResponseError, code=129):
    """The client's metadata cannot be trusted: bootstrap again."""

class StreamsInvalidTopologyError(BrokerResponseError, code=130):
    """The streams topology is invalid."""

class StreamsInvalidTopologyEpochError(BrokerResponseError, code=131):
    """The streams topology epoch is invalid."""

class StreamsTopologyFencedError(BrokerResponseError, code=132):
    """The streams topology epoch is outdated."""

class ShareSessionLimitReachedError(BrokerResponseError, code=133, retriable=True):
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
