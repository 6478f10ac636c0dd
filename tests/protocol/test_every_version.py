from __future__ import annotations

import pytest

from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from tests.support.for_each import for_each, in_every_version

VERSIONS = [(HeartbeatRequest, 3), (HeartbeatRequest, 4), (HeartbeatResponse, 3)]


def test_a_failure_names_every_version_that_fails_and_its_reason() -> None:
    def check(cls: type, version: int) -> None:
        if version == 3:
            with pytest.raises(KeyError):
                pass
        assert version == 3, "not the third"

    test = in_every_version(VERSIONS)(check)
    with pytest.raises(AssertionError) as caught:
        test()
    first, second, third = str(caught.value).splitlines()
    assert first == "HeartbeatRequest v3: DID NOT RAISE KeyError"
    assert second.startswith("HeartbeatRequest v4: AssertionError('not the third")
    assert third == "HeartbeatResponse v3: DID NOT RAISE KeyError"


def test_every_version_of_a_class_is_checked_once() -> None:
    checked: list[tuple[type, int]] = []
    test = in_every_version(VERSIONS)(lambda cls, version: checked.append((cls, version)))
    test()
    assert checked == VERSIONS


@pytest.fixture
def seven() -> int:
    return 7


@for_each([3, 4])
def test_a_check_may_use_fixtures(version: int, seven: int) -> None:
    assert (version in (3, 4), seven) == (True, 7)
