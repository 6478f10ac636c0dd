"""The options of docs/spark.md are those there are, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiokafka_lite.settings.kafka_options import ACCEPTED, REFUSED, WITHOUT_EFFECT
from aiokafka_lite.spark.options import NAMES, parse_options
from tests.support.for_each import for_each

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
WORDS = set(re.findall(r"[A-Za-z0-9._]+", PAGE))
PREFIXES = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
EXAMPLE = re.search(r"^options = \{.*?^\}", PAGE, re.DOTALL | re.M)


@for_each(sorted(NAMES.values()))
def test_every_option_is_documented(name: str) -> None:
    assert name in WORDS


@for_each(sorted({*ACCEPTED, *REFUSED, *WITHOUT_EFFECT}))
def test_every_setting_of_the_consumer_is_documented(name: str) -> None:
    documented = name in WORDS or f"kafka.{name}" in WORDS
    assert documented or any(name.startswith(prefix) for prefix in PREFIXES)


def test_defaults_are_as_documented() -> None:
    rows = dict(re.findall(r"^\| `([A-Za-z.]+)` \| `([^`]+)` \|", PAGE, re.M))
    stated = {name: value for name, value in rows.items() if name in NAMES.values()}
    given = {"kafka.bootstrap.servers": "a:1"}
    subscription = {"subscribe", "subscribePattern", "assign", "kafka.bootstrap.servers"}
    defaults = {name: stated[name] for name in stated.keys() - subscription - {"endingOffsets"}}
    assert len(defaults) >= 8
    plain = parse_options({**given, "subscribe": "a"}, is_streaming=True)
    spelled = parse_options({**given, "subscribe": "a", **defaults}, is_streaming=True)
    assert repr(spelled) == repr(plain)


def test_example_of_credentials_is_taken(tmp_path: Path) -> None:
    assert EXAMPLE is not None
    names: dict[str, dict[str, str]] = {}
    exec(EXAMPLE[0], {}, names)  # noqa: S102 -- the page's own example
    options = names["options"]
    del options["kafka.ssl.truststore.location"]  # the one file it needs
    parsed = parse_options(options, is_streaming=True)
    assert parsed.mechanism is not None
    assert parsed.mechanism.name == "SCRAM-SHA-512"
    assert parsed.client.security_protocol == "SASL_SSL"


def test_errors_are_worded_as_shown() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "a"}
    for options, line in (
        ({"startingOfset": "x"}, 0),
        ({"minPartitions": " 5"}, 1),
    ):
        shown = re.findall(r"^OptionError: (.*)$", PAGE, re.M)[line]
        with pytest.raises(Exception, match=re.escape(shown)):
            parse_options({**given, **options}, is_streaming=False)
