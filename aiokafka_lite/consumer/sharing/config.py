"""The arguments of a share consumer.

Kafka keeps the settings of delivery in the group, because all members share the records (KIP-932,
the list of ``ShareConsumerConfig`` in Java). Those of `AIOKafkaConsumer` that have no meaning here
are refused with the place where their effect is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from aiokafka_lite._compat import KT, VT, Never, override
from aiokafka_lite.consumer.config import DEFAULT_CLIENT_ID, DEFAULT_MAX_BATCH_BYTES, ConsumerConfig

if TYPE_CHECKING:
    import ssl

    from aiokafka_lite.abc import AbstractTokenProvider
    from aiokafka_lite.deserializers import DeserializerOf

DEFAULT_MAX_POLL_RECORDS: Final = 500
DEFAULT_MAX_LEASE_MS: Final = 300_000
# The brokers' default session (group.share.session.timeout.ms).
SHARE_SESSION_MS: Final = 45_000

_IN_GROUP: Final = (
    "it is a setting of the group, {0}: aiokafka-lite share config GROUP --set {0}=…, or "
    "kafka-configs.sh --entity-type groups"
)
_ASSIGNED: Final = "the broker assigns the partitions of a share group, and members share them"
_ACKNOWLEDGED: Final = "records are acknowledged one by one and no offsets are committed: {}"
REFUSED: Final[Mapping[str, str]] = {
    "auto_offset_reset": _IN_GROUP.format("share.auto.offset.reset"),
    "isolation_level": _IN_GROUP.format("share.isolation.level"),
    "session_timeout_ms": _IN_GROUP.format("share.session.timeout.ms"),
    "heartbeat_interval_ms": _IN_GROUP.format("share.heartbeat.interval.ms"),
    "group_protocol": _ASSIGNED,
    "group_remote_assignor": _ASSIGNED,
    "partition_assignment_strategy": _ASSIGNED,
    "group_instance_id": "share groups have no static members",
    "rebalance_timeout_ms": f"{_ASSIGNED}, so a rebalance revokes no records",
    "rebalance_hold_ms": f"{_ASSIGNED}, so a rebalance revokes no records",
    "enable_auto_commit": _ACKNOWLEDGED.format('pass ack_mode="implicit" or "explicit"'),
    "auto_commit_interval_ms": _ACKNOWLEDGED.format("acknowledgements are sent at once"),
    "max_poll_interval_ms": "the leases of records are limited, not the time between reads: "
    "pass max_lease_ms",
    "max_partition_fetch_bytes": "requests have no limit for a partition: pass max_poll_records "
    "or fetch_max_bytes",
    "max_records_per_partition": "requests have no limit for a partition: pass max_poll_records",
    "fetch_min_bytes": "a fetch returns the first records: as many as reads or handlers wait for",
    "max_buffered_bytes": "only as many records are fetched as reads or handlers wait for",
    "exclude_internal_topics": "share groups subscribe to names, not to patterns",
    "on_bad_record": "a record that a deserialiser refuses is a dead letter of run(), and reads "
    "raise its error and release it",
    "consumer_timeout_ms": "it has no effect",
    "api_version": "versions are negotiated with each broker",
    "loop": "create the consumer in the event loop that uses it",
}


class ShareConfig(ConsumerConfig[KT, VT]):
    """A share consumer's arguments, checked. Raises as `AIOKafkaShareConsumer`."""

    kind = "share consumer"
    _own_checks = ConsumerConfig._own_checks | {"max_lease_ms"}

    group_id: str
    max_poll_records: int
    max_lease_ms: int | None

    # AIOKafkaShareConsumer has the same arguments (`takes_arguments_of`).
    def __init__(
        self,
        *topics: str,
        group_id: str,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = DEFAULT_CLIENT_ID,
        key_deserializer: Callable[[bytes], KT] | DeserializerOf[KT] | None = None,
        value_deserializer: Callable[[bytes], VT] | DeserializerOf[VT] | None = None,
        ack_mode: Literal["implicit", "explicit"] = "implicit",
        max_poll_records: int = DEFAULT_MAX_POLL_RECORDS,
        max_lease_ms: int | None = DEFAULT_MAX_LEASE_MS,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        check_crcs: bool = True,
        heartbeat_thread: bool = False,
        client_rack: str | None = None,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        metadata_max_age_ms: int = 300_000,
        connections_max_idle_ms: int | None = 540_000,
        allow_auto_create_topics: bool = True,
        ssl_context: ssl.SSLContext | None = None,
        security_protocol: str = "PLAINTEXT",
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
        allow_plaintext_credentials: bool = False,
        seed: int | None = None,
        **misplaced: Never,
    ) -> None:
        """Take the arguments, without connecting.

        Args:
            *topics: Topics to subscribe to.
            group_id: The share group. A group id has one type: a share group is no consumer group.
            bootstrap_servers: Addresses for the first metadata request: "host:port", several
                separated by commas, or a list.
            client_id: The name of this client in the brokers' logs and quotas.
            key_deserializer: A sync or async callable of bytes, or an instance of a class of
                `aiokafka_lite.deserializers`.
            value_deserializer: The same for values.
            ack_mode: "implicit": a read accepts the records that the same task has read before.
                "explicit": `record.ack()`, `nack()` or `reject()` settles each record. `run`
                settles records itself and needs "implicit".
            max_poll_records: The most records of `getmany`, unless it is called with a number.
            max_lease_ms: How long the lease of a record that a read has returned is renewed. After
                that, the group delivers the record again. None: as long as it is not settled.
            fetch_max_wait_ms: How long a broker may wait for the first record while no records are
                leased.
            fetch_max_bytes: The most bytes of a response, unless its first batch is larger.
            max_batch_bytes: The most decompressed bytes of one batch. A larger batch is released,
                and rejected before the broker archives it.
            check_crcs: Verify the checksum of each batch.
            heartbeat_thread: Renew leases and send heartbeats from a thread while the event loop is
                blocked. It costs a thread, and a connection from the first block on.
            client_rack: The rack of this client, for the broker's assignor.
            request_timeout_ms: How long a broker may be silent before a request fails.
            retry_backoff_ms: The first pause before a request is retried.
            metadata_max_age_ms: The age at which the metadata of topics and leaders are refreshed.
            connections_max_idle_ms: The time after which an unused connection is closed. None or 0:
                never.
            allow_auto_create_topics: Let brokers create missing topics.
            ssl_context: As `aiokafka_lite.helpers.create_ssl_context` returns it.
            security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
            sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
            sasl_plain_password: For PLAIN and SCRAM.
            sasl_plain_username: For PLAIN and SCRAM.
            sasl_oauth_token_provider: For OAUTHBEARER: an `AbstractTokenProvider`.
            allow_plaintext_credentials: Send credentials without TLS to other machines.
            seed: Decides all random numbers and ids of this client, for simulations and tests.
            **misplaced: Arguments of AIOKafkaConsumer that have no meaning here: a TypeError.
        """
        given = dict(locals())
        for name in given.pop("misplaced"):
            raise TypeError(
                f"AIOKafkaShareConsumer has no argument {name!r}: "
                + REFUSED.get(name, "AIOKafkaConsumer has none, either")
            )
        given.pop("__class__", None)
        defaults: Mapping[str, object] = ConsumerConfig.__init__.__kwdefaults__ or {}
        self._made({**defaults, "session_timeout_ms": SHARE_SESSION_MS, **given})

    @override
    def _check(self) -> None:
        group_id: object = self.group_id
        if not isinstance(group_id, str) or not group_id:
            raise TypeError(f"group_id must be a non-empty str, not {group_id!r}")
        check_lease(self.max_lease_ms)
        if self.max_poll_records is None:
            raise TypeError("max_poll_records must be a positive int, not None")
        super()._check()

    @property
    @override
    def chance_name(self) -> str:
        return f"share consumer/{self.client_id}"


def check_lease(max_lease_ms: float | None) -> None:
    """Raise TypeError or ValueError unless this is a positive number of milliseconds or None."""
    if max_lease_ms is None:
        return
    if isinstance(max_lease_ms, bool) or not isinstance(max_lease_ms, (int, float)):
        raise TypeError(
            f"max_lease_ms must be a number of milliseconds or None, not {max_lease_ms!r}"
        )
    if not max_lease_ms > 0:
        raise ValueError(f"max_lease_ms must be positive or None, not {max_lease_ms!r}")
