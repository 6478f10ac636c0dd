# The extension types behave as the plain classes do, so to a type checker they are these.
from aiokafka_lite.consumer.processing._steps_py import Calls as Calls
from aiokafka_lite.consumer.processing._steps_py import Steps as Steps
