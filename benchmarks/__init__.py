"""Compare what reading costs with other Kafka clients, in several respects.

`python -m benchmarks` runs it, `--quick` in less than three minutes, `--list` says what there is.

A scenario (`scenarios`, all of them in `catalogue`) is a question: topics, a task, figures, and who
takes part. A task (`tasks`) is what a run's process does. A contestant (`contestants`) names a
reader, which is what a client is to a task. Each run is a process of its own (`child`); rounds are
interleaved (`runner`): every contestant once per round, in an order that changes. The best round
counts, and is compared with the goals (`goals`).
"""
