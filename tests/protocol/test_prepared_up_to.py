"""A request whose sender decides how new its version may be."""

from __future__ import annotations

from aiokafka_lite.protocol.framing import decode_request
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest
from aiokafka_lite.protocol.prepared import UpTo
from tests.support.frames import request_in

REQUEST = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)


def test_a_newer_version_than_the_content_asks_for_may_be_used() -> None:
    assert REQUEST.usable_max_version == 4
    assert UpTo(REQUEST, 5).usable_max_version == 5
    frame = decode_request(memoryview(UpTo(REQUEST, 5).encode(5, 1, "c"))[4:])
    assert (frame.version, request_in(frame)) == (5, REQUEST)
