"""How the source proves who it is, and who the brokers are: kafka.security.*, sasl.* and ssl.*.

Kafka's Java names and librdkafka's are known. Nothing here shows a value that may be secret, and
what is not asked for is not imported: `ssl` takes ten milliseconds in each worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from aiokafka_lite.client.config import SECURITY_PROTOCOLS, parse_bootstrap_servers
from aiokafka_lite.errors import InsecureConfigError, KafkaConfigurationError, OptionError
from aiokafka_lite.spark.given import GivenOptions, trimmed

if TYPE_CHECKING:
    import ssl

    from aiokafka_lite.client.sasl import Mechanism

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_EFFECTIVE: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.mechanisms",  # librdkafka's name
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
"""What chooses among Java's own implementations: here it is OpenSSL."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
    }
)
"""Details of mechanisms that are refused themselves, or that only brokers heed."""

_CLASSES: Final = frozenset(
    {
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "ssl.engine.factory.class",
    }
)

SECURITY_NAMES: Final = (
    _EFFECTIVE | _JAVA_ONLY | _WITHOUT_EFFECT | _CLASSES | {"sasl.oauthbearer.token.endpoint.url"}
)
"""All names of kafka.* that are about security, without the prefix."""

_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": "password",
    "org.apache.kafka.common.security.scram.ScramLoginModule": "password",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": "OAUTHBEARER",
    "com.sun.security.auth.module.Krb5LoginModule": "GSSAPI",
}
_NOT_HERE: Final = {
    "GSSAPI": "Kerberos (GSSAPI) is not supported",
    "OAUTHBEARER": "tokens (OAUTHBEARER) are not supported",
    "AWS_MSK_IAM": "Amazon's IAM login is not supported",
}


class Security(NamedTuple):
    """What it comes to: protocol, context and mechanism, the latter two where they are used."""

    protocol: str
    ssl_context: ssl.SSLContext | None
    mechanism: Mechanism | None


def parse_security(given: GivenOptions, servers: str) -> Security:
    """Read how to reach some bootstrap servers.

    Raises:
        OptionError: A value is missing or wrong, or asks for what cannot be done here.
        InsecureConfigError: Credentials would leave this machine without TLS.
    """
    protocol = trimmed(given.text("kafka.security.protocol") or "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise given.refusal(
            "kafka.security.protocol", f"it is one of {', '.join(SECURITY_PROTOCOLS)}"
        )
    _check_names(given, protocol)
    is_allowed = given.boolean("allowPlaintextCredentials", default=False)
    if protocol == "SASL_PLAINTEXT" and not is_allowed:
        _check_servers(servers)
    ssl_context = None
    if protocol.endswith("SSL"):
        from aiokafka_lite.spark.tls import tls_context  # late: it imports ssl

        ssl_context = tls_context(given)
    mechanism = _mechanism(given) if protocol.startswith("SASL_") else None
    return Security(protocol, ssl_context, mechanism)


def _check_names(given: GivenOptions, protocol: str) -> None:
    unused: list[str] = []
    for option in given.names():
        name = option.removeprefix("kafka.")
        if name == option or name not in SECURITY_NAMES:
            continue
        if (name.startswith("ssl.") and not protocol.endswith("SSL")) or (
            name.startswith("sasl.") and not protocol.startswith("SASL_")
        ):
            unused.append(option)
        elif name in _CLASSES:
            _refuse_class(option)
        elif name in _JAVA_ONLY and name != "ssl.protocol":
            given.warnings.append(f"option {option} has no effect: TLS is OpenSSL's here")
    if unused:
        given.warnings.append(
            f"options {', '.join(sorted(unused))} have no effect: kafka.security.protocol is "
            f"{protocol}"
        )


def _refuse_class(option: str) -> NoReturn:
    raise OptionError(
        f"option {option} cannot be used: a Java class cannot be run here, and without it the "
        "connection would be less than was asked for"
    )


def _check_servers(servers: str) -> None:
    for address in parse_bootstrap_servers(servers):
        if not address.is_loopback:
            raise InsecureConfigError(
                f"option kafka.security.protocol is SASL_PLAINTEXT, which would send credentials "
                f"to {address} without TLS: use SASL_SSL, or set option allowPlaintextCredentials "
                "to true where the network is safe"
            )


# --- Credentials ---------------------------------------------------------------------------
def _mechanism(given: GivenOptions) -> Mechanism:
    name = _mechanism_name(given)
    username, password = _credentials(given)
    from aiokafka_lite.client.sasl import mechanism_of  # late: only where SASL is used

    try:
        return mechanism_of(name, username=username, password=password)
    except KafkaConfigurationError as error:
        raise OptionError(f"option kafka.sasl.mechanism is {name!r}: {error}") from error


def _mechanism_name(given: GivenOptions) -> str:
    option = "kafka.sasl.mechanism"
    if option not in given and "kafka.sasl.mechanisms" in given:
        option = "kafka.sasl.mechanisms"
    text = given.text(option)
    known = f"it is one of {', '.join(PASSWORD_MECHANISMS)}"
    if text is None:
        raise OptionError(
            f"option {option} is missing, for which Kafka takes Kerberos (GSSAPI), which is not "
            f"supported here: {known}"
        )
    name = trimmed(text)
    if name not in PASSWORD_MECHANISMS:
        not_here = _NOT_HERE.get(name)
        raise given.refusal(option, f"{not_here} here; {known}" if not_here else known)
    return name


def _credentials(given: GivenOptions) -> tuple[str, str]:
    username, password = given.text("kafka.sasl.username"), given.text("kafka.sasl.password")
    jaas = given.text("kafka.sasl.jaas.config")
    if jaas is None:
        if username is None or password is None:
            raise OptionError(
                "credentials are missing: give options kafka.sasl.username and "
                "kafka.sasl.password, or kafka.sasl.jaas.config"
            )
        return username, password
    if username is not None or password is not None:
        raise OptionError(
            "options kafka.sasl.jaas.config and kafka.sasl.username or kafka.sasl.password are "
            "given: only one way can be heeded"
        )
    return _from_jaas(jaas)


def _from_jaas(jaas: str) -> tuple[str, str]:
    from aiokafka_lite.spark.jaas import JaasError, parse_jaas  # late: only where SASL is used

    option = "option kafka.sasl.jaas.config (not shown here)"
    try:
        module = parse_jaas(jaas)
    except JaasError as error:
        raise OptionError(f"{option}: {error}") from error
    # Some platforms have Kafka's classes under a prefix of their own.
    kind = _MODULES.get(module.name.removeprefix("kafkashaded."))
    if kind != "password":
        reason = _NOT_HERE.get(kind or "", "its login module is not known here")
        raise OptionError(f"{option}: {reason}; use PlainLoginModule or ScramLoginModule")
    if module.options.get("tokenauth", "").lower() == "true":
        raise OptionError(f"{option}: delegation tokens (tokenauth) are not supported here")
    if missing := [name for name in ("username", "password") if name not in module.options]:
        raise OptionError(f"{option}: its {' and '.join(missing)} is missing")
    return module.options["username"], module.options["password"]
