"""Compiled twin of `_rows_py`: same names, same answers. Offsets are looked at once, before anything is read."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t

from tidemark.model._keys_c cimport Digest, digest_end, digest_row, digest_start

cdef enum:
    TOMBSTONE = 1
    KEYLESS = 2


cdef class View:
    pass


cdef View view_of(object source, bint numbers=True):
    cdef View view = View.__new__(View)
    cdef Py_buffer buffer
    # The memoryview pins the bytes.
    view.source = memoryview(source).cast("B")
    PyObject_GetBuffer(view.source, &buffer, PyBUF_SIMPLE)
    view.data, view.size = <const uint8_t *>buffer.buf, buffer.len
    PyBuffer_Release(&buffer)
    if numbers and <size_t>view.data % 8:
        # Numbers are read as such: bytes of an object begin at a multiple of 8.
        return view_of(bytes(view.source))
    return view


cdef class ColumnView:
    pass


cdef ColumnView column_view(object name, object column, Py_ssize_t count, Py_ssize_t each_max):
    cdef ColumnView view = ColumnView.__new__(ColumnView)
    cdef Py_ssize_t row
    cdef const int32_t *offsets
    cdef bint back = False
    cdef int64_t longest = 0
    view.offsets_view, view.data_view = view_of(column[0]), view_of(column[1], False)
    if view.offsets_view.size != 4 * (count + 1):
        raise ValueError(
            f"{name}: {view.offsets_view.size} bytes of offsets are not {count + 1} of 4 bytes"
        )
    view.offsets = offsets = <const int32_t *>view.offsets_view.data
    view.data = view.data_view.data
    if offsets[0] < 0 or offsets[count] > view.data_view.size:
        raise ValueError(f"{name}: the offsets lead outside of {view.data_view.size} bytes of data")
    for row in range(count):
        back |= offsets[row] > offsets[row + 1]
        if <int64_t>offsets[row + 1] - offsets[row] > longest:
            longest = <int64_t>offsets[row + 1] - offsets[row]
    if back or longest > each_max:
        for row in range(count):
            if offsets[row] > offsets[row + 1]:
                raise ValueError(f"{name}: the offsets of row {row} go back")
            if <int64_t>offsets[row + 1] - offsets[row] > each_max:
                raise ValueError(f"{name}: row {row} has more than {each_max} bytes")
    return view


def check_column(name, column, Py_ssize_t count, Py_ssize_t each_max):
    """Whether the offsets of a column hold together and lead into its data."""
    column_view(name, column, count, each_max)


def check_flags(flags, keys, values, Py_ssize_t count):
    """Whether the flags are known ones, and tombstones have a key and an empty value."""
    cdef View marks = view_of(flags, False)
    cdef View view = view_of(values[0])
    cdef const int32_t *offsets = <const int32_t *>view.data
    cdef Py_ssize_t row
    cdef bint keyed = keys is not None
    if marks.size < count or view.size < 4 * (count + 1):
        raise ValueError(f"flags: not {count} numbers of 1 bytes")
    for row in range(count):
        if marks.data[row] & ~(TOMBSTONE | KEYLESS):
            raise ValueError(f"flags: row {row} has {marks.data[row]:#x}, known are 1 and 2")
        if marks.data[row] & TOMBSTONE:
            if not keyed or marks.data[row] & KEYLESS:
                raise ValueError(f"flags: row {row} is a tombstone without a key")
            if offsets[row] != offsets[row + 1]:
                raise ValueError(f"flags: row {row} is a tombstone with a value")


def rows_digest(batch):
    """The sum of the digests of all rows, mod 2**128. The batch has values and sequences."""
    cdef Py_ssize_t row, count = batch.count
    cdef ColumnView keys = None
    cdef ColumnView values
    cdef View sequences, flags = None
    cdef Digest digest
    cdef const uint8_t *key
    cdef size_t key_size
    cdef uint8_t marks
    if batch.values is None or batch.sequences is None:
        raise ValueError("a digest needs values and sequences")
    values = column_view("values", batch.values, count, 0x7FFFFFFF)
    sequences = view_of(batch.sequences)
    if batch.keys is not None:
        keys = column_view("keys", batch.keys, count, 0x7FFFFFFF)
    if batch.flags is not None:
        flags = view_of(batch.flags, False)
    if sequences.size != 8 * count or (flags is not None and flags.size != count):
        raise ValueError("sequences or flags: not one for each row")
    digest_start(&digest)
    for row in range(count):
        marks = 0 if flags is None else flags.data[row]
        key, key_size = NULL, 0
        if keys is not None and not marks & KEYLESS:
            key = keys.data + keys.offsets[row]
            key_size = keys.offsets[row + 1] - keys.offsets[row]
        digest_row(
            &digest, (<const uint64_t *>sequences.data)[row], marks & TOMBSTONE, key, key_size,
            values.data + values.offsets[row], values.offsets[row + 1] - values.offsets[row],
        )
    digest_end(&digest)
    return <object>digest.sum[1] << 64 | digest.sum[0]
