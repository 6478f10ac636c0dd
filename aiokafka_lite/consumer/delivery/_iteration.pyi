# The extension types behave as the plain classes do, so to a type checker they are those.
from aiokafka_lite.consumer.delivery._iteration_py import RecordCursor as RecordCursor
from aiokafka_lite.consumer.delivery._iteration_py import RecordIterator as RecordIterator
