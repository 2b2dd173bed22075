/* The floor for a replicated publish: the least that three processes can do and still have every
 * message on three disks before it is confirmed.
 *
 *     null_cluster --disk FILE                        a follower
 *     null_cluster --disk FILE --followers PORT,PORT  the leader, which clients speak AMQP with
 *
 * A follower reads a group of messages, writes and syncs it, and answers with one byte. The leader
 * reads what its clients have published, sends it to every follower, writes and syncs it itself
 * meanwhile, waits for their answers and confirms. All of that is one thread in each process and
 * blocks where it waits, so nobody is woken for less than a message or an answer. No queue, no
 * terms, no leases, no beats, no checksums; nobody can take over.
 *
 * Files are written round and round, into blocks that were written before, and nobody ever reads
 * them.
 *
 * Invariant: a message is confirmed after its sync here and after every follower's.
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

enum { READ_BYTES = 256 << 10, CONNS_MAX = 4096, EVENTS_MAX = 64, FOLLOWERS_MAX = 8 };
enum { FILE_BYTES = 64 << 20 };

struct conn {
    int fd;
    bool greeted;
    struct buf in, out;
    uint16_t confirm_channel; /* 0: it did not ask for confirms */
    uint64_t published, confirmed;
};

static int disk = -1;
static off_t disk_at;
static int followers[FOLLOWERS_MAX], n_followers;
static struct conn *conns[CONNS_MAX];
static int conns_end; /* no connection has this descriptor or a higher one */
static struct buf group; /* what came since the last sync, behind room for its length */
static uint32_t held;    /* messages since the queue was deleted */

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* The disk ---------------------------------------------------------------------------------- */

static void write_or_die(const uint8_t *data, size_t n, off_t at) {
    while (n) {
        ssize_t done = pwrite(disk, data, n, at);
        if (done <= 0)
            die("null cluster: cannot write");
        data += done;
        at += done;
        n -= (size_t)done;
    }
}

static void open_disk(const char *path) {
    static uint8_t zeros[1 << 20];
    disk = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (disk < 0)
        die(path);
    for (off_t at = 0; at < FILE_BYTES; at += (off_t)sizeof zeros)
        write_or_die(zeros, sizeof zeros, at);
    if (fsync(disk))
        die("null cluster: cannot sync");
}

static void keep(const uint8_t *data, size_t n) {
    if (disk_at + (off_t)n > FILE_BYTES)
        disk_at = 0;
    write_or_die(data, n, disk_at);
    if (fdatasync(disk))
        die("null cluster: cannot sync");
    disk_at += (off_t)n;
}

/* Sockets ----------------------------------------------------------------------------------- */

static void no_delay(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); }

static void send_all(int fd, const uint8_t *data, size_t n) {
    while (n) {
        ssize_t done = send(fd, data, n, MSG_NOSIGNAL);
        if (done <= 0)
            die("null cluster: cannot send");
        data += done;
        n -= (size_t)done;
    }
}

static int listen_anywhere(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        die("null cluster");
    *port = ntohs(address.sin_port);
    return listener;
}

/* A follower -------------------------------------------------------------------------------- */

static int follow(int listener) {
    int leader = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (leader < 0)
        die("null cluster: cannot accept");
    no_delay(leader);
    for (;;) {
        buf_compact(&group);
        ssize_t n = recv(leader, buf_room(&group, READ_BYTES), READ_BYTES, 0);
        if (n <= 0)
            return n < 0;
        group.len += (size_t)n;
        size_t length = 0;
        while (group.len - group.head >= 4 &&
               group.len - group.head >= (length = get32(group.data + group.head))) {
            keep(group.data + group.head, length);
            group.head += length;
            send_all(leader, (const uint8_t *)"k", 1);
        }
    }
}

/* The leader: what clients say ----------------------------------------------------------------- */

static void drop(struct conn *c) {
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
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
    case QUEUE_DECLARE: /* there is one, under whatever name */
        mark = method_begin(b, f->channel, QUEUE_DECLARE_OK);
        put_bytes(b, f->payload + 6, (size_t)f->payload[6] + 1);
        put32(b, held);
        put32(b, 0);
        break;
    case QUEUE_DELETE:
        mark = method_begin(b, f->channel, QUEUE_DELETE_OK);
        put32(b, held);
        held = 0;
        break;
    case CONFIRM_SELECT:
        c->confirm_channel = f->channel;
        mark = method_begin(b, f->channel, CONFIRM_SELECT_OK);
        break;
    default:
        fprintf(stderr, "null cluster: method %u.%u is not spoken here\n", get16(f->payload),
                get16(f->payload + 2));
        return false;
    }
    frame_end(b, mark);
    return true;
}

