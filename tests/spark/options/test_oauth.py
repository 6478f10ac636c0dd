"""Tokens by client credentials: asked of a server over HTTP, shown to a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiokafka_lite import _threads
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.sasl import TokenUnavailableError
from aiokafka_lite.errors import AuthenticationFailedError, InsecureConfigError, OptionError
from aiokafka_lite.sasl import Secret
from aiokafka_lite.settings import oauth
from aiokafka_lite.settings.oauth import ClientCredentials
from aiokafka_lite.spark.options import SourceOptions, parse_options
from tests.support.for_each import for_each
from tests.support.token_server import CREDENTIALS, LOGIN, TokenServer, token_server


@pytest.fixture
def server() -> Iterator[TokenServer]:
    yield from token_server()


def provider(url: str, **settings: object) -> ClientCredentials:
    return ClientCredentials(url, "reader", Secret("hunter2"), **settings)  # type: ignore[arg-type]


def token_of(credentials: ClientCredentials) -> str:
    return asyncio.run(credentials.token())


def parse(url: str, jaas: str = CREDENTIALS, **options: str) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "flights",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{LOGIN}.OAuthBearerLoginModule required {jaas};",
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
    }
    return parse_options({**given, **options}, is_streaming=False)


@pytest.mark.parametrize("package", [LOGIN, f"{LOGIN}.secured", f"kafkashaded.{LOGIN}"])
def test_options_of_a_java_client_connect(server: TokenServer, package: str) -> None:
    config = BrokerConfig(security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("OAUTHBEARER",))
    with BrokerThread(config) as broker:
        broker.create_topic("flights", 3)
        server.give(broker.call(lambda each: each.oauth_token("reader")), expires_in=3600)
        handler = {
            "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler"
        }
        options = parse(
            server.url,
            f'{CREDENTIALS} scope="kafka read"',
            **{"kafka.bootstrap.servers": broker.bootstrap_servers, **handler},
        )
        cluster = BlockingCluster(options.client, mechanism=options.mechanism)
        try:
            assert len(cluster.refresh(["flights"]).topics["flights"].partitions) == 3
        finally:
            cluster.close()
    (asked,) = server.asked
    assert asked.form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert asked.login == "reader:hunter2/="


def test_token_is_kept_until_four_fifths_of_its_life_are_over(server: TokenServer) -> None:
    now = 1000.0
    credentials = provider(server.url, clock=lambda: now)
    server.give("first", expires_in=100)
    assert token_of(credentials) == "first"
    server.give("second", expires_in=100)
    now += 79
    assert token_of(credentials) == "first"
    now += 1
    assert token_of(credentials) == "second"


def test_token_that_cannot_be_renewed_is_used_until_it_expires(server: TokenServer) -> None:
    now = 1000.0
    credentials = provider(server.url, clock=lambda: now)
    server.give("first", expires_in=100)
    assert token_of(credentials) == "first"
    server.answer = lambda: (503, b"")
    now += 81
    for _ in range(3):
        assert token_of(credentials) == "first"
    assert len(server.asked) == 2
    now += 18  # ten seconds after a failure another request is made
    assert token_of(credentials) == "first"
    assert len(server.asked) == 3
    now += 2
    with pytest.raises(AuthenticationFailedError, match="HTTP status 503"):
        token_of(credentials)
    server.give("second", expires_in=100)
    assert token_of(credentials) == "second"


def test_endpoint_that_fails_for_a_moment_ends_no_call(server: TokenServer) -> None:
    config = BrokerConfig(security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("OAUTHBEARER",))
    with BrokerThread(config) as broker:
        token = broker.call(lambda each: each.oauth_token("reader"))
        good = json.dumps({"access_token": token, "expires_in": 3600}).encode()
        answers = iter([(503, b""), (429, b""), (200, good)])
        server.answer = lambda: next(answers)
        options = parse(server.url, **{"kafka.bootstrap.servers": broker.bootstrap_servers})
        cluster = BlockingCluster(options.client, mechanism=options.mechanism)
        try:
            assert cluster.refresh([]).nodes
        finally:
            cluster.close()


def test_slow_endpoint_blocks_no_loop_and_is_asked_once_by_all(server: TokenServer) -> None:
    server.give("token", expires_in=100)
    server.pause_s = 0.01

    async def ask() -> int:
        credentials = provider(server.url)
        asking = asyncio.gather(credentials.token(), credentials.token())
        turns = 0
        while not asking.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert asking.result() == ["token", "token"]
        return turns

    assert asyncio.run(ask()) > 10
    assert len(server.asked) == 1


@for_each([(200, json.dumps({"access_token": "x"}).encode()), (401, b""), (503, b"")])
def test_all_callers_share_one_request_and_its_outcome(
    status: int, body: bytes, server: TokenServer
) -> None:
    may_end = threading.Event()

    def answer() -> tuple[int, bytes]:
        assert may_end.wait(10)
        return status, body

    async def ask() -> list[str]:
        asking = [asyncio.create_task(credentials.token()) for _ in range(8)]
        await asyncio.to_thread(until_asked)
        for each in asking[::2]:
            each.cancel()
        await asyncio.wait(asking[::2])
        asking += [asyncio.create_task(credentials.token()) for _ in range(2)]
        await asyncio.sleep(0)
        barrier.wait()
        names = [each.name for each in threading.enumerate()]
        assert names.count("aiokafka_lite-token") == 1
        barrier.wait()
        may_end.set()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        return [each if isinstance(each, str) else type(each).__name__ for each in ends]

    def until_asked() -> None:
        while not server.asked:
            time.sleep(0.01)

    server.asked.clear()
    credentials, barrier = provider(server.url), threading.Barrier(2, timeout=10)
    server.answer = answer
    with ThreadPoolExecutor(2) as loops:
        found = [each.result() for each in [loops.submit(asyncio.run, ask()) for _ in range(2)]]
    end = "x" if status == 200 else "AuthenticationFailedError"
    end = "TokenUnavailableError" if status == 503 else end
    assert found == [["CancelledError", end] * 4 + [end] * 2] * 2
    assert len(server.asked) == 1
    server.give("y")
    assert token_of(credentials) == "y"


def test_expired_token_is_not_returned_while_the_next_one_is_stored(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    credentials = provider(server.url, clock=lambda: now)
    server.give("first", expires_in=100)
    assert token_of(credentials) == "first"
    server.give("second", expires_in=100)
    now += 100
    is_made, may_end = threading.Event(), threading.Event()

    def slow_secret(token: str) -> Secret:
        is_made.set()
        assert may_end.wait(10)
        return Secret(token)

    async def ask() -> list[str]:
        first = asyncio.create_task(credentials.token())
        await asyncio.to_thread(is_made.wait, 10)
        second = asyncio.create_task(credentials.token())
        await asyncio.sleep(0)
        may_end.set()
        return [await first, await second]

    monkeypatch.setattr(oauth, "Secret", slow_secret)
    assert asyncio.run(ask()) == ["second", "second"]


@for_each([False, True])
def test_interrupted_start_of_a_request_ends_it_for_all_callers(
    has_started: bool, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = provider(server.url)
    other = credentials.token()

    def interrupted(work: Callable[[], None], *, name: str) -> None:
        waits_for.append(other.send(None))
        works.append(work)
        raise KeyboardInterrupt

    async def ask() -> None:
        with pytest.raises(KeyboardInterrupt):
            await credentials.token()
        with pytest.raises(TokenUnavailableError, match="interrupted"):
            await asyncio.wait_for(waits_for[0], 10)
        other.close()

    waits_for, works = list[asyncio.Future[object]](), list[Callable[[], None]]()
    with monkeypatch.context() as patched:
        patched.setattr(_threads, "wait_in_thread", interrupted)
        asyncio.run(ask())
    server.give("first", expires_in=100)
    if has_started:
        works[0]()
        server.give("second", expires_in=100)
    assert token_of(credentials) == "first"


FORKING = """
import asyncio, os, sys
from aiokafka_lite.sasl import Secret
from aiokafka_lite.settings.oauth import ClientCredentials

