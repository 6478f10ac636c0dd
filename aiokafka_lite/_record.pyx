# cython: language_level=3, embedsignature=False
"""ConsumerRecord as an extension type that behaves as the dataclass in `_record_py` does.

Making and reading records is most of what a consumer does, so here is where its time goes:

- The object fields are read through member descriptors, which the interpreter's specialised
  attribute load (PEP 659) reads at a fixed place: a few times faster than a property.
- Offset, timestamp and sizes are kept as C integers and become objects only when they are read.
  A value that is no such integer is legal, as in a dataclass: it goes to the instance dict, and a
  bit in `odd` says so.
- The instance dict is there for whoever sets attributes of his own (FastStream sets `consumer`),
  but it is made on first use: `tp_dictoffset` points at a slot that starts as NULL.
- The type takes part in garbage collection, but a record fresh from the decoder holds only bytes,
  strings and integers and is not tracked. Storing anything that could be part of a cycle in it
  tracks it: no cycle leaks, and no collection walks over a million records.
"""

from cpython.object cimport PyObject

import copyreg
import operator
import types

cdef extern from "stddef.h":
    # Where the fields are in the struct that Cython makes of the class.
    Py_ssize_t TOPIC_AT "offsetof(struct ConsumerRecordObject, topic)"
    Py_ssize_t PARTITION_AT "offsetof(struct ConsumerRecordObject, partition)"
    Py_ssize_t TIMESTAMP_TYPE_AT "offsetof(struct ConsumerRecordObject, timestamp_type)"
    Py_ssize_t KEY_AT "offsetof(struct ConsumerRecordObject, key)"
    Py_ssize_t VALUE_AT "offsetof(struct ConsumerRecordObject, value)"
    Py_ssize_t CHECKSUM_AT "offsetof(struct ConsumerRecordObject, checksum)"
    Py_ssize_t HEADERS_AT "offsetof(struct ConsumerRecordObject, headers)"
    Py_ssize_t ATTRIBUTES_AT "offsetof(struct ConsumerRecordObject, attributes)"
    Py_ssize_t WEAKREFS_AT "offsetof(struct ConsumerRecordObject, __weakref__)"

cdef extern from *:
    """
    #define new_untracked(type) PyObject_GC_New(PyObject, type)
    """

cdef extern from "structmember.h":
    int T_OBJECT_EX
    ctypedef struct PyMemberDef:
        const char *name
        int type
        Py_ssize_t offset
        int flags
        const char *doc

cdef extern from "Python.h":
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef void (*freefunc)(void *) noexcept
    ctypedef struct TypeObject "PyTypeObject":
        const char *tp_name
        Py_ssize_t tp_dictoffset
        PyObject *tp_dict
        inquiry tp_clear
        freefunc tp_free
    PyObject *new_untracked(TypeObject *)
    PyObject *PyObject_Init(PyObject *, TypeObject *)
    void PyObject_GC_Del(void *)
    TypeObject *Py_TYPE(PyObject *)
    object PyDescr_NewMember(TypeObject *, PyMemberDef *)
    void PyType_Modified(TypeObject *)
    int PyObject_GenericSetAttr(object, object, PyObject *) except -1
    int PyObject_GC_IsTracked(object)
    void PyObject_GC_Track(void *)
    int PyObject_IS_GC(object)
    int Py_ReprEnter(object) except -1
    void Py_ReprLeave(object)
    void Py_INCREF(PyObject *)
    void Py_DECREF(PyObject *)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef enum Odd:
    OFFSET = 1
    TIMESTAMP = 2
    KEY_SIZE = 4
    VALUE_SIZE = 8

cdef dict ANNOTATIONS = {
    "topic": "str",
    "partition": "int",
    "offset": "int",
    "timestamp": "int",
    "timestamp_type": "int",
    "key": "KT",
    "value": "VT",
    "checksum": "int | None",
    "serialized_key_size": "int",
    "serialized_value_size": "int",
    "headers": "Sequence[tuple[str, bytes]]",
}
cdef tuple FIELDS = tuple(ANNOTATIONS)


