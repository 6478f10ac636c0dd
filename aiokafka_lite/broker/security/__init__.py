"""Listeners, TLS and SASL. `broker/cluster.py` has the objects that a cluster has once."""
