"""A share group in a storm: members are killed, stopped, cut off, and leaders move.

    python -m tests.chaos.sharing --records 1000000

It has three nodes. Runs of `--seconds` with several `--seed`s make as many records as a long one.

Each member is a process that writes down what its handlers do. Afterwards, `verdict.py` judges it.
"""
