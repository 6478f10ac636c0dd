"""Client quotas: who they are for, what they count, and what a client above his notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.network.quota_file import QUOTAS_FILE
from aiokafka_lite.broker.network.quotas import (
    CLIENT_ID,
    DEFAULT,
    USER,
    ClientQuotas,
    QuotaKey,
    SampledRate,
    entity_of,
)
from aiokafka_lite.errors import KafkaStorageError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from aiokafka_lite.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from aiokafka_lite.protocol.messages.find_coordinator import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.list_groups import ListGroupsRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.wire import answered, fetch_partition, fetch_request
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
FETCH = QuotaKey.CONSUMER_BYTE_RATE

# What Kafka's own classes (Sensor with a Rate of 11 samples of one second and a quota of 1,000;
# QuotaUtils.throttleTime) say: milliseconds since the record before, amount, throttle time.
KAFKAS = [
    *[(1487, 2092, 0), (974, 1424, 0), (6, 605, 0), (1354, 1691, 0), (722, 321, 0)],
    *[(1331, 303, 0), (247, 1560, 0), (428, 1090, 0), (978, 2215, 1261), (17, 1017, 2261)],
    *[(1308, 2165, 4118), (1308, 356, 4166), (1261, 1402, 5307), (680, 1647, 7274)],
    *[(1215, 320, 6379), (1189, 1292, 4695), (1057, 1129, 3808), (1207, 2030, 5631)],
    *[(946, 543, 3928), (1069, 1633, 1585), (384, 1451, 3652), (870, 357, 1282)],
    *[(1041, 2198, 3439), (952, 1042, 4434), (53, 2595, 6976), (925, 1805, 7856)],
    *[(712, 1637, 7627), (503, 912, 8036), (59, 1900, 9877), (447, 431, 10730)],
    *[(15000, 2099, 0), (1251, 2307, 0), (326, 298, 0), (465, 2733, 0), (197, 1544, 0)],
    *[(18, 49, 0), (736, 658, 0), (30, 355, 20), (1057, 769, 732), (1360, 1413, 1785)],
    *[(899, 2665, 4551), (73, 1684, 6162), (1363, 156, 5955), (91, 2388, 8252)],
]


def test_throttle_times_are_kafkas() -> None:
    now_s = 1_000.0
    quotas = ClientQuotas(lambda: now_s, 11, 1.0)
    quotas.limit(client_id="c", producer_byte_rate=1_000)
    for step_ms, amount, expected in KAFKAS:
        now_s = round(now_s + step_ms / 1000, 3)
        assert quotas.record(PRODUCE, "u", "c", amount) == expected


def test_an_idle_rate_is_forgotten() -> None:
    rate = SampledRate(11, 1_000)
    rate.record(22_000, 0)
    assert rate.per_s(0) == 2_200
    assert not rate.is_over(10_999)
    assert rate.is_over(11_000)
    assert rate.per_s(11_000) == 0


def test_the_most_specific_quota_counts() -> None:
    quotas = ClientQuotas(lambda: 0.0, 11, 1.0)
    order: list[dict[str, str | None]] = [
        {CLIENT_ID: DEFAULT},
        {CLIENT_ID: "c"},
        {USER: DEFAULT},
        {USER: DEFAULT, CLIENT_ID: DEFAULT},
        {USER: DEFAULT, CLIENT_ID: "c"},
        {USER: "u"},
        {USER: "u", CLIENT_ID: DEFAULT},
        {USER: "u", CLIENT_ID: "c"},
    ]
    for limit, names in enumerate(order, 1):
        quotas.put(entity_of(names), FETCH, limit)
        assert quotas.limit_of(FETCH, "u", "c") == limit
        assert quotas.limit_of(PRODUCE, "u", "c") is None
    assert quotas.limit_of(FETCH, "else", "else") == 4
    for names in order:
        quotas.put(entity_of(names), FETCH, None)
    assert not quotas.is_active
    with pytest.raises(ValueError, match="say which"):
        quotas.limit(producer_byte_rate=1)
    with pytest.raises(ValueError, match="greater than 0"):
        quotas.limit(user="u", producer_byte_rate=0)


def test_clients_of_a_user_share_his_quota_unless_it_is_for_both() -> None:
    quotas = ClientQuotas(lambda: 0.0, 11, 1.0)
    quotas.limit(user="u", producer_byte_rate=100)
    assert quotas.record(PRODUCE, "u", "one", 900) == 0
    assert quotas.record(PRODUCE, "u", "two", 900) > 0
    assert quotas.record(PRODUCE, "v", "one", 9_000) == 0
    quotas.limit(user=DEFAULT, client_id=DEFAULT, producer_byte_rate=2_000)
    assert quotas.record(PRODUCE, "v", "one", 900) == 0
    assert quotas.record(PRODUCE, "v", "two", 900) == 0


# --- On the wire ------------------------------------------------------------------------------
@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker whose windows are short, with 10 batches of 1,000 bytes in "t"."""
    async with Broker(quota_window_num=2, quota_window_size_s=0.1) as broker:
        broker.create_topic("t")
        for _ in range(10):
            broker.partition("t", 0).append(batch())
        yield broker
    assert broker.failure is None


