"""The random model of pairs on a real Kafka: ways of reading meet events, which are counted.

course.py ─┬─ member.py ─┬─ ways.py      how its tasks read, and when records are finished
           │             └─ events.py    what its application does meanwhile
           ├─ logs.py                    the cluster, and what happens to it
           ├─ book.py                    which record is where in the logs
           ├─ journal.py                 what became of each record, and what must not be
           └─ table.py                   how often each way met each event
"""