class OfTwin:
    """A class attribute that is the twin's, and is got from there when somebody reads it.

    Few do, and to make a dataclass takes as long as to import ten modules.
    """

    def __init__(self, find):
        self.find = find

    def __get__(self, record, record_class):
        from aiokafka_lite import _record_py

        return self.find(_record_py.ConsumerRecord)


def signature_of(twin):
    import inspect

    return inspect.signature(twin)


cdef public class ConsumerRecord [object ConsumerRecordObject, type ConsumerRecordType]:

    __doc__ = OfTwin(operator.attrgetter("__doc__"))
    __match_args__ = FIELDS
    __dataclass_fields__ = OfTwin(operator.attrgetter("__dataclass_fields__"))
    __dataclass_params__ = OfTwin(operator.attrgetter("__dataclass_params__"))
    __annotations__ = ANNOTATIONS
    __parameters__ = OfTwin(operator.attrgetter("__parameters__"))
    __signature__ = OfTwin(signature_of)
    __class_getitem__ = classmethod(types.GenericAlias)

    def __cinit__(self):
        forget_dict(<PyObject *> self)

    def __init__(
        self,
        topic,
        partition,
        offset,
        timestamp,
        timestamp_type,
        key,
        value,
        checksum,
        serialized_key_size,
        serialized_value_size,
        headers,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.checksum = checksum
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size
        self.headers = headers
        track(self)

    # --- the integer fields ----------------------------------------------------------------------

    @property
    def offset(self):
        """Its position in the partition."""
        return odd_value(self, "offset") if self.odd & OFFSET else self.c_offset

    @offset.setter
    def offset(self, value):
        if is_plain(self, value, OFFSET, "offset"):
            self.c_offset = value

    @offset.deleter
    def offset(self):
        delete(self, OFFSET, "offset")

    @property
    def timestamp(self):
        """Milliseconds since the epoch; None in magic 0."""
        return odd_value(self, "timestamp") if self.odd & TIMESTAMP else self.c_timestamp

    @timestamp.setter
    def timestamp(self, value):
        if is_plain(self, value, TIMESTAMP, "timestamp"):
            self.c_timestamp = value

    @timestamp.deleter
    def timestamp(self):
        delete(self, TIMESTAMP, "timestamp")

    @property
    def serialized_key_size(self):
        """The key's size on the wire in bytes, -1 without a key."""
        return odd_value(self, "serialized_key_size") if self.odd & KEY_SIZE else self.c_key_size

    @serialized_key_size.setter
    def serialized_key_size(self, value):
        if is_plain(self, value, KEY_SIZE, "serialized_key_size"):
            self.c_key_size = value

    @serialized_key_size.deleter
    def serialized_key_size(self):
        delete(self, KEY_SIZE, "serialized_key_size")

    @property
    def serialized_value_size(self):
        """The value's size on the wire in bytes, -1 without a value."""
        if self.odd & VALUE_SIZE:
            return odd_value(self, "serialized_value_size")
        return self.c_value_size

    @serialized_value_size.setter
    def serialized_value_size(self, value):
        if is_plain(self, value, VALUE_SIZE, "serialized_value_size"):
            self.c_value_size = value

    @serialized_value_size.deleter
    def serialized_value_size(self):
        delete(self, VALUE_SIZE, "serialized_value_size")

    # --- attributes of one's own -----------------------------------------------------------------

    def __setattr__(self, name, value):
        PyObject_GenericSetAttr(self, name, <PyObject *> value)
        if PyObject_IS_GC(value):
            track(self)

    def __delattr__(self, name):
        PyObject_GenericSetAttr(self, name, NULL)

    @property
    def __dict__(self):
        """The fields as they are now, and the attributes of one's own, which may be set here."""
        return all_attributes(self)

    @__dict__.setter
    def __dict__(self, dict attributes not None):
        self.__setstate__(attributes)

    # --- acknowledging ---------------------------------------------------------------------------

    def ack(self):
        """Say that the record is processed; see `_record_py`."""
        from aiokafka_lite._record_py import receipt_of

        return receipt_of(self).ack()

    def nack(self, delay_ms=0):
        """Have the record returned again after a delay; see `_record_py`."""
        from aiokafka_lite._record_py import receipt_of

        return receipt_of(self).nack(delay_ms)

    def reject(self):
        """Have no member of the share group receive the record again; see `_record_py`."""
        from aiokafka_lite._record_py import receipt_of

        return receipt_of(self).reject()

    @property
    def delivery_count(self):
        """How often a share group has delivered the record; see `_record_py`."""
        return getattr(self, "_delivery_count", 1)

    @property
    def lease_ms(self):
        """Milliseconds until the lock of the record ends; see `_record_py`."""
        receipt = getattr(self, "_receipt", None)
        return None if receipt is None else receipt.lease_ms

    # --- what a dataclass has --------------------------------------------------------------------

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return values(self) == values(other)

    def __ne__(self, other):
        # As `object` does it: a subclass that redefines == has redefined != as well.
        equal = type(self).__eq__(self, other)
        return equal if equal is NotImplemented else not equal

    def __repr__(self):
        if Py_ReprEnter(self):
            return "..."
        try:
            fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in FIELDS])
        finally:
            Py_ReprLeave(self)
        return f"{type(self).__qualname__}({fields})"

    def __replace__(self, /, **changes):
        import dataclasses

        return dataclasses.replace(self, **changes)

    def __reduce__(self):
        # As the dataclass is pickled, which may be the one that reads this and the other way round.
        return copyreg.__newobj__, (type(self),), dict(all_attributes(self))

    def __setstate__(self, dict state not None):
        for name, value in state.items():
            setattr(self, name, value)


