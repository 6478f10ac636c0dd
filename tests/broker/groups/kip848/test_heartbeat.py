"""ConsumerGroupHeartbeat on the embedded broker and on Kafka: the same answers."""

from __future__ import annotations

import re
from typing import Final

import pytest

from aiokafka_lite import errors
from aiokafka_lite._compat import timeout
from aiokafka_lite.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.broker.groups.kip848.requests import ConsumerGroupRequests, known_topic
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import MemberOf

NONE = 0


# -- joining and staying ------------------------------------------------------------------------


async def test_first_member_gets_everything_at_once(
    group: ConsumerGroupRequests, topic: str
) -> None:
    answer = await group.beat("m", 0, topics=[topic])
    assert (answer.error_code, answer.error_message) == (NONE, None)
    assert (answer.member_id, answer.member_epoch) == ("m", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert answer.assignment is not None
    ((found, partitions),) = (
        (item.topic_id, item.partitions) for item in answer.assignment.topic_partitions
    )
    assert (found, sorted(partitions)) == (await group.topic_id(topic), [0, 1, 2, 3])


async def test_member_ids_are_made_for_old_clients(
    group: ConsumerGroupRequests, topic: str
) -> None:
    answer = await group.beat("", 0, topics=[topic], version=0)
    assert answer.error_code == NONE
    assert answer.member_id
    again = await group.beat(answer.member_id, answer.member_epoch, version=0)
    assert (again.error_code, again.member_epoch) == (NONE, answer.member_epoch)


async def test_only_changes_are_told(group: ConsumerGroupRequests, topic: str) -> None:
    member = group.of("m", topics=[topic])
    await member.join()
    answer = await member.beat()
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (NONE, 2, None)
    assert (await member.beat(topics=[topic])).assignment is None
    assert (await member.beat(rebalance_ms=30_000)).assignment is None
    answer = await member.beat(rebalance_ms=20_000, topics=[topic])
    assert answer.assignment is not None


async def test_topic_that_does_not_exist_gives_nothing_until_it_does(
    group: ConsumerGroupRequests, cluster: KafkaHandle
) -> None:
    topic = unique("later")
    member = group.of("m", topics=[topic])
    answer = await member.join()
    assert answer.assignment is not None
    assert (answer.member_epoch, answer.assignment.topic_partitions) == (2, [])
    await cluster.create_topic(topic, partitions=2)
    async with timeout(10):
        while not member.count:  # the group is stable until its coordinator hears of the topic
            await group.settle(member)
    assert member.count == 2


async def test_second_member_waits_until_the_first_has_given_up_its_share(
    group: ConsumerGroupRequests, topic: str
) -> None:
    first, second = group.of("a", topics=[topic]), group.of("b", topics=[topic])
    await first.join()
    answer = await second.join()
    assert (answer.member_epoch, second.count) == (3, 0)
    assert (await group.described()).group_state == "Reconciling"
    before = dict(first.held)
    await first.beat()
    assert (first.epoch, first.count) == (2, 2)  # told to revoke, still in the old epoch
    assert (await second.beat()).assignment is None
    answer = await first.beat(owned=before)  # it has not revoked yet
    assert answer.member_epoch == 2
    assert (await first.beat()).member_epoch == 3
    await second.beat()
    assert second.count == 2
    assert (await group.described()).group_state == "Stable"


async def test_member_that_leaves_is_succeeded(group: ConsumerGroupRequests, topic: str) -> None:
    first, second = group.of("a", topics=[topic]), group.of("b", topics=[topic])
    await first.join()
    await second.join()
    await group.settle(first, second)
    answer = await first.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (NONE, "a", -1)
    assert answer.heartbeat_interval_ms == 0
    await group.settle(second)
    assert second.count == 4
    unknown = await first.beat()
    assert unknown.error_code == errors.UnknownMemberIdError.errno
    assert unknown.error_message == f"Member a is not a member of group {group.group_id}."


async def test_member_keeps_what_it_was_revoking_if_the_other_member_leaves(
    group: ConsumerGroupRequests, topic: str
) -> None:
    first, second = group.of("a", topics=[topic]), group.of("b", topics=[topic])
    await first.join()
    await second.join()
    await first.beat()
    assert (first.epoch, first.count) == (2, 2)  # it has to revoke the other two
    await second.leave()
    await first.beat()
    assert (first.epoch, first.count) == (4, 4)
    assert (await group.described()).group_state == "Stable"


async def test_new_subscription_is_a_new_epoch(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    other = await known_topic(cluster, 1)
    member = group.of("m", topics=[topic])
    await member.join()
    await member.beat(topics=[other])
    assert member.epoch == 2
    assert member.count in (0, 1)
    await group.settle(member)
    assert (member.epoch, member.held) == (3, {await group.topic_id(other): [0]})


async def test_partitions_that_are_added_are_assigned(
    group: ConsumerGroupRequests, cluster: KafkaHandle
) -> None:
    topic = await known_topic(cluster, 1)
    member = group.of("m", topics=[topic])
    await member.join()
    growth = CreatePartitionsTopic(name=topic, count=3, assignments=None)
    async with cluster.raw() as client:
        await client.request(CreatePartitionsRequest(topics=[growth], timeout_ms=10_000))
    await member.until(lambda: member.count == 3)
    assert member.epoch >= 3


async def test_topic_that_is_deleted_is_taken_away(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    other = await known_topic(cluster, 1)
    member = group.of("m", topics=[topic, other])
    await member.join()
    assert member.count == 5
    await cluster.delete_topic(other)
    await member.until(lambda: member.count == 4)
    await member.until(lambda: member.epoch == 3)


@pytest.mark.parametrize("assignor", ["range", "uniform"])
async def test_assignor_that_members_ask_for_is_used(
    group: ConsumerGroupRequests, cluster: KafkaHandle, assignor: str
) -> None:
    topics = [await known_topic(cluster, 3) for _ in range(2)]
    members = [group.of(name, topics=topics, assignor=assignor) for name in "ab"]
    for member in members:
        await member.join()
    await group.settle(*members)
    counts = [sorted(map(len, member.held.values())) for member in members]
    if assignor == "range":
        assert counts == [[2, 2], [1, 1]]
    else:
        assert [sum(each) for each in counts] == [3, 3]
    assert (await group.described()).assignor_name == assignor


# -- refused ------------------------------------------------------------------------------------


async def refused(group: ConsumerGroupRequests, member_id: str, epoch: int, **said: object) -> int:
    answer = await group.beat(member_id, epoch, **said)  # type: ignore[arg-type]
    assert answer.error_code
    assert answer.assignment is None
    return answer.error_code


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"member_id": ""}, errors.InvalidRequestError, "MemberId can't be empty."),
        ({"instance_id": ""}, errors.InvalidRequestError, "InstanceId can't be empty."),
        ({"rack_id": ""}, errors.InvalidRequestError, "RackId can't be empty."),
        (
            {"topics": None},
            errors.InvalidRequestError,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        (
            {"owned": {bytes(16): [0]}},
            errors.InvalidRequestError,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        ({"epoch": -3}, errors.InvalidRequestError, "MemberEpoch is invalid."),
        ({"epoch": -2}, errors.InvalidRequestError, "InstanceId can't be null."),
        (
            {"assignor": "mine"},
            errors.UnsupportedAssignorError,
            "ServerAssignor mine is not supported. Supported assignors: uniform, range.",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
async def test_requests_that_make_no_sense_are_refused(
    group: ConsumerGroupRequests,
    said: dict[str, object],
    error: type[errors.BrokerResponseError],
    message: str,
) -> None:
    request: dict[str, object] = {"member_id": "m", "epoch": 0, "topics": ["t"], **said}
    answer = await group.beat(**request)  # type: ignore[arg-type]
    assert (answer.error_code, answer.error_message) == (error.errno, message)


async def test_empty_group_id_is_refused(cluster: KafkaHandle) -> None:
    group = ConsumerGroupRequests(cluster, "")
    answer = await group.beat("m", 0, topics=["t"])
    assert answer.error_code == errors.InvalidRequestError.errno
    assert answer.error_message == "GroupId can't be empty."


async def test_group_that_does_not_exist_has_no_members(group: ConsumerGroupRequests) -> None:
    answer = await group.beat("m", 3)
    assert answer.error_code == errors.GroupIdNotFound.errno
    assert answer.error_message == f"Consumer group {group.group_id} not found."
    answer = await group.beat("m", -1)
    assert answer.error_code == errors.GroupIdNotFound.errno
    assert answer.error_message == f"Group {group.group_id} not found."


async def test_wrong_epochs_are_fenced(group: ConsumerGroupRequests, topic: str) -> None:
    member = group.of("m", topics=[topic])
    await member.join()
    answer = await group.beat("m", 3, owned=member.held)
    assert answer.error_code == errors.FencedMemberEpochError.errno
    assert answer.error_message == (
        "The consumer group member has a greater member epoch (3) than the one known by the "
        "group coordinator (2). The member must abandon all its partitions and rejoin."
    )
    await group.of("other", topics=[topic]).join()
    kept = {topic_id: held[:1] for topic_id, held in member.held.items()}
    before = member.held
    await member.beat()
    await member.beat(owned=member.held)
    assert member.epoch == 3
    # An answer may have got lost: the epoch before is good for what the member still has.
    again = await group.beat("m", 2, owned=member.held)
    assert (again.error_code, again.member_epoch) == (NONE, 3)
    assert kept
    answer = await group.beat("m", 2, owned=before)
    assert answer.error_code == errors.FencedMemberEpochError.errno
    assert answer.error_message is not None
    assert "smaller member epoch (2)" in answer.error_message
    assert (await group.beat("m", 1)).error_code == errors.FencedMemberEpochError.errno


async def test_fenced_member_joins_again(group: ConsumerGroupRequests, topic: str) -> None:
    member = group.of("m", topics=[topic])
    await member.join()
    answer = await member.join()
    assert (answer.error_code, answer.member_epoch, member.count) == (NONE, 2, 4)


# -- static members -----------------------------------------------------------------------------


async def test_static_member_comes_back_to_what_it_had(
    group: ConsumerGroupRequests, topic: str
) -> None:
    members = [group.of(name, topics=[topic], instance_id=f"i-{name}") for name in "ab"]
    for member in members:
        await member.join()
    await group.settle(*members)
    held = members[0].held
    answer = await members[0].leave(-2)
    assert (answer.error_code, answer.member_epoch) == (NONE, -2)
    assert (await members[1].beat()).assignment is None  # nobody takes its place
    heir = group.of("c", topics=[topic], instance_id="i-a")
    answer = await heir.join()
    assert (answer.error_code, answer.member_epoch) == (NONE, members[1].epoch)
    assert heir.held == held
    assert (await members[0].beat()).error_code == errors.FencedInstanceIdError.errno


async def test_instance_id_in_use_is_not_given_away(
    group: ConsumerGroupRequests, topic: str
) -> None:
    await group.of("a", topics=[topic], instance_id="i").join()
    answer = await group.of("b", topics=[topic], instance_id="i").join()
    assert answer.error_code == errors.UnreleasedInstanceIdError.errno
    assert answer.error_message == (
        "Static member b with instance id i cannot join the group because the instance id is "
        "owned by a member."
    )
    answer = await group.beat("b", 2, instance_id="i", owned={})
    assert answer.error_code == errors.FencedInstanceIdError.errno
    assert answer.error_message == ("Static member b with instance id i was fenced by member a.")
    answer = await group.beat("b", 2, instance_id="j", owned={})
    assert answer.error_code == errors.UnknownMemberIdError.errno
    assert answer.error_message == "Instance id j is unknown."
    assert (await group.beat("a", -1, instance_id="i")).error_code == NONE
    assert (await group.of("b", topics=[topic], instance_id="i").join()).error_code == NONE


# -- regular expressions ------------------------------------------------------------------------


async def test_regular_expression_is_resolved_by_the_broker(
    group: ConsumerGroupRequests, cluster: KafkaHandle
) -> None:
    prefix = unique("re")
    for number in range(3):
        await cluster.create_topic(f"{prefix}.{number}", partitions=2)
    member = group.of("m", regex=f"{prefix}\\.[01]")
    await member.join()
    await member.until(lambda: member.count == 4)
    described = await group.described()
    (only,) = described.members
    assert only.subscribed_topic_regex == f"{prefix}\\.[01]"
    assert only.subscribed_topic_names == []
    await member.beat(topics=[f"{prefix}.2"])
    await group.settle(member)
    assert member.count == 6
    await member.beat(regex="")
    await group.settle(member)
    assert member.held == {await group.topic_id(f"{prefix}.2"): [0, 1]}


# Kafka's reasons. None: it accepts the syntax, which the embedded broker does not support.
REFUSED_PATTERNS: Final = (
    ("a**", "invalid nested repetition operator"),
    ("*a", "missing argument to repetition operator"),
    ("(a", "missing closing )"),
    ("a)", "regexp/syntax: internal error"),
    ("[a", "missing closing ]"),
    ("a\\", "trailing backslash at end of expression"),
    ("(?=a)", "invalid or unsupported Perl syntax"),
    ("(?<=a)b", "invalid named capture"),
    ("\\1", "invalid escape sequence"),
    ("\\y", "invalid escape sequence"),
    ("a{1001}", "invalid repeat count"),
    ("[z-a]", "invalid character class range"),
    ("[[:word]]", None),
    ("[[:none:]]", "invalid character class range"),
    ("\\p{None}", "invalid character class range"),
    ("(?P<n>a)(?P<n>b)", "duplicate capture group name"),
    ("(?P<n", "invalid named capture"),
    ("\\x4", "invalid escape sequence"),
    ("\\x{0010FFFF}", None),
    ("(?i)a{,2}\\Q.*\\E[[:alpha:]]+?", None),
)


async def test_regular_expressions_that_kafka_refuses_are_refused(
    group: ConsumerGroupRequests, cluster: KafkaHandle
) -> None:
    for number, (regex, why) in enumerate(REFUSED_PATTERNS):
        answer = await group.beat(f"m{number}", 0, regex=regex)
        if cluster.kind == "real" and why is None:
            assert answer.error_code == NONE, regex
            continue
        assert answer.error_code == errors.InvalidRegularExpressionError.errno, regex
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: "
        assert (answer.error_message or "").startswith(message)
        if cluster.kind == "real":
            assert answer.error_message == f"{message}{why}."


async def test_regular_expressions_match_the_topics_that_re_matches(
    group: ConsumerGroupRequests, cluster: KafkaHandle
) -> None:
    prefix = unique("re")
    names = [prefix + end for end in ("a", "A", "aa", "ab", "b", "bb", "b1", "a-1", "1.b", "1-b")]
    for name in names:
        await cluster.create_topic(name)
    member = group.of("every topic", topics=names)
    await member.join()
    await member.until(lambda: member.count == len(names))
    by_id = {await group.topic_id(name): name for name in names}
    for end in (
        "a|b1", "(a|b)*", "[^ab]b?", "a\\b.*", "a{2}", "(?:a{0,1}?b){1,}", "1\\.b$", "\\w\\W\\d",
        "(a*)*b+", ".[-.].", "[a-b]?\\B.",
    ):  # fmt: skip
        for flags in ("", "(?i)"):
            regex = f"{flags}^{prefix}(?:{end})"
            expected = {name for name in names if re.fullmatch(regex, name)}
            matcher = ConsumerGroupRequests(cluster).of(regex, regex=regex)
            await matcher.join()
            await matcher.until(lambda: {by_id[id_] for id_ in matcher.held} == expected)  # noqa: B023 -- awaited here
            await matcher.leave()


# -- offsets ------------------------------------------------------------------------------------


async def test_members_commit_in_their_epoch(group: ConsumerGroupRequests, topic: str) -> None:
    member = group.of("m", topics=[topic])
    await member.join()
    assert await group.commit(topic, 5, member=MemberOf("m", 2)) == NONE
    assert (await group.fetch(topic)).committed_offset == 5
    wrong = {
        MemberOf("m", 3): errors.StaleMemberEpochError,
        MemberOf("m", 1): errors.StaleMemberEpochError,
        MemberOf("x", 2): errors.UnknownMemberIdError,
        MemberOf("", -1): errors.UnknownMemberIdError,
    }
    for sender, error in wrong.items():
        assert await group.commit(topic, 6, member=sender) == error.errno
    code = await group.commit(topic, 6, member=MemberOf("m", 2), version=8)
    assert code == errors.UnsupportedVersionError.errno
    assert (await group.fetch(topic)).committed_offset == 5


async def test_older_epoch_is_good_for_partitions_held_since_then(
    group: ConsumerGroupRequests, topic: str
) -> None:
    first, second = group.of("a", topics=[topic]), group.of("b", topics=[topic])
    await first.join()
    await second.join()
    await group.settle(first, second)
    assert (first.epoch, second.epoch) == (3, 3)
    ((held),) = first.held.values()
    ((other),) = second.held.values()
    at_2 = MemberOf("a", 2)
    assert await group.commit(topic, 5, member=at_2, partition=held[0]) == NONE
    stale = errors.StaleMemberEpochError.errno
    assert await group.commit(topic, 5, member=at_2, partition=other[0]) == stale
    at_2 = MemberOf("b", 2)
    assert await group.commit(topic, 5, member=at_2, partition=other[0]) == stale


async def test_empty_group_takes_commits_of_anybody(
    group: ConsumerGroupRequests, topic: str
) -> None:
    member = group.of("m", topics=[topic])
    await member.join()
    await member.leave()
    assert await group.commit(topic, 7) == NONE
    assert (await group.fetch(topic)).committed_offset == 7
    for epoch in (0, 2):
        code = await group.commit(topic, 8, member=MemberOf("m", epoch))
        assert code == errors.UnknownMemberIdError.errno
