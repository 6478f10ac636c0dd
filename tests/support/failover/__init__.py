"""Brokers of a real cluster fail while records flow; what their readers saw is judged.

    writer process ---> three brokers ---> one process per reader
          |          kill, pause, restart          |
          +--- journal ---> verdict <--- journal --+

Every process writes down what happened to it, with `time.monotonic_ns()`, which on one machine is
the same clock for all. Nobody judges himself: `verdict` compares what the writer was told is
written with what each reader got.
"""
