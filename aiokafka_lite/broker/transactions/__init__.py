"""Transactions of producers (KIP-98, KIP-360, KIP-890): what coordinates them.

The state machine (machine.py) knows no I/O; the coordinator of a node drives those whose partition
of ``__transaction_state`` the node leads; the markers that end a transaction in the partitions it
wrote to are written by MarkerWriter. What partitions themselves know of transactions is in
broker/log/producers.py.
"""
