"""The arguments of a producer, checked.

They have aiokafka's names and units. The package itself uses seconds, from the `_s` properties.
Messages begin like aiokafka's, because programs match these texts.
"""

from __future__ import annotations

import itertools
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

from aiokafka_lite._compat import SentKT, SentVT, override
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.client.arguments import ClientArguments, InSeconds
from aiokafka_lite.errors import UnsupportedCodecError
from aiokafka_lite.records.codec import Codec

if TYPE_CHECKING:
    import asyncio
    import ssl

    from aiokafka_lite.abc import AbstractTokenProvider

Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""Takes a key's bytes, all partitions and those that have a leader; returns one of them."""

DEFAULT_DELIVERY_TIMEOUT_MS: Final = 120_000
DEFAULT_BUFFER_MEMORY: Final = 32 * 1024 * 1024
# The part of request_timeout_ms that a broker may wait for replicas. The rest is for its response,
# so that its error arrives before the connection is closed.
BROKERS_SHARE: Final = 0.8

ACKS: Final = ("all", -1, 0, 1, None)

_numbers = itertools.count(1)


def _next_number() -> int:
    simulation = simulation_of(_get_running_loop())
    return next(_numbers) if simulation is None else simulation.next_number("producer")


class _Given(Generic[SentKT, SentVT]):
    """The constructor's arguments that only producers have."""

    acks: Literal["all", -1, 0, 1] | None
    key_serializer: Callable[[SentKT], bytes] | None
    value_serializer: Callable[[SentVT], bytes] | None
    compression_type: str | None
    max_batch_size: int
    partitioner: Partitioner | None
    max_request_size: int
    linger_ms: int
    enable_idempotence: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int
    buffer_memory: int
    delivery_timeout_ms: int | None
    # The name under which the seed decides.
    chance_name: str


