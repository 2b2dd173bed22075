/* The floor for broker CPU: the least a server can do and still speak AMQP 0-9-1.
 *
 * It answers the handshake, declares and consumes, and turns every publish into a delivery by
 * copying header and body frames as they came behind a deliver method rendered once per consumer.
 * One read is one pass over all whole messages in it and one write per consumer. No queue: a
 * message for a routing key that nobody consumes is dropped. No confirms, no acks, no checks of
 * permissions. A consumer that does not keep up stops the reading from producers.
 *
 * Invariant: a delivery is written whole or not at all.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "amqp.h"

enum { READ_BYTES = 256 << 10, FULL_BYTES = 4 << 20, CONNS_MAX = 4096, NAME_MAX_BYTES = 256 };

struct conn {
    int fd;
    bool greeted;
    uint32_t events;
    struct buf in, out;
    char queue[NAME_MAX_BYTES]; /* what it consumes; empty: nothing */
    uint16_t channel;           /* of the consumer */
    uint8_t deliver[600];       /* the deliver method, rendered once */
    size_t deliver_bytes, tag_at;
    uint64_t next_tag;
};

static int epoll_fd;
static struct conn *conns[CONNS_MAX];
static int conns_end; /* no connection has this descriptor or a higher one */
static bool paused;

static void watch(struct conn *c, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (c->events != events)
        epoll_ctl(epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e);
    c->events = events;
}

static void update_watch(struct conn *c) {
    bool reads = c->queue[0] || !paused;
    watch(c, (reads ? EPOLLIN : 0) | (c->out.len > c->out.head ? EPOLLOUT : 0) | EPOLLRDHUP);
}

static void drop(struct conn *c) {
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

/* False when the connection is gone. */
static bool flush(struct conn *c) {
    while (c->out.head < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out.head, c->out.len - c->out.head, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0)
            return false;
        c->out.head += (size_t)n;
    }
    if (c->out.head == c->out.len)
        c->out.head = c->out.len = 0;
    else if (c->out.head > FULL_BYTES / 2)
        buf_compact(&c->out);
    update_watch(c);
    return true;
}

/* Reading stops while any consumer has FULL_BYTES waiting. */
static void update_pause(void) {
    bool full = false;
    for (int i = 0; i < conns_end; i++)
        full |= conns[i] && conns[i]->out.len - conns[i]->out.head > FULL_BYTES;
    if (full == paused)
        return;
    paused = full;
    for (int i = 0; i < conns_end; i++)
        if (conns[i])
            update_watch(conns[i]);
}

static struct conn *consumer_of(const uint8_t *key, size_t n) {
    static struct conn *last;
    static int last_fd;
    if (last && conns[last_fd] == last && strlen(last->queue) == n && !memcmp(last->queue, key, n))
        return last;
    for (int i = 0; i < conns_end; i++)
        if (conns[i] && conns[i]->queue[0] && strlen(conns[i]->queue) == n &&
            !memcmp(conns[i]->queue, key, n)) {
            last = conns[i];
            last_fd = i;
            return last;
        }
    return NULL;
}

static void start_consuming(struct conn *c, const struct frame *f) {
    const uint8_t *queue = f->payload + 6, *tag = queue + 1 + queue[0];
    struct buf b = {0};
    memcpy(c->queue, queue + 1, queue[0]);
    c->queue[queue[0]] = 0;
    c->channel = f->channel;
    size_t mark = method_begin(&b, f->channel, BASIC_DELIVER);
    put_bytes(&b, tag, (size_t)tag[0] + 1);
    c->tag_at = b.len;
    put64(&b, 0);
    put8(&b, 0);
    put_shortstr(&b, "");
    put_bytes(&b, queue, (size_t)queue[0] + 1);
    frame_end(&b, mark);
    memcpy(c->deliver, b.data, b.len);
    c->deliver_bytes = b.len;
    free(b.data);
    mark = method_begin(&c->out, f->channel, BASIC_CONSUME_OK);
    put_bytes(&c->out, tag, (size_t)tag[0] + 1);
    frame_end(&c->out, mark);
}

