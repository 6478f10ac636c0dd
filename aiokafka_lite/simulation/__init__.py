"""Deterministic simulation: one seed decides everything that happens on an event loop.

`simulate` declares that a loop, such as simloop's, has virtual time and a simulated network::

    loop = simloop.SimLoop(seed)
    simulate(loop, seed)
    loop.run_until_complete(main())

On such a loop consumers, producers and embedded brokers

- take their random numbers and ids from its seed, unless they have a `seed` of their own
- take the time of day from the loop (`START_MS` and the loop's time), not from the system
- begin no thread: disk work, decompression and hashing run on the loop, and host names are resolved
  by `loop.getaddrinfo`. `heartbeat_thread` has no effect, because nothing blocks virtual time
- use transports only as asyncio defines them, and no file descriptors of sockets. A broker's port
  0 is the next one from 9092 on
- do not lock a `data_dir`, so that a broker may follow one whose host has crashed. If all tasks of
  a client or a broker are cancelled at once, its host has crashed, which is no error.

Real files (`data_dir`), the application's own clocks and threads, and TLS stay as they are. Python
orders sets of texts by a hash that PYTHONHASHSEED decides. This package does not depend on it.

The modules of this package run brokers and applications on such a loop, and need the extra
`simulation`. Clients and brokers import none of them.
"""

from __future__ import annotations

from aiokafka_lite._virtual import START_MS, simulate

__all__ = ["START_MS", "simulate"]
