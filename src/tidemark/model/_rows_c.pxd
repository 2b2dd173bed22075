from libc.stdint cimport int32_t, uint8_t


cdef class View:
    """The bytes of a buffer, pinned for as long as this lives."""
    cdef object source
    cdef const uint8_t *data
    cdef Py_ssize_t size


cdef class ColumnView:
    """A column of bytes whose offsets were checked."""
    cdef View offsets_view, data_view
    cdef const int32_t *offsets
    cdef const uint8_t *data

cdef View view_of(object source, bint numbers=*)
cdef ColumnView column_view(object name, object column, Py_ssize_t count, Py_ssize_t each_max)
