"""What a producer is asked to do: the arguments of its constructor, checked.

The arguments keep aiokafka's names and units; inside the package everything is in seconds, read
from the `_s` properties. Messages begin with aiokafka's words, where it has some: programs match
them.

References: Kafka's producer configuration, KIP-91 (delivery.timeout.ms), KIP-98 (transactions).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

from aiokafka_lite._compat import SentKT, SentVT, override
from aiokafka_lite.client.arguments import ClientArguments
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
# Of the time that a request may take: what the broker may use up waiting for replicas. The rest is
# for its answer, so that it says what it waited for before the connection is given up.
BROKERS_SHARE: Final = 0.8

POSITIVE: Final = (
    "max_batch_size",
    "max_request_size",
    "buffer_memory",
    "request_timeout_ms",
    "metadata_max_age_ms",
    "transaction_timeout_ms",
)
NOT_NEGATIVE: Final = ("linger_ms", "retry_backoff_ms")
ACKS: Final = ("all", -1, 0, 1, None)

_numbers = itertools.count(1)


class ProducerConfig(ClientArguments, Generic[SentKT, SentVT]):
    """The arguments of a producer, each under its name; those that cannot be used are refused.

    To type checkers it is generic in what the serializers take.

    Raises:
        ValueError: A value cannot be used.
        TypeError: A value is of another type than its annotation says.
        InsecureConfigError: Credentials would leave this machine without TLS, or an ssl_context
            was given that security_protocol leaves unused on the way to another machine.
        NotImplementedError: sasl_mechanism is GSSAPI.
    """

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
    ) -> None:
        """Take arguments and connect to nothing yet.

        Without effect, accepted for aiokafka's sake: `acks` and `enable_idempotence` (each record
        is written once, to all in-sync replicas, whatever they say), and what only GSSAPI needs.

        Args:
            loop: Deprecated: the loop on which the producer is used, if it is not running yet.
            bootstrap_servers: Where to ask for the cluster's brokers first: "host:port", several
                with commas between them, or a list.
            client_id: What brokers call this client in logs and quotas; None: a numbered name.
            metadata_max_age_ms: How old what is known of topics and leaders may get.
            request_timeout_ms: How long an answer may take before the request is tried again; and
                how long `send` waits for a topic or for room.
            api_version: Deprecated, without effect.
            acks: Without effect: always "all".
            key_serializer: Makes bytes of a record's key; called for None, too.
            value_serializer: The same for values.
            compression_type: None, "gzip", "snappy", "lz4" or "zstd".
            max_batch_size: From how many bytes on a batch takes no further record; a larger record
                has a batch of its own.
            partitioner: Chooses the partition of records that are sent without one. By default the
                key decides, as in Java's producer; records without keys go to one partition until
                there are `max_batch_size` bytes of them, then to another.
            max_request_size: What one request holds at most, and so the largest record.
            linger_ms: How long a batch that is not full waits for more records. 0: it goes as soon
                as its leader can be sent a request; under load batches form by themselves.
            retry_backoff_ms: How long to wait before a request is tried again, at first.
            security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
            ssl_context: For TLS; `aiokafka_lite.helpers.create_ssl_context` makes one.
            connections_max_idle_ms: After how long a connection that nobody uses is closed; None
                or 0 is never.
            enable_idempotence: Without effect: always on. True does not go with acks 0 and 1.
            transactional_id: A name that makes this a producer of transactions. Whoever starts
                another producer with it fences this one off.
            transaction_timeout_ms: After so long the coordinator aborts a transaction.
            sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
            sasl_plain_password: For PLAIN and SCRAM.
            sasl_plain_username: For PLAIN and SCRAM.
            sasl_kerberos_service_name: Without effect.
            sasl_kerberos_domain_name: Without effect.
            sasl_oauth_token_provider: For OAUTHBEARER: an `AbstractTokenProvider`.
            allow_plaintext_credentials: Send credentials without TLS to other machines.
            allow_auto_create_topics: Brokers may create the topics that are sent to.
            buffer_memory: How many bytes of records wait for their brokers' answers at most; `send`
                waits for room.
            delivery_timeout_ms: After so long without success a record's future fails; None: after
                120 s, or as long as one request may take, if that is longer.
        """
        self.loop = loop
        self.bootstrap_servers = bootstrap_servers
        self.client_id = (
            f"aiokafka-lite-producer-{next(_numbers)}" if client_id is None else client_id
        )
        self.metadata_max_age_ms = metadata_max_age_ms
        self.request_timeout_ms = request_timeout_ms
        self.api_version = api_version
        self.acks = acks
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.compression_type = compression_type
        self.max_batch_size = max_batch_size
        self.partitioner = partitioner
        self.max_request_size = max_request_size
        self.linger_ms = linger_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.security_protocol = security_protocol
        self.ssl_context = ssl_context
        self.connections_max_idle_ms = connections_max_idle_ms
        self.enable_idempotence = enable_idempotence
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.sasl_mechanism = sasl_mechanism
        self.sasl_plain_password = sasl_plain_password
        self.sasl_plain_username = sasl_plain_username
        self.sasl_kerberos_service_name = sasl_kerberos_service_name
        self.sasl_kerberos_domain_name = sasl_kerberos_domain_name
        self.sasl_oauth_token_provider = sasl_oauth_token_provider
        self.allow_plaintext_credentials = allow_plaintext_credentials
        self.allow_auto_create_topics = allow_auto_create_topics
        self.buffer_memory = buffer_memory
        self.delivery_timeout_ms = delivery_timeout_ms
        self._made()

    @override
    def _check(self) -> None:
        self._check_security()
        self._check_sendable("client_id", "transactional_id", "transaction_timeout_ms")
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is a positive number, not {getattr(self, name)!r}")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, as {getattr(self, name)!r} is")
        if self.acks not in ACKS:
            raise ValueError(
                f"Invalid ACKS parameter: acks is 'all', -1, 1 or 0, not {self.acks!r}"
            )
        if self.enable_idempotence and self.acks in (0, 1):
            raise ValueError(
                f"acks={self.acks} not supported if enable_idempotence=True: leave one of them out"
            )
        for name in ("key_serializer", "value_serializer", "partitioner"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} is a function, not {given!r}")
        if self.transactional_id == "":
            raise ValueError("transactional_id is a name that is not empty, or None")
        self._check_codec()
        if self.delivery_timeout_ms is not None and self.delivery_timeout_ms < self._one_try_ms:
            raise ValueError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is shorter than linger_ms + "
                f"request_timeout_ms = {self._one_try_ms}: a record could "
                "not even be tried once; raise it, or lower request_timeout_ms"
            )

    def _check_codec(self) -> None:
        try:
            _ = self.codec
        except UnsupportedCodecError as error:
            raise ValueError(
                "Invalid compression type! compression_type is gzip, snappy, lz4, zstd or None, "
                f"not {self.compression_type!r}"
            ) from error

    @property
    def codec(self) -> Codec:
        """What compresses batches."""
        return Codec.of(self.compression_type or "none")

    @property
    def linger_s(self) -> float:
        return self.linger_ms / 1000

    @property
    def _one_try_ms(self) -> int:
        """How long a record may take to be sent, and answered, once."""
        return self.linger_ms + self.request_timeout_ms

    @property
    def delivery_timeout_s(self) -> float:
        if self.delivery_timeout_ms is not None:
            return self.delivery_timeout_ms / 1000
        return max(DEFAULT_DELIVERY_TIMEOUT_MS, self._one_try_ms) / 1000

    @property
    def brokers_timeout_ms(self) -> int:
        """How long a broker waits for replicas before it answers that it gives up."""
        return max(1, int(self.request_timeout_ms * BROKERS_SHARE))


AnyProducerConfig: TypeAlias = "ProducerConfig[Any, Any]"
"""A config whatever its serializers take, for those who do not call them."""
