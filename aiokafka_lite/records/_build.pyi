# What is compiled behaves as the plain Python does, so to a type checker it is that.
from aiokafka_lite.records._build_py import BatchBuilder as BatchBuilder
from aiokafka_lite.records._build_py import size_of as size_of
