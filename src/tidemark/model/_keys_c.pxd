from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "sip.h" nogil:
    void sip24 "tidemark_sip24"(const uint64_t *secret, const uint8_t *data, size_t size, uint64_t *out) noexcept

    ctypedef struct Digest "tidemark_digest":
        uint64_t sum[2]

    void digest_start "tidemark_digest_start"(Digest *digest) noexcept
    void digest_row "tidemark_digest_row"(
        Digest *digest, uint64_t seq, int tombstone, const uint8_t *key, size_t key_size,
        const uint8_t *body, size_t body_size,
    ) noexcept
    void digest_end "tidemark_digest_end"(Digest *digest) noexcept

cdef enum:
    SCRATCH = 24                        # bytes for a key that is a number as text


cdef struct Rule:
    int kind
    const uint8_t *name
    size_t name_len


# The key of a MESSAGE record under a rule: where it begins (in the record, in `scratch` or in a constant) and
# its length; NULL if it has none.
cdef const uint8_t *find_key(
    const uint8_t *record, const Rule *rule, uint8_t *scratch, uint32_t *size
) noexcept nogil
cdef bint is_tombstone(const uint8_t *record) noexcept nogil
cdef uint16_t slot_of_bytes(const uint8_t *data, size_t size) noexcept nogil
cdef uint16_t slot_of_number(uint64_t seq) noexcept nogil
