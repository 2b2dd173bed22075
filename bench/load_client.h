/* The blocking half of the load generator's client: handshake, declares, close.
 *
 * Connections are set up and torn down with it; the traffic between is the epoll loop's. `call`
 * sends what is queued and waits for one method.
 *
 * Invariant: a broker that closes, cancels or is silent for a minute ends the program with a
 * sentence.
 */
#ifndef BENCH_LOAD_CLIENT_H
#define BENCH_LOAD_CLIENT_H

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "amqp.h"
#include "load_measure.h"

/* A connection ------------------------------------------------------------------------------ */

struct conn {
    int fd;
    uint32_t frame_max, events;
    struct buf in, out;
    struct producer *producer; /* at most one of the two is set */
    struct consumer *consumer;
};

static u64 blocked_notices;

/* What a broker says of itself, at any moment. Returns false for a method that is for the caller.
 */
static bool common_method(const struct frame *f, uint32_t method) {
    if (method == CONNECTION_CLOSE || method == CHANNEL_CLOSE)
        fail("the broker closed the %s: %u %.*s",
             method == CONNECTION_CLOSE ? "connection" : "channel", get16(f->payload + 4),
             f->payload[6], f->payload + 7);
    if (method == BASIC_CANCEL)
        fail("the broker cancelled a consumer");
    if (method == CHANNEL_FLOW)
        fail("the broker used channel.flow, which this program does not follow");
    if (method == CONNECTION_BLOCKED) {
        blocked_notices++;
        return true;
    }
    return method == CONNECTION_UNBLOCKED;
}

static void send_all(struct conn *c) {
    while (c->out.head < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out.head, c->out.len - c->out.head, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            fail("cannot send: %s", strerror(errno));
        c->out.head += (size_t)n;
    }
    c->out.head = c->out.len = 0;
}

/* Blocking: the next frame, whatever it is. False when the broker closed the socket. */
static bool receive_frame(struct conn *c, struct frame *f) {
    for (;;) {
        int found = next_frame(&c->in, f);
        if (found < 0)
            fail("the broker sent something that is not an AMQP frame");
        if (found)
            return true;
        buf_compact(&c->in);
        ssize_t n = recv(c->fd, buf_room(&c->in, 65536), 65536, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        c->in.len += (size_t)n;
    }
}

/* Blocking: sends what is queued and waits for `method`, ignoring deliveries and confirms. */
static struct frame call(struct conn *c, uint32_t method) {
    struct frame f;
    send_all(c);
    for (;;) {
        if (!receive_frame(c, &f))
            fail("the broker closed the socket while %u.%u was awaited", method >> 16,
                 method & 0xffff);
        if (f.type != FRAME_METHOD)
            continue;
        uint32_t got = get32(f.payload);
        if (got == method)
            return f;
        common_method(&f, got);
    }
}

static void put_table_bool(struct buf *b, const char *name) {
    put_shortstr(b, name);
    put8(b, 't');
    put8(b, 1);
}

static int connect_socket(const char *port) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    int why = getaddrinfo(opt.host, port, &hints, &found);
    if (why)
        fail("cannot look up %s port %s: %s", opt.host, port, gai_strerror(why));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
        fail("cannot connect to %s port %s: %s", opt.host, port, strerror(errno));
    freeaddrinfo(found);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* A broker that stops answering during a blocking step must not hold the run for ever. */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 60},
               sizeof(struct timeval));
    return fd;
}

