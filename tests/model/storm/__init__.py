"""A storm over one group on three real nodes: members and coordinators come, go and crash.

    python -m tests.model.storm --help

Members, ledger and verdict are those of the random model test (`tests/model/`), whose rules hold
here, too. Other than there, nothing is forgiven for a fault of the cluster: what a member hands out
is its own, whatever happens to its coordinator.

| module | what it does |
|---|---|
| `cluster.py` | the three nodes: topics, records, commits, and what happens to coordinators |
| `course.py` | the storm: who joins, leaves, crashes and is cut off, when; the calm behind it |
| `report.py` | afterwards: rebalances, records repeated and why, silences, errors |
"""