/* Everything but publish. False when the connection should end. */
static bool answer(struct conn *c, const struct frame *f) {
    struct buf *b = &c->out;
    size_t mark;
    switch (get32(f->payload)) {
    case CONNECTION_START_OK:
        mark = method_begin(b, 0, CONNECTION_TUNE);
        put16(b, 2047);
        put32(b, 131072);
        put16(b, 0);
        break;
    case CONNECTION_TUNE_OK: return true;
    case CONNECTION_OPEN:
        mark = method_begin(b, 0, CONNECTION_OPEN_OK);
        put8(b, 0);
        break;
    case CONNECTION_CLOSE: mark = method_begin(b, 0, CONNECTION_CLOSE_OK); break;
    case CHANNEL_OPEN:
        mark = method_begin(b, f->channel, CHANNEL_OPEN_OK);
        put32(b, 0);
        break;
    case QUEUE_DECLARE:
        mark = method_begin(b, f->channel, QUEUE_DECLARE_OK);
        put_bytes(b, f->payload + 6, (size_t)f->payload[6] + 1);
        put64(b, 0); /* no messages, no consumers */
        break;
    case QUEUE_DELETE:
        mark = method_begin(b, f->channel, QUEUE_DELETE_OK);
        put32(b, 0);
        break;
    case BASIC_QOS: mark = method_begin(b, f->channel, BASIC_QOS_OK); break;
    case BASIC_CONSUME: start_consuming(c, f); return true;
    default:
        fprintf(stderr, "null broker: method %u.%u is not spoken here\n", get16(f->payload),
                get16(f->payload + 2));
        return false;
    }
    frame_end(b, mark);
    return true;
}

/* Forwards the publish whose method frame is `f`, if all of it is in the buffer.
 * 1: done; 0: more bytes are needed (the buffer is left before the method); -1: not AMQP. */
static int forward(struct conn *c, const struct frame *f, size_t method_at) {
    const uint8_t *exchange = f->payload + 6, *key = exchange + 1 + exchange[0];
    struct frame g;
    size_t content_at = c->in.head;
    int found = next_frame(&c->in, &g);
    if (found > 0 && g.type != FRAME_HEADER)
        return -1;
    uint64_t left = found > 0 ? get64(g.payload + 4) : 0;
    while (found > 0 && left) {
        found = next_frame(&c->in, &g);
        if (found > 0 && (g.type != FRAME_BODY || g.size > left))
            return -1;
        left -= found > 0 ? g.size : 0;
    }
    if (found <= 0) {
        c->in.head = method_at;
        return found;
    }
    struct conn *to = consumer_of(key + 1, key[0]);
    if (!to)
        return 1;
    set64(to->deliver + to->tag_at, ++to->next_tag);
    put_bytes(&to->out, to->deliver, to->deliver_bytes);
    size_t copied_at = to->out.len;
    put_bytes(&to->out, c->in.data + content_at, c->in.head - content_at);
    if (to->channel != f->channel)
        for (size_t at = copied_at; at < to->out.len;
             at += get32(to->out.data + at + 3) + FRAME_OVERHEAD)
            set16(to->out.data + at + 1, to->channel);
    return 1;
}

/* False when the connection should end. */
static bool on_bytes(struct conn *c) {
    if (!c->greeted) {
        if (c->in.len < 8)
            return true;
        if (memcmp(c->in.data, "AMQP\0\0\x09\x01", 8))
            return false;
        c->in.head = 8;
        c->greeted = true;
        size_t mark = method_begin(&c->out, 0, CONNECTION_START);
        put16(&c->out, 9); /* version 0-9, no server properties */
        put32(&c->out, 0);
        put32(&c->out, 5);
        put_bytes(&c->out, "PLAIN", 5);
        put32(&c->out, 5);
        put_bytes(&c->out, "en_US", 5);
        frame_end(&c->out, mark);
    }
    for (;;) {
        struct frame f;
        size_t at = c->in.head;
        int found = next_frame(&c->in, &f);
        if (found > 0 && f.type == FRAME_METHOD) {
            if (get32(f.payload) == BASIC_PUBLISH)
                found = forward(c, &f, at);
            else if (!answer(c, &f))
                return false;
        }
        if (found <= 0)
            return found == 0;
    }
}

static void accept_one(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct conn *c = fd < CONNS_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    c->fd = fd;
    conns[fd] = c;
    conns_end = fd >= conns_end ? fd + 1 : conns_end;
    update_watch(c);
}

static void on_ready(struct conn *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        buf_compact(&c->in);
        ssize_t n = recv(c->fd, buf_room(&c->in, READ_BYTES), READ_BYTES, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            drop(c);
            return;
        }
        if (n > 0)
            c->in.len += (size_t)n;
        if (!on_bytes(c)) {
            drop(c);
            return;
        }
    }
    for (int i = 0; i < conns_end; i++)
        if (conns[i] && conns[i]->out.len && !flush(conns[i]))
            drop(conns[i]);
    update_pause();
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&address, &size)) {
        perror("null broker");
        return 1;
    }
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    printf("null ready amqp=127.0.0.1:%d pid=%d\n", ntohs(address.sin_port), getpid());
    fflush(stdout);
    for (;;) {
        /* One event a turn: a connection dropped while handling it can have no event left behind.
         */
        int n = epoll_wait(epoll_fd, &e, 1, -1);
        if (n < 0 && errno != EINTR)
            return 1;
        if (n == 1 && e.data.ptr)
            on_ready(e.data.ptr, e.events);
        else if (n == 1)
            accept_one(listener);
    }
}
