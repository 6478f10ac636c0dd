"""Arguments that consumers and producers share, with aiokafka's names, units and error messages."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsIndex, TypeGuard

from aiokafka_lite._arguments import is_int, is_list
from aiokafka_lite._chance import UNSEEDED, Chance
from aiokafka_lite._compat import override
from aiokafka_lite._settings import Settings
from aiokafka_lite.client.config import (
    MOST_STRING_BYTES,
    SECURITY_PROTOCOLS,
    ClientConfig,
    check_plaintext_credentials,
    check_unused_tls,
    parse_bootstrap_servers,
    rule_of_text,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import asyncio
    import ssl

    from aiokafka_lite.abc import AbstractTokenProvider
    from aiokafka_lite.client.connection import Authenticate
    from aiokafka_lite.client.sasl import Mechanism

SASL_MECHANISMS: Final = ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# The time to connect to one address, and to authenticate (KIP-601).
MAX_CONNECT_S: Final = 10.0
MOST_INT: Final = 2**31 - 1
MOST_LONG: Final = 2**63 - 1


def check_text(what: str, text: object, most_bytes: int = MOST_STRING_BYTES) -> None:
    """Refuse text that cannot be sent, which would fail a request that others share."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {text!r}")
    if (rule := rule_of_text(text, most_bytes)) is not None:
        raise ValueError(f"{what} {rule}, not {reprlib.repr(text)}")


def check_tp(tp: TopicPartition) -> TopicPartition:
    """Return a partition that a request can name, with an int as its number."""
    topic = tp.topic
    number: object = tp.partition  # whatever was given
    if type(number) is not int:
        if not isinstance(number, SupportsIndex) or isinstance(number, bool):
            raise TypeError(f"a partition number must be an int, not {number!r}")
        tp = TopicPartition(topic, index(number))
    if not 0 <= tp.partition <= MOST_INT:
        raise ValueError(f"a partition number must be from 0 to 2**31 - 1, not {number!r}")
    check_text("a topic's name", topic)
    if not topic:
        raise ValueError("a topic's name must not be empty")
    return tp


def _number(name: str, given: object) -> int:
    """Return a whole number. A float is rounded: 0.57 s times 1000 is 569.9999999999999 ms."""
    if is_int(given):
        return given
    if isinstance(given, float) and math.isfinite(given):
        return round(given)
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return index(given)
    raise TypeError(f"{name} must be a number, not {given!r}")


def _flag(name: str, given: object) -> bool:
    """Return a flag. Text is refused, because Python takes "false" for true."""
    if given is None or (isinstance(given, int) and given in (True, False)):
        return bool(given)
    raise TypeError(f"{name} must be True or False, not {given!r}")


def _text(name: str, given: object) -> object:
    check_text(name, given)
    return given


def _loop(name: str, given: object) -> object:
    if hasattr(given, "call_soon_threadsafe"):
        return given
    raise TypeError(f"{name} must be an event loop, not {given!r}")


# Checks of arguments, by their annotations.
_TYPE_CHECKS: Final[Mapping[str, Callable[[str, object], object]]] = {
    "asyncio.AbstractEventLoop": _loop,
    "bool": _flag,
    "int": _number,
    "str": _text,
}


class InSeconds:
    """An argument in milliseconds, whose name ends in _ms instead of _s. Computed once."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, arguments: object, owner: type) -> float:
        values = vars(arguments)
        seconds: float = values[f"{self._name[:-1]}ms"] / 1000
        values[self._name] = seconds
        return seconds


class _Given:
    """The constructor's arguments, apart because settings have a constructor for theirs."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    metadata_max_age_ms: int
    connections_max_idle_ms: int | None
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: AbstractTokenProvider | None
    allow_plaintext_credentials: bool
    allow_auto_create_topics: bool
    seed: int | None


class _Deprecated:
    loop: asyncio.AbstractEventLoop | None
    api_version: object


