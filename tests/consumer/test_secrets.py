"""A password and a token that nothing may show, through success and every failure.

What is looked through: all loggers at DEBUG, asyncio's in its debug mode too; warnings; what the
loop reports; the reprs of whatever of ours hangs on a consumer, and of tasks and callbacks; events,
health, metrics, explanations and the page; exceptions with their chains and the variables of our
frames; what pickling says.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aiokafka_lite
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaConfigurationError, KafkaError
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.waiting import until

TP = TopicPartition("t", 0)
PASSWORD = "canary-password-7d1c"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
PACKAGE = str(Path(aiokafka_lite.__file__).parent)

pytestmark = pytest.mark.every_loop


class Tokens(AbstractTokenProvider):
    """A broker's own tokens, unless it is to raise one; remembers what it gave."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.raises = False
        self.given: list[str] = []

    async def token(self) -> str:
        self.given.append(self._broker.oauth_token("alice", lifetime_s=60))
        if self.raises:
            raise RuntimeError(f"cannot refresh {self.given[-1]}")
        return self.given[-1]


class Shown(logging.Handler):
    """Everything that somebody may come to see, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("aiokafka_lite.broker"):
            self.texts.append(self.format(record))

    def of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.texts.append(repr(context))
        if isinstance(error := context.get("exception"), BaseException):
            self.of_error(error)

    def of_error(self, error: BaseException) -> None:
        """Its text, its chain's, and the variables of our frames."""
        self.texts += traceback.format_exception(error)
        seen: set[int] = set()
        ahead: list[BaseException | None] = [error]
        while ahead:
            if (each := ahead.pop()) is None or id(each) in seen:
                continue
            seen.add(id(each))
            ahead += [each.__cause__, each.__context__]
            self.texts += [str(each), repr(each), repr(each.args), repr(vars(each))]
            # But for what a broker says, who knows the password already.
            for frame, _ in traceback.walk_tb(each.__traceback__):
                code = frame.f_code
                is_of_broker = code.co_filename.endswith("scram.py")
                is_of_user = code.co_name == "__init__" and "consumer" in code.co_filename
                if code.co_filename.startswith(PACKAGE) and not (is_of_user or is_of_broker):
                    self.texts += [
                        f"{code.co_name}: {k}={v!r}"
                        for k, v in frame.f_locals.items()
                        if k != "challenge"
                    ]

    def of_consumer(self, consumer: AIOKafkaConsumer) -> None:
        """Every object of ours that can be reached from it, and what it says of itself."""
        seen: set[int] = set()
        ahead: list[object] = [consumer, *asyncio.all_tasks()]
        while ahead:
            each = ahead.pop()
            if id(each) in seen or isinstance(each, (type, logging.Logger, Broker, Tokens)):
                continue
            seen.add(id(each))
            module = type(each).__module__
            is_of_broker = module.startswith(("aiokafka_lite.broker", "tests."))
            is_plain = isinstance(each, (dict, list, tuple, set, frozenset))
            if is_of_broker or not (
                module.startswith(("aiokafka_lite", "asyncio", "_asyncio")) or is_plain
            ):
                continue
            if not is_plain:
                self.texts.append(repr(each))
            ahead += gc.get_referents(each)
        self.texts += [
            repr(consumer.health()),
            consumer.explain(TP),
            json.dumps(consumer.metrics()),
        ]
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            for target in (consumer, inside.config(consumer)):
                with pytest.raises(TypeError) as caught:
                    attempt(target)
                self.texts.append(str(caught.value))

    def check(self, *secrets: str) -> None:
        text = "\n".join(self.texts)
        assert len(self.texts) > 20
        for secret in secrets:
            for form in (secret, base64.b64encode(secret.encode()).decode(), secret.encode().hex()):
                at = text.find(form)
                assert at < 0, text[max(0, at - 200) : at + 100]


@pytest.fixture
def shown() -> Iterator[Shown]:
    handler, root = Shown(), logging.getLogger()
    levels = {logger: logger.level for logger in (root, logging.getLogger("asyncio"))}
    root.addHandler(handler)
    for logger in levels:
        logger.setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield handler
        assert not [each for each in warned if "canary" in str(each.message)]
    root.removeHandler(handler)
    for logger, level in levels.items():
        logger.setLevel(level)


def echo_in_refusal(broker: Broker, secret: Callable[[], str]) -> None:
    broker.on("SaslAuthenticate").answer(
        lambda context, request: SaslAuthenticateResponse(
            error_code=58, error_message=f"no,\r\n'{secret()}' is wrong\x1b[2J"
        ),
        times=None,
    )


def echo_in_names(broker: Broker, secret: Callable[[], str]) -> None:
    broker.on("SaslHandshake").answer(
        lambda context, request: SaslHandshakeResponse(
            error_code=33, mechanisms=["GSSAPI", secret()]
        ),
        times=None,
    )


