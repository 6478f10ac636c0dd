"""Which hosts are this machine: what goes there needs no protection on the way."""

from __future__ import annotations


def is_loopback(host: str) -> bool:
    """Say whether a host, as somebody named it, can only be this machine."""
    if host == "localhost":
        return True
    if not host[:1].isdigit() and ":" not in host:
        return False  # a name: where it leads is not ours to know
    import ipaddress  # late: a client that names its brokers does without

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
