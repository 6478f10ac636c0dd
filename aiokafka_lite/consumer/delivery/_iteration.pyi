# The extension type behaves as the plain class does, so to a type checker it is that.
from aiokafka_lite.consumer.delivery._iteration_py import RecordIterator as RecordIterator
