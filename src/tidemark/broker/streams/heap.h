/* Memory for the index of streams, in huge pages.

   An update of a key touches memory anywhere in an index of up to gigabytes. With pages of 4 KiB each such touch
   waits for the page table, too; with pages of 2 MiB it does not. So blocks are cut from regions of 32 MiB for
   which the system is asked for huge pages (where it has none, everything works the same, only slower).

   A region is a row of blocks, each with a head of 32 bytes; the last head says that the region ends. A free
   block has no free neighbour (they are joined at once) and stands in the list of its size: one list for each
   size up to 2 KiB, eight for each doubling above. To be called with the GIL held. */
#ifndef TIDEMARK_HEAP_H
#define TIDEMARK_HEAP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum {
    TIDEMARK_HEAP_HEAD = 32,
    TIDEMARK_HEAP_LISTS = 256,
    TIDEMARK_HEAP_SPLIT = 128,               /* a rest smaller than this stays with its block */
    TIDEMARK_HEAP_TRIES = 8,
};
static const size_t TIDEMARK_HEAP_REGION = (size_t)32 << 20;
static const size_t TIDEMARK_HEAP_PAGE = (size_t)2 << 20;

typedef struct tidemark_block {
    size_t size;                             /* with its head; 0: the end of the region */
    size_t before;                           /* the size of the block before it if that is free, else 0 */
    size_t free;
    size_t region;                           /* in the first block of a region: the bytes of the region */
    struct tidemark_block *next, *previous;  /* of a free block, where its contents would be */
} tidemark_block;

static tidemark_block *tidemark_heap_lists[TIDEMARK_HEAP_LISTS];
static uint64_t tidemark_heap_filled[TIDEMARK_HEAP_LISTS / 64];
static size_t tidemark_heap_mapped, tidemark_heap_used;
static int tidemark_heap_idle;               /* regions without a block in use: one is kept */

static inline int tidemark_heap_list(size_t size) {
    size_t units = size / 32;
    int doubling;
    if (units < 64) return (int)units;
    doubling = 63 - __builtin_clzll(units);
    return 64 + (doubling - 6) * 8 + (int)((units >> (doubling - 3)) & 7);
}

static inline tidemark_block *tidemark_heap_after(tidemark_block *block) {
    return (tidemark_block *)((uint8_t *)block + block->size);
}

static void tidemark_heap_enter(tidemark_block *block) {
    int list = tidemark_heap_list(block->size);
    block->free = 1;
    block->previous = NULL;
    block->next = tidemark_heap_lists[list];
    if (block->next) block->next->previous = block;
    tidemark_heap_lists[list] = block;
    tidemark_heap_filled[list / 64] |= (uint64_t)1 << (list % 64);
    tidemark_heap_after(block)->before = block->size;
}

static void tidemark_heap_leave(tidemark_block *block) {
    int list = tidemark_heap_list(block->size);
    if (block->next) block->next->previous = block->previous;
    if (block->previous) {
        block->previous->next = block->next;
    } else {
        tidemark_heap_lists[list] = block->next;
        if (!block->next) tidemark_heap_filled[list / 64] &= ~((uint64_t)1 << (list % 64));
    }
    block->free = 0;
    tidemark_heap_after(block)->before = 0;
}

static tidemark_block *tidemark_heap_find(size_t need) {
    int list = tidemark_heap_list(need), word, tries = TIDEMARK_HEAP_TRIES;
    uint64_t filled;
    tidemark_block *block;
    for (block = tidemark_heap_lists[list]; block && tries; block = block->next, tries--)
        if (block->size >= need) return block;
    list++;                                  /* whatever stands in a list above is large enough */
    for (word = list / 64; word < TIDEMARK_HEAP_LISTS / 64; word++) {
        filled = tidemark_heap_filled[word];
        if (word == list / 64) filled &= ~(uint64_t)0 << (list % 64);
        if (filled) return tidemark_heap_lists[word * 64 + __builtin_ctzll(filled)];
    }
    return NULL;
}

static tidemark_block *tidemark_heap_map(size_t need) {
    size_t size = TIDEMARK_HEAP_REGION, slack, rest;
    uint8_t *base;
    tidemark_block *block;
    while (size < need + TIDEMARK_HEAP_HEAD) size += TIDEMARK_HEAP_REGION;
    base = mmap(NULL, size + TIDEMARK_HEAP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    slack = (TIDEMARK_HEAP_PAGE - (uintptr_t)base % TIDEMARK_HEAP_PAGE) % TIDEMARK_HEAP_PAGE;
    rest = TIDEMARK_HEAP_PAGE - slack;
    if (slack) munmap(base, slack);
    base += slack;
    if (rest) munmap(base + size, rest);
#ifdef MADV_HUGEPAGE
    madvise(base, size, MADV_HUGEPAGE);
#endif
    tidemark_heap_mapped += size;
    tidemark_heap_idle++;
    block = (tidemark_block *)base;
    block->size = size - TIDEMARK_HEAP_HEAD;
    block->before = 0;
    block->region = size;
    tidemark_heap_after(block)->size = 0;
    tidemark_heap_after(block)->free = 0;
    tidemark_heap_enter(block);
    return block;
}

/* As malloc: `size` bytes at a multiple of 32, or NULL. */
static void *tidemark_heap_get(size_t size) {
    size_t need = (size + TIDEMARK_HEAP_HEAD + 31) & ~(size_t)31;
    tidemark_block *block, *rest;
    if (need < 64) need = 64;
    if (need < size) return NULL;
    block = tidemark_heap_find(need);
    if (!block && !(block = tidemark_heap_map(need))) return NULL;
    if (block->region && block->size + TIDEMARK_HEAP_HEAD == block->region) tidemark_heap_idle--;
    tidemark_heap_leave(block);
    if (block->size - need >= TIDEMARK_HEAP_SPLIT) {
        rest = (tidemark_block *)((uint8_t *)block + need);
        rest->size = block->size - need;
        rest->before = 0;
        rest->region = 0;
        block->size = need;
        tidemark_heap_enter(rest);
    }
    tidemark_heap_used += block->size;
    return (uint8_t *)block + TIDEMARK_HEAP_HEAD;
}

/* As free. */
static void tidemark_heap_give(void *data) {
    tidemark_block *block, *other;
    if (!data) return;
    block = (tidemark_block *)((uint8_t *)data - TIDEMARK_HEAP_HEAD);
    tidemark_heap_used -= block->size;
    other = tidemark_heap_after(block);
    if (other->free) {
        tidemark_heap_leave(other);
        block->size += other->size;
    }
    if (block->before) {
        other = (tidemark_block *)((uint8_t *)block - block->before);
        tidemark_heap_leave(other);
        other->size += block->size;
        block = other;
    }
    if (block->region && block->size + TIDEMARK_HEAP_HEAD == block->region) {
        if (tidemark_heap_idle || block->region > TIDEMARK_HEAP_REGION) {
            tidemark_heap_mapped -= block->region;
            munmap(block, block->region);
            return;
        }
        tidemark_heap_idle++;
    }
    tidemark_heap_enter(block);
}

#endif
