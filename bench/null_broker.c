/* The floor for broker CPU: the least a server can do and still speak AMQP 0-9-1.
 *
 * It answers the handshake, declares and consumes, and turns every publish into a delivery by
 * copying header and body frames as they came behind a deliver method rendered once per consumer.
 * One read is one pass over all whole messages in it and one write per consumer. No queue: a
 * message for a routing key that nobody consumes is dropped. No checks of permissions. A consumer
 * that does not keep up stops the reading from producers.
 *
 * With --disk FILE it is the floor for durable publishing: what was published and acknowledged is
 * written to the file by a thread, which syncs it and rings an eventfd; only then it is delivered
 * and confirmed. While a sync runs the next batch gathers. The file is written round and round,
 * into blocks that were written before, and nobody ever reads it.
 *
 * Invariant: a delivery is written whole or not at all; with --disk, after the sync of its message.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "amqp.h"

enum { READ_BYTES = 256 << 10, FULL_BYTES = 4 << 20, CONNS_MAX = 4096, NAME_MAX_BYTES = 256 };
enum { FILE_BYTES = 64 << 20 };

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
    /* With a disk. What is held goes out when it is on the disk: up to held_now with the sync that
     * runs, the rest with the next one. The same for the publishes to confirm. */
    struct buf held;
    size_t held_now;
    uint16_t confirm_channel; /* 0: it did not ask for confirms */
    uint64_t published, published_now, confirmed;
};

static struct {
    int fd, bell;
    bool busy, asked; /* a sync runs; somebody waits for the next one */
    off_t at;
    struct buf next, now; /* what gathers; what the thread writes */
    sem_t work;
} disk = {.fd = -1};

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
    free(c->held.data);
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
    uint32_t method = get32(f->payload);
    if (disk.fd < 0 && (method == CONFIRM_SELECT || method == BASIC_ACK))
        method = 0; /* without a disk it promises nothing */
    switch (method) {
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
    case CONFIRM_SELECT:
        c->confirm_channel = f->channel;
        mark = method_begin(b, f->channel, CONFIRM_SELECT_OK);
        break;
    case BASIC_ACK: /* on the disk with the next message: nobody waits for it */
        put_bytes(&disk.next, f->payload, f->size);
        return true;
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
    if (disk.fd >= 0) {
        put_bytes(&disk.next, c->in.data + content_at, c->in.head - content_at);
        disk.asked = true;
        c->published++;
    }
    struct conn *to = consumer_of(key + 1, key[0]);
    if (!to)
        return 1;
    struct buf *out = disk.fd >= 0 ? &to->held : &to->out;
    set64(to->deliver + to->tag_at, ++to->next_tag);
    put_bytes(out, to->deliver, to->deliver_bytes);
    size_t copied_at = out->len;
    put_bytes(out, c->in.data + content_at, c->in.head - content_at);
    if (to->channel != f->channel)
        for (size_t at = copied_at; at < out->len; at += get32(out->data + at + 3) + FRAME_OVERHEAD)
            set16(out->data + at + 1, to->channel);
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

/* The disk ---------------------------------------------------------------------------------- */

static void write_or_die(const uint8_t *data, size_t n, off_t at) {
    while (n) {
        ssize_t done = pwrite(disk.fd, data, n, at);
        if (done <= 0) {
            perror("null broker: cannot write");
            exit(1);
        }
        data += done;
        at += done;
        n -= (size_t)done;
    }
}

static void *run_disk(void *unused) {
    for (;;) {
        while (sem_wait(&disk.work))
            ;
        if (disk.at + (off_t)disk.now.len > FILE_BYTES)
            disk.at = 0;
        write_or_die(disk.now.data, disk.now.len, disk.at);
        if (fdatasync(disk.fd)) {
            perror("null broker: cannot sync");
            exit(1);
        }
        disk.at += (off_t)disk.now.len;
        eventfd_write(disk.bell, 1);
    }
    return unused;
}

/* Gives the thread all that has gathered, if it has nothing to do and somebody waits. */
static void start_sync(void) {
    if (disk.busy || !disk.asked)
        return;
    struct buf empty = disk.now;
    disk.now = disk.next;
    disk.next = empty;
    disk.next.len = 0;
    for (int i = 0; i < conns_end; i++)
        if (conns[i]) {
            conns[i]->held_now = conns[i]->held.len;
            conns[i]->published_now = conns[i]->published;
        }
    disk.busy = true;
    disk.asked = false;
    sem_post(&disk.work);
}

static void on_synced(void) {
    eventfd_t rings;
    eventfd_read(disk.bell, &rings);
    disk.busy = false;
    for (int i = 0; i < conns_end; i++) {
        struct conn *c = conns[i];
        if (!c)
            continue;
        if (c->confirm_channel && c->confirmed < c->published_now) {
            size_t mark = method_begin(&c->out, c->confirm_channel, BASIC_ACK);
            put64(&c->out, c->published_now);
            put8(&c->out, c->published_now - c->confirmed > 1);
            frame_end(&c->out, mark);
            c->confirmed = c->published_now;
        }
        if (c->held_now) {
            put_bytes(&c->out, c->held.data, c->held_now);
            c->held.head = c->held_now;
            c->held_now = 0;
            buf_compact(&c->held);
        }
    }
    start_sync();
}

static void open_disk(const char *path) {
    static uint8_t zeros[1 << 20];
    pthread_t thread;
    disk.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    disk.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (off_t at = 0; at < FILE_BYTES; at += (off_t)sizeof zeros)
        write_or_die(zeros, sizeof zeros, at);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &disk};
    if (fsync(disk.fd) || sem_init(&disk.work, 0, 0) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, disk.bell, &e) ||
        pthread_create(&thread, NULL, run_disk, NULL)) {
        perror("null broker");
        exit(1);
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

static void flush_all(void) {
    for (int i = 0; i < conns_end; i++)
        if (conns[i] && conns[i]->out.len && !flush(conns[i]))
            drop(conns[i]);
    update_pause();
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
    start_sync();
    flush_all();
}

int main(int argc, char **argv) {
    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--disk"))) {
        fputs("usage: null_broker [--disk FILE]\n", stderr);
        return 2;
    }
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
    if (argc == 3)
        open_disk(argv[2]);
    printf("null ready amqp=127.0.0.1:%d pid=%d\n", ntohs(address.sin_port), getpid());
    fflush(stdout);
    for (;;) {
        /* One event a turn: a connection dropped while handling it can have no event left behind.
         */
        int n = epoll_wait(epoll_fd, &e, 1, -1);
        if (n < 0 && errno != EINTR)
            return 1;
        if (n == 1 && e.data.ptr == &disk) {
            on_synced();
            flush_all();
        } else if (n == 1 && e.data.ptr)
            on_ready(e.data.ptr, e.events);
        else if (n == 1)
            accept_one(listener);
    }
}