credentials = ClientCredentials(sys.argv[1], "reader", Secret("hunter2"))

async def fork_during_a_request() -> int:
    asking = asyncio.ensure_future(credentials.token())
    await asyncio.sleep(0.1)
    assert not asking.done()
    child = os.fork()
    if child:
        await asking
    return child

loop = asyncio.new_event_loop()
child = loop.run_until_complete(fork_during_a_request())
if child == 0:
    print(asyncio.new_event_loop().run_until_complete(credentials.token()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_does_not_wait_for_a_thread_of_its_parent(server: TokenServer) -> None:
    server.give("token", expires_in=100)
    server.pause_s = 0.02
    command = [sys.executable, "-c", FORKING, server.url]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.stdout == "token\n", found.stderr


@for_each([("null", 0), ("0", 0), ("5", 4), ("2.5", 2), ('"5"', 4), ('" 5e0 "', 4)])
def test_life_of_a_token_is_a_number_or_its_text(
    life: str, kept_s: int, server: TokenServer
) -> None:
    now = 1000.0
    credentials = provider(server.url, clock=lambda: now)
    answers = iter(range(9))
    server.answer = lambda: (
        200,
        b'{"access_token": "%d", "expires_in": %s}' % (next(answers), life.encode()),
    )
    assert token_of(credentials) == "0"
    if kept_s:
        now += kept_s - 0.001
        assert token_of(credentials) == "0"
        now += 0.001
    assert token_of(credentials) == "1"


BAD_LIVES = ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "-1", "-0.1"]
TEXTS_OF_BAD_LIVES = ['"NaN"', '"Infinity"', '"-1"', '"1e999"', '"hunter2"', '""']


@for_each([*BAD_LIVES, *TEXTS_OF_BAD_LIVES, "[5]", "{}"])
def test_token_whose_life_has_no_end_or_no_number_is_not_used(
    life: str, server: TokenServer
) -> None:
    now = 1000.0
    credentials = provider(server.url, clock=lambda: now)
    server.give("first", expires_in=10)
    assert token_of(credentials) == "first"
    server.answer = lambda: (200, b'{"access_token": "x", "expires_in": %s}' % life.encode())
    now += 8
    assert token_of(credentials) == "first"
    now += 2
    with pytest.raises(AuthenticationFailedError, match="not a number of seconds") as caught:
        token_of(credentials)
    assert "hunter2" not in str(caught.value)


def test_token_of_unknown_life_serves_once(server: TokenServer) -> None:
    credentials = provider(server.url)
    server.give("first")
    assert token_of(credentials) == "first"
    server.give("second")
    assert token_of(credentials) == "second"


def test_credentials_are_encoded_where_asked_for(server: TokenServer) -> None:
    server.give("token")
    options = parse(server.url, **{"kafka.sasl.oauthbearer.header.urlencode": "true"})
    credentials = vars(options.mechanism)["_provider"]
    assert token_of(credentials) == "token"
    assert server.asked[0].login == "reader:hunter2%2F%3D"


def test_extensions_are_sent_with_the_token(server: TokenServer) -> None:
    options = parse(server.url, f'{CREDENTIALS} extension_logicalCluster="lkc-1"')
    assert vars(options.mechanism)["_provider"].extensions() == {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            401,
            b'{"error": "invalid_client", "more": "hunter2"}',
            "answered with HTTP status 401 .'invalid_client'.",
        ),
        (500, b"hunter2", "answered with HTTP status 500"),
        (200, b"hunter2", "response that is not JSON"),
        (200, b'["hunter2"]', "without an access_token"),
        (200, b'{"access_token": 5}', "without an access_token"),
    ],
)
def test_answers_without_a_token_are_told_without_their_text(
    server: TokenServer,
    caplog: pytest.LogCaptureFixture,
    status: int,
    body: bytes,
    message: str,
) -> None:
    server.answer = lambda: (status, body)
    with pytest.raises(AuthenticationFailedError, match=message) as caught:
        token_of(provider(server.url))
    assert "hunter2" not in str(caught.value)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "hunter2" not in caplog.text


