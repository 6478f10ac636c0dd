"""Fields of plain Python objects at their places: one access, where a name takes four look-ups.

A class with `__slots__` keeps each field at one offset, in its subclasses too; the slot's descriptor
tells which. Whoever reads or writes there must have looked at the object's class.
"""

from cpython.object cimport PyObject

cdef extern from *:
    """
    #include <structmember.h>

    static Py_ssize_t slot_offset(PyObject *cls, PyObject *name) {
        PyObject *found = PyObject_GetAttr(cls, name);
        Py_ssize_t offset = -1;
        if (found == NULL)
            return -1;
        if (Py_IS_TYPE(found, &PyMemberDescr_Type)
            && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX)
            offset = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (offset < 0)
            PyErr_Format(PyExc_TypeError, "%R has no slot %R", cls, name);
        return offset;
    }

    #define SLOT_IS_TRUE(owner, offset) (slot_value(owner, offset) == Py_True)
    #define SLOT_IS_NONE(owner, offset) (slot_value(owner, offset) == Py_None)

    static inline PyObject *slot_value(PyObject *owner, Py_ssize_t offset) {
        return *(PyObject **)((char *)owner + offset);
    }

    static inline void slot_put(PyObject *owner, Py_ssize_t offset, PyObject *value) {
        PyObject **slot = (PyObject **)((char *)owner + offset);
        PyObject *before = *slot;
        Py_INCREF(value);
        *slot = value;
        Py_XDECREF(before);
    }
    """
    Py_ssize_t slot_offset(object cls, object name) except -1
    PyObject *slot_value(PyObject *owner, Py_ssize_t offset) noexcept
    bint SLOT_IS_TRUE(PyObject *owner, Py_ssize_t offset) noexcept
    bint SLOT_IS_NONE(PyObject *owner, Py_ssize_t offset) noexcept
    void slot_put(PyObject *owner, Py_ssize_t offset, PyObject *value) noexcept


cdef inline object get(object owner, Py_ssize_t offset):
    """Return a field's value."""
    cdef PyObject *value = slot_value(<PyObject *> owner, offset)
    if value is NULL:
        raise AttributeError("a slot is empty")
    return <object> value


cdef inline void put(object owner, Py_ssize_t offset, object value) noexcept:
    """Set a field."""
    slot_put(<PyObject *> owner, offset, <PyObject *> value)


cdef inline bint is_none(object owner, Py_ssize_t offset) noexcept:
    """Whether a field is None."""
    return SLOT_IS_NONE(<PyObject *> owner, offset)


cdef inline bint is_true(object owner, Py_ssize_t offset) noexcept:
    """Whether a field is True; for fields that are bools."""
    return SLOT_IS_TRUE(<PyObject *> owner, offset)
