"""What can be set on a broker; the names are Kafka's where Kafka has the setting."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiokafka_lite.broker.security.listener import (
    DEFAULT_MECHANISMS,
    Listener,
    SecurityProtocol,
    check_listeners,
)
from aiokafka_lite.broker.security.mechanism import SaslMechanism
from aiokafka_lite.broker.security.tls import ClientAuth
from aiokafka_lite.sasl import Secret

DEFAULT_REPLICATION: Final = 3
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


@dataclass(frozen=True)
class BrokerConfig:
    """A broker's settings. Times are in seconds unless the name says milliseconds.

    Attributes:
        nodes: How many the cluster has; their ids count from `node_id`.
        host: The address to listen on; also what clients are told to connect to.
        port: Of the first node, the others take those that follow; 0 takes free ones.
        racks: One for each node, or none.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_context: The server's side of TLS; None makes throw-away certificates.
        ssl_client_auth: Whether throw-away certificates ask clients for theirs: none, requested,
            required (a given `ssl_context` says that itself).
        sasl_mechanisms: What clients may authenticate by.
        listeners: Instead of `host` to `sasl_mechanisms`: several, or with names.
        users: Names with passwords; they may use every mechanism but OAUTHBEARER.
        oauth_allow_unsecured_tokens: Take tokens that nobody signed, as Kafka's default does.
        connections_max_reauth_ms: SASL clients must authenticate again after so long; 0: never.
        connection_failed_authentication_delay_ms: How long failed clients wait to be told so.
        sasl_authentication_timeout_s: A connection that takes longer, with TLS, is closed.
        sasl_server_max_receive_bytes: Largest request of a client that is not authenticated yet.
        allow_remote: Listen also where other machines can connect: without SASL, whoever can, may
            do anything.
        allow_cleartext_credentials: Listen there with SASL and without TLS.
        data_dir: Where logs and topics are kept; None keeps them in memory.
        num_partitions: Of topics created without saying how many.
        default_replication_factor: Likewise; None stands for 3, or as many as there are nodes.
        auto_create_topics: Metadata requests that allow it create the topics they ask for.
        segment_bytes: Size at which a log starts a new segment (segment.bytes of a topic wins).
        message_max_bytes: Largest batch accepted (max.message.bytes of a topic wins).
        max_frame_bytes: Largest request accepted; a larger one closes its connection.
        queued_max_requests: Requests that may wait for a handler; no more are read then.
        max_connections: More are closed as they arrive.
        max_connections_per_ip: Likewise, of one address.
        connections_max_idle_s: A connection without a request for so long is closed.
        max_partitions: All topics together; creating more is refused.
        max_fetch_sessions: Incremental fetch sessions kept at most.
        fetch_max_bytes: Most a Fetch answer may hold, whatever the client asks for.
        request_log_size: The latest requests, so many, can be looked at (`Broker.requests`).
        stop_timeout_s: How long stopping waits for connections to take their last bytes.
        log_retention_check_interval_ms: How often old segments are looked for and deleted.
        log_cleaner_backoff_ms: How often logs are looked for that are worth compacting.
        offsets_retention_minutes: How long committed offsets outlive their group's last member.
        offsets_retention_check_interval_ms: How often expired offsets are looked for.
        group_consumer_heartbeat_interval_ms: How often members of KIP-848 are told to send
            heartbeats; they learn of new assignments by no other way, so tests want it short.
        group_consumer_assignment_interval_ms: Least time between two assignments of one group;
            1000 in Kafka.
        group_consumer_migration_policy: Which groups change between the protocols while they have
            members: "bidirectional", "upgrade", "downgrade" or "disabled".
        transaction_max_timeout_ms: Longest a producer may ask for.
        transactional_id_expiration_ms: After so long without news a transactional id is forgotten.
        transaction_version: Level of the feature transaction.version: with 2 each transaction has
            an epoch of its own (KIP-890), with 0 or 1 clients do as before Kafka 4.0.
    """

    nodes: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    racks: tuple[str, ...] = ()
    security_protocol: SecurityProtocol | str = SecurityProtocol.PLAINTEXT
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    ssl_client_auth: ClientAuth | str = ClientAuth.NONE
    sasl_mechanisms: Sequence[SaslMechanism | str] = DEFAULT_MECHANISMS
    listeners: Sequence[Listener] = ()
    users: Mapping[str, Secret | str] = field(default_factory=dict, repr=False)
    oauth_allow_unsecured_tokens: bool = False
    connections_max_reauth_ms: int = 0
    connection_failed_authentication_delay_ms: int = 100
    sasl_authentication_timeout_s: float = 30.0
    sasl_server_max_receive_bytes: int = 64 << 10
    allow_remote: bool = False
    allow_cleartext_credentials: bool = False
    data_dir: Path | None = None
    node_id: int = 1
    num_partitions: int = 1
    default_replication_factor: int | None = None
    auto_create_topics: bool = True
    segment_bytes: int = 64 << 20
    message_max_bytes: int = 1_048_588
    max_frame_bytes: int = 100 << 20
    queued_max_requests: int = 500
    max_connections: int = 10_000
    max_connections_per_ip: int = 2**31 - 1
    connections_max_idle_s: float = 600.0
    max_partitions: int = 50_000
    max_fetch_sessions: int = 1_000
    fetch_session_eviction_s: float = 120.0
    fetch_max_bytes: int = 55 << 20
    request_log_size: int = 1_000
    stop_timeout_s: float = 1.0
    offsets_topic_partitions: int = 50
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 10_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_assignment_interval_ms: int = 0
    group_consumer_max_size: int = 10_000
    group_consumer_migration_policy: str = "bidirectional"
    offset_metadata_max_bytes: int = 4_096
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    transaction_topic_partitions: int = 50
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_version: int = 2

    def __post_init__(self) -> None:
        for name in (
            "nodes",
            "num_partitions",
            "segment_bytes",
            "message_max_bytes",
            "max_frame_bytes",
            "queued_max_requests",
            "max_connections",
            "max_connections_per_ip",
            "max_partitions",
            "offsets_topic_partitions",
            "log_retention_check_interval_ms",
            "log_cleaner_backoff_ms",
            "offsets_retention_minutes",
            "offsets_retention_check_interval_ms",
            "transaction_topic_partitions",
            "transaction_max_timeout_ms",
            "transactional_id_expiration_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.group_consumer_migration_policy not in MIGRATION_POLICIES:
            raise ValueError(
                f"group_consumer_migration_policy must be one of {', '.join(MIGRATION_POLICIES)}, "
                f"not {self.group_consumer_migration_policy!r}"
            )
        if self.transaction_version not in (0, 1, 2):
            raise ValueError(f"transaction_version must be 0 to 2, not {self.transaction_version}")
        self._check_security()
        if self.racks and len(self.racks) != self.nodes:
            raise ValueError(f"{self.nodes} nodes need as many racks, not {len(self.racks)}")
        if not 1 <= self.replication <= self.nodes:
            raise ValueError(
                f"default_replication_factor must be 1 to {self.nodes} (nodes), "
                f"not {self.replication}"
            )

    def _check_security(self) -> None:
        check_listeners(
            self.all_listeners,
            nodes=self.nodes,
            allow_remote=self.allow_remote,
            allow_cleartext_credentials=self.allow_cleartext_credentials,
        )
        auth = ", ".join(ClientAuth)
        if self.ssl_client_auth not in tuple(ClientAuth):
            raise ValueError(f"ssl_client_auth must be one of {auth}, not {self.ssl_client_auth!r}")
        if not all(self.users) or not all(self.users.values()):
            raise ValueError("users need a name and a password that are not empty")
        # A plain string would show up in the first debugger or dataclasses.asdict.
        hidden = {name: Secret.of(password) for name, password in self.users.items()}
        object.__setattr__(self, "users", hidden)

    @property
    def all_listeners(self) -> Sequence[Listener]:
        """What each node listens on, the first first."""
        if self.listeners:
            return self.listeners
        return [
            Listener(
                security_protocol=self.security_protocol,
                host=self.host,
                port=self.port,
                ssl_context=self.ssl_context,
                sasl_mechanisms=self.sasl_mechanisms,
            )
        ]

    @property
    def replication(self) -> int:
        """The replicas of topics created without saying how many."""
        if self.default_replication_factor is None:
            return min(DEFAULT_REPLICATION, self.nodes)
        return self.default_replication_factor
