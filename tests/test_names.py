"""One word, one thing: no two public classes of the package have one name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "aiokafka_lite"

# Names that stand twice, each with the reason why it may.
ALLOWED = {
    "AIOKafkaConsumer": "ours, and the same with the defaults that aiokafka's has",
    "Columns": "an interface, and the plain Python that implements it beside the compiled one",
    "Event": "the waiting tasks' in `_tasks.py`, and an event of a simulated run",
    "Kind": "of an argument, and of an event of a simulated run",
    "Heartbeat": "the task of that name, for the classic protocol and for KIP-848",
    "MemberState": "each of the two protocols has its own states",
    "Node": "exported by `aiokafka_lite.broker`; the client's own is not exported",
}


def modules() -> list[Path]:
    # Structs of messages have the names that Kafka's own definitions give them.
    return [path for path in PACKAGE.rglob("*.py") if "messages" not in path.parts]


def test_no_public_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for path in modules():
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text("utf-8"), re.M):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 100
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {name: found for name, found in twice.items() if name not in ALLOWED}