# Memory of records that are gone, for those to come: a record then costs no allocation, and does
# not count towards the next garbage collection, which has nothing to find in it. Room for two lists
# of the size that `poll` hands out; the application holds one while the next is made.
cdef enum:
    MOST_KEPT = 4_096

cdef PyObject *kept[MOST_KEPT]
cdef Py_ssize_t kept_count = 0


cdef void keep_or_free(void *record) noexcept:
    """Free a record's memory, or keep it; subclasses' is of another size."""
    global kept_count
    if kept_count < MOST_KEPT and Py_TYPE(<PyObject *> record) is <TypeObject *> ConsumerRecord:
        kept[kept_count] = <PyObject *> record
        kept_count += 1
    else:
        PyObject_GC_Del(record)


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
):
    # Memory from the collector's allocator that it has not been told of, and of which every field
    # is written here once; __new__ would first write None into each and track the record.
    global kept_count
    cdef PyObject *raw
    if kept_count:
        kept_count -= 1
        raw = PyObject_Init(kept[kept_count], <TypeObject *> ConsumerRecord)
    else:
        raw = new_untracked(<TypeObject *> ConsumerRecord)
        if raw is NULL:
            raise MemoryError
    put(raw, TOPIC_AT, topic)
    put(raw, PARTITION_AT, partition)
    put(raw, TIMESTAMP_TYPE_AT, timestamp_type)
    put(raw, KEY_AT, key)
    put(raw, VALUE_AT, value)
    put(raw, CHECKSUM_AT, None)
    put(raw, HEADERS_AT, headers)
    dict_slot(raw)[0] = NULL
    (<PyObject **> (<char *> raw + WEAKREFS_AT))[0] = NULL
    cdef ConsumerRecord record = <ConsumerRecord> raw
    Py_DECREF(raw)
    record.c_offset = offset
    record.c_timestamp = timestamp
    record.c_key_size = key_size
    record.c_value_size = value_size
    record.odd = 0
    return record


cdef inline void put(PyObject *record, Py_ssize_t at, object value) noexcept:
    """Write a field for the first time: nothing is in it to be released."""
    Py_INCREF(<PyObject *> value)
    (<PyObject **> (<char *> record + at))[0] = <PyObject *> value


cdef tuple values(record):
    return tuple([getattr(record, name) for name in FIELDS])