def test_redirects_are_not_followed(server: TokenServer) -> None:
    server.answer, server.location = lambda: (302, b""), server.url + "/elsewhere"
    with pytest.raises(AuthenticationFailedError, match="answered with HTTP status 302"):
        token_of(provider(server.url))
    assert len(server.asked) == 1


def test_server_that_is_not_there_or_returns_too_much_is_told(server: TokenServer) -> None:
    with pytest.raises(AuthenticationFailedError, match=r"127\.0\.0\.1 cannot be reached"):
        token_of(provider("http://127.0.0.1:1/token"))
    server.give("x" * (1 << 20))
    with pytest.raises(AuthenticationFailedError, match="returned more than 1048576 bytes"):
        token_of(provider(server.url))


@pytest.mark.parametrize(
    ("head", "dripped", "message"),
    [
        (b"", b"HTTP/1.1 200 OK", "did not respond within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 99, "did not respond within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\n", b"X: x\r\n" * 20, "did not respond within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b'{"access_token": "x"}', "did not respond within 0.2 s"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"access_token": "x"}', b" " * 99, "did not respond within"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            b" " * 99,
            "did not respond within 0.2 s",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1;" + b"x" * 99,
            "did not respond within 0.2 s",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\n{\r\n" * 20,
            "did not respond within 0.2 s",
        ),
        (b"HTTP/1.1 401 No\r\n\r\n", b'{"error": "invalid_client"}', "HTTP status 401"),
        (b"HTTP/1.1 401 No\r\n", b"X: " + b"x" * 99, "HTTP status 401"),
    ],
)
def test_a_slow_response_is_an_error_in_time(
    server: TokenServer, head: bytes, dripped: bytes, message: str
) -> None:
    server.head, server.drips, server.pause_s = head, dripped, 0.05
    began = time.monotonic()
    with pytest.raises(AuthenticationFailedError, match=message):
        token_of(provider(server.url, timeout_s=0.2))
    assert time.monotonic() - began < 0.7