/* Opens the connection and channel 1. */
static void open_conn_at(struct conn *c, const char *port) {
    memset(c, 0, sizeof *c);
    c->fd = connect_socket(port);
    struct buf *b = &c->out;
    put_bytes(b, "AMQP\0\0\x09\x01", 8);
    call(c, CONNECTION_START);

    size_t mark = method_begin(b, 0, CONNECTION_START_OK);
    size_t table = b->len;
    put32(b, 0);
    put_shortstr(b, "capabilities");
    put8(b, 'F');
    size_t inner = b->len;
    put32(b, 0);
    put_table_bool(b, "publisher_confirms");
    put_table_bool(b, "basic.nack");
    put_table_bool(b, "connection.blocked");
    put_table_bool(b, "consumer_cancel_notify");
    set32(b->data + inner, (uint32_t)(b->len - inner - 4));
    set32(b->data + table, (uint32_t)(b->len - table - 4));
    put_shortstr(b, "PLAIN");
    put32(b, (uint32_t)(strlen(opt.user) + strlen(opt.password) + 2));
    put8(b, 0);
    put_bytes(b, opt.user, strlen(opt.user));
    put8(b, 0);
    put_bytes(b, opt.password, strlen(opt.password));
    put_shortstr(b, "en_US");
    frame_end(b, mark);

    struct frame tune = call(c, CONNECTION_TUNE);
    if (tune.size < 12)
        fail("connection.tune is too short");
    uint16_t channel_max = get16(tune.payload + 4);
    c->frame_max = get32(tune.payload + 6);
    if (c->frame_max == 0 || c->frame_max > 131072)
        c->frame_max = 131072;
    mark = method_begin(b, 0, CONNECTION_TUNE_OK);
    put16(b, channel_max);
    put32(b, c->frame_max);
    put16(b, (uint16_t)opt.heartbeat);
    frame_end(b, mark);
    mark = method_begin(b, 0, CONNECTION_OPEN);
    put_shortstr(b, opt.vhost);
    put_shortstr(b, "");
    put8(b, 0);
    frame_end(b, mark);
    call(c, CONNECTION_OPEN_OK);

    mark = method_begin(b, 1, CHANNEL_OPEN);
    put_shortstr(b, "");
    frame_end(b, mark);
    call(c, CHANNEL_OPEN_OK);
}

static void open_conn(struct conn *c) { open_conn_at(c, opt.ports[0]); }

static void close_conn(struct conn *c) {
    struct frame f;
    fcntl(c->fd, F_SETFL, 0);
    size_t mark = method_begin(&c->out, 0, CONNECTION_CLOSE);
    put16(&c->out, 200);
    put_shortstr(&c->out, "done");
    put32(&c->out, 0);
    frame_end(&c->out, mark);
    send_all(c);
    while (receive_frame(c, &f))
        if (f.type == FRAME_METHOD && get32(f.payload) == CONNECTION_CLOSE_OK)
            break;
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
}

static const char *queue_name(int index) {
    static char name[200];
    snprintf(name, sizeof name, "%s-%d", opt.prefix, index);
    return name;
}

static void put_queue_declare(struct buf *b, const char *queue, bool passive) {
    size_t mark = method_begin(b, 1, QUEUE_DECLARE);
    put16(b, 0);
    put_shortstr(b, queue);
    put8(b, (uint8_t)((passive ? 1 : 0) | (opt.durable ? 2 : 0)));
    put32(b, 0);
    frame_end(b, mark);
}

/* The number of messages that are ready in the queue. */
static uint32_t queue_length(struct conn *c, int index) {
    put_queue_declare(&c->out, queue_name(index), true);
    struct frame f = call(c, QUEUE_DECLARE_OK);
    return get32(f.payload + 5 + f.payload[4]);
}

static void delete_queue(struct conn *c, int index) {
    size_t mark = method_begin(&c->out, 1, QUEUE_DELETE);
    put16(&c->out, 0);
    put_shortstr(&c->out, queue_name(index));
    put8(&c->out, 0);
    frame_end(&c->out, mark);
    call(c, QUEUE_DELETE_OK);
}

static void declare_fanout(struct conn *c, const char *exchange) {
    size_t mark = method_begin(&c->out, 1, EXCHANGE_DECLARE);
    put16(&c->out, 0);
    put_shortstr(&c->out, exchange);
    put_shortstr(&c->out, "fanout");
    put8(&c->out, opt.durable ? 2 : 0);
    put32(&c->out, 0);
    frame_end(&c->out, mark);
    call(c, EXCHANGE_DECLARE_OK);
    for (int i = 0; i < opt.queues; i++) {
        mark = method_begin(&c->out, 1, QUEUE_BIND);
        put16(&c->out, 0);
        put_shortstr(&c->out, queue_name(i));
        put_shortstr(&c->out, exchange);
        put_shortstr(&c->out, "");
        put8(&c->out, 0);
        put32(&c->out, 0);
        frame_end(&c->out, mark);
        call(c, QUEUE_BIND_OK);
    }
}

static void delete_exchange(struct conn *c, const char *exchange) {
    size_t mark = method_begin(&c->out, 1, EXCHANGE_DELETE);
    put16(&c->out, 0);
    put_shortstr(&c->out, exchange);
    put8(&c->out, 0);
    frame_end(&c->out, mark);
    call(c, EXCHANGE_DELETE_OK);
}

#endif
