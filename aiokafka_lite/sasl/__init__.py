"""SASL without I/O: what client and broker share of its mechanisms.

Pure functions from values to values and from bytes to bytes; neither side's state is kept here.
"""

from aiokafka_lite.sasl.secret import Secret

__all__ = ["Secret"]
