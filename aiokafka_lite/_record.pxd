# The layout of a record, for the decoder to fill.

cdef public class ConsumerRecord [object ConsumerRecordObject, type ConsumerRecordType]:
    # Python sees these under the same names, through member descriptors.
    cdef object topic
    cdef object partition
    cdef object timestamp_type
    cdef object key
    cdef object value
    cdef object checksum
    cdef object headers
    # Python sees these as ints; they become objects when they are read.
    cdef long long c_offset
    cdef long long c_timestamp
    cdef long long c_key_size
    cdef long long c_value_size
    cdef unsigned int odd
    cdef dict attributes
    cdef object __weakref__


# Makes a record of what cannot be part of a reference cycle.
cdef ConsumerRecord untracked_record(
    object topic,
    object partition,
    long long offset,
    long long timestamp,
    object timestamp_type,
    object key,
    object value,
    long long key_size,
    long long value_size,
    object headers,
)
