/* An AMQP 0-9-1 load generator that is never the bottleneck.
 *
 * One thread and one epoll loop hold every producer and consumer, so the broker keeps the other
 * cores. A producer renders a run of publishes once and afterwards only patches the sequence
 * number and the time into each body; a consumer parses deliveries in place. It counts and checks
 * everything it receives and prints one JSON object when it is done.
 *
 * A run has three phases: warm-up, the measured phase (broker CPU and all counters are read at
 * both ends of it), and the drain, in which nothing is published and everything must come home.
 * With --count the whole run is the measured phase.
 *
 * Body layout: bytes 0-7 producer number (16 bits) and sequence number (48 bits), bytes 8-15 the
 * time it was due in ns, then filler.
 *
 * Invariant: a run without entries in "errors" received every message it should have, in order.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "load_client.h"

enum { READ_BYTES = 256 << 10, BATCH_BYTES = 256 << 10, BATCH_SLOTS = 4096 };
enum { PACED_CONFIRMS_MAX = 1 << 20 };

/* The run's totals -------------------------------------------------------------------------- */

static int epoll_fd;
static u64 published, confirmed, nacked, consumed, redelivered;
static u64 measure_from_ns = UINT64_MAX; /* latencies count for messages due from here on */
static struct hist end_to_end, confirm_latency, pacing_late;

struct snapshot {
    u64 ns, published, confirmed, consumed;
    double broker_cpu_s, own_cpu_s;
    double cpu_s[PIDS_MAX]; /* of each of the broker's processes */
};

static struct snapshot take_snapshot(void) {
    struct snapshot now = {now_ns(), published, confirmed, consumed, 0, own_cpu_s()};
    for (int i = 0; i < opt.n_pids; i++)
        now.broker_cpu_s += now.cpu_s[i] = process_cpu_s(opt.pids[i]);
    return now;
}

static void watch(struct conn *c, uint32_t events) {
    if (c->events == events)
        return;
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e))
        fail("epoll_ctl: %s", strerror(errno));
    c->events = events;
}

