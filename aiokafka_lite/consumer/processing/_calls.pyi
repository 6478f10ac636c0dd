# For type checkers, the same as in plain Python.
from aiokafka_lite.consumer.processing._calls_py import Calls as Calls
