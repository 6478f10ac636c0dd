"""A random model test on a real Kafka: what members of groups do, and what they may see.

On the embedded broker, tests/simulation does the same and more.

    python -m tests.model --help

| module | what it does |
|---|---|
| `world.py` | loops and time: each member has a loop of its own, in virtual time or on threads |
| `ledger.py` | what happened, in one order |
| `habits.py` | the settings and the ways of one member, drawn at random |
| `member.py` | one member: an application around a consumer |
| `listener.py` | the rebalance listeners that members have |
| `clusters.py` | the cluster of a round: topics, records, commits as the log has them, faults |
| `course.py` | one round: who joins, leaves and crashes, when; and its end |
| `liveness.py` | while it runs: partitions that nothing comes of, calls that do not return |
| `verdict.py` | afterwards: what was handed out and committed, and was it right |
| `tracks.py` | what a member may see of one partition in one assignment |
"""
