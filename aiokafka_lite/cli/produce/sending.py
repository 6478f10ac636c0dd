"""Lines on their way to a topic, and which of them are written."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import CommandError, LineProblem, plain_text
from aiokafka_lite.cli.produce.lines import LineReader, ProducerRecord
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.bulk import BulkProducer

# How long an interrupted command waits for answers to what it has sent.
INTERRUPTED_S: Final = 1.0
MOST_NAMED_RANGES: Final = 5


class LineSender:
    """Sends the lines of a stream, until one is not written.

    Args:
        topic: Where to.
        reader: Where lines come from.
        producer: It is started.
        to_record: Makes a record of a line; None: the line is passed over.
    """

    def __init__(
        self,
        topic: str,
        reader: LineReader,
        producer: BulkProducer,
        to_record: Callable[[bytes], ProducerRecord | None],
    ) -> None:
        self._topic = topic
        self._reader = reader
        self._producer = producer
        self._to_record = to_record
        self._sent_count = 0
        # For each line that was passed over, how many records were sent before.
        self._passed_over: list[int] = []

    async def run(self) -> None:
        """Send all lines, and wait until they are written.

        When it is cancelled, what was sent has a second to be acknowledged, and stderr says of
        which lines that is not so.

        Raises:
            CommandError: A line is no record, or is not written; says which, and how many are.
        """
        problem: str | None = None
        timeout_s: float | None = None
        try:
            problem = await self._send_all()
        except asyncio.CancelledError:
            timeout_s = INTERRUPTED_S
            raise
        finally:
            await self._producer.stop(timeout_s)
            if timeout_s is not None:
                print(f"\n{self._outcome()}", file=sys.stderr)
        named: Sequence[int] = ()
        if self._producer.losses:
            first = min(self._producer.losses, key=lambda each: each.numbers[0])
            named = first.at_fault
            problem = f"{self._lines_text(named)}: {plain_text(first.error)}"
        if problem is not None:
            raise CommandError(f"{problem}; {self._outcome(named)}")

    async def _send_all(self) -> str | None:
        """Send lines to the end of the stream, or until one cannot be; return which, and why."""
        send_nowait, to_record, topic = self._producer.send_nowait, self._to_record, self._topic
        while not self._producer.losses:
            try:
                lines = await self._reader.lines()
            except OSError as error:
                return f"cannot read the standard input: {error.strerror or error}"
            if lines is None:
                break
            for line in lines:
                try:
                    record = to_record(line)
                    if record is None:
                        self._passed_over.append(self._sent_count)
                        continue
                    if not send_nowait(topic, *record):
                        await self._producer.send(topic, *record)
                except LineProblem as problem:
                    return f"{self._lines_text([self._sent_count + 1])}: {problem}"
                except KafkaError as error:
                    return f"{self._lines_text([self._sent_count + 1])}: {plain_text(error)}"
                self._sent_count += 1
        return None

    def _outcome(self, named: Sequence[int] = ()) -> str:
        """Say how many lines are written, and which are not, unless it is those that are named."""
        count, sent_count = self._producer.acknowledged_count, self._sent_count
        if count == sent_count:
            return f"{counted(count, 'line')} {'was' if count == 1 else 'were'} written"
        text = f"{count:,} of {sent_count:,} lines were written"
        lost = [number for each in self._producer.losses for number in each.numbers]
        return text if sorted(lost) == sorted(named) else f"{text}, not {self._lines_text(lost)}"

    def _lines_text(self, numbers: Sequence[int]) -> str:
        """Return "lines 2, 4 to 6" of the lines that records were, by the numbers of these."""
        lines = sorted(each + bisect_left(self._passed_over, each) for each in numbers)
        ranges: list[list[int]] = []
        for line in lines:
            if ranges and line == ranges[-1][1] + 1:
                ranges[-1][1] = line
            else:
                ranges.append([line, line])
        texts = [f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:MOST_NAMED_RANGES]]
        if len(ranges) > MOST_NAMED_RANGES:
            texts.append(f"others up to {lines[-1]}")
        return f"line{'' if len(lines) == 1 else 's'} {', '.join(texts)}"

    @property
    def written_count(self) -> int:
        """How many lines are written."""
        return self._producer.acknowledged_count
