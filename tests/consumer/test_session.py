from __future__ import annotations

from aiokafka_lite.consumer.assignment.cursor import Cursor, Loan
from aiokafka_lite.consumer.fetching.session import (
    FINAL_EPOCH,
    LAST_EPOCH,
    FetchSession,
    SessionRequest,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.support import inside

ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))
A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
CURSORS = {A: Cursor(A), B: Cursor(B)}


def loan(tp: TopicPartition, offset: int, *, topic_id: bytes = ID) -> Loan:
    return Loan(CURSORS[tp], offset, 0, topic_id, 1000)


def asked(request: SessionRequest) -> dict[int, int]:
    return {
        index: offset for _, _, partitions in request.topics for index, _, offset, _ in partitions
    }


def forgotten(request: SessionRequest) -> list[int]:
    return [number for _, _, partitions in request.forgotten for number in partitions]


def opened() -> FetchSession:
    session = FetchSession()
    session.lend(loan(A, 0))
    session.lend(loan(B, 0))
    session.request()
    session.succeeded(9)
    return session


def test_the_first_request_is_full_and_opens_a_session() -> None:
    session = FetchSession()
    session.lend(loan(A, 5))
    request = session.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert asked(request) == {0: 5}
    assert request.topics[0][:2] == ("t", ID)
    assert request.max_version is None


def test_later_requests_name_only_what_changed() -> None:
    session = opened()
    request = session.request()
    assert (request.session_id, request.session_epoch, request.topics) == (9, 1, [])
    session.succeeded(9)
    session.lend(loan(A, 7))
    request = session.request()
    assert request.session_epoch == 2
    assert asked(request) == {0: 7}


def test_after_a_lost_answer_all_is_named_again() -> None:
    session = opened()
    session.lend(loan(A, 7))
    session.request()
    session.replace()
    assert asked(session.request()) == {1: 0, 0: 7}


def test_what_changes_while_a_request_is_in_flight_is_for_the_next_one() -> None:
    session = opened()
    session.lend(loan(A, 7))
    session.request()
    session.lend(loan(A, 3))
    session.end(B)
    session.succeeded(9)
    request = session.request()
    assert (asked(request), forgotten(request)) == ({0: 3}, [1])


def test_what_is_ended_is_forgotten_and_can_come_back() -> None:
    session = opened()
    session.end(A)
    request = session.request()
    assert (asked(request), forgotten(request)) == ({}, [0])
    session.succeeded(9)
    assert len(session) == 1
    session.lend(loan(A, 3))
    request = session.request()
    assert (asked(request), forgotten(request)) == ({0: 3}, [])
    session.succeeded(9)
    session.lend(loan(B, 7))
    session.end(B)
    request = session.request()
    assert (asked(request), forgotten(request)) == ({}, [1])
    session.succeeded(9)
    assert forgotten(session.request()) == []


def test_ended_and_lent_again_before_a_request_is_a_change() -> None:
    session = opened()
    session.end(A)
    session.lend(loan(A, 0))
    request = session.request()
    assert (asked(request), forgotten(request)) == ({0: 0}, [])


def test_a_broker_without_sessions_is_always_asked_in_full() -> None:
    session = FetchSession()
    session.lend(loan(A, 0))
    session.request()
    session.succeeded(0)
    request = session.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert asked(request) == {0: 0}


def test_after_an_evicted_session_all_is_asked_anew() -> None:
    session = opened()
    session.forget()
    request = session.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert asked(request) == {0: 0, 1: 0}


def test_a_lost_answer_closes_the_session_and_opens_another() -> None:
    session = opened()
    session.replace()
    request = session.request()
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert asked(request) == {0: 0, 1: 0}
    session.succeeded(10)
    assert (session.request().session_id, session.request().session_epoch) == (10, 1)


def test_a_topic_made_anew_replaces_the_session() -> None:
    session = opened()
    session.lend(loan(A, 0, topic_id=OTHER_ID))
    request = session.request()
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert asked(request) == {0: 0, 1: 0}


def test_a_topic_made_anew_after_it_was_ended_replaces_the_session() -> None:
    session = opened()
    session.end(A)
    session.lend(loan(A, 0, topic_id=OTHER_ID))
    request = session.request()
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert (asked(request), forgotten(request)) == ({0: 0, 1: 0}, [])


def test_a_closed_session_is_named_once_with_the_last_epoch() -> None:
    session = opened()
    request = session.closing()
    assert request is not None
    assert (request.session_id, request.session_epoch, request.topics) == (9, FINAL_EPOCH, [])
    assert session.closing() is None
    assert (session.id, session.epoch) == (0, 0)
    assert (request.max_wait_ms, request.min_bytes) == (0, 0)


def test_a_session_that_is_to_be_replaced_can_be_closed() -> None:
    session = opened()
    session.replace()
    request = session.closing()
    assert request is not None
    assert request.session_id == 9


def test_topics_without_id_keep_to_versions_with_names() -> None:
    session = FetchSession()
    session.lend(loan(A, 0, topic_id=ZERO_UUID))
    assert session.request().max_version == 12
    session.lend(loan(A, 0))
    assert session.request().max_version is None


def test_answers_are_found_by_name_and_by_id() -> None:
    session, lent = opened(), loan(A, 3)
    session.lend(lent)
    assert session.loan("t", ZERO_UUID, 0) is session.loan("", ID, 0) is lent
    other = session.loan("", ID, 1)
    assert other is not None
    assert other.cursor is CURSORS[B]
    assert session.loan("", OTHER_ID, 0) is None
    assert session.loan("t", ZERO_UUID, 5) is None


def test_the_epoch_wraps_around_to_one() -> None:
    session = opened()
    inside.set_epoch(session, LAST_EPOCH)
    session.succeeded(9)
    assert session.request().session_epoch == 1


def test_partitions_that_had_records_go_to_the_end() -> None:
    session = FetchSession()
    session.lend(loan(A, 0))
    session.lend(loan(B, 0))
    session.lend(loan(A, 4))
    assert list(asked(session.request())) == [1, 0]
