from aiokafka_lite.client.frames import Frame
from aiokafka_lite.consumer.assignment.cursor import Loan
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.session import FetchSession

class SmallPart:
    loan: Loan
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    size_bytes: int
    # These are set only if there are records.
    next_offset: int
    leader_epoch: int
    records: list[Record]

class SmallCodec:
    def __init__(self, session: FetchSession, config: ConsumerConfig) -> None: ...
    def decode(self, frame: Frame) -> list[SmallPart] | None: ...
    def encode(self, version: int, correlation_id: int, max_bytes: int) -> bytes: ...