HELLO = b"\x16\x03\x03\x40\x00\x02" + b"\x00" * 99  # part of a ServerHello


@for_each(
    [
        ("", b"", HELLO),
        ("https_proxy", b"", b"HTTP/1.1 200 OK"),
        ("https_proxy", b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 99),
        ("https_proxy", b"HTTP/1.1 200 OK\r\n", b"X: x\r\n" * 20),
        ("https_proxy", b"HTTP/1.1 200 OK\r\n\r", b"\n" + HELLO),
    ]
)
def test_a_slow_handshake_or_proxy_is_an_error_in_time(
    proxy: str, head: bytes, dripped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with accepted, contextlib.suppress(OSError):
            accepted.sendall(head)
            for byte in dripped:
                accepted.sendall(bytes([byte]))
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener, monkeypatch.context() as patched:
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        if proxy:
            patched.setenv(proxy, f"http://{url}")
            url = "login.example"
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        with pytest.raises(AuthenticationFailedError, match=r"did not respond within 0\.2 s"):
            token_of(provider(f"https://{url}", timeout_s=0.2))
        assert time.monotonic() - began < 0.7
        thread.join()


@for_each(
    [
        ("ftp://login.example", CREDENTIALS, "URL such as https"),
        ("https://me:hunter2@login.example", CREDENTIALS, "without a user name or password"),
        ("https://[::1", CREDENTIALS, "is not a URL"),
        ("https://login.example", 'clientId="a"', "lacks clientSecret"),
        (
            "https://login.example",
            f'{CREDENTIALS} ssl.truststore.type="x"',
            "'ssl.truststore.type'",
        ),
        ("https://login.example", 'unsecuredLoginStringClaim_sub="a"', "'unsecuredLoginString"),
    ]
)
def test_what_cannot_be_used_is_refused(url: str, jaas: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        parse(url, jaas)
    assert "hunter2" not in str(caught.value)


def test_credentials_do_not_leave_the_machine_without_tls() -> None:
    with pytest.raises(InsecureConfigError, match=r"login\.example without TLS"):
        parse("http://login.example/token")
    assert parse("http://login.example/token", allowPlaintextCredentials="true").mechanism


def test_endpoint_is_needed() -> None:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "flights",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{LOGIN}.OAuthBearerLoginModule required;",
    }
    with pytest.raises(OptionError, match=r"token\.endpoint\.url is missing"):
        parse_options(given, is_streaming=False)
