"""Transactions of producers (KIP-98, KIP-360, KIP-890): the transaction coordinator.

Partitions keep their own view of transactions in log/producers.py.
"""