class ClientArguments(_Given, _Deprecated, Settings):
    """The arguments of every client. A subclass's constructor calls `_made` with its `locals()`."""

    request_timeout_s = InSeconds()
    retry_backoff_s = InSeconds()
    metadata_max_age_s = InSeconds()

    kind: ClassVar[str]
    secrets = frozenset({"sasl_plain_password", "sasl_oauth_token_provider"})
    # Numbers that may be 0, that may also be negative, and that requests have in 32 bits.
    _may_be_zero: ClassVar[frozenset[str]] = frozenset({"retry_backoff_ms"})
    _may_be_any: ClassVar[frozenset[str]] = frozenset({"connections_max_idle_ms"})
    _sent: ClassVar[frozenset[str]] = frozenset()
    _is_made = False
    # Checked by other methods: with aiokafka's messages, or without showing the value.
    _own_checks: ClassVar[frozenset[str]] = frozenset(
        {"security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"}
    )

    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            if self._is_made:
                super().__setattr__(name, value)  # refuses
            vars(self)[name] = value

    @override
    def __repr__(self) -> str:
        defaults = type(self).__init__.__kwdefaults__ or {}
        given = [repr(each) for each in self._positional]
        given += [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if name in defaults and name not in self.secrets and value != defaults[name]
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def _made(self, given: Mapping[str, object]) -> None:
        """Keep the arguments, check them and make them read-only."""
        values = vars(self)
        values.update(given)
        del values["self"]
        for name, kind, may_be_none, default in _annotated(type(self).__init__, self._own_checks):
            value = values[name]
            if value is default or (may_be_none and value is None):
                continue
            values[name] = _TYPE_CHECKS[kind](name, value)
            if kind == "int" and name != "seed":
                self._check_number(name, values[name])
        self._is_made = True
        self._check()
        if self.loop is not None:
            _warn_deprecated(
                f"The loop argument is deprecated: leave out `loop`, and create the {self.kind} in "
                "the event loop that uses it"
            )
        if self.api_version is not None:
            _warn_deprecated(
                "The `api_version` parameter has been deprecated and is ignored: versions are "
                "negotiated with each broker"
            )

    @property
    def _positional(self) -> Sequence[object]:
        return ()

    def _is_given(self, name: str) -> bool:
        return bool(getattr(self, name) != (type(self).__init__.__kwdefaults__ or {})[name])

    def _check_number(self, name: str, value: int) -> None:
        bits = 31 if name in self._sent else 63
        may_be_any, may_be_zero = name in self._may_be_any, name in self._may_be_zero
        lowest = -(1 << bits) if may_be_any else 0 if may_be_zero else 1
        if lowest <= value < 1 << bits:
            return
        shown = reprlib.repr(value)
        if value > 0:
            raise ValueError(f"{name} must be at most 2**{bits} - 1, not {shown}")
        if may_be_any:
            raise ValueError(f"{name} must be at least -2**{bits}, not {shown}")
        if may_be_zero:
            raise ValueError(f"{name} must not be negative, but is {shown}")
        raise ValueError(f"{name} must be a positive number, not {shown}")

    def _check_bootstrap(self) -> None:
        servers: object = self.bootstrap_servers
        if isinstance(servers, str):
            return
        if not isinstance(servers, Collection) or not is_list(servers):
            raise TypeError(f"bootstrap_servers must be 'host:port' or a list, not {servers!r}")
        for each in servers:
            if not isinstance(each, str):
                raise TypeError(
                    f"bootstrap_servers contains {each!r}: each entry must be a str, 'host:port'"
                )

    def _check_security(self) -> None:
        self._check_bootstrap()
        if self.security_protocol not in SECURITY_PROTOCOLS:
            raise ValueError(
                "`security_protocol` should be SSL or PLAINTEXT, SASL_SSL or SASL_PLAINTEXT, "
                f"not {self.security_protocol!r}"
            )
        if self.sasl_mechanism not in SASL_MECHANISMS:
            raise ValueError(
                "only `PLAIN`, `GSSAPI`, `SCRAM-SHA-256`, `SCRAM-SHA-512` and `OAUTHBEARER`"
                "sasl_mechanism are supported at the moment, "  # aiokafka's words
                f"not {self.sasl_mechanism!r}"
            )
        self._check_tls()
        if self.security_protocol.startswith("SASL_"):
            self._check_sasl()

    def _check_tls(self) -> None:
        if self.ssl_context is None:
            if self.security_protocol in ("SSL", "SASL_SSL"):
                raise ValueError(
                    "`ssl_context` is mandatory if security_protocol=='SSL' or 'SASL_SSL': create "
                    "the context with create_ssl_context()"
                )
            return
        import ssl  # takes milliseconds

        if not isinstance(self.ssl_context, ssl.SSLContext):
            raise TypeError(
                "ssl_context must be an ssl.SSLContext, not an object of type "
                f"{type(self.ssl_context).__name__}: create the context with create_ssl_context()"
            )
        check_unused_tls(
            self.security_protocol,
            parse_bootstrap_servers(self.bootstrap_servers),
            is_allowed=self.allow_plaintext_credentials,
        )

    def _check_sasl(self) -> None:
        for name in ("sasl_plain_username", "sasl_plain_password"):
            # The value is not shown, because it may be the password.
            if not isinstance(given := getattr(self, name), (str, type(None))):
                raise TypeError(
                    f"{name} must be a str, not an object of type {type(given).__name__}"
                )
            if given is not None and (rule := rule_of_text(given)) is not None:
                raise ValueError(f"{name} {rule}")
        mechanism = self.sasl_mechanism
        if mechanism == "GSSAPI":
            raise NotImplementedError("sasl_mechanism=GSSAPI (Kerberos) is not supported yet")
        if mechanism == "OAUTHBEARER":
            if not callable(getattr(self.sasl_oauth_token_provider, "token", None)):
                raise ValueError(
                    "sasl_oauth_token_provider needs to be provided implementing "
                    "aiokafka.abc.AbstractTokenProvider or "
                    "aiokafka_lite.abc.AbstractTokenProvider"
                )
        elif self.sasl_plain_username is None or self.sasl_plain_password is None:
            raise ValueError(
                f"sasl_plain_username and sasl_plain_password required for {mechanism} sasl"
            )
        check_plaintext_credentials(
            self.security_protocol,
            parse_bootstrap_servers(self.bootstrap_servers),
            is_allowed=self.allow_plaintext_credentials,
        )

    @property
    def connections_max_idle_s(self) -> float | None:
        """The limit of idle time, or None without one (Java's -1, librdkafka's 0)."""
        idle_ms = self.connections_max_idle_ms
        return None if idle_ms is None or idle_ms <= 0 else idle_ms / 1000

    def client_config(self, *, max_frame_bytes: int, at_most_s: float = math.inf) -> ClientConfig:
        """Return the settings of connections, with timeouts of at most ``at_most_s``."""
        return ClientConfig(
            bootstrap_servers=self.bootstrap_servers,
            client_id=self.client_id,
            request_timeout_s=min(self.request_timeout_s, at_most_s),
            connect_timeout_s=min(MAX_CONNECT_S, self.request_timeout_s, at_most_s),
            retry_backoff_s=self.retry_backoff_s,
            metadata_max_age_s=self.metadata_max_age_s,
            connections_max_idle_s=self.connections_max_idle_s,
            security_protocol=self.security_protocol,
            ssl_context=self.ssl_context,
            allow_plaintext_credentials=self.allow_plaintext_credentials,
            allow_auto_create_topics=self.allow_auto_create_topics,
            max_frame_bytes=max_frame_bytes,
        )

    def of_every_client(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _Given.__annotations__}

    def mechanism(
        self, token_provider: AbstractTokenProvider | None, chance: Chance = UNSEEDED
    ) -> Mechanism | None:
        if not self.security_protocol.startswith("SASL_"):
            return None
        # Importing hashing takes milliseconds.
        from aiokafka_lite.client.sasl import mechanism_of

        return mechanism_of(
            self.sasl_mechanism,
            username=self.sasl_plain_username,
            password=self.sasl_plain_password,
            token_provider=token_provider,
            nonce=chance.unguessable_bytes,
        )


def _warn_deprecated(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=5)  # `_made`, `__init__`, `construct`


def authenticator(mechanism: Mechanism | None, client: ClientConfig) -> Authenticate | None:
    if mechanism is None:
        return None
    from aiokafka_lite.client.sasl import Authenticator

    return Authenticator(mechanism, timeout_s=client.connect_timeout_s)


# --- Partitions and offsets -------------------------------------------------------------------
INSTANCES: Final = "partitions must be TopicPartition instances"


def shown(given: object) -> str:
    if isinstance(given, type):
        return f"the class {given.__module__}.{given.__qualname__}"
    kind = type(given)
    if kind.__module__ == "builtins":
        return repr(given)
    return f"{given!r} (of {kind.__module__}.{kind.__qualname__})"


def not_a(wanted: type, given: object) -> str:
    """Return "not …" with a value, and with the fix if its class is a namesake from elsewhere."""
    text = f"not {shown(given)}"
    bases = type(given).__mro__
    namesakes = [base for base in bases if base.__name__ == wanted.__name__]
    if not namesakes:
        return text
    theirs = namesakes[0].__module__
    if namesakes[0] is not bases[0]:
        text += f", derived from {theirs}.{wanted.__name__}"
    text += f": use {wanted.__module__}.{wanted.__name__}"
    if theirs.startswith("aiokafka."):
        text += ", or call aiokafka_lite.as_aiokafka.install() before the first import of aiokafka"
    return text


def check_partition(tp: object, otherwise: str = INSTANCES) -> TopicPartition:
    """Return a partition, or a named tuple with its fields, as this package's type."""
    if not isinstance(tp, TopicPartition):
        if not isinstance(tp, tuple) or getattr(tp, "_fields", None) != TopicPartition._fields:
            raise TypeError(f"{otherwise}, {not_a(TopicPartition, tp)}")
        tp = TopicPartition(*tp)
    return check_tp(tp)


def is_offset(offset: object) -> TypeGuard[int]:
    return is_int(offset) and 0 <= offset <= MOST_LONG


def check_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    if not offsets or not isinstance(offsets, Mapping):
        raise ValueError(
            f"offsets must be a dict of TopicPartition to offset, not {shown(offsets)}"
        )
    return {
        check_partition(tp, "Key should be TopicPartition instance"): _check_commit(value)
        for tp, value in offsets.items()
    }


def _check_commit(value: object) -> OffsetAndMetadata:
    offset: object = value
    metadata: object = ""
    if sorted(getattr(value, "_fields", ())) == ["metadata", "offset"]:
        offset, metadata = value.offset, value.metadata  # type: ignore[attr-defined]
    elif isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(
                "an offset to commit must be an int, or an (offset, metadata) tuple of int and "
                f"str, not {shown(value)}"
            )
        offset, metadata = value
    if not is_offset(offset):
        raise ValueError(
            "an offset to commit must be an int from 0 to 2**63 - 1, or an (offset, metadata) "
            f"tuple, not {shown(value)}"
        )
    if not isinstance(metadata, str):
        raise TypeError(f"Metadata should be a string, not {metadata!r}")
    check_text("the metadata of an offset", metadata)
    return OffsetAndMetadata(offset, metadata)


@cache
def _annotated(
    init: Callable[..., None], left_out: frozenset[str]
) -> Sequence[tuple[str, str, bool, object]]:
    """Return each checked argument: name, type, whether it may be None, and default."""
    found = []
    for name, default in (init.__kwdefaults__ or {}).items():
        text = str(init.__annotations__[name])
        kind = text.removesuffix(" | None")
        if kind in _TYPE_CHECKS and name not in left_out:
            found.append((name, kind, kind != text, default))
    return found
