# The extension type behaves as the plain class does, so to a type checker it is that.
from aiokafka_lite.consumer.processing._steps_py import Steps as Steps
from aiokafka_lite.consumer.processing._steps_py import new_job as new_job
