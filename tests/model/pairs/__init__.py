"""The random model of pairs: every way of reading meets every event, and the meetings are counted.

course.py ─┬─ member.py ─┬─ ways.py      how its tasks read, and when records are finished
           │             └─ events.py    what its application does meanwhile
           ├─ troubles.py                what happens to the cluster
           ├─ book.py                    which record is where in the logs
           ├─ journal.py                 what became of each record, and what must not be
           └─ table.py                   how often each way met each event
"""