class ProducerConfig(_Given[SentKT, SentVT], ClientArguments):
    """The arguments under their names. The errors are those of `AIOKafkaProducer`."""

    kind = "producer"
    linger_s = InSeconds()
    _may_be_zero = ClientArguments._may_be_zero | {"linger_ms"}
    _may_be_any = ClientArguments._may_be_any | {"delivery_timeout_ms"}  # has a limit of its own
    _sent = frozenset({"request_timeout_ms", "transaction_timeout_ms"})

    # AIOKafkaProducer takes these arguments (`takes_arguments_of`): they are written here only.
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 40_000,
        api_version: object = None,
        acks: Literal["all", -1, 0, 1] | None = None,
        key_serializer: Callable[[SentKT], bytes] | None = None,
        value_serializer: Callable[[SentVT], bytes] | None = None,
        compression_type: str | None = None,
        max_batch_size: int = 16_384,
        partitioner: Partitioner | None = None,
        max_request_size: int = 1_048_576,
        linger_ms: int = 0,
        retry_backoff_ms: int = 100,
        security_protocol: str = "PLAINTEXT",
        ssl_context: ssl.SSLContext | None = None,
        connections_max_idle_ms: int | None = 540_000,
        enable_idempotence: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
        allow_plaintext_credentials: bool = False,
        allow_auto_create_topics: bool = True,
        buffer_memory: int = DEFAULT_BUFFER_MEMORY,
        delivery_timeout_ms: int | None = None,
        seed: int | None = None,
    ) -> None:
        """Check the arguments. `start` connects.

        Some arguments exist for compatibility with aiokafka and have no effect: each record is
        written once, to all in-sync replicas.

        Args:
            loop: Deprecated: the event loop of the producer, if that loop is not running yet.
            bootstrap_servers: The brokers to connect to first: "host:port", several separated by
                commas, or a list.
            client_id: The client's name in brokers' logs and quotas. None numbers the producers.
            metadata_max_age_ms: The age at which the metadata of topics and leaders are refreshed.
            request_timeout_ms: How long a request may take before it is retried, and how long
                `send` waits for the metadata of a topic or for `buffer_memory`.
            api_version: Deprecated, without effect.
            acks: Without effect: always "all".
            key_serializer: Serializes a record's key. It is called for None, too.
            value_serializer: Serializes a record's value. It is called for None, too.
            compression_type: None, "gzip", "snappy", "lz4" or "zstd".
            max_batch_size: The size in bytes at which a batch is full. A larger record gets its own
                batch.
            partitioner: Chooses the partition of records that are sent without one. By default the
                key decides, as in Java's producer. Records without keys go to one partition until
                they have `max_batch_size` bytes, then to another.
            max_request_size: The largest size of a request, and thereby of a record, in bytes.
            linger_ms: How long a batch that is not full waits for more records. With 0 it is sent
                once its leader can take a request. Batches form under load anyway.
            retry_backoff_ms: The wait before the first retry of a request. It grows.
            security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
            ssl_context: For TLS. `aiokafka_lite.helpers.create_ssl_context` creates one.
            connections_max_idle_ms: How long an unused connection stays open. None or 0 is
                forever.
            enable_idempotence: Without effect: always on. True cannot be combined with acks 0 or 1.
            transactional_id: A name that enables transactions. A new producer with the same name
                fences this one.
            transaction_timeout_ms: The age at which the coordinator aborts a transaction.
            sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
            sasl_plain_password: For PLAIN and SCRAM.
            sasl_plain_username: For PLAIN and SCRAM.
            sasl_kerberos_service_name: Without effect.
            sasl_kerberos_domain_name: Without effect.
            sasl_oauth_token_provider: For OAUTHBEARER: an `AbstractTokenProvider`.
            allow_plaintext_credentials: Send credentials without TLS to other machines.
            allow_auto_create_topics: Brokers may create the topics of the records.
            buffer_memory: The largest size of all unacknowledged records, in bytes. `send` waits at
                this limit.
            delivery_timeout_ms: The age at which the future of an unacknowledged record fails. None
                is 120 s, or the time of one request if that is longer.
            seed: Decides all random numbers of this client: jitter, the partitions of records
                without keys, and SCRAM nonces. For simulations and tests, because a seed makes
                nonces predictable. Producers of one seed on one loop differ, by `client_id` and
                `transactional_id`, and in the order of their creation. TLS is not seeded. None: the
                operating system's entropy.
        """
        chance_name = f"producer/{client_id or ''}/{transactional_id or ''}"
        if client_id is None:
            client_id = f"aiokafka-lite-producer-{_next_number()}"
        self._made(locals())

    @override
    def _check(self) -> None:
        self._check_security()
        if self.acks not in ACKS:
            raise ValueError(
                f"Invalid ACKS parameter: acks must be 'all', -1, 1 or 0, not {self.acks!r}"
            )
        if self.enable_idempotence and self.acks in (0, 1):
            raise ValueError(
                f"acks={self.acks} not supported if enable_idempotence=True: set acks='all', or "
                "leave out one of the arguments"
            )
        for name in ("key_serializer", "value_serializer", "partitioner"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be a function, not {given!r}")
        if self.transactional_id == "":
            raise ValueError("transactional_id must be None or a non-empty string")
        self._check_codec()
        if self.delivery_timeout_ms is not None and self.delivery_timeout_ms < self._one_try_ms:
            raise ValueError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is too short for one attempt, "
                f"because linger_ms + request_timeout_ms = {self._one_try_ms}: raise "
                "delivery_timeout_ms, or lower request_timeout_ms"
            )

    def _check_codec(self) -> None:
        try:
            _ = self.codec
        except UnsupportedCodecError as error:
            raise ValueError(
                "Invalid compression type! compression_type must be gzip, snappy, lz4, zstd or "
                f"None, not {self.compression_type!r}"
            ) from error

    @property
    def codec(self) -> Codec:
        return Codec.of(self.compression_type or "none")

    @property
    def _one_try_ms(self) -> int:
        return self.linger_ms + self.request_timeout_ms

    @property
    def delivery_timeout_s(self) -> float:
        if self.delivery_timeout_ms is not None:
            return self.delivery_timeout_ms / 1000
        return max(DEFAULT_DELIVERY_TIMEOUT_MS, self._one_try_ms) / 1000

    @property
    def brokers_timeout_ms(self) -> int:
        """How long a broker may wait for replicas before it responds with REQUEST_TIMED_OUT."""
        return max(1, int(self.request_timeout_ms * BROKERS_SHARE))


AnyProducerConfig: TypeAlias = "ProducerConfig[Any, Any]"
"""The type of a config for code that does not call its serializers."""