/* Writes as much of [head, len) as the socket takes. True when all of it went. */
static bool write_some(struct conn *c, struct buf *b) {
    while (b->head < b->len) {
        ssize_t n = send(c->fd, b->data + b->head, b->len - b->head, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(c, EPOLLIN | EPOLLOUT);
            return false;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            fail("cannot send: %s", strerror(errno));
        b->head += (size_t)n;
    }
    b->head = b->len = 0;
    watch(c, EPOLLIN);
    return true;
}

/* A producer -------------------------------------------------------------------------------- */

struct producer {
    struct conn conn;
    int number;
    u64 sent;       /* also the last delivery tag used, as the broker counts them */
    struct buf run; /* slots rendered once; [head, len) is what is still to be written */
    size_t slot_bytes, body_at, key_at;
    int slots, filled; /* slots patched and not yet handed to write */
    bool stuck;        /* the socket took only part of the run */
    u64 free_since_ns; /* when the socket last took the rest of a run */
    u64 low_tag;       /* the lowest tag that is not confirmed */
    u64 ring;          /* size of the two arrays below, a power of two */
    u64 *due_ns;       /* by tag: when it was due */
    bool *settled;     /* by tag: confirmed out of order */
};

static void render_publish(struct producer *p, const char *exchange, const char *key) {
    struct buf *b = &p->run;
    size_t mark = method_begin(b, 1, BASIC_PUBLISH);
    put16(b, 0);
    put_shortstr(b, exchange);
    put_shortstr(b, key);
    p->key_at = b->len - strlen(key);
    put8(b, 0);
    frame_end(b, mark);
    mark = frame_begin(b, FRAME_HEADER, 1);
    put16(b, 60);
    put16(b, 0);
    put64(b, (u64)opt.size);
    put16(b, 0x1000); /* delivery-mode is the only property */
    put8(b, opt.persistent ? 2 : 1);
    frame_end(b, mark);
    p->body_at = b->len + 7;
    size_t left = (size_t)opt.size, most = p->conn.frame_max - FRAME_OVERHEAD;
    while (left) {
        size_t n = left < most ? left : most;
        mark = frame_begin(b, FRAME_BODY, 1);
        memset(buf_room(b, n), 'x', n);
        b->len += n;
        frame_end(b, mark);
        left -= n;
    }
}

static void open_producer(struct producer *p, int number) {
    p->number = number;
    open_conn_at(&p->conn, opt.ports[number / opt.queues % opt.n_ports]);
    p->conn.producer = p;
    if (opt.keyed)
        render_publish(p, opt.prefix, "00000000");
    else if (opt.fanout)
        render_publish(p, opt.prefix, "");
    else
        render_publish(p, "", queue_name(number % opt.queues));
    p->slot_bytes = p->run.len;
    p->slots = (int)(BATCH_BYTES / p->slot_bytes);
    p->slots = p->slots < 1 ? 1 : p->slots > BATCH_SLOTS ? BATCH_SLOTS : p->slots;
    buf_room(&p->run, p->slot_bytes * (size_t)p->slots);
    for (int i = 1; i < p->slots; i++)
        memcpy(p->run.data + (size_t)i * p->slot_bytes, p->run.data, p->slot_bytes);
    p->run.head = p->run.len = 0;
    if (opt.confirm) {
        u64 most = opt.rate > 0 ? PACED_CONFIRMS_MAX : opt.confirm;
        for (p->ring = 1; p->ring <= most;)
            p->ring *= 2;
        p->due_ns = calloc(p->ring, sizeof *p->due_ns);
        p->settled = calloc(p->ring, sizeof *p->settled);
        if (!p->due_ns || !p->settled)
            fail("out of memory");
        p->low_tag = 1;
        size_t mark = method_begin(&p->conn.out, 1, CONFIRM_SELECT);
        put8(&p->conn.out, 0);
        frame_end(&p->conn.out, mark);
        call(&p->conn, CONFIRM_SELECT_OK);
    }
}

/* A key of eight digits, in hexadecimal. */
static inline void put_key(uint8_t *at, u64 number) {
    for (int i = 7; i >= 0; i--, number >>= 4)
        at[i] = (uint8_t)"0123456789abcdef"[number & 15];
}

static inline void fill_slot(struct producer *p, u64 due_ns) {
    uint8_t *body = p->run.data + (size_t)p->filled * p->slot_bytes + p->body_at;
    set64(body, (u64)p->number << 48 | p->sent);
    set64(body + 8, due_ns);
    if (opt.keyed)
        put_key(p->run.data + (size_t)p->filled * p->slot_bytes + p->key_at,
                p->sent * (u64)opt.producers + (u64)p->number);
    p->filled++;
    p->sent++;
    if (opt.confirm)
        p->due_ns[p->sent & (p->ring - 1)] = due_ns;
}

static void write_run(struct producer *p) {
    bool was_stuck = p->stuck;
    p->stuck = !write_some(&p->conn, &p->run);
    if (p->stuck)
        return;
    p->filled = 0;
    if (was_stuck)
        p->free_since_ns = now_ns();
}

static void start_run(struct producer *p) {
    published += (u64)p->filled;
    p->run.len = (size_t)p->filled * p->slot_bytes;
    write_run(p);
}

/* How many messages this producer may send at once without breaking a bound. */
static u64 producer_credit(const struct producer *p) {
    u64 credit = (u64)p->slots;
    if (opt.count) {
        u64 left = opt.count - published;
        credit = left < credit ? left : credit;
    }
    if (opt.confirm) {
        u64 open_tags = p->sent + 1 - p->low_tag;
        u64 left = opt.confirm > open_tags ? opt.confirm - open_tags : 0;
        credit = left < credit ? left : credit;
    }
    if (opt.inflight) {
        u64 flying = published - consumed / (u64)(opt.fanout ? opt.fanout : 1);
        u64 left = opt.inflight > flying ? opt.inflight - flying : 0;
        credit = left < credit ? left : credit;
    }
    return credit;
}

/* Sends one run if something may be sent. True when another one may follow at once. */
static bool pump_producer(struct producer *p) {
    if (p->stuck)
        return false;
    u64 n = producer_credit(p);
    if (n == 0)
        return false;
    u64 now = now_ns();
    for (u64 i = 0; i < n; i++)
        fill_slot(p, now);
    start_run(p);
    return !p->stuck && producer_credit(p) > 0;
}

static void settle_one(struct producer *p, u64 tag, u64 now, bool ack) {
    if (ack)
        confirmed++;
    else
        nacked++;
    u64 due = p->due_ns[tag & (p->ring - 1)];
    if (due >= measure_from_ns)
        hist_add(&confirm_latency, now - due);
}

static void on_confirm(struct producer *p, const struct frame *f, u64 now, bool ack) {
    u64 mask = p->ring - 1;
    if (f->size < 13)
        fail("a confirm of %u bytes is too short", f->size);
    u64 tag = get64(f->payload + 4);
    bool multiple = f->payload[12] & 1;
    if (multiple && tag == 0)
        tag = p->sent;
    if (!opt.confirm || tag > p->sent || tag < p->low_tag || p->settled[tag & mask])
        fail("the broker confirmed tag %llu, which is not open", tag);
    if (!multiple) {
        settle_one(p, tag, now, ack);
        p->settled[tag & mask] = true;
    } else {
        for (u64 t = p->low_tag; t <= tag; t++) {
            if (!p->settled[t & mask])
                settle_one(p, t, now, ack);
            p->settled[t & mask] = true;
        }
    }
    while (p->low_tag <= p->sent && p->settled[p->low_tag & mask]) {
        p->settled[p->low_tag & mask] = false;
        p->low_tag++;
    }
}

static void parse_producer(struct producer *p) {
    struct frame f;
    int found;
    u64 now = now_ns();
    while ((found = next_frame(&p->conn.in, &f)) > 0) {
        if (f.type != FRAME_METHOD)
            continue;
        uint32_t method = get32(f.payload);
        if (method == BASIC_ACK)
            on_confirm(p, &f, now, true);
        else if (method == BASIC_NACK)
            on_confirm(p, &f, now, false);
        else if (!common_method(&f, method))
            fail("a producer received method %u.%u", method >> 16, method & 0xffff);
    }
    if (found < 0)
        fail("the broker sent something that is not an AMQP frame");
}

/* A consumer -------------------------------------------------------------------------------- */

struct consumer {
    struct conn conn;
    bool alone; /* the only consumer of its queue: sequences must have no gap */
    bool in_body;
    u64 body_left;
    int head_have; /* bytes of the stamp collected so far */
    uint8_t head[STAMP_BYTES];
    u64 last_tag, unacked;
    u64 *next; /* by producer: the sequence number that comes next; UINT64_MAX: any */
};

static void open_consumer(struct consumer *c, int number) {
    open_conn(&c->conn);
    c->conn.consumer = c;
    c->alone = opt.consumers == opt.queues;
    c->next = calloc((size_t)opt.producers, sizeof *c->next);
    if (!c->next)
        fail("out of memory");
    if (opt.consume_only || !c->alone)
        memset(c->next, 0xff, (size_t)opt.producers * sizeof *c->next);
    struct buf *b = &c->conn.out;
    size_t mark;
    if (opt.manual_ack && opt.prefetch) {
        mark = method_begin(b, 1, BASIC_QOS);
        put32(b, 0);
        put16(b, (uint16_t)opt.prefetch);
        put8(b, 0);
        frame_end(b, mark);
        call(&c->conn, BASIC_QOS_OK);
    }
    mark = method_begin(b, 1, BASIC_CONSUME);
    put16(b, 0);
    put_shortstr(b, queue_name(number % opt.queues));
    put_shortstr(b, "c");
    put8(b, opt.manual_ack ? 0 : 2);
    put32(b, 0);
    frame_end(b, mark);
    call(&c->conn, BASIC_CONSUME_OK); /* the deliveries that follow it stay in the buffer */
}

static void send_ack(struct consumer *c) {
    if (!c->unacked)
        return;
    size_t mark = method_begin(&c->conn.out, 1, BASIC_ACK);
    put64(&c->conn.out, c->last_tag);
    put8(&c->conn.out, 1);
    frame_end(&c->conn.out, mark);
    c->unacked = 0;
}

static inline void on_message(struct consumer *c, u64 now) {
    u64 word = get64(c->head), producer = word >> 48, sequence = word & 0xffffffffffffull;
    if (producer >= (u64)opt.producers) {
        note_error("a message came from producer %llu, which does not exist", producer);
    } else {
        u64 *next = &c->next[producer];
        bool right = *next == UINT64_MAX || (c->alone ? sequence == *next : sequence >= *next);
        if (!right)
            note_error("order: sequence %llu of producer %llu came where %llu was due", sequence,
                       producer, *next);
        *next = sequence + 1;
    }
    u64 due = get64(c->head + 8);
    if (due >= measure_from_ns)
        hist_add(&end_to_end, now - due);
    consumed++;
    if (opt.manual_ack && ++c->unacked >= (u64)opt.ack_every)
        send_ack(c);
}

static void parse_consumer(struct consumer *c) {
    struct frame f;
    int found;
    u64 now = now_ns();
    while ((found = next_frame(&c->conn.in, &f)) > 0) {
        if (f.type == FRAME_BODY) {
            if (!c->in_body || f.size > c->body_left)
                fail("a body frame of %u bytes came where %llu were due", f.size, c->body_left);
            if (c->head_have < STAMP_BYTES) {
                size_t n = (size_t)(STAMP_BYTES - c->head_have);
                n = f.size < n ? f.size : n;
                memcpy(c->head + c->head_have, f.payload, n);
                c->head_have += (int)n;
            }
            c->body_left -= f.size;
            if (c->body_left == 0) {
                c->in_body = false;
                on_message(c, now);
            }
        } else if (f.type == FRAME_HEADER) {
            c->body_left = get64(f.payload + 4);
            if (c->body_left != (u64)opt.size)
                fail("a message of %llu bytes came; all were %d long", c->body_left, opt.size);
            c->in_body = true;
            c->head_have = 0;
        } else if (f.type == FRAME_METHOD) {
            uint32_t method = get32(f.payload);
            if (method == BASIC_DELIVER) {
                const uint8_t *tag = f.payload + 5 + f.payload[4];
                if (f.size < 14u + f.payload[4])
                    fail("a delivery of %u bytes is too short", f.size);
                c->last_tag = get64(tag);
                redelivered += tag[8] & 1;
            } else if (!common_method(&f, method)) {
                fail("a consumer received method %u.%u", method >> 16, method & 0xffff);
            }
        }
    }
    if (found < 0)
        fail("the broker sent something that is not an AMQP frame");
    if (c->conn.out.len)
        write_some(&c->conn, &c->conn.out);
}

/* The loop ---------------------------------------------------------------------------------- */

static struct producer *producers;
static struct consumer *consumers;
static int n_producers, n_consumers; /* none of them with --consume-only and --publish-only */

static void on_ready(struct conn *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        buf_compact(&c->in);
        ssize_t n = recv(c->fd, buf_room(&c->in, READ_BYTES), READ_BYTES, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            fail("the broker closed a socket: %s", n ? strerror(errno) : "end of stream");
        if (n > 0) {
            c->in.len += (size_t)n;
            if (c->producer)
                parse_producer(c->producer);
            else
                parse_consumer(c->consumer);
        }
    }
    if (events & EPOLLOUT) {
        if (c->producer)
            write_run(c->producer);
        else
            write_some(c, &c->out);
    }
}

/* Publishes what is due by the clock. Even spacing; message i belongs to producer i mod n.
 * A message is stamped with the moment it is handed over, or with the moment it was due when the
 * broker did not take its predecessors in time: the broker's delay counts, ours does not. */
static u64 pace(u64 from_ns, u64 *index, u64 limit) {
    double gap = 1e9 / opt.rate;
    u64 now = now_ns();
    bool full = false;
    while (*index < limit) {
        u64 due = from_ns + (u64)((double)*index * gap);
        struct producer *p = &producers[*index % (u64)opt.producers];
        if (due > now)
            break;
        if (p->stuck) {
            full = true;
            break;
        }
        if (opt.confirm && p->sent + 1 - p->low_tag >= p->ring - 1)
            fail("%d messages are unconfirmed: the broker does not keep up with the rate",
                 PACED_CONFIRMS_MAX);
        bool broker_late = due < p->free_since_ns;
        if (!broker_late && now >= measure_from_ns)
            hist_add(&pacing_late, now - due);
        fill_slot(p, broker_late ? due : now);
        ++*index;
        if (p->filled == p->slots)
            start_run(p);
    }
    for (int i = 0; i < n_producers; i++)
        if (producers[i].filled && !producers[i].stuck)
            start_run(&producers[i]);
    return *index < limit && !full ? from_ns + (u64)((double)*index * gap) : UINT64_MAX;
}

static bool all_home(void) {
    if (opt.consume_only)
        return consumed >= opt.count;
    if (opt.confirm && confirmed + nacked < published)
        return false;
    for (int i = 0; i < n_producers; i++)
        if (producers[i].stuck)
            return false;
    return opt.publish_only || consumed >= published * (u64)(opt.fanout ? opt.fanout : 1);
}

/* Waits until `until_ns` at the latest and handles what is ready. */
static void turn(u64 until_ns) {
    struct epoll_event ready[64];
    u64 now = now_ns(), wait = until_ns > now ? until_ns - now : 0;
    struct timespec t = {(time_t)(wait / NS), (long)(wait % NS)};
    int n = epoll_pwait2(epoll_fd, ready, 64, &t, NULL);
    if (n < 0 && errno != EINTR)
        fail("epoll_pwait2: %s", strerror(errno));
    for (int i = 0; i < n; i++)
        on_ready(ready[i].data.ptr, ready[i].events);
}

static void run_traffic(struct snapshot *first, struct snapshot *last) {
    bool by_time = opt.count == 0, measuring = first->ns != 0;
    u64 start = now_ns(), index = 0;
    u64 warm_until = start + (u64)(by_time ? opt.warmup * 1e9 : 0);
    u64 stop_at = by_time ? warm_until + (u64)(opt.seconds * 1e9) : UINT64_MAX;
    u64 give_up = start + (u64)(opt.timeout * 1e9);
    u64 paced = opt.count ? opt.count : UINT64_MAX;

    for (int i = 0; i < n_consumers; i++) /* what came with consume-ok */
        parse_consumer(&consumers[i]);
    for (;;) {
        u64 now = now_ns();
        if (!measuring && now >= warm_until) {
            *first = take_snapshot();
            measure_from_ns = first->ns;
            measuring = true;
        }
        if (now >= stop_at || (!by_time && (opt.consume_only || published >= opt.count)))
            break;
        if (now >= give_up)
            fail("not done after %.0f s: %llu published, %llu consumed", opt.timeout, published,
                 consumed);
        u64 wake = now + 20000000;
        if (opt.rate > 0) {
            u64 next_due = pace(start, &index, paced);
            wake = next_due < wake ? next_due : wake;
        } else {
            for (int i = 0; i < n_producers; i++)
                if (pump_producer(&producers[i]))
                    wake = now;
        }
        turn(wake);
    }
    if (by_time)
        *last = take_snapshot();
    u64 drain_until = now_ns() + (u64)((by_time ? opt.drain_timeout : opt.timeout) * 1e9);
    while (!all_home()) {
        if (now_ns() > drain_until) {
            note_error("not everything came home: %llu published, %llu confirmed, %llu consumed",
                       published, confirmed, consumed);
            break;
        }
        turn(now_ns() + 20000000);
    }
}

/* After the traffic, on blocking sockets: the last acks, and a round trip behind every publish. */
static void settle_and_check(void) {
    for (int i = 0; i < n_producers; i++)
        fcntl(producers[i].conn.fd, F_SETFL, 0);
    for (int i = 0; i < n_consumers; i++) {
        fcntl(consumers[i].conn.fd, F_SETFL, 0);
        send_ack(&consumers[i]);
        send_all(&consumers[i].conn);
    }
    if (opt.publish_only) {
        u64 queued = 0;
        for (int i = 0; i < n_producers; i++) /* each on its own channel: it waits its turn */
            queue_length(&producers[i].conn, i % opt.queues);
        for (int i = 0; i < opt.queues; i++)
            queued += queue_length(&producers[0].conn, i);
        u64 due = (published - nacked) * (u64)(opt.fanout ? opt.fanout : 1);
        if (queued != due)
            note_error("%llu messages are queued where %llu were due", queued, due);
    } else if (!opt.consume_only && consumed > published * (u64)(opt.fanout ? opt.fanout : 1)) {
        note_error("%llu messages came of %llu published", consumed, published);
    }
    if (nacked)
        note_error("%llu messages were refused (nack)", nacked);
    if (redelivered && !opt.consume_only)
        note_error("%llu messages came with the redelivered flag", redelivered);
}

static void traffic(void) {
    struct conn control;
    struct snapshot first = {0}, last = {0};
    u64 backlog = 0;
    open_conn(&control);
    for (int i = 0; i < opt.queues && !opt.existing; i++) {
        if (!opt.consume_only)
            delete_queue(&control, i);
        put_queue_declare(&control.out, queue_name(i), false);
        call(&control, QUEUE_DECLARE_OK);
        if (opt.consume_only)
            backlog += queue_length(&control, i);
    }
    if (opt.consume_only && opt.count == 0)
        opt.count = backlog;
    if (opt.consume_only && opt.count == 0)
        fail("there is nothing to consume in %s", queue_name(0));
    if (opt.fanout)
        declare_fanout(&control, opt.prefix);

    u64 rss_before = broker_rss_bytes();
    if (opt.consume_only) /* the broker begins to deliver while the last consumer is being set up */
        first = take_snapshot();
    producers = calloc((size_t)opt.producers, sizeof *producers);
    consumers = calloc((size_t)opt.consumers + 1, sizeof *consumers);
    if (!producers || !consumers)
        fail("out of memory");
    n_producers = opt.consume_only ? 0 : opt.producers;
    n_consumers = opt.publish_only ? 0 : opt.consumers;
    for (int i = 0; i < n_consumers; i++)
        open_consumer(&consumers[i], i);
    for (int i = 0; i < n_producers; i++)
        open_producer(&producers[i], i);
    for (int i = 0; i < n_producers; i++) {
        fcntl(producers[i].conn.fd, F_SETFL, O_NONBLOCK);
        watch(&producers[i].conn, EPOLLIN);
    }
    for (int i = 0; i < n_consumers; i++) {
        fcntl(consumers[i].conn.fd, F_SETFL, O_NONBLOCK);
        watch(&consumers[i].conn, EPOLLIN);
    }
    run_traffic(&first, &last);
    settle_and_check();
    if (last.ns == 0) /* by count: the round trip above belongs to the run */
        last = take_snapshot();
    u64 rss_after = broker_rss_bytes();

    double s = (double)(last.ns - first.ns) / 1e9;
    double in = (double)(last.published - first.published),
           out = (double)(last.consumed - first.consumed);
    printf("{\"mode\": \"%s\", \"published\": %llu, \"confirmed\": %llu, \"consumed\": %llu, ",
           opt.publish_only   ? "publish"
           : opt.consume_only ? "consume"
                              : "both",
           published, confirmed, consumed);
    printf("\"seconds\": %.4f, \"measured_in\": %.0f, \"measured_out\": %.0f, ", s, in, out);
    printf("\"in_per_s\": %.1f, \"out_per_s\": %.1f, \"confirmed_per_s\": %.1f, ", in / s, out / s,
           (double)(last.confirmed - first.confirmed) / s);
    printf("\"broker_cpu_s\": %.2f, \"generator_cpu_s\": %.3f, \"generator_busy\": %.3f, ",
           last.broker_cpu_s - first.broker_cpu_s, last.own_cpu_s - first.own_cpu_s,
           (last.own_cpu_s - first.own_cpu_s) / s);
    printf("\"cpu_s_by_process\": [");
    for (int i = 0; i < opt.n_pids; i++)
        printf("%s%.2f", i ? ", " : "", last.cpu_s[i] - first.cpu_s[i]);
    printf("], \"rss_before\": %llu, \"rss_after\": %llu, ", rss_before, rss_after);
    print_hist("end_to_end_us", &end_to_end);
    print_hist("confirm_us", &confirm_latency);
    print_hist("pacing_late_us", &pacing_late);
    printf("\"blocked_notices\": %llu, \"redelivered\": %llu, ", blocked_notices, redelivered);
    print_errors();
    printf("}\n");

    for (int i = 0; i < n_producers; i++)
        close_conn(&producers[i].conn);
    for (int i = 0; i < n_consumers; i++)
        close_conn(&consumers[i].conn);
    if (!opt.publish_only)
        for (int i = 0; i < opt.queues; i++)
            delete_queue(&control, i);
    if (opt.fanout && !opt.publish_only)
        delete_exchange(&control, opt.prefix);
    close_conn(&control);
}

/* Many queues, many connections ------------------------------------------------------------- */

static void declare_queues(void) {
    struct conn c;
    open_conn(&c);
    u64 rss_before = broker_rss_bytes(), start = now_ns();
    double cpu_before = broker_cpu_s();
    int sent = 0, done = 0;
    while (done < opt.declare_queues) {
        while (sent < opt.declare_queues && sent - done < opt.declare_window)
            put_queue_declare(&c.out, queue_name(sent++), false);
        call(&c, QUEUE_DECLARE_OK);
        done++;
    }
    double s = (double)(now_ns() - start) / 1e9, cpu = broker_cpu_s() - cpu_before;
    u64 rss_after = broker_rss_bytes();
    printf("{\"mode\": \"declare\", \"queues\": %d, \"seconds\": %.4f, \"declares_per_s\": %.1f, ",
           done, s, done / s);
    printf("\"broker_cpu_s\": %.2f, \"rss_before\": %llu, \"rss_after\": %llu, ", cpu, rss_before,
           rss_after);
    print_errors();
    printf("}\n");
    close_conn(&c);
}

/* Opens the connections, then only keeps them alive for --seconds. */
static void idle(void) {
    int n = opt.idle_connections;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    struct conn *conns = calloc((size_t)n, sizeof *conns);
    if (!conns)
        fail("out of memory");
    u64 rss_before = broker_rss_bytes(), start = now_ns();
    double cpu_before = broker_cpu_s();
    for (int i = 0; i < n; i++) {
        open_conn(&conns[i]);
        fcntl(conns[i].fd, F_SETFL, O_NONBLOCK);
        watch(&conns[i], EPOLLIN);
    }
    double connect_s = (double)(now_ns() - start) / 1e9, connect_cpu = broker_cpu_s() - cpu_before;

    /* Heartbeats go out in turn, each connection twice in its interval. */
    u64 from = now_ns(), until = from + (u64)(opt.seconds * 1e9), sent = 0, received = 0;
    double beats_per_s = opt.heartbeat ? 2.0 * n / opt.heartbeat : 0;
    double idle_cpu = broker_cpu_s();
    static const uint8_t heartbeat[8] = {FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END};
    for (u64 now; (now = now_ns()) < until;) {
        struct epoll_event ready[64];
        uint8_t skip[4096];
        for (; (double)sent < (double)(now - from) / 1e9 * beats_per_s; sent++)
            if (send(conns[sent % (u64)n].fd, heartbeat, 8, MSG_NOSIGNAL) != 8)
                fail("idle connection %llu is gone", (sent % (u64)n));
        int k = epoll_wait(epoll_fd, ready, 64, 10);
        for (int i = 0; i < k; i++) {
            struct conn *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, skip, sizeof skip, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN))
                fail("idle connection %ld was closed by the broker", (long)(c - conns));
            if (got > 0 && skip[0] != FRAME_HEARTBEAT)
                fail("idle connection %ld received something else than a heartbeat",
                     (long)(c - conns));
            received += got > 0 ? (u64)got / 8 : 0;
        }
    }
    idle_cpu = broker_cpu_s() - idle_cpu;
    u64 rss_after = broker_rss_bytes();
    printf("{\"mode\": \"idle\", \"connections\": %d, \"connect_seconds\": %.4f, "
           "\"connects_per_s\": %.1f, ",
           n, connect_s, n / connect_s);
    printf("\"connect_cpu_s\": %.2f, \"seconds\": %.1f, \"broker_cpu_s\": %.2f, ", connect_cpu,
           opt.seconds, idle_cpu);
    printf("\"rss_before\": %llu, \"rss_after\": %llu, \"heartbeats_sent\": %llu, "
           "\"heartbeats_received\": %llu, ",
           rss_before, rss_after, sent, received);
    print_errors();
    printf("}\n");
    for (int i = 0; i < n; i++)
        close_conn(&conns[i]);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (opt.declare_queues)
        declare_queues();
    else if (opt.idle_connections)
        idle();
    else
        traffic();
    return n_errors ? 1 : 0;
}
