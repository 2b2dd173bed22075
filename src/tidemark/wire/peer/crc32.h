/* CRC-32 as zlib has it, sixteen bytes at a time by carry-less multiplication (Gopal and others, "Fast CRC Computation for
   Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). Where the processor has none nothing is here to be called. */
#ifndef TIDEMARK_CRC32_H
#define TIDEMARK_CRC32_H

#include <stddef.h>
#include <stdint.h>

enum { TIDEMARK_CRC32_LEAST = 64 };

#if defined(__x86_64__)
#include <immintrin.h>
#define TIDEMARK_CRC32_TARGET __attribute__((target("pclmul,sse4.1")))

static int tidemark_crc32_has_instruction(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

TIDEMARK_CRC32_TARGET
static inline __m128i tidemark_crc32_load(const uint8_t *data) { return _mm_loadu_si128((const __m128i *)data); }

/* What `folded` is when it lies so much further ahead, as the constants say, with `next` added there. */
TIDEMARK_CRC32_TARGET
static inline __m128i tidemark_crc32_fold(__m128i folded, __m128i constants, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(folded, constants, 0x00), high = _mm_clmulepi64_si128(folded, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* `crc` is the register, not inverted. At least TIDEMARK_CRC32_LEAST bytes, a multiple of 16. */
TIDEMARK_CRC32_TARGET
static uint32_t tidemark_crc32_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124), polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(tidemark_crc32_load(data), _mm_cvtsi32_si128((int)crc)), b = tidemark_crc32_load(data + 16);
    __m128i c = tidemark_crc32_load(data + 32), d = tidemark_crc32_load(data + 48), rest;
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = tidemark_crc32_fold(a, by_64, tidemark_crc32_load(data));
        b = tidemark_crc32_fold(b, by_64, tidemark_crc32_load(data + 16));
        c = tidemark_crc32_fold(c, by_64, tidemark_crc32_load(data + 32));
        d = tidemark_crc32_fold(d, by_64, tidemark_crc32_load(data + 48));
    }
    a = tidemark_crc32_fold(a, by_16, b);
    a = tidemark_crc32_fold(a, by_16, c);
    a = tidemark_crc32_fold(a, by_16, d);
    for (; size >= 16; data += 16, size -= 16) a = tidemark_crc32_fold(a, by_16, tidemark_crc32_load(data));
    /* 128 bits to 64, to 32 by Barrett's reduction. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, words), by_8, 0x00));
    rest = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, words), polynomial, 0x10), words);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(rest, polynomial, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}
#else
static int tidemark_crc32_has_instruction(void) { return 0; }
static uint32_t tidemark_crc32_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    (void)data, (void)size;
    return crc;
}
#endif

#endif
