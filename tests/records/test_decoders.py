"""Which decoder runs, and what happens where the extension is not built, or is broken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aiokafka_lite import records
from aiokafka_lite.records._decode_py import MessageCursor
from tests.support.crafted import batch, message, record_set
from tests.support.extensions import BROKEN, NOT_BUILT

EXTENSIONS = [
    "aiokafka_lite._record",
    "aiokafka_lite.records._columns",
    "aiokafka_lite.records._decode",
]
REPORT = """
from aiokafka_lite import records, structs
batch = records.build_batch([(1, None, b"value", ())])
(record,) = records.decode_all(memoryview(batch))
assert type(record) is structs.ConsumerRecord
print(records.COMPILED, sorted(records.DECODERS), record.value)
"""


def run(prepare: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\n{prepare}\n{REPORT}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_plain_decoder_runs_where_an_extension_is_not_built(name: str) -> None:
    result = run(NOT_BUILT.format(name=name))
    assert result.stdout.strip() == "False ['python'] b'value'", result.stderr
    assert result.stderr == ""


@pytest.mark.skipif(not records.COMPILED, reason="the compiled decoder is not built")
@pytest.mark.parametrize("name", EXTENSIONS)
def test_broken_extension_is_not_hidden(name: str) -> None:
    result = run(BROKEN.format(name=name))
    assert result.returncode != 0
    assert "undefined symbol" in result.stderr


def test_decoder_can_be_chosen_for_a_while() -> None:
    usual = type(record_set(batch(1)).take(1)[0])
    for name, module in records.DECODERS.items():
        with records.use_decoder(name) as decoder:
            assert decoder is module
            chosen = record_set(batch(1))
        assert type(chosen.take(1)[0]) is usual
    with pytest.raises(KeyError), records.use_decoder("other"):
        pass


def arguments_of(cursor: str, count: int) -> tuple[memoryview, dict[str, int | None]]:
    """What a cursor over that many records is made with."""
    common: dict[str, int | None] = {"append_time": None, "floor": 0}
    if cursor == "BatchCursor":
        content = batch(count)[61:]
        common |= {"count": count, "base_offset": 0, "last_offset_delta": count - 1}
        return memoryview(content), {**common, "base_timestamp": 0}
    content = b"".join(message(offset, b"v", magic=1) for offset in range(count))
    return memoryview(content), {**common, "magic": 1, "wrapper_offset": None}


@pytest.mark.skipif(not records.COMPILED, reason="the compiled decoder is not built")
def test_compiled_cursor_goes_through_its_records_once() -> None:
    content, more = arguments_of("BatchCursor", 1)
    cursor: Any = records.DECODERS["compiled"].BatchCursor
    cursor = cursor("topic", 0, content, **more)
    with pytest.raises(TypeError, match="once"):
        cursor.__init__("topic", 0, content, **more)
    taken: list[object] = []
    assert cursor.take(taken, 5) is True
    assert len(taken) == 1


@pytest.mark.parametrize("decoder", sorted(records.DECODERS))
@pytest.mark.parametrize("name", ["BatchCursor", "MessageCursor"])
def test_a_cursor_takes_as_many_records_as_are_wanted(name: str, decoder: str) -> None:
    module = records.DECODERS[decoder]
    content, more = arguments_of(name, 9)
    made: Any = MessageCursor if name == "MessageCursor" else module.BatchCursor
    cursor = made("topic", 0, content, **more)
    taken: list[object] = []
    columns = module.columns_class()()
    assert cursor.take(taken, 3) is False
    assert cursor.take_columns(columns, 3) is False
    assert (len(taken), columns.rows) == (3, 3)
    assert cursor.take(taken, 3) is True
    assert len(taken) == 6