def batch() -> bytes:
    return records.build_batch([(1, None, b"x" * 930, ())])


def produce_request(acks: int = 1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch())
    topic = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[topic])


async def test_a_producer_above_his_quota_is_told_and_muted(broker: Broker) -> None:
    broker.quotas.limit(client_id="slow", producer_byte_rate=2_000)
    async with (
        RawClient(broker.bootstrap_servers, client_id="slow") as slow,
        RawClient(broker.bootstrap_servers, client_id="other") as other,
    ):
        mark = broker.requests.total
        throttled = [(await slow.request(produce_request(), 9)).throttle_time_ms for _ in range(3)]
        assert max(throttled) > 0
        for _ in range(10):
            assert (await other.request(produce_request(), 9)).throttle_time_ms == 0
        await slow.request(MetadataRequest(topics=[]))
        mine = broker.requests.of(since=mark, client_id="slow")
    for seen, throttle_ms, following in zip(mine, throttled, mine[1:], strict=False):
        assert seen.answered_at is not None
        assert following.arrived_at - seen.answered_at >= throttle_ms / 1000
    assert broker.partition("t", 0).high_watermark == 23  # nothing was refused


async def test_a_consumer_above_his_quota_gets_nothing_and_asks_again(broker: Broker) -> None:
    broker.quotas.limit(user="ANONYMOUS", consumer_byte_rate=12_000)

    async def read(client: RawClient, epoch: int, session_id: int) -> tuple[int, int, int]:
        request = fetch_request(
            {"t": [fetch_partition()]} if epoch == 0 else {},
            session_id=session_id,
            session_epoch=epoch,
        )
        response = await client.request(request, 12)
        assert response.error_code == 0
        data = answered(response).get(("t", 0))
        found = 0 if data is None else len(data.records or b"")
        return response.throttle_time_ms, response.session_id, found

    async with RawClient(broker.bootstrap_servers) as client:
        # No answer may be larger than what the window lets through: 1 sample of 0.1 s.
        throttle_ms, session_id, found = await read(client, 0, 0)
        assert (throttle_ms, found) == (0, 1_000)
        assert session_id
        throttle_ms, same_session, found = await read(client, 1, session_id)
        assert throttle_ms > 0
        assert (same_session, found) == (session_id, 0)
        for epoch in range(2, 50):  # muted meanwhile, so it does not take many
            _, _, found = await read(client, epoch, session_id)
            if found:
                break
        assert found == 1_000


async def test_time_that_requests_take_is_limited(broker: Broker) -> None:
    broker.quotas.limit(client_id="raw", request_percentage=0.001)
    async with RawClient(broker.bootstrap_servers) as client:
        answers = [await client.request(ListGroupsRequest()) for _ in range(3)]
        assert all(0 < answer.throttle_time_ms <= 100 for answer in answers)
        broker.quotas.clear()
        assert (await client.request(ListGroupsRequest())).throttle_time_ms == 0


