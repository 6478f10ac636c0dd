"""The broker's settings."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, TypeAlias

from aiokafka_lite._arguments import INT, Kind, check_fields, is_list
from aiokafka_lite.broker.security.listener import (
    DEFAULT_MECHANISMS,
    ClientAuth,
    Listener,
    SecurityProtocol,
    check_listeners,
)
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.sasl import Secret

DEFAULT_REPLICATION: Final = 3
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


PositiveInt: TypeAlias = int
"""A setting that must be at least 1."""


def _are(given: object, kind: type) -> bool:
    return is_list(given) and all(isinstance(each, kind) for each in given)


_RACKS: Final = Kind("a list with one rack name (str) per node", lambda given: _are(given, str))
_PATH: Final = Kind("a path", lambda given: isinstance(given, str | os.PathLike))
KINDS: Final[Mapping[str, Kind]] = {
    "PositiveInt": INT,
    "BrokerConfig": Kind("a BrokerConfig", lambda given: isinstance(given, BrokerConfig)),
    "Sequence[str]": _RACKS,
    "tuple[str, ...]": _RACKS,
    "Path": _PATH,
    "str | Path": _PATH,
    "Sequence[SaslMechanism | str]": Kind(
        "a list of SASL mechanisms", lambda given: _are(given, str)
    ),
    "Sequence[Listener]": Kind("a list of Listener", lambda given: _are(given, Listener)),
    "Mapping[str, Secret | str]": Kind(
        "a dict that maps user names to passwords",
        lambda given: (
            isinstance(given, Mapping)
            and _are(given, str)
            and all(isinstance(each, str | Secret) for each in given.values())
        ),
    ),
}
"""The kinds of the settings."""


@dataclass(frozen=True)
class BrokerConfig:
    """A broker's settings. Times are in seconds unless the name has another unit.

    Settings that are not listed have Kafka's names and meaning.

    Attributes:
        nodes: The number of nodes. Their ids count from `node_id`.
        host: The address to listen on, and to announce to clients.
        port: The port of the first node. The others use the next ones. 0 uses free ports.
        racks: One name for each node, or empty. Leaders refer consumers to the replica in their
            rack (KIP-392).
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_context: The server's TLS context (`server_ssl_context` creates one from files). None
            creates temporary certificates (`Broker.certificates`).
        ssl_client_auth: Whether clients show a certificate: none, requested or required. Only for
            temporary certificates.
        sasl_mechanisms: The mechanisms that clients may use: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
            (the default), OAUTHBEARER (with tokens from `Broker.oauth_token`).
        listeners: Several or named listeners, instead of `host` to `sasl_mechanisms`.
        users: Passwords by user name, for every mechanism but OAUTHBEARER.
        oauth_allow_unsecured_tokens: Accept unsigned tokens, as Kafka does by default.
        sasl_authentication_timeout_s: The connection is closed if TLS and SASL take longer.
        allow_remote: Allow addresses that other machines can reach. Without SASL every client may
            do anything.
        allow_cleartext_credentials: Allow SASL without TLS at such addresses.
        data_dir: The directory that keeps topics, records and committed offsets across restarts.
            None keeps them in memory.
        default_replication_factor: None is 3, or the number of nodes if that is lower.
        auto_create_topics: Create the topics of Metadata requests that allow it.
        max_frame_bytes: The largest request. A larger one closes its connection.
        max_partitions: The largest number of partitions of all topics.
        max_fetch_sessions: The largest number of incremental fetch sessions.
        request_log_size: The number of requests in `Broker.requests`.
        stop_timeout_s: How long stopping waits for connections to send their last responses.
        group_consumer_heartbeat_interval_ms: Members get new assignments with heartbeats only, so
            tests need a short one.
        group_consumer_assignment_interval_ms: Kafka's default is 1000.
        group_share_assignment_interval_ms: The same.
        transaction_version: The level of the feature transaction.version. With 2 each transaction
            has its own epoch (KIP-890). With 0 or 1 clients behave as before Kafka 4.0.
        seed: Decides all random numbers, ids, salts, nonces and keys of tokens. For simulations and
            tests, because a seed makes them predictable. Brokers of one seed on one loop get
            different ids, in the order of their creation. A new process that opens a `data_dir`
            needs another seed: otherwise ids of deleted topics are used again. Certificates and TLS
            are not seeded. None: the operating system's entropy.
    """

    nodes: PositiveInt = 1
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
    num_partitions: PositiveInt = 1
    default_replication_factor: int | None = None
    auto_create_topics: bool = True
    segment_bytes: PositiveInt = 64 << 20
    message_max_bytes: PositiveInt = 1_048_588
    max_frame_bytes: PositiveInt = 100 << 20
    queued_max_requests: PositiveInt = 500
    max_connections: PositiveInt = 10_000
    max_connections_per_ip: PositiveInt = 2**31 - 1
    connections_max_idle_s: float = 600.0
    max_partitions: PositiveInt = 50_000
    max_fetch_sessions: int = 1_000
    fetch_session_eviction_s: float = 120.0
    fetch_max_bytes: int = 55 << 20
    request_log_size: int = 1_000
    stop_timeout_s: float = 1.0
    offsets_topic_partitions: PositiveInt = 50
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: PositiveInt = 6_000
    group_max_session_timeout_ms: PositiveInt = 1_800_000
    group_max_size: PositiveInt = 10_000
    group_consumer_session_timeout_ms: PositiveInt = 45_000
    group_consumer_heartbeat_interval_ms: PositiveInt = 5_000
    group_consumer_assignment_interval_ms: int = 0
    group_consumer_max_size: PositiveInt = 10_000
    group_consumer_migration_policy: str = "bidirectional"
    group_share_session_timeout_ms: PositiveInt = 45_000
    group_share_heartbeat_interval_ms: PositiveInt = 5_000
    group_share_assignment_interval_ms: int = 0
    group_share_max_size: PositiveInt = 200
    group_share_delivery_count_limit: PositiveInt = 5
    group_share_partition_max_record_locks: PositiveInt = 2_000
    group_share_record_lock_duration_ms: PositiveInt = 30_000
    group_share_max_share_sessions: int = 2_000
    offset_metadata_max_bytes: int = 4_096
    log_retention_check_interval_ms: PositiveInt = 300_000
    log_cleaner_backoff_ms: PositiveInt = 15_000
    offsets_retention_minutes: PositiveInt = 10_080
    offsets_retention_check_interval_ms: PositiveInt = 600_000
    transaction_topic_partitions: PositiveInt = 50
    transaction_max_timeout_ms: PositiveInt = 900_000
    transactional_id_expiration_ms: PositiveInt = 604_800_000
    transaction_version: int = 2
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, KINDS)
        if self.data_dir is not None:  # a str, too
            object.__setattr__(self, "data_dir", Path(self.data_dir))
        for each in fields(self):
            if each.type == "PositiveInt" and getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} must be at least 1, not {getattr(self, each.name)}")
        if self.group_consumer_migration_policy not in MIGRATION_POLICIES:
            raise ValueError(
                f"group_consumer_migration_policy must be one of {', '.join(MIGRATION_POLICIES)}, "
                f"not {self.group_consumer_migration_policy!r}"
            )
        if self.transaction_version not in (0, 1, 2):
            raise ValueError(f"transaction_version must be 0 to 2, not {self.transaction_version}")
        self._check_security()
        if self.racks and len(self.racks) != self.nodes:
            raise ValueError(
                f"racks must have one entry per node, but has {len(self.racks)} entries for "
                f"{self.nodes} nodes"
            )
        if not 1 <= self.replication <= self.nodes:
            raise ValueError(
                f"default_replication_factor must be between 1 and the number of nodes "
                f"({self.nodes}), not {self.replication}"
            )

    def _check_security(self) -> None:
        if self.listeners:
            for name in ("host", "port", "security_protocol", "ssl_context", "sasl_mechanisms"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"listeners replaces {name}: set {name} of each Listener")
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
            raise ValueError("users has an entry with an empty name or an empty password")
        # Debuggers and dataclasses.asdict would show a plain string.
        hidden = {name: Secret.of(password) for name, password in self.users.items()}
        object.__setattr__(self, "users", hidden)

    @property
    def all_listeners(self) -> Sequence[Listener]:
        """The listeners of each node, in order."""
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
        """The replication factor of topics created without one."""
        if self.default_replication_factor is None:
            return min(DEFAULT_REPLICATION, self.nodes)
        return self.default_replication_factor
