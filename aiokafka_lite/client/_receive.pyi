from aiokafka_lite.client.connection import Connection, Exchange
from aiokafka_lite.protocol.schema import Response

def take_over(connection_cls: type[Connection], exchange_cls: type[Exchange[Response]]) -> None: ...
