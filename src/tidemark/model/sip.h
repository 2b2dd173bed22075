/* SipHash with 128 bits of result (Aumasson and Bernstein): over bytes in one piece or in several. */
#ifndef TIDEMARK_SIP_H
#define TIDEMARK_SIP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct {
    uint64_t v0, v1, v2, v3;
    uint64_t rest;   /* bytes that do not fill a word yet */
    uint64_t total;
    int rounds;      /* after each word */
    int last_rounds;
} tidemark_sip;

static inline uint64_t tidemark_sip_turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

static inline uint64_t tidemark_sip_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void tidemark_sip_rounds(tidemark_sip *s, int count) {
    uint64_t v0 = s->v0, v1 = s->v1, v2 = s->v2, v3 = s->v3;
    while (count--) {
        v0 += v1; v1 = tidemark_sip_turn(v1, 13) ^ v0; v0 = tidemark_sip_turn(v0, 32);
        v2 += v3; v3 = tidemark_sip_turn(v3, 16) ^ v2;
        v0 += v3; v3 = tidemark_sip_turn(v3, 21) ^ v0;
        v2 += v1; v1 = tidemark_sip_turn(v1, 17) ^ v2; v2 = tidemark_sip_turn(v2, 32);
    }
    s->v0 = v0; s->v1 = v1; s->v2 = v2; s->v3 = v3;
}

static inline void tidemark_sip_mix(tidemark_sip *s, uint64_t word) {
    s->v3 ^= word;
    tidemark_sip_rounds(s, s->rounds);
    s->v0 ^= word;
}

static inline void tidemark_sip_start(tidemark_sip *s, uint64_t k0, uint64_t k1, int rounds, int last_rounds) {
    s->v0 = k0 ^ 0x736f6d6570736575ull;
    s->v1 = k1 ^ 0x646f72616e646f6dull ^ 0xee;
    s->v2 = k0 ^ 0x6c7967656e657261ull;
    s->v3 = k1 ^ 0x7465646279746573ull;
    s->rest = s->total = 0;
    s->rounds = rounds;
    s->last_rounds = last_rounds;
}

static inline void tidemark_sip_add(tidemark_sip *s, const uint8_t *data, size_t size) {
    int shift = (int)(s->total & 7) * 8;
    uint64_t rest = s->rest, word;
    s->total += size;
    if (shift == 0) {
        for (; size >= 8; data += 8, size -= 8) tidemark_sip_mix(s, tidemark_sip_word(data));
    } else {
        for (; size >= 8; data += 8, size -= 8) {
            word = tidemark_sip_word(data);
            tidemark_sip_mix(s, rest | word << shift);
            rest = word >> (64 - shift);
        }
    }
    while (size--) {
        rest |= (uint64_t)*data++ << shift;
        shift += 8;
        if (shift == 64) {
            tidemark_sip_mix(s, rest);
            rest = 0;
            shift = 0;
        }
    }
    s->rest = rest;
}

