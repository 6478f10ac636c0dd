"""Distinguishes this machine's addresses from others."""

from __future__ import annotations


def is_loopback(host: str) -> bool:
    """Whether a host, as configured or as a socket has it, can only be this machine."""
    if host == "localhost":
        return True
    if not host[:1].isdigit() and ":" not in host:
        return False  # a name: where it leads is not ours to know
    import ipaddress  # late: a client that names its brokers does without

    try:
        # Until Python 3.13 an IPv4 address written as an IPv6 one is no loopback.
        return ipaddress.ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False
