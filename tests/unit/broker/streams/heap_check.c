/* Gets and gives blocks of all sizes at random for a while and looks whether any two of them meet.
   Ends with 0; any fault found is a line on standard error and 1. Built and run by test_heap.py. */
#include <stdio.h>
#include <stdlib.h>

#include "heap.h"

#define BLOCKS 3000
#define FAIL(text) do { fprintf(stderr, "step %d: %s\n", step, text); return 1; } while (0)

static struct { uint8_t *data; size_t size; uint8_t mark; } held[BLOCKS];

static uint64_t state = 88172645463325252ull;
static uint64_t dice(void) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}

static size_t any_size(void) {
    switch (dice() % 8) {
        case 0: return dice() % 64;
        case 1: return 32 * 1024;
        case 2: return dice() % 100000;
        case 3: return dice() % 200 == 0 ? 20000000 + dice() % 30000000 : dice() % 3000;
        default: return 160 + 32 * (dice() % 512);
    }
}

int main(int count, char **words) {
    int steps = count > 1 ? atoi(words[1]) : 300000, step, i;
    size_t asked = 0;
    for (step = 0; step < steps; step++) {
        /* Tides: mostly more, then mostly less, so that regions come and go. */
        int more = (step / 20000) % 2 == 0;
        i = dice() % BLOCKS;
        if (held[i].data) {
            for (size_t at = 0; at < held[i].size; at += 1 + held[i].size / 16)
                if (held[i].data[at] != held[i].mark) FAIL("a block was written to by another");
            if (held[i].size && held[i].data[held[i].size - 1] != held[i].mark) FAIL("the end of a block was written to");
            tidemark_heap_give(held[i].data);
            asked -= held[i].size;
            held[i].data = NULL;
            if (!more) continue;
        } else if (!more && dice() % 4) {
            continue;
        }
        held[i].size = any_size();
        held[i].mark = (uint8_t)dice();
        held[i].data = tidemark_heap_get(held[i].size);
        if (!held[i].data) FAIL("no memory");
        if ((uintptr_t)held[i].data % 32) FAIL("a block does not begin at a multiple of 32");
        memset(held[i].data, held[i].mark, held[i].size);
        asked += held[i].size;
        if (tidemark_heap_used < asked || tidemark_heap_used > tidemark_heap_mapped) FAIL("the books are wrong");
    }
    fprintf(stdout, "asked %zu used %zu mapped %zu\n", asked, tidemark_heap_used, tidemark_heap_mapped);
    for (i = 0; i < BLOCKS; i++) tidemark_heap_give(held[i].data);
    if (tidemark_heap_used) FAIL("something is still in use when all was given back");
    if (tidemark_heap_mapped > TIDEMARK_HEAP_REGION || tidemark_heap_idle > 1) FAIL("regions were not given back");
    return 0;
}
