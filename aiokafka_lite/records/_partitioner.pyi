# What is compiled behaves as the plain Python does, so to a type checker it is that.
from aiokafka_lite.records._partitioner_py import murmur2 as murmur2
from aiokafka_lite.records._partitioner_py import partition_for_key as partition_for_key