async def test_time_of_handlers_that_wait_is_limited_too(broker: Broker) -> None:
    broker.quotas.limit(client_id="raw", request_percentage=0.001)
    async with RawClient(broker.bootstrap_servers) as client:
        # It makes the topic of offsets, and waits for the disk: a handler that is a coroutine.
        request = FindCoordinatorRequest(coordinator_keys=["g"])
        answers = [await client.request(request) for _ in range(3)]
        assert all(0 < answer.throttle_time_ms <= 100 for answer in answers)


async def test_waiting_is_not_counted(broker: Broker) -> None:
    # Of the window of 0.1 s: 0.5 s of work are allowed, far more than what the request takes.
    broker.quotas.limit(client_id="raw", request_percentage=500)
    held = asyncio.Event()
    broker.disk.settled = held.wait  # type: ignore[assignment, method-assign]  # for so long
    async with RawClient(broker.bootstrap_servers) as client:
        asyncio.get_running_loop().call_later(1, held.set)
        answer = await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
    assert answer.throttle_time_ms == 0


async def test_acks_0_is_muted_without_a_word(broker: Broker) -> None:
    broker.quotas.limit(client_id=DEFAULT, producer_byte_rate=2_000)
    async with RawClient(broker.bootstrap_servers) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.send(framing.encode_request(produce_request(acks=0), 9, 1, "raw"))
        await client.request(MetadataRequest(topics=[]))
        assert loop.time() - began > 0.3  # 1,000 bytes at 2,000 a second


# --- The admin's APIs -------------------------------------------------------------------------
Names = tuple[tuple[str, "str | None"], ...]


def entry(names: Names, *ops: tuple[str, float | None]) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


async def alter(
    client: RawClient, *entries: EntryData, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=[*entries], validate_only=validate_only)
    answer = await client.request(request)
    return [(each.error_code, each.error_message) for each in answer.entries]


RATE = "producer_byte_rate"
REFUSED: list[tuple[Names, tuple[str, float | None], str]] = [
    ((), (RATE, 1.0), "Invalid empty client quota entity"),
    ((("what", "x"),), (RATE, 1.0), "Unhandled client quota entity type: what"),
    ((("user", ""),), (RATE, 1.0), "Empty user not supported"),
    ((("user", "u"),), ("what", 1.0), "Invalid configuration key what"),
    ((("user", "u"),), (RATE, -1.0), "Quota producer_byte_rate must be greater than 0"),
    ((("user", "u"),), (RATE, 1.5), "producer_byte_rate cannot be a fractional value."),
    (
        (("user", "u"),),
        (RATE, 1e30),
        "Proposed value for producer_byte_rate is too large for a LONG.",
    ),
    ((("ip", "1.2.3.4"),), (RATE, 1.0), "Invalid configuration key producer_byte_rate"),
    (
        (("user", "u"),),
        ("connection_creation_rate", 1.0),
        "Invalid configuration key connection_creation_rate",
    ),
    (
        (("ip", "1.2.3.4"), ("user", "u")),
        ("connection_creation_rate", 1.0),
        "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
    ),
    (
        (("ip", "no host"),),
        ("connection_creation_rate", 1.0),
        "no host is not a valid IP or resolvable host.",
    ),
]


@pytest.mark.parametrize(("names", "op", "message"), REFUSED)
async def test_wrong_quotas_are_refused_in_kafkas_words(
    kafka: KafkaHandle, names: Names, op: tuple[str, float | None], message: str
) -> None:
    async with kafka.raw() as client:
        assert await alter(client, entry(names, op), validate_only=True) == [(42, message)]


async def test_an_entity_named_twice_is_refused(kafka: KafkaHandle) -> None:
    twice = entry((("user", "u"),), (RATE, 1.0))
    async with kafka.raw() as client:
        assert await alter(client, twice, twice, validate_only=True) == [
            (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=u})")
        ]


