# The extension type behaves as the dataclass does, so to a type checker it is the dataclass.
from aiokafka_lite._record_py import ConsumerRecord as ConsumerRecord
