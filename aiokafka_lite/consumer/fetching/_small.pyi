from aiokafka_lite.client.connection import Exchange
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.fetching.sources import Sources
from aiokafka_lite.protocol.messages.fetch import FetchResponse

class SmallAnswers:
    def __init__(
        self, source: Source, sources: Sources, session: FetchSession, counts: NodeCounts
    ) -> None: ...
    def __call__(self, exchange: Exchange[FetchResponse], /) -> None: ...
