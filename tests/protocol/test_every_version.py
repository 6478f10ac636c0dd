from __future__ import annotations

import pytest

from aiokafka_lite.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.support.every_version import in_every_version

VERSIONS = [(HeartbeatRequest, 3), (HeartbeatRequest, 4), (HeartbeatResponse, 3)]


def test_a_failure_names_every_version_that_fails_and_its_reason() -> None:
    def check(cls: type, version: int) -> None:
        if version == 3:
            with pytest.raises(KeyError):
                pass
        assert version == 3, "not the third"

    test = in_every_version(VERSIONS)(check)
    with pytest.raises(AssertionError) as caught:
        test(HeartbeatRequest)
    first, second = str(caught.value).splitlines()
    assert first == "HeartbeatRequest v3: DID NOT RAISE KeyError"
    assert second.startswith("HeartbeatRequest v4: AssertionError('not the third")


def test_every_version_of_a_class_is_checked_once() -> None:
    checked: list[tuple[type, int]] = []
    test = in_every_version(VERSIONS)(lambda *case: checked.append(case))
    for cls in (HeartbeatRequest, HeartbeatResponse):
        test(cls)
    assert checked == VERSIONS
