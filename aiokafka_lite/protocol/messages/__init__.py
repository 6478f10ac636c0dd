"""One module for each API, named after it; the classes have the names of Kafka's definitions.

Import from the modules: ``from aiokafka_lite.protocol.messages.fetch import FetchRequest``.
"""
