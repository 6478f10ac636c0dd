"""JAAS configurations, read as Kafka's clients read them."""

from __future__ import annotations

import pytest

from aiokafka_lite.settings.jaas import JaasError, parse_jaas
from tests.support.for_each import for_each

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@for_each(
    [
        ('m required username="u" password="p";', {"username": "u", "password": "p"}),
        ("m REQUIRED username='u v' password='a\"b';", {"username": "u v", "password": 'a"b'}),
        (r'm required p="a\"b\\c\101\12d";', {"p": 'a"b\\cA\nd'}),
        (r'm required p="\7778\400\8";', {"p": "?78 08"}),
        ('m required p="a/b=c;d";', {"p": "a/b=c;d"}),
        ("m required p=a-b_c$1.5;", {"p": "a-b_c$1.5"}),
        ("m required /* why\n */ p=a // more\n q=b / and more\n;", {"p": "a", "q": "b"}),
        ("/** first **/ m\n\trequired\n\tp = x\n;\n", {"p": "x"}),
        ('m required "p"="";', {"p": ""}),
        ("m required p=ü q='é' r=\u0100;", {"p": "ü", "q": "é", "r": "\u0100"}),
        ("m requisite;", {}),
    ]
)
def test_words_quotes_escapes_and_comments_are_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("m", options)


@for_each(
    [
        "",
        "  /* nothing */ ",
        "m",
        "m needed p=hunter2;",
        "m required p=hunter2",
        'm required p="hunter2" q="x"',
        "m required p=;",
        "m required =hunter2;",
        "m required p hunter2;",
        "m required p=hunter2/with/slashes;",
        'm required p="hunter2\n";',
        'm required p=hunter2"more";',
        "m required p=hunter2; n required;",
        "; m required;",
        "m required p=hunter2;;",
        "m required p=hunter2\x85;",
    ]
)
def test_what_is_malformed_is_an_error_that_shows_nothing(text: str) -> None:
    with pytest.raises(JaasError) as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


def test_module_does_not_show_what_it_holds() -> None:
    module = parse_jaas(f"{PLAIN} required username=u password=hunter2;")
    assert "hunter2" not in repr(module)
    assert PLAIN in repr(module)
