"""Clients of all kinds in one process, while three real nodes are killed, paused and shut down.

    python -m tests.chaos.storm --seconds 1800 --seed 1      what `make storm` runs

The clients write down what they do. Afterwards, the rules of `aiokafka_lite.simulation` judge that,
with what librdkafka reads of both topics.
"""