/* Takes the content behind a publish into the group, if all of it is in the buffer.
 * 1: done; 0: more bytes are needed (the buffer is left before the method); -1: not AMQP. */
static int take(struct conn *c, size_t method_at) {
    struct frame f;
    size_t content_at = c->in.head;
    int found = next_frame(&c->in, &f);
    if (found > 0 && f.type != FRAME_HEADER)
        return -1;
    uint64_t left = found > 0 ? get64(f.payload + 4) : 0;
    while (found > 0 && left) {
        found = next_frame(&c->in, &f);
        if (found > 0 && (f.type != FRAME_BODY || f.size > left))
            return -1;
        left -= found > 0 ? f.size : 0;
    }
    if (found <= 0) {
        c->in.head = method_at;
        return found;
    }
    put_bytes(&group, c->in.data + content_at, c->in.head - content_at);
    c->published++;
    held++;
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
                found = take(c, at);
            else if (!answer(c, &f))
                return false;
        }
        if (found <= 0)
            return found == 0;
    }
}

static void on_ready(struct conn *c) {
    buf_compact(&c->in);
    ssize_t n = recv(c->fd, buf_room(&c->in, READ_BYTES), READ_BYTES, 0);
    if (n > 0)
        c->in.len += (size_t)n;
    if (n <= 0 || !on_bytes(c))
        drop(c);
}

static void accept_one(int epoll_fd, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct conn *c = fd >= 0 && fd < CONNS_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c)
        die("null cluster: cannot accept");
    no_delay(fd);
    c->fd = fd;
    conns[fd] = c;
    conns_end = fd >= conns_end ? fd + 1 : conns_end;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

/* The leader: three disks ------------------------------------------------------------------------ */

/* Returns when the group is on every disk. */
static void replicate(void) {
    set32(group.data, (uint32_t)group.len);
    for (int i = 0; i < n_followers; i++)
        send_all(followers[i], group.data, group.len);
    keep(group.data, group.len);
    for (int i = 0; i < n_followers; i++) {
        uint8_t kept;
        if (recv(followers[i], &kept, 1, 0) != 1)
            die("null cluster: a follower is gone");
    }
    group.len = 4;
}

static void flush_all(void) {
    for (int i = 0; i < conns_end; i++) {
        struct conn *c = conns[i];
        if (!c)
            continue;
        if (c->confirm_channel && c->confirmed < c->published) {
            size_t mark = method_begin(&c->out, c->confirm_channel, BASIC_ACK);
            put64(&c->out, c->published);
            put8(&c->out, c->published - c->confirmed > 1);
            frame_end(&c->out, mark);
            c->confirmed = c->published;
        }
        if (c->out.len)
            send_all(c->fd, c->out.data, c->out.len);
        c->out.len = 0;
    }
}

static void dial(const char *ports) {
    while (*ports && n_followers < FOLLOWERS_MAX) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((uint16_t)strtoul(ports, NULL, 10))};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            die("null cluster: cannot reach a follower");
        no_delay(fd);
        followers[n_followers++] = fd;
        ports += strcspn(ports, ",");
        ports += *ports == ',';
    }
}

static int lead(int listener) {
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[EVENTS_MAX];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    put32(&group, 0);
    for (;;) {
        int n = epoll_wait(epoll_fd, ready, EVENTS_MAX, -1);
        if (n < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < n; i++) {
            if (ready[i].data.fd == listener)
                accept_one(epoll_fd, listener);
            else if (conns[ready[i].data.fd])
                on_ready(conns[ready[i].data.fd]);
        }
        if (group.len > 4)
            replicate();
        flush_all();
    }
}

int main(int argc, char **argv) {
    bool leads = argc == 5 && !strcmp(argv[3], "--followers");
    if ((argc != 3 && !leads) || strcmp(argv[1], "--disk")) {
        fputs("usage: null_cluster --disk FILE [--followers PORT,PORT]\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int port, listener = listen_anywhere(&port);
    open_disk(argv[2]);
    if (leads)
        dial(argv[4]);
    printf("null ready amqp=127.0.0.1:%d pid=%d\n", port, getpid());
    fflush(stdout);
    return leads ? lead(listener) : follow(listener);
}
