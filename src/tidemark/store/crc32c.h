/* CRC-32C (Castagnoli): by instruction where the processor has one, chosen when first used, else by table. */
#ifndef TIDEMARK_CRC32C_H
#define TIDEMARK_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

static uint32_t tidemark_crc_table[8][256];

static uint32_t tidemark_crc_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t word;
    while (size >= 8) {
        memcpy(&word, data, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        word ^= crc;
        crc = tidemark_crc_table[7][word & 0xff] ^ tidemark_crc_table[6][(word >> 8) & 0xff] ^
              tidemark_crc_table[5][(word >> 16) & 0xff] ^ tidemark_crc_table[4][(word >> 24) & 0xff] ^
              tidemark_crc_table[3][(word >> 32) & 0xff] ^ tidemark_crc_table[2][(word >> 40) & 0xff] ^
              tidemark_crc_table[1][(word >> 48) & 0xff] ^ tidemark_crc_table[0][word >> 56];
        data += 8;
        size -= 8;
    }
    while (size--) crc = tidemark_crc_table[0][(crc ^ *data++) & 0xff] ^ (crc >> 8);
    return crc;
}

/* The checksum of bytes with so many zero bytes behind them, for two numbers of zero bytes. */
enum { TIDEMARK_CRC_LONG = 4096, TIDEMARK_CRC_SHORT = 256 };
static uint32_t tidemark_crc_behind_long[4][256], tidemark_crc_behind_short[4][256];

static inline uint32_t tidemark_crc_apply(const uint32_t *map, uint32_t crc) {
    uint32_t found = 0;
    for (; crc; map++, crc >>= 1)
        if (crc & 1) found ^= *map;
    return found;
}

static void tidemark_crc_prepare_behind(uint32_t table[4][256], size_t zeroes) {
    uint32_t map[32], twice[32];
    for (int bit = 0; bit < 32; bit++)
        map[bit] = tidemark_crc_table[0][((uint32_t)1 << bit) & 0xff] ^ (((uint32_t)1 << bit) >> 8);
    for (; zeroes > 1; zeroes /= 2) {
        for (int bit = 0; bit < 32; bit++) twice[bit] = tidemark_crc_apply(map, map[bit]);
        memcpy(map, twice, sizeof map);
    }
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++)
            table[byte][value] = tidemark_crc_apply(map, value << (8 * byte));
}

static inline uint32_t tidemark_crc_behind(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
#if defined(__x86_64__)
#define TIDEMARK_CRC_TARGET __attribute__((target("sse4.2")))
#define TIDEMARK_CRC_WORD(crc, word) ((uint32_t)__builtin_ia32_crc32di(crc, word))
#define TIDEMARK_CRC_BYTE(crc, byte) __builtin_ia32_crc32qi(crc, byte)
static int tidemark_crc_has_instruction(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#else
#define TIDEMARK_CRC_TARGET __attribute__((target("+crc")))
#define TIDEMARK_CRC_WORD(crc, word) __builtin_aarch64_crc32cx(crc, word)
#define TIDEMARK_CRC_BYTE(crc, byte) __builtin_aarch64_crc32cb(crc, byte)
static int tidemark_crc_has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

/* An instruction waits for the one before it, but three checksums do not wait for one another: three stretches of
   `each` bytes are taken side by side, and the results are put together. */
TIDEMARK_CRC_TARGET
static inline uint32_t tidemark_crc_three(uint32_t crc, const uint8_t *data, size_t each, uint32_t behind[4][256]) {
    uint32_t second = 0, third = 0;
    uint64_t a, b, c;
    for (size_t at = 0; at < each; at += 8) {
        memcpy(&a, data + at, 8);
        memcpy(&b, data + each + at, 8);
        memcpy(&c, data + 2 * each + at, 8);
        crc = TIDEMARK_CRC_WORD(crc, a);
        second = TIDEMARK_CRC_WORD(second, b);
        third = TIDEMARK_CRC_WORD(third, c);
    }
    crc = tidemark_crc_behind(behind, crc) ^ second;
    return tidemark_crc_behind(behind, crc) ^ third;
}

TIDEMARK_CRC_TARGET
static uint32_t tidemark_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t word;
    for (; size >= 3 * TIDEMARK_CRC_LONG; data += 3 * TIDEMARK_CRC_LONG, size -= 3 * TIDEMARK_CRC_LONG)
        crc = tidemark_crc_three(crc, data, TIDEMARK_CRC_LONG, tidemark_crc_behind_long);
    for (; size >= 3 * TIDEMARK_CRC_SHORT; data += 3 * TIDEMARK_CRC_SHORT, size -= 3 * TIDEMARK_CRC_SHORT)
        crc = tidemark_crc_three(crc, data, TIDEMARK_CRC_SHORT, tidemark_crc_behind_short);
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        crc = TIDEMARK_CRC_WORD(crc, word);
    }
    while (size--) crc = TIDEMARK_CRC_BYTE(crc, *data++);
    return crc;
}
#else
static uint32_t tidemark_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    return tidemark_crc_by_table(crc, data, size);
}
static int tidemark_crc_has_instruction(void) { return 0; }
#endif

static uint32_t (*tidemark_crc_chosen)(uint32_t, const uint8_t *, size_t);

/* Fills the tables and chooses; called once when the module is imported. */
static void tidemark_crc_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
        tidemark_crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++)
            tidemark_crc_table[slice][byte] =
                tidemark_crc_table[0][tidemark_crc_table[slice - 1][byte] & 0xff] ^
                (tidemark_crc_table[slice - 1][byte] >> 8);
    tidemark_crc_prepare_behind(tidemark_crc_behind_long, TIDEMARK_CRC_LONG);
    tidemark_crc_prepare_behind(tidemark_crc_behind_short, TIDEMARK_CRC_SHORT);
    tidemark_crc_chosen = tidemark_crc_has_instruction() ? tidemark_crc_by_instruction : tidemark_crc_by_table;
}

static inline uint32_t tidemark_crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    return ~tidemark_crc_chosen(~crc, data, size);
}

static inline uint32_t tidemark_crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    return ~tidemark_crc_by_table(~crc, data, size);
}

#endif
