/* The few pieces of AMQP 0-9-1 that the load generator and the null broker share.
 *
 * A growing byte buffer, big-endian writers and readers, and frames written in place: frame_begin
 * leaves room for the length, frame_end fills it in. Everything is static, so each program is one
 * translation unit and gcc inlines what is hot.
 *
 * Invariant: readers never look past the length their caller checked.
 */
#ifndef BENCH_AMQP_H
#define BENCH_AMQP_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_METHOD = 1, FRAME_HEADER = 2, FRAME_BODY = 3, FRAME_HEARTBEAT = 8, FRAME_END = 0xCE };
enum { FRAME_OVERHEAD = 8 }; /* 7 bytes before the payload, 1 after it */
enum { FRAME_SANE_MAX = 64 << 20 };

/* A method is its class and method number in one integer, as they stand in the frame. */
#define METHOD(class_id, method_id) (((uint32_t)(class_id) << 16) | (uint32_t)(method_id))
enum {
    CONNECTION_START = METHOD(10, 10),
    CONNECTION_START_OK = METHOD(10, 11),
    CONNECTION_TUNE = METHOD(10, 30),
    CONNECTION_TUNE_OK = METHOD(10, 31),
    CONNECTION_OPEN = METHOD(10, 40),
    CONNECTION_OPEN_OK = METHOD(10, 41),
    CONNECTION_CLOSE = METHOD(10, 50),
    CONNECTION_CLOSE_OK = METHOD(10, 51),
    CONNECTION_BLOCKED = METHOD(10, 60),
    CONNECTION_UNBLOCKED = METHOD(10, 61),
    CHANNEL_OPEN = METHOD(20, 10),
    CHANNEL_OPEN_OK = METHOD(20, 11),
    CHANNEL_FLOW = METHOD(20, 20),
    CHANNEL_CLOSE = METHOD(20, 40),
    EXCHANGE_DECLARE = METHOD(40, 10),
    EXCHANGE_DECLARE_OK = METHOD(40, 11),
    EXCHANGE_DELETE = METHOD(40, 20),
    EXCHANGE_DELETE_OK = METHOD(40, 21),
    QUEUE_DECLARE = METHOD(50, 10),
    QUEUE_DECLARE_OK = METHOD(50, 11),
    QUEUE_BIND = METHOD(50, 20),
    QUEUE_BIND_OK = METHOD(50, 21),
    QUEUE_DELETE = METHOD(50, 40),
    QUEUE_DELETE_OK = METHOD(50, 41),
    BASIC_QOS = METHOD(60, 10),
    BASIC_QOS_OK = METHOD(60, 11),
    BASIC_CONSUME = METHOD(60, 20),
    BASIC_CONSUME_OK = METHOD(60, 21),
    BASIC_CANCEL = METHOD(60, 30),
    BASIC_PUBLISH = METHOD(60, 40),
    BASIC_RETURN = METHOD(60, 50),
    BASIC_DELIVER = METHOD(60, 60),
    BASIC_ACK = METHOD(60, 80),
    BASIC_NACK = METHOD(60, 120),
    CONFIRM_SELECT = METHOD(85, 10),
    CONFIRM_SELECT_OK = METHOD(85, 11),
};

/* Big-endian integers ----------------------------------------------------------------------- */

static inline uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}

static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

static inline void set16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}

static inline void set32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static inline void set64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

/* A growing buffer: bytes [head, len) are still to be used ---------------------------------- */

struct buf {
    uint8_t *data;
    size_t head, len, cap;
};

static inline uint8_t *buf_room(struct buf *b, size_t n) {
    if (b->len + n > b->cap) {
        size_t cap = b->cap ? b->cap : 4096;
        while (cap < b->len + n)
            cap *= 2;
        uint8_t *data = realloc(b->data, cap);
        if (!data) {
            fprintf(stderr, "out of memory at a buffer of %zu bytes\n", cap);
            exit(1);
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

static inline void put_bytes(struct buf *b, const void *p, size_t n) {
    memcpy(buf_room(b, n), p, n);
    b->len += n;
}

static inline void put8(struct buf *b, uint8_t v) {
    *buf_room(b, 1) = v;
    b->len += 1;
}

static inline void put16(struct buf *b, uint16_t v) {
    set16(buf_room(b, 2), v);
    b->len += 2;
}

static inline void put32(struct buf *b, uint32_t v) {
    set32(buf_room(b, 4), v);
    b->len += 4;
}

static inline void put64(struct buf *b, uint64_t v) {
    set64(buf_room(b, 8), v);
    b->len += 8;
}

static inline void put_shortstr(struct buf *b, const char *s) {
    size_t n = strlen(s);
    if (n > 255)
        n = 255;
    put8(b, (uint8_t)n);
    put_bytes(b, s, n);
}

/* Drops what has been used; called between batches, when the rest is at most one partial frame. */
static inline void buf_compact(struct buf *b) {
    if (b->head == 0)
        return;
    memmove(b->data, b->data + b->head, b->len - b->head);
    b->len -= b->head;
    b->head = 0;
}

/* Frames ------------------------------------------------------------------------------------ */

static inline size_t frame_begin(struct buf *b, uint8_t type, uint16_t channel) {
    size_t mark = b->len;
    put8(b, type);
    put16(b, channel);
    put32(b, 0);
    return mark;
}

static inline void frame_end(struct buf *b, size_t mark) {
    set32(b->data + mark + 3, (uint32_t)(b->len - mark - 7));
    put8(b, FRAME_END);
}

static inline size_t method_begin(struct buf *b, uint16_t channel, uint32_t method) {
    size_t mark = frame_begin(b, FRAME_METHOD, channel);
    put32(b, method);
    return mark;
}

struct frame {
    uint8_t type;
    uint16_t channel;
    uint32_t size;
    const uint8_t *payload;
};

/* Takes the next whole frame. 1: there was one; 0: more bytes are needed; -1: not AMQP.
 * A method frame has at least its number, a header frame at least its body size. */
static inline int next_frame(struct buf *b, struct frame *f) {
    size_t have = b->len - b->head;
    const uint8_t *p = b->data + b->head;
    if (have < 7)
        return 0;
    f->type = p[0];
    f->channel = get16(p + 1);
    f->size = get32(p + 3);
    if (f->size > FRAME_SANE_MAX)
        return -1;
    if (have < (size_t)f->size + FRAME_OVERHEAD)
        return 0;
    if (p[7 + f->size] != FRAME_END)
        return -1;
    if ((f->type == FRAME_METHOD && f->size < 4) || (f->type == FRAME_HEADER && f->size < 14))
        return -1;
    f->payload = p + 7;
    b->head += (size_t)f->size + FRAME_OVERHEAD;
    return 1;
}

#endif
