"""Security protocol and credentials."""

from __future__ import annotations

import itertools
import pickle

import pytest

from aiokafka_lite.errors import InsecureConfigError, OptionError
from aiokafka_lite.spark.options import SourceOptions, parse_options
from tests.spark.options.cases import BROKER, TOPIC
from tests.support.for_each import for_each

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
USER = {"sasl.username": "me", "sasl.password": "hunter2"}


def parse(options: dict[str, str], **others: str) -> SourceOptions:
    kafka = {f"kafka.{name}": value for name, value in options.items()}
    return parse_options({**BROKER, **TOPIC, **kafka, **others}, is_streaming=False)


def jaas(module: str, options: str = 'username="me" password="hunter2"') -> dict[str, str]:
    return {"sasl.jaas.config": f"{module} required {options};"}


def test_nothing_is_secured_unless_asked_for() -> None:
    options = parse({})
    assert options.client.security_protocol == "PLAINTEXT"
    assert (options.mechanism, options.client.ssl_context) == (None, None)


@pytest.mark.parametrize("protocol", ["sasl_plaintext", " SASL_PLAINTEXT "])
def test_protocol_is_taken_in_any_case(protocol: str) -> None:
    options = parse({**SASL, **USER, "security.protocol": protocol})
    assert options.client.security_protocol == "SASL_PLAINTEXT"


@for_each(
    itertools.product(
        ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        [USER, jaas(PLAIN), jaas(SCRAM), jaas(f"kafkashaded.{PLAIN}")],
    )
)
def test_credentials_are_taken_from_jaas_and_from_options(
    mechanism: str, given: dict[str, str]
) -> None:
    options = parse({**SASL, "sasl.mechanism": mechanism, **given})
    assert options.mechanism is not None
    assert options.mechanism.name == mechanism
    assert vars(options.mechanism)["_username"] == "me"
    assert vars(options.mechanism)["_password"].reveal() == b"hunter2"


def test_librdkafkas_name_of_the_mechanism_is_taken() -> None:
    options = parse({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", **USER})
    assert options.mechanism is not None
    assert options.mechanism.name == "PLAIN"


@for_each(
    [
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_PLAINTEXT", **USER}, "sasl.mechanism is missing.*GSSAPI"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "Kerberos .GSSAPI. is not supported"),
        ({**SASL, "sasl.mechanism": "AWS_MSK_IAM"}, "Amazon's IAM login is not supported"),
        (
            {**SASL, "sasl.mechanism": "plain"},
            "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
        (SASL, "credentials are missing"),
        ({**SASL, "sasl.username": "me"}, "credentials are missing"),
        ({**SASL, **USER, **jaas(PLAIN)}, "must not be set"),
        ({**SASL, **jaas(PLAIN, "username=me")}, "lacks password"),
        ({**SASL, **jaas(PLAIN, "")}, "lacks username and password"),
        ({**SASL, **jaas(OAUTH)}, "does not match kafka.sasl.mechanism, so use Kafka's Plain"),
        ({**SASL, **jaas(KERBEROS)}, "Kerberos"),
        ({**SASL, **jaas("com.example.Mine")}, "login module does not match"),
        ({**SASL, **jaas(SCRAM, "username=a password=hunter2 tokenauth=true")}, "tokenauth"),
        ({**SASL, "sasl.jaas.config": "hunter2"}, r"sasl.jaas.config \(value hidden\)"),
        ({**SASL, "sasl.username": "a\0b", "sasl.password": "hunter2"}, "PLAIN cannot transmit"),
        ({**SASL, **USER, "sasl.login.class": "x.Y"}, "sasl.login.class cannot be used"),
        (
            {**SASL, **USER, "sasl.login.callback.handler.class": "x.Y"},
            r"sasl\.login\.callback\.handler\.class cannot be used",
        ),
    ]
)
def test_what_cannot_be_done_is_refused_without_showing_secrets(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        parse(options)
    assert "hunter2" not in str(caught.value)


def test_credentials_do_not_leave_the_machine_without_tls() -> None:
    remote = {**SASL, **USER, "bootstrap.servers": "127.0.0.1:1,broker.example:9092"}
    with pytest.raises(InsecureConfigError, match=r"broker\.example:9092.*allowPlaintext"):
        parse(remote)
    client = parse(remote, allowPlaintextCredentials="true").client
    assert client.allow_plaintext_credentials is True


def test_what_the_protocol_leaves_unused_is_warned_of() -> None:
    (warning,) = parse({"ssl.truststore.location": "/nowhere", **USER}).warnings
    assert "kafka.sasl.password, kafka.sasl.username, kafka.ssl.truststore.location" in warning
    assert "hunter2" not in warning
    (warning,) = parse({**SASL, **USER, "ssl.ca.location": "/nowhere"}).warnings
    assert "kafka.ssl.ca.location" in warning


def test_secrets_are_neither_shown_nor_pickled() -> None:
    options = parse({**SASL, **USER})
    assert "hunter2" not in repr(options)
    with pytest.raises(TypeError, match="mechanism"):
        pickle.dumps(options)