cdef inline void track(ConsumerRecord record) noexcept:
    if not PyObject_GC_IsTracked(record):
        PyObject_GC_Track(<void *> record)


cdef inline PyObject **dict_slot(PyObject *record) noexcept:
    """Where the instance dict is, NULL if it has not been made."""
    return <PyObject **> (<char *> record + ATTRIBUTES_AT)


cdef dict dict_of(ConsumerRecord record):
    """Return the instance dict, made if there is none."""
    cdef PyObject **slot = dict_slot(<PyObject *> record)
    cdef dict attributes
    if slot[0] is NULL:
        # Not by assignment: that would release what was in the field, and NULL was.
        attributes = {}
        Py_INCREF(<PyObject *> attributes)
        slot[0] = <PyObject *> attributes
    return <dict> slot[0]


cdef dict all_attributes(ConsumerRecord record):
    cdef dict attributes = dict_of(record)
    cdef dict fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    own = {name: value for name, value in attributes.items() if name not in FIELDS}
    attributes.clear()
    attributes.update(fields)
    attributes.update(own)
    track(record)
    return attributes


cdef bint is_plain(ConsumerRecord record, object value, unsigned int bit, str name) except -1:
    """Whether the value is one for a C field; if it is not, it is put into the instance dict."""
    cdef int overflow = 0
    if type(value) is int:
        PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            if record.odd & bit:
                record.odd &= ~bit
                dict_of(record).pop(name, None)
            return True
    dict_of(record)[name] = value
    record.odd |= bit
    return False


cdef object odd_value(ConsumerRecord record, str name):
    try:
        return dict_of(record)[name]
    except KeyError:
        raise AttributeError(name) from None


cdef int delete(ConsumerRecord record, unsigned int bit, str name) except -1:
    """Make the field one that has no value."""
    if record.odd & bit:
        odd_value(record, name)  # raises if it has none already
    dict_of(record).pop(name, None)
    record.odd |= bit
    return 0


cdef inquiry clear_fields


cdef void forget_dict(PyObject *record) noexcept:
    """Replace the None that Cython leaves in the dict's slot by NULL, which stands for no dict."""
    cdef PyObject **slot = dict_slot(record)
    Py_DECREF(slot[0])
    slot[0] = NULL


cdef int clear(PyObject *record) noexcept:
    """Clear the fields for the garbage collector."""
    clear_fields(record)
    forget_dict(record)
    return 0


cdef PyMemberDef members[7]
members[0] = PyMemberDef(b"topic", T_OBJECT_EX, TOPIC_AT, 0, NULL)
members[1] = PyMemberDef(b"partition", T_OBJECT_EX, PARTITION_AT, 0, NULL)
members[2] = PyMemberDef(b"timestamp_type", T_OBJECT_EX, TIMESTAMP_TYPE_AT, 0, NULL)
members[3] = PyMemberDef(b"key", T_OBJECT_EX, KEY_AT, 0, NULL)
members[4] = PyMemberDef(b"value", T_OBJECT_EX, VALUE_AT, 0, NULL)
members[5] = PyMemberDef(b"checksum", T_OBJECT_EX, CHECKSUM_AT, 0, NULL)
members[6] = PyMemberDef(b"headers", T_OBJECT_EX, HEADERS_AT, 0, NULL)


cdef int finish_type() except -1:
    """Give the type what Cython has no syntax for. Subclasses made later inherit it."""
    global clear_fields
    cdef TypeObject *record_type = <TypeObject *> ConsumerRecord
    cdef dict namespace = <dict> record_type.tp_dict
    cdef int index
    for index in range(7):
        namespace[members[index].name.decode()] = PyDescr_NewMember(record_type, &members[index])
    record_type.tp_name = "aiokafka_lite.structs.ConsumerRecord"  # where it is public, as its twin
    record_type.tp_dictoffset = ATTRIBUTES_AT
    clear_fields = record_type.tp_clear
    record_type.tp_clear = clear
    record_type.tp_free = keep_or_free
    PyType_Modified(record_type)
    return 0


finish_type()
