/* SipHash with 128 bits of result (Aumasson and Bernstein): over bytes in one piece or in several. */
#ifndef TIDEMARK_SIP_H
#define TIDEMARK_SIP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/* Rows are hashed by two: the steps of one hash wait for one another, those of two do not. */

enum { TIDEMARK_ROW_MAX = 1024 };

typedef struct {
    uint64_t sum[2];
    size_t size;                            /* of the row that waits for a second one; 0: none does */
    uint8_t first[TIDEMARK_ROW_MAX + 8];
    uint8_t second[TIDEMARK_ROW_MAX + 8];
} tidemark_digest;

#define TIDEMARK_SIP_ROUND(v0, v1, v2, v3)                                            \
    v0 += v1; v2 += v3;                                                               \
    v1 = tidemark_sip_turn(v1, 13) ^ v0; v3 = tidemark_sip_turn(v3, 16) ^ v2;         \
    v0 = tidemark_sip_turn(v0, 32);                                                   \
    v2 += v1; v0 += v3;                                                               \
    v1 = tidemark_sip_turn(v1, 17) ^ v2; v3 = tidemark_sip_turn(v3, 21) ^ v0;         \
    v2 = tidemark_sip_turn(v2, 32);

static inline void tidemark_digest_add(tidemark_digest *d, const uint64_t *out) {
    d->sum[0] += out[0];
    d->sum[1] += out[1] + (d->sum[0] < out[0]);
}

/* The words of a row: its bytes, zeroes, and its length in the last byte. The buffer has room for them. */
static inline size_t tidemark_digest_words(uint8_t *row, size_t size) {
    memset(row + size, 0, 8);
    row[size | 7] = (uint8_t)size;
    return size / 8 + 1;
}

static void tidemark_digest_two(tidemark_digest *d, uint8_t *a, size_t a_size, uint8_t *b, size_t b_size) {
    const uint64_t k0 = tidemark_sip_word((const uint8_t *)"tidemark"), k1 = tidemark_sip_word((const uint8_t *)"-marker.");
    uint64_t v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull ^ 0xee;
    uint64_t v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull;
    uint64_t w0 = v0, w1 = v1, w2 = v2, w3 = v3, m, n, out[2];
    size_t i, a_words = tidemark_digest_words(a, a_size), b_words = tidemark_digest_words(b, b_size);
    size_t both = a_words < b_words ? a_words : b_words;
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
    out[0] = v0 ^ v1 ^ v2 ^ v3;
    m = w0 ^ w1 ^ w2 ^ w3;
    v1 ^= 0xdd; w1 ^= 0xdd;
    for (i = 0; i < 3; i++) {
        TIDEMARK_SIP_ROUND(v0, v1, v2, v3)
        TIDEMARK_SIP_ROUND(w0, w1, w2, w3)
    }
    out[1] = v0 ^ v1 ^ v2 ^ v3;
    tidemark_digest_add(d, out);
    out[0] = m;
    out[1] = w0 ^ w1 ^ w2 ^ w3;
    tidemark_digest_add(d, out);
}

static inline void tidemark_digest_start(tidemark_digest *d) { d->sum[0] = d->sum[1] = d->size = 0; }

static inline size_t tidemark_digest_head(uint8_t *head, uint64_t seq, int tombstone, const uint8_t *key, size_t key_size) {
    for (int i = 0; i < 8; i++) head[i] = (uint8_t)(seq >> (8 * i));
    head[8] = (uint8_t)((tombstone ? 1 : 0) | (key == NULL ? 2 : 0));
    for (int i = 0; i < 4; i++) head[9 + i] = (uint8_t)(key_size >> (8 * i));
    return 13;
}

/* One row over bytes in several pieces: for those that are long or left over. */
static void tidemark_digest_alone(tidemark_digest *d, const uint8_t *head, size_t head_size, const uint8_t *key,
                                  size_t key_size, const uint8_t *body, size_t body_size) {
    tidemark_sip s;
    uint64_t out[2];
    tidemark_sip_start(&s, tidemark_sip_word((const uint8_t *)"tidemark"), tidemark_sip_word((const uint8_t *)"-marker."), 1, 3);
    tidemark_sip_add(&s, head, head_size);
    tidemark_sip_add(&s, key, key_size);
    tidemark_sip_add(&s, body, body_size);
    tidemark_sip_end(&s, out);
    tidemark_digest_add(d, out);
}

/* Adds what one row says (SipHash-1-3 under a key that everybody knows); key NULL: it has none. */
static inline void tidemark_digest_row(tidemark_digest *d, uint64_t seq, int tombstone, const uint8_t *key,
                                       size_t key_size, const uint8_t *body, size_t body_size) {
    uint8_t head[16], *row = d->size ? d->second : d->first;
    size_t size = 13 + key_size + body_size;
    if (size >= TIDEMARK_ROW_MAX) {
        tidemark_digest_head(head, seq, tombstone, key, key_size);
        tidemark_digest_alone(d, head, 13, key, key_size, body, body_size);
        return;
    }
    tidemark_digest_head(row, seq, tombstone, key, key_size);
    if (key_size) memcpy(row + 13, key, key_size);
    if (body_size) memcpy(row + 13 + key_size, body, body_size);
    if (d->size) {
        tidemark_digest_two(d, d->first, d->size, d->second, size);
        d->size = 0;
    } else {
        d->size = size;
    }
}

static inline void tidemark_digest_end(tidemark_digest *d) {
    if (d->size) tidemark_digest_alone(d, d->first, d->size, NULL, 0, NULL, 0);
    d->size = 0;
}

#endif
