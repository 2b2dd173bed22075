# cython: language_level=3
"""Compiled twin of `_checksum_py`: by instruction where the processor has one, else by zlib."""

import zlib

from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32.h":
    int tidemark_crc32_has_instruction()
    uint32_t tidemark_crc32_by_instruction(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
    size_t TIDEMARK_CRC32_LEAST


cdef bint _by_instruction = tidemark_crc32_has_instruction()


def checksum(const uint8_t[::1] data not None):
    cdef size_t size = data.shape[0] & ~<size_t>15
    cdef uint32_t crc
    if not _by_instruction or size < TIDEMARK_CRC32_LEAST:
        return zlib.crc32(data)
    crc = ~tidemark_crc32_by_instruction(0xFFFFFFFF, &data[0], size)
    if size == <size_t>data.shape[0]:
        return crc
    return zlib.crc32(data[size:], crc)
