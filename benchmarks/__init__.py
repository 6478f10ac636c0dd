"""Compare the CPU time and the wall time a record costs with those of other Kafka clients.

`python -m benchmarks` runs it, `--quick` in less than three minutes, `--list` says what there is.

What is measured, for every contestant in the same way:

* each run is a process of its own, which reads one topic from its beginning to its end; rounds are
  interleaved (every contestant once per round, in an order that changes), and the best one counts;
* the loop body touches the key and the value of every record: it adds up their lengths, and the sum
  is checked, so nobody gets away with less;
* the clock starts when the client is connected and knows the cluster (`start()` has returned), just
  before it is told which partitions to read, and ends after the last record was touched: imports
  and connecting are left out, finding the first offset and everything fetched ahead are counted;
* CPU time is user + system time of the whole process (`getrusage`), all its threads included.

Java's ConsumerPerformance cannot be asked for its CPU time in the middle: it is run twice, for one
record and for all, and the difference counts.
"""
