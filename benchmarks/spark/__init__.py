"""Compare the Spark source with Spark's own, the JVM connector.

`python -m benchmarks.spark` runs it, `--quick` with less work, `--list` says what there is.

Scenarios and contestants are values as in `benchmarks`, and rounds are interleaved by its runner;
but all contestants run in one Spark session (`sessions`), one after the other, so that the JVM's
compiler has done its work for each: rounds that warm up come first, and do not count. What a run
does is in `queries`; the CPU time of the JVM, of its Python workers and of the broker is read from
/proc (`meter`).
"""