def echo_in_challenge(broker: Broker, secret: Callable[[], str]) -> None:
    broker.on("SaslAuthenticate").answer(
        lambda context, request: SaslAuthenticateResponse(auth_bytes=f"e={secret()}".encode()),
        times=None,
    )


def hang_up(broker: Broker, secret: Callable[[], str]) -> None:
    broker.on("SaslAuthenticate").disconnect(times=None)


def refuse_handshake(broker: Broker, secret: Callable[[], str]) -> None:
    broker.on("SaslHandshake").fail(34, times=None)


FAILURES = (echo_in_refusal, echo_in_names, echo_in_challenge, hang_up, refuse_handshake)


def consumer_of(broker: Broker, mechanism: str, tokens: Tokens) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
        sasl_oauth_token_provider=tokens,
        auto_offset_reset="earliest",
        group_id="g",
        retry_backoff_ms=10,
        request_timeout_ms=3_000,
    )


def sasl_broker() -> Broker:
    return Broker(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanisms=MECHANISMS,
        users={"alice": PASSWORD},
        connection_failed_authentication_delay_ms=0,
    )


@pytest.mark.few_rows(3)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_nothing_shows_a_secret_while_all_is_well_and_when_it_ends(
    mechanism: str, shown: Shown
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.set_exception_handler(shown.of_loop)
    async with sasl_broker() as broker:
        broker.create_topic("t")
        broker.partition(*TP).append(build_batch([(1_000, None, b"a", ())]))
        tokens = Tokens(broker)
        consumer = consumer_of(broker, mechanism, tokens)
        shown.of_consumer(consumer)
        with consumer.events() as events:
            async with consumer:
                await consumer.getone()
                await consumer.commit()
                shown.of_consumer(consumer)
                await _show_page(consumer, shown)
                tokens.raises = True
                echo_in_refusal(broker, lambda: (tokens.given or [PASSWORD])[-1])
                broker.on("Fetch").disconnect()
                reading = asyncio.ensure_future(consumer.getone())
                if mechanism == "OAUTHBEARER":  # retried until the broker refuses a token
                    await until(lambda: "the token provider raised" in consumer.explain(TP))
                    shown.of_consumer(consumer)
                    tokens.raises = False
                with pytest.raises(KafkaError) as caught:
                    await asyncio.wait_for(reading, 30)
                shown.of_error(caught.value)
                shown.of_consumer(consumer)
                await _show_page(consumer, shown)
        shown.texts += [repr(event) async for event in events]
        shown.check(PASSWORD, *tokens.given)


async def _show_page(consumer: AIOKafkaConsumer, shown: Shown) -> None:
    pytest.importorskip("aiohttp", reason="the extra web has it")
    pytest.importorskip("prometheus_client", reason="the extra web has it")
    from aiokafka_lite.extras import web
    from tests.support.asking import ask

    async with web.serve(consumer) as url:
        for path in ("", "health", "metrics", "api/summary", "api/partitions", "api/config"):
            answer = await ask(f"{url}{path}")
            shown.texts.append(answer.body.decode())


@pytest.mark.few_rows(11)
@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_no_failure_to_start_shows_a_secret(
    mechanism: str, fail: Callable[[Broker, Callable[[], str]], None], shown: Shown
) -> None:
    if mechanism == "PLAIN" and fail is echo_in_challenge:
        pytest.skip("PLAIN has no challenges")
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.set_exception_handler(shown.of_loop)
    async with sasl_broker() as broker:
        tokens = Tokens(broker)
        # What a hostile broker can know: the password, or the token it was given before.
        secret = broker.oauth_token("alice") if mechanism == "OAUTHBEARER" else PASSWORD
        fail(broker, lambda: tokens.given[-1] if tokens.given else secret)
        consumer = consumer_of(broker, mechanism, tokens)
        with pytest.raises(KafkaError) as caught:
            await consumer.start()
        shown.of_error(caught.value)
        shown.of_consumer(consumer)
        await consumer.stop()
        shown.check(PASSWORD, secret, *tokens.given)


@pytest.mark.parametrize(
    "servers",
    [f"kafka://alice:{PASSWORD}@broker:9092", f"alice:{PASSWORD}@broker", f"{PASSWORD}@b:x"],
)
async def test_credentials_in_an_address_are_refused_and_not_shown(servers: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=r"\*\*\*@b.*sasl_plain_password") as caught:
        AIOKafkaConsumer(
            bootstrap_servers=servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_plain_username="alice",
            sasl_plain_password="x",
        )
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["sasl_plain_username", "sasl_plain_password"])
async def test_credential_of_a_wrong_type_is_not_shown(name: str) -> None:
    given: dict[str, object] = {"sasl_plain_username": "a", "sasl_plain_password": "b"}
    given[name] = [PASSWORD]
    with pytest.raises(
        TypeError, match=f"{name} must be a str, not an object of type list"
    ) as caught:
        AIOKafkaConsumer(security_protocol="SASL_PLAINTEXT", **given)  # type: ignore[arg-type]
    assert PASSWORD not in str(caught.value)
