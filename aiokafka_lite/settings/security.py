"""Authentication and TLS of the source: kafka.security.*, sasl.* and ssl.*.

Errors show no value that may be secret. Modules are imported on use: `ssl` takes ten milliseconds
in each worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._loopback import is_loopback
from aiokafka_lite.client.config import SECURITY_PROTOCOLS, parse_bootstrap_servers
from aiokafka_lite.errors import InsecureConfigError, KafkaConfigurationError, OptionError
from aiokafka_lite.settings.raw_options import MAX_INT, RawOptions, trimmed

if TYPE_CHECKING:
    import ssl

    from aiokafka_lite.abc import AbstractTokenProvider
    from aiokafka_lite.client.sasl import Mechanism
    from aiokafka_lite.sasl import Secret

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
DEFAULT_TOKEN_TIMEOUT_MS: Final = 10_000

_ACCEPTED: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.mechanisms",  # librdkafka's name
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",  # librdkafka's
        "sasl.username",  # librdkafka's
        "security.protocol",
        "ssl.ca.location",  # librdkafka's
        "ssl.certificate.location",  # librdkafka's
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",  # librdkafka's
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        # Without effect: they are details of mechanisms that are refused themselves, of when tokens
        # are renewed, or for brokers.
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
    }
)

_JAVA_ONLY: Final = frozenset(
    {
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
"""These choose among implementations of Java; here it is OpenSSL."""

_CLASSES: Final = frozenset(
    {
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "ssl.engine.factory.class",
    }
)

# Kafka's own classes for client credentials, which this source replaces.
_TOKEN_CLASSES: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)

SECURITY_NAMES: Final = _ACCEPTED | _JAVA_ONLY | _CLASSES
"""All names of kafka.* that are about security, without the prefix."""

_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": "password",
    "org.apache.kafka.common.security.scram.ScramLoginModule": "password",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": "OAUTHBEARER",
    "com.sun.security.auth.module.Krb5LoginModule": "GSSAPI",
}
_UNSUPPORTED: Final = {
    "GSSAPI": "Kerberos (GSSAPI) is not supported",
    "AWS_MSK_IAM": "Amazon's IAM login is not supported",
}


_WANTED: Final = {
    "password": "use Kafka's PlainLoginModule or ScramLoginModule, with username and password",
    "OAUTHBEARER": "use Kafka's OAuthBearerLoginModule, with clientId and clientSecret",
}
_JAAS: Final = "option kafka.sasl.jaas.config (value hidden)"


class Login(NamedTuple):
    """A mechanism, with a user name and password, or with a provider of tokens."""

    mechanism: str
    username: str | None = None
    password: Secret | None = None
    tokens: AbstractTokenProvider | None = None


class Security(NamedTuple):
    """The protocol, with a TLS context and a login if it uses them."""

    protocol: str
    ssl_context: ssl.SSLContext | None
    login: Login | None

    @property
    def mechanism(self) -> Mechanism | None:
        if self.login is None:
            return None
        from aiokafka_lite.client.sasl import mechanism_of  # late: only where SASL is used

        name, username, password, tokens = self.login
        shown = password.reveal().decode() if password is not None else None
        try:
            return mechanism_of(name, username=username, password=shown, token_provider=tokens)
        except KafkaConfigurationError as error:
            raise OptionError(
                f"option kafka.sasl.mechanism is {name!r}: {error.args[0]}"
            ) from error


def parse_security(raw: RawOptions, servers: str) -> Security:
    protocol = trimmed(raw.text("kafka.security.protocol") or "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise raw.refusal(
            "kafka.security.protocol", f"the value must be one of {', '.join(SECURITY_PROTOCOLS)}"
        )
    _check_names(raw, protocol)
    is_allowed = raw.boolean("allowPlaintextCredentials", default=False)
    if protocol == "SASL_PLAINTEXT" and not is_allowed:
        _check_servers(servers)
    ssl_context = None
    if protocol.endswith("SSL"):
        from aiokafka_lite.settings.tls import tls_context  # late: it imports ssl

        ssl_context = tls_context(raw)
    login = _login(raw) if protocol.startswith("SASL_") else None
    return Security(protocol, ssl_context, login)


def _check_names(raw: RawOptions, protocol: str) -> None:
    unused: list[str] = []
    for option in raw.names():
        name = option.removeprefix("kafka.")
        if name == option or name not in SECURITY_NAMES:
            continue
        if (name.startswith("ssl.") and not protocol.endswith("SSL")) or (
            name.startswith("sasl.") and not protocol.startswith("SASL_")
        ):
            unused.append(option)
        elif name in _CLASSES and not (
            name == "sasl.login.callback.handler.class"
            and _class_name(raw.text(option)) in _TOKEN_CLASSES
        ):
            raise OptionError(
                f"option {option} cannot be used, because this source cannot run Java classes: "
                "leave the option out"
            )
        elif name in _JAVA_ONLY and name != "ssl.protocol":
            raw.warnings.append(
                f"option {option} has no effect: it configures TLS in Java, but this source uses "
                "OpenSSL"
            )
    if unused:
        raw.warnings.append(
            f"options {', '.join(sorted(unused))} have no effect, because kafka.security.protocol "
            f"is {protocol}"
        )


def _check_servers(servers: str) -> None:
    for address in parse_bootstrap_servers(servers):
        if not address.is_loopback:
            raise InsecureConfigError(
                "option kafka.security.protocol is SASL_PLAINTEXT, which would send credentials "
                f"to {address} without TLS: use SASL_SSL, or set allowPlaintextCredentials=true on "
                "a trusted network"
            )


# --- Credentials ---------------------------------------------------------------------------
def _login(raw: RawOptions) -> Login:
    name = _mechanism_name(raw)
    if name == "OAUTHBEARER":
        return Login(name, tokens=_tokens(raw))
    from aiokafka_lite.sasl import Secret  # late: only where SASL is used

    username, password = _credentials(raw)
    return Login(name, username, Secret(password))


def _mechanism_name(raw: RawOptions) -> str:
    option = "kafka.sasl.mechanism"
    if option not in raw and "kafka.sasl.mechanisms" in raw:
        option = "kafka.sasl.mechanisms"
    text = raw.text(option)
    known = f"the value must be one of {', '.join(MECHANISMS)}"
    if text is None:
        raise OptionError(
            f"option {option} is missing, and its default, Kerberos (GSSAPI), is not supported: "
            f"{known}"
        )
    name = trimmed(text)
    if name not in MECHANISMS:
        unsupported = _UNSUPPORTED.get(name)
        raise raw.refusal(option, f"{unsupported}: {known}" if unsupported else known)
    return name


def _credentials(raw: RawOptions) -> tuple[str, str]:
    username, password = raw.text("kafka.sasl.username"), raw.text("kafka.sasl.password")
    if "kafka.sasl.jaas.config" not in raw:
        if username is None or password is None:
            raise OptionError(
                "credentials are missing: set the options kafka.sasl.username and "
                "kafka.sasl.password, or the option kafka.sasl.jaas.config"
            )
        return username, password
    if username is not None or password is not None:
        raise OptionError(
            "option kafka.sasl.jaas.config is set, so kafka.sasl.username and "
            "kafka.sasl.password must not be set"
        )
    options = _login_options(raw, "password")
    if options.get("tokenauth", "").lower() == "true":
        raise OptionError(f"{_JAAS}: delegation tokens (tokenauth) are not supported")
    if missing := [name for name in ("username", "password") if name not in options]:
        raise OptionError(f"{_JAAS} lacks {' and '.join(missing)}")
    return options["username"], options["password"]


def _login_options(raw: RawOptions, kind: str) -> dict[str, str]:
    """Return the options of the login module in `sasl.jaas.config`, which must match `kind`."""
    from aiokafka_lite.settings.jaas import (  # late: only where SASL is used
        JaasError,
        parse_jaas,
    )

    text = raw.text("kafka.sasl.jaas.config")
    if text is None:
        raise OptionError(f"option kafka.sasl.jaas.config is missing: {_WANTED[kind]}")
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise OptionError(f"{_JAAS}: {error}") from error
    found = _MODULES.get(_class_name(module.name))
    if found != kind:
        reason = _UNSUPPORTED.get(
            found or "", "the login module does not match kafka.sasl.mechanism"
        )
        raise OptionError(f"{_JAAS}: {reason}, so {_WANTED[kind]}")
    return module.options


def _class_name(name: str | None) -> str:
    return trimmed(name or "").removeprefix("kafkashaded.")


# --- Tokens --------------------------------------------------------------------------------
def _tokens(raw: RawOptions) -> AbstractTokenProvider:
    from aiokafka_lite.sasl import Secret  # late: only where tokens are used
    from aiokafka_lite.settings.oauth import ClientCredentials

    options = _login_options(raw, "OAUTHBEARER")
    url = _token_url(raw)
    known = {"clientId", "clientSecret", "scope"}
    for name in options:
        if name not in known and not name.startswith("extension_"):
            raise OptionError(
                f"{_JAAS} has the login module option {name!r}, which is not supported"
            )
    if missing := [name for name in ("clientId", "clientSecret") if not options.get(name)]:
        raise OptionError(f"{_JAAS} lacks {' and '.join(missing)}")
    timeouts_ms = [
        raw.number(name, DEFAULT_TOKEN_TIMEOUT_MS, at_least=1, at_most=MAX_INT)
        for name in ("kafka.sasl.login.connect.timeout.ms", "kafka.sasl.login.read.timeout.ms")
    ]
    return ClientCredentials(
        url,
        options["clientId"],
        Secret(options["clientSecret"]),
        scope=options.get("scope"),
        extensions={
            name.removeprefix("extension_"): value
            for name, value in options.items()
            if name.startswith("extension_")
        },
        is_encoded=raw.boolean("kafka.sasl.oauthbearer.header.urlencode", default=False),
        timeout_s=max(timeouts_ms) / 1000,
    )


def _token_url(raw: RawOptions) -> str:
    name = "kafka.sasl.oauthbearer.token.endpoint.url"
    text = raw.text(name)
    if text is None:
        raise OptionError(
            f"option {name} is missing: set the URL of an OAuth server's token endpoint. Unsecured "
            "tokens are not supported"
        )
    from urllib.parse import urlsplit

    try:
        url = urlsplit(trimmed(text))
        host = url.hostname or ""
    except ValueError as error:
        raise OptionError(f"option {name} is not a URL: {error}") from error
    is_allowed = raw.boolean("allowPlaintextCredentials", default=False)
    if "@" in url.netloc or not host or url.scheme not in ("https", "http"):
        raise OptionError(
            f"option {name} (value hidden) must be a URL such as https://login.example/token, "
            "without a user name or password"
        )
    if url.scheme == "http" and not is_allowed and not is_loopback(host):
        raise InsecureConfigError(
            f"option {name} would send credentials to {host} without TLS: use https, or set "
            "allowPlaintextCredentials=true on a trusted network"
        )
    return url.geturl()
