"""SASL without I/O: the functions of mechanisms that client and broker share."""

from aiokafka_lite.sasl.secret import Secret

__all__ = ["Secret"]
