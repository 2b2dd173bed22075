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

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t tidemark_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t wide = crc, word;
    while (size >= 8) {
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
        data += 8;
        size -= 8;
    }
    crc = (uint32_t)wide;
    while (size--) crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
static int tidemark_crc_has_instruction(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__linux__)
__attribute__((target("+crc")))
static uint32_t tidemark_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t word;
    while (size >= 8) {
        memcpy(&word, data, 8);
        crc = __builtin_aarch64_crc32cx(crc, word);
        data += 8;
        size -= 8;
    }
    while (size--) crc = __builtin_aarch64_crc32cb(crc, *data++);
    return crc;
}
static int tidemark_crc_has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static uint32_t tidemark_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    return tidemark_crc_by_table(crc, data, size);
}
static int tidemark_crc_has_instruction(void) { return 0; }
#endif

static uint32_t (*tidemark_crc_chosen)(uint32_t, const uint8_t *, size_t);

/* Fills the table and chooses; called once when the module is imported. */
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
    tidemark_crc_chosen = tidemark_crc_has_instruction() ? tidemark_crc_by_instruction : tidemark_crc_by_table;
}

static inline uint32_t tidemark_crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    return ~tidemark_crc_chosen(~crc, data, size);
}

static inline uint32_t tidemark_crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    return ~tidemark_crc_by_table(~crc, data, size);
}

#endif
