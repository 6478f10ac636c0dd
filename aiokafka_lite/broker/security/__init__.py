"""Listeners, TLS and SASL. `broker/cluster_security.py` has the objects that a cluster has once."""
