"""Runs clients and brokers in one simulated world, whose seed decides everything.

    python -m tests.simulation --seeds 1-200 --jobs 2
    python -m tests.simulation --replay 17
    python -m tests.simulation --way handlers --seeds 1-1000 --length 30
    python -m tests.simulation --planted --seeds 1-6000 --jobs 2
    python -m tests.simulation --pairs --seeds 1-10000

| module | what it does |
|---|---|
| `plan.py` | what a seed decides: the group, the producers, the schedule of faults |
| `cluster.py` | three nodes, with the topics of the group |
| `member.py` | a member of the group, in a process of its own |
| `ways.py`, `habits.py`, `listener.py` | how members read, and what they do besides |
| `handling.py` | how a seed has members call `run`, and what handlers do with a record |
| `handlers.py`, `calls.py` | these handlers, and a log of their calls |
| `applications.py` | producers, and a reader without a group |
| `faults.py` | faults next to those of the package, and the table of all |
| `course.py` | one run: faults, then calm, in which all must settle |
| `rules.py` | what must hold of a run, next to the rules of the package |
| `handler_rules.py` | what must hold of handlers that a seed decides |
| `seams.py` | which features meet in one seed, and how often |
| `campaign.py` | the command: many seeds, or one again, with fewer faults, as a timeline |
| `planted.py` | bugs that the campaign has to find |
| `planting.py` | runs seeds with each of these bugs until a rule is broken |

`aiokafka_lite/simulation/` has the loop, the network, the faults and the history.

A run is the same each time: it has virtual time, and all randomness comes from its seed. Members
are processes on hosts, which are killed, cut off or stopped. The nodes of the cluster share their
logs, so a crash of a node loses no record. A truncated log does, also that of a node that loses
what it had not written to its disk (`unflushed`).
"""