async def test_quotas_are_set_described_and_removed(kafka: KafkaHandle) -> None:
    user, name = unique("user"), unique("client")
    entities: list[Names] = [
        (("user", user),),
        (("client-id", name), ("user", user)),
        (("client-id", name), ("user", None)),
    ]
    async with kafka.raw() as client:

        async def described(*parts: tuple[str, int, str | None], strict: bool) -> set[Names]:
            request = DescribeClientQuotasRequest(
                strict=strict,
                components=[
                    ComponentData(entity_type=kind, match_type=match, match=text)
                    for kind, match, text in parts
                ],
            )
            answer = await client.request(request)
            assert answer.error_code == 0
            return {
                tuple((each.entity_type, each.entity_name) for each in found.entity)
                for found in answer.entries or ()
                if [(v.key, v.value) for v in found.values] == [(RATE, 5e9)]
            }

        async def until(expected: int) -> None:
            for _ in range(200):  # a real one lets the change travel
                if len(await described(("user", 0, user), strict=False)) == expected:
                    return
                await asyncio.sleep(0.02)
            raise TimeoutError

        await alter(client, *(entry(names, (RATE, 5e9)) for names in entities))
        await until(2)
        both, one = entities[1], entities[0]
        assert await described(("user", 0, user), strict=True) == {one}
        assert await described(("user", 0, user), ("client-id", 2, None), strict=True) == {both}
        assert await described(("user", 1, None), ("client-id", 0, name), strict=True) == {
            entities[2]
        }
        assert await described(("client-id", 0, name), strict=False) == set(entities[1:])
        await alter(client, *(entry(names, (RATE, None)) for names in entities))
        await until(0)


WRONG_FILTERS: list[tuple[list[tuple[str, int, str | None]], int, str]] = [
    ([("what", 2, None)], 35, "Unsupported entity type what"),
    ([("", 2, None)], 42, "Invalid empty entity type."),
    ([("user", 7, None)], 42, "Unknown match type 7"),
    (
        [("user", 0, None)],
        42,
        "Request specified MATCH_TYPE_EXACT, but set match string to null.",
    ),
    (
        [("user", 2, "x")],
        42,
        "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
    ),
    (
        [("user", 2, None), ("user", 2, None)],
        42,
        "Entity type user cannot appear more than once in the filter.",
    ),
    (
        [("user", 2, None), ("ip", 2, None)],
        42,
        "Invalid entity filter component combination. IP filter component should not be used "
        "with user or clientId filter component.",
    ),
]


@pytest.mark.parametrize(("parts", "code", "message"), WRONG_FILTERS)
async def test_wrong_filters_are_refused_in_kafkas_words(
    kafka: KafkaHandle, parts: list[tuple[str, int, str | None]], code: int, message: str
) -> None:
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match, match=text)
            for kind, match, text in parts
        ],
    )
    async with kafka.raw() as client:
        answer = await client.request(request)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert answer.entries is None


async def test_quotas_outlive_the_broker(tmp_path: Path) -> None:
    names = (("client-id", None), ("user", "u"))
    async with Broker(data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert await alter(client, entry(names, (RATE, 5.0), ("request_percentage", 2.5))) == [
            (0, None)
        ]
        await alter(client, entry((("user", "gone"),), (RATE, 1.0)))
        await alter(client, entry((("user", "gone"),), (RATE, None)))
    for _ in range(2):
        async with Broker(data_dir=tmp_path) as broker:
            assert list(broker.quotas) == [
                (names, {QuotaKey.PRODUCER_BYTE_RATE: 5.0, QuotaKey.REQUEST_PERCENTAGE: 2.5})
            ]
            assert broker.quotas.is_active
            assert broker.quotas.is_timing


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": 9}', '{"format": 1, "entities": [{"names": {}}]}', "[1]"]
)
async def test_damaged_file_of_quotas_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / QUOTAS_FILE).write_text(content)
    with pytest.raises(KafkaStorageError, match=QUOTAS_FILE):
        await Broker(data_dir=tmp_path).start()