static inline void tidemark_sip_end(tidemark_sip *s, uint64_t *out) {
    tidemark_sip_mix(s, s->rest | s->total << 56);
    s->v2 ^= 0xee;
    tidemark_sip_rounds(s, s->last_rounds);
    out[0] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    s->v1 ^= 0xdd;
    tidemark_sip_rounds(s, s->last_rounds);
    out[1] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* SipHash-2-4: the hash of a key. */
static inline void tidemark_sip24(const uint64_t *secret, const uint8_t *data, size_t size, uint64_t *out) {
    tidemark_sip s;
    tidemark_sip_start(&s, secret[0], secret[1], 2, 4);
    tidemark_sip_add(&s, data, size);
    tidemark_sip_end(&s, out);
}

/* Rows are hashed by two, or by four: the steps of one hash wait for one another, those of several do not. Where
   the processor has AVX2, four hashes lie side by side in its registers. */

enum { TIDEMARK_ROW_MAX = 1024, TIDEMARK_ROWS = 4 };

typedef struct {
    uint64_t sum[2];
    size_t count;                           /* rows that wait for others */
    size_t sizes[TIDEMARK_ROWS];
    uint8_t rows[TIDEMARK_ROWS][TIDEMARK_ROW_MAX + 32];
} tidemark_digest;

#define TIDEMARK_SIP_ROUND(v0, v1, v2, v3)                                            \
    v0 += v1; v2 += v3;                                                               \
    v1 = tidemark_sip_turn(v1, 13) ^ v0; v3 = tidemark_sip_turn(v3, 16) ^ v2;         \
    v0 = tidemark_sip_turn(v0, 32);                                                   \
    v2 += v1; v0 += v3;                                                               \
    v1 = tidemark_sip_turn(v1, 17) ^ v2; v3 = tidemark_sip_turn(v3, 21) ^ v0;         \
    v2 = tidemark_sip_turn(v2, 32);

static inline void tidemark_digest_add(tidemark_digest *d, uint64_t low, uint64_t high) {
    d->sum[0] += low;
    d->sum[1] += high + (d->sum[0] < low);
}

/* The state before the first word, under a key that everybody knows. */
static inline void tidemark_digest_begin(uint64_t *v) {
    const uint64_t k0 = tidemark_sip_word((const uint8_t *)"tidemark"), k1 = tidemark_sip_word((const uint8_t *)"-marker.");
    v[0] = k0 ^ 0x736f6d6570736575ull;
    v[1] = k1 ^ 0x646f72616e646f6dull ^ 0xee;
    v[2] = k0 ^ 0x6c7967656e657261ull;
    v[3] = k1 ^ 0x7465646279746573ull;
}

/* The words of a row: its bytes, zeroes, and its length in the last byte. The buffer has room for them. */
static inline size_t tidemark_digest_words(uint8_t *row, size_t size) {
    memset(row + size, 0, 8);
    row[size | 7] = (uint8_t)size;
    return size / 8 + 1;
}

static void tidemark_digest_two(tidemark_digest *d, uint8_t *a, size_t a_size, uint8_t *b, size_t b_size) {
    uint64_t start[4], v0, v1, v2, v3, w0, w1, w2, w3, m, n;
    size_t i, a_words = tidemark_digest_words(a, a_size), b_words = tidemark_digest_words(b, b_size);
    size_t both = a_words < b_words ? a_words : b_words;
    tidemark_digest_begin(start);
    v0 = w0 = start[0]; v1 = w1 = start[1]; v2 = w2 = start[2]; v3 = w3 = start[3];
    for (i = 0; i < both; i++) {
        m = tidemark_sip_word(a + 8 * i);
        n = tidemark_sip_word(b + 8 * i);
        v3 ^= m; w3 ^= n;
        TIDEMARK_SIP_ROUND(v0, v1, v2, v3)
        TIDEMARK_SIP_ROUND(w0, w1, w2, w3)
        v0 ^= m; w0 ^= n;
    }
    for (; i < a_words; i++) {
        m = tidemark_sip_word(a + 8 * i);
        v3 ^= m;
        TIDEMARK_SIP_ROUND(v0, v1, v2, v3)
        v0 ^= m;
    }
    for (; i < b_words; i++) {
        n = tidemark_sip_word(b + 8 * i);
        w3 ^= n;
        TIDEMARK_SIP_ROUND(w0, w1, w2, w3)
        w0 ^= n;
    }
    v2 ^= 0xee; w2 ^= 0xee;
    for (i = 0; i < 3; i++) {
        TIDEMARK_SIP_ROUND(v0, v1, v2, v3)
        TIDEMARK_SIP_ROUND(w0, w1, w2, w3)
    }
    m = v0 ^ v1 ^ v2 ^ v3;
    n = w0 ^ w1 ^ w2 ^ w3;
    v1 ^= 0xdd; w1 ^= 0xdd;
    for (i = 0; i < 3; i++) {
        TIDEMARK_SIP_ROUND(v0, v1, v2, v3)
        TIDEMARK_SIP_ROUND(w0, w1, w2, w3)
    }
    tidemark_digest_add(d, m, v0 ^ v1 ^ v2 ^ v3);
    tidemark_digest_add(d, n, w0 ^ w1 ^ w2 ^ w3);
}

#if defined(__x86_64__)
#define TIDEMARK_SIP_TURN_4(x, by) _mm256_or_si256(_mm256_slli_epi64(x, by), _mm256_srli_epi64(x, 64 - by))
#define TIDEMARK_SIP_ROUND_4(v0, v1, v2, v3)                                                             \
    v0 = _mm256_add_epi64(v0, v1); v2 = _mm256_add_epi64(v2, v3);                                        \
    v1 = _mm256_xor_si256(TIDEMARK_SIP_TURN_4(v1, 13), v0);                                              \
    v3 = _mm256_xor_si256(_mm256_shuffle_epi8(v3, turn16), v2);                                          \
    v0 = _mm256_shuffle_epi32(v0, 0xB1);                                                                 \
    v2 = _mm256_add_epi64(v2, v1); v0 = _mm256_add_epi64(v0, v3);                                        \
    v1 = _mm256_xor_si256(TIDEMARK_SIP_TURN_4(v1, 17), v2);                                              \
    v3 = _mm256_xor_si256(TIDEMARK_SIP_TURN_4(v3, 21), v0);                                              \
    v2 = _mm256_shuffle_epi32(v2, 0xB1);

__attribute__((target("avx2")))
static void tidemark_digest_four(tidemark_digest *d) {
    const __m256i turn16 = _mm256_setr_epi8(
        6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13);
    uint64_t start[4], low[4], high[4];
    int64_t words[4];
    int64_t i, j, least = TIDEMARK_ROW_MAX, most = 0;
    __m256i v0, v1, v2, v3, o0, o1, o2, o3, ends, runs, a, b, c, e, m[4];
    for (i = 0; i < 4; i++) {
        words[i] = (int64_t)tidemark_digest_words(d->rows[i], d->sizes[i]);
        least = words[i] < least ? words[i] : least;
        most = words[i] > most ? words[i] : most;
    }
    tidemark_digest_begin(start);
    v0 = _mm256_set1_epi64x((long long)start[0]);
    v1 = _mm256_set1_epi64x((long long)start[1]);
    v2 = _mm256_set1_epi64x((long long)start[2]);
    v3 = _mm256_set1_epi64x((long long)start[3]);
    ends = _mm256_loadu_si256((const __m256i *)words);
    for (i = 0; i < most; i += 4) {
        /* Four words of four rows, turned so that the first words lie side by side, then the second ones ... */
        a = _mm256_loadu_si256((const __m256i *)(d->rows[0] + 8 * i));
        b = _mm256_loadu_si256((const __m256i *)(d->rows[1] + 8 * i));
        c = _mm256_loadu_si256((const __m256i *)(d->rows[2] + 8 * i));
        e = _mm256_loadu_si256((const __m256i *)(d->rows[3] + 8 * i));
        o0 = _mm256_unpacklo_epi64(a, b); o1 = _mm256_unpackhi_epi64(a, b);
        o2 = _mm256_unpacklo_epi64(c, e); o3 = _mm256_unpackhi_epi64(c, e);
        m[0] = _mm256_permute2x128_si256(o0, o2, 0x20);
        m[1] = _mm256_permute2x128_si256(o1, o3, 0x20);
        m[2] = _mm256_permute2x128_si256(o0, o2, 0x31);
        m[3] = _mm256_permute2x128_si256(o1, o3, 0x31);
        if (i + 4 <= least) {
            for (j = 0; j < 4; j++) {
                v3 = _mm256_xor_si256(v3, m[j]);
                TIDEMARK_SIP_ROUND_4(v0, v1, v2, v3)
                v0 = _mm256_xor_si256(v0, m[j]);
            }
        } else {
            /* Rows that have ended stay as they are. */
            for (j = 0; j < 4 && i + j < most; j++) {
                runs = _mm256_cmpgt_epi64(ends, _mm256_set1_epi64x(i + j));
                o0 = v0; o1 = v1; o2 = v2; o3 = v3;
                v3 = _mm256_xor_si256(v3, m[j]);
                TIDEMARK_SIP_ROUND_4(v0, v1, v2, v3)
                v0 = _mm256_xor_si256(v0, m[j]);
                v0 = _mm256_blendv_epi8(o0, v0, runs); v1 = _mm256_blendv_epi8(o1, v1, runs);
                v2 = _mm256_blendv_epi8(o2, v2, runs); v3 = _mm256_blendv_epi8(o3, v3, runs);
            }
        }
    }
    v2 = _mm256_xor_si256(v2, _mm256_set1_epi64x(0xee));
    for (i = 0; i < 3; i++) { TIDEMARK_SIP_ROUND_4(v0, v1, v2, v3) }
    a = _mm256_xor_si256(_mm256_xor_si256(v0, v1), _mm256_xor_si256(v2, v3));
    v1 = _mm256_xor_si256(v1, _mm256_set1_epi64x(0xdd));
    for (i = 0; i < 3; i++) { TIDEMARK_SIP_ROUND_4(v0, v1, v2, v3) }
    b = _mm256_xor_si256(_mm256_xor_si256(v0, v1), _mm256_xor_si256(v2, v3));
    _mm256_storeu_si256((__m256i *)low, a);
    _mm256_storeu_si256((__m256i *)high, b);
    for (i = 0; i < 4; i++) tidemark_digest_add(d, low[i], high[i]);
}
static inline int tidemark_digest_has_four(void) { return __builtin_cpu_supports("avx2"); }
#else
static void tidemark_digest_four(tidemark_digest *d) {
    tidemark_digest_two(d, d->rows[0], d->sizes[0], d->rows[1], d->sizes[1]);
    tidemark_digest_two(d, d->rows[2], d->sizes[2], d->rows[3], d->sizes[3]);
}
static inline int tidemark_digest_has_four(void) { return 0; }
#endif

static inline void tidemark_digest_start(tidemark_digest *d) { d->sum[0] = d->sum[1] = d->count = 0; }

/* Sequence, flags and the length of the key: 13 bytes. */
static inline void tidemark_digest_head(uint8_t *head, uint64_t seq, int tombstone, const uint8_t *key, size_t key_size) {
    uint64_t number = tidemark_sip_word((const uint8_t *)&seq), length = key_size;
    length = tidemark_sip_word((const uint8_t *)&length);
    memcpy(head, &number, 8);
    head[8] = (uint8_t)((tombstone ? 1 : 0) | (key == NULL ? 2 : 0));
    memcpy(head + 9, &length, 4);
}

/* One row over bytes in several pieces: for those that are long. */
static void tidemark_digest_alone(tidemark_digest *d, const uint8_t *head, size_t head_size, const uint8_t *key,
                                  size_t key_size, const uint8_t *body, size_t body_size) {
    tidemark_sip s;
    uint64_t out[2];
    tidemark_sip_start(&s, tidemark_sip_word((const uint8_t *)"tidemark"), tidemark_sip_word((const uint8_t *)"-marker."), 1, 3);
    tidemark_sip_add(&s, head, head_size);
    tidemark_sip_add(&s, key, key_size);
    tidemark_sip_add(&s, body, body_size);
    tidemark_sip_end(&s, out);
    tidemark_digest_add(d, out[0], out[1]);
}

/* Hash the rows that wait. */
static void tidemark_digest_end(tidemark_digest *d) {
    size_t i = 0;
    if (d->count == TIDEMARK_ROWS && tidemark_digest_has_four()) {
        tidemark_digest_four(d);
        i = d->count;
    }
    for (; i + 2 <= d->count; i += 2)
        tidemark_digest_two(d, d->rows[i], d->sizes[i], d->rows[i + 1], d->sizes[i + 1]);
    if (i < d->count) tidemark_digest_alone(d, d->rows[i], d->sizes[i], NULL, 0, NULL, 0);
    d->count = 0;
}

/* Adds what one row says (SipHash-1-3); key NULL: it has none. */
static inline void tidemark_digest_row(tidemark_digest *d, uint64_t seq, int tombstone, const uint8_t *key,
                                       size_t key_size, const uint8_t *body, size_t body_size) {
    uint8_t head[16], *row = d->rows[d->count];
    size_t size = 13 + key_size + body_size;
    if (size >= TIDEMARK_ROW_MAX) {
        tidemark_digest_head(head, seq, tombstone, key, key_size);
        tidemark_digest_alone(d, head, 13, key, key_size, body, body_size);
        return;
    }
    tidemark_digest_head(row, seq, tombstone, key, key_size);
    if (key_size) memcpy(row + 13, key, key_size);
    if (body_size) memcpy(row + 13 + key_size, body, body_size);
    d->sizes[d->count++] = size;
    if (d->count == TIDEMARK_ROWS) tidemark_digest_end(d);
}

#endif
