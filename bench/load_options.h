/* The options of the load generator: what they are, what they default to, what makes no sense.
 *
 * Invariant: after parse_options the combination in `opt` can be run as it stands.
 */
#ifndef BENCH_LOAD_OPTIONS_H
#define BENCH_LOAD_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;

enum { STAMP_BYTES = 16, PIDS_MAX = 64, PORTS_MAX = 16 };

static struct {
    const char *host, *user, *password, *vhost, *prefix;
    const char *ports[PORTS_MAX];
    int producers, consumers, queues, fanout, size, prefetch, ack_every, heartbeat;
    int idle_connections, declare_queues, declare_window;
    u64 count, confirm, inflight;
    double seconds, warmup, rate, drain_timeout, timeout;
    bool durable, persistent, manual_ack, publish_only, consume_only, inflight_set;
    bool existing, keyed;
    int pids[PIDS_MAX], n_pids, n_ports;
} opt = {
    .host = "127.0.0.1",
    .ports = {"5672"},
    .n_ports = 1,
    .user = "guest",
    .password = "guest",
    .vhost = "/",
    .prefix = "bench",
    .producers = 1,
    .consumers = 1,
    .queues = 1,
    .size = 100,
    .ack_every = 100,
    .declare_window = 1,
    .drain_timeout = 60,
    .timeout = 900,
};

static const char USAGE[] =
    "load: AMQP 0-9-1 load generator; prints one JSON object\n"
    "  --host H --port P --user U --password W --vhost V   where (127.0.0.1 5672 guest guest /)\n"
    "                                                      --port P,P: producer i uses port i / "
    "queues mod ports\n"
    "  --producers N --consumers N --queues N              producer i and consumer i use queue i "
    "mod N (1 1 1)\n"
    "  --fanout K                                          one fanout exchange, K queues with a "
    "consumer each\n"
    "  --size BYTES                                        body, at least 16 (100)\n"
    "  --count N | --seconds S [--warmup S]                how long (5 s, 1 s of warm-up)\n"
    "  --durable --persistent                              queues and messages survive a restart\n"
    "  --confirm WINDOW                                    open confirms a producer may have; 0: "
    "none (0)\n"
    "  --ack auto|manual [--ack-every K] [--prefetch N]    one multiple ack every K deliveries "
    "(auto, 100, none)\n"
    "  --inflight N                                        published and not yet consumed; 0: no "
    "bound\n"
    "                                                      (10000, less for large bodies and "
    "fan-out)\n"
    "  --rate R                                            messages/s, evenly spaced, for latency\n"
    "  --publish-only | --consume-only                     build up a backlog; drain it\n"
    "  --idle-connections N [--heartbeat S]                hold N connections for --seconds\n"
    "  --declare-queues N [--declare-window W]             declare N queues, W at a time (1)\n"
    "  --prefix NAME                                       of queues and exchange (bench)\n"
    "  --existing                                          queues are there, and empty; they "
    "stay\n"
    "  --keyed                                             publish to the exchange, which is "
    "there,\n"
    "                                                      each message with a key of its own\n"
    "  --pids P,P                                          the broker's processes, for CPU and "
    "memory\n"
    "  --timeout S --drain-timeout S                       give up (900, 60)\n";

__attribute__((noreturn)) static void usage_error(const char *text) {
    fprintf(stderr, "load: %s\n", text);
    exit(2);
}

static double number(const char *name, const char *text, double least, double most) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= least && v <= most)) {
        fprintf(stderr, "load: --%s must be a number from %.0f to %.0f, not \"%s\"\n", name, least,
                most, text);
        exit(2);
    }
    return v;
}

static void parse_pids(char *text) {
    for (char *p = strtok(text, ","); p; p = strtok(NULL, ",")) {
        if (opt.n_pids == PIDS_MAX)
            usage_error("--pids takes at most 64 processes");
        opt.pids[opt.n_pids++] = (int)number("pids", p, 1, 1 << 22);
    }
}

static void parse_ports(char *text) {
    opt.n_ports = 0;
    for (char *p = strtok(text, ","); p; p = strtok(NULL, ",")) {
        if (opt.n_ports == PORTS_MAX)
            usage_error("--port takes at most 16 ports");
        opt.ports[opt.n_ports++] = p;
    }
    if (!opt.n_ports)
        usage_error("--port needs a port");
}

static void parse_options(int argc, char **argv) {
    enum {
        HOST = 256,
        PORT,
        USER,
        PASSWORD,
        VHOST,
        PREFIX,
        EXISTING,
        KEYED,
        PRODUCERS,
        CONSUMERS,
        QUEUES,
        FANOUT,
        SIZE,
        COUNT,
        SECONDS,
        WARMUP,
        DURABLE,
        PERSISTENT,
        CONFIRM,
        ACK,
        ACK_EVERY,
        PREFETCH,
        INFLIGHT,
        RATE,
        PUBLISH_ONLY,
        CONSUME_ONLY,
        IDLE,
        HEARTBEAT,
        DECLARE,
        DECLARE_WINDOW,
        PIDS,
        TIMEOUT,
        DRAIN_TIMEOUT,
        HELP
    };
    static const struct option names[] = {{"host", 1, 0, HOST},
                                          {"port", 1, 0, PORT},
                                          {"user", 1, 0, USER},
                                          {"password", 1, 0, PASSWORD},
                                          {"vhost", 1, 0, VHOST},
                                          {"prefix", 1, 0, PREFIX},
                                          {"existing", 0, 0, EXISTING},
                                          {"keyed", 0, 0, KEYED},
                                          {"producers", 1, 0, PRODUCERS},
                                          {"consumers", 1, 0, CONSUMERS},
                                          {"queues", 1, 0, QUEUES},
                                          {"fanout", 1, 0, FANOUT},
                                          {"size", 1, 0, SIZE},
                                          {"count", 1, 0, COUNT},
                                          {"seconds", 1, 0, SECONDS},
                                          {"warmup", 1, 0, WARMUP},
                                          {"durable", 0, 0, DURABLE},
                                          {"persistent", 0, 0, PERSISTENT},
                                          {"confirm", 1, 0, CONFIRM},
                                          {"ack", 1, 0, ACK},
                                          {"ack-every", 1, 0, ACK_EVERY},
                                          {"prefetch", 1, 0, PREFETCH},
                                          {"inflight", 1, 0, INFLIGHT},
                                          {"rate", 1, 0, RATE},
                                          {"publish-only", 0, 0, PUBLISH_ONLY},
                                          {"consume-only", 0, 0, CONSUME_ONLY},
                                          {"idle-connections", 1, 0, IDLE},
                                          {"heartbeat", 1, 0, HEARTBEAT},
                                          {"declare-queues", 1, 0, DECLARE},
                                          {"declare-window", 1, 0, DECLARE_WINDOW},
                                          {"pids", 1, 0, PIDS},
                                          {"timeout", 1, 0, TIMEOUT},
                                          {"drain-timeout", 1, 0, DRAIN_TIMEOUT},
                                          {"help", 0, 0, HELP},
                                          {0, 0, 0, 0}};
    bool warmup_set = false;
    for (int code, at; (code = getopt_long(argc, argv, "", names, &at)) != -1;) {
        const char *name = code == '?' ? "" : names[at].name;
        switch (code) {
        case HOST: opt.host = optarg; break;
        case PORT: parse_ports(optarg); break;
        case USER: opt.user = optarg; break;
        case PASSWORD: opt.password = optarg; break;
        case VHOST: opt.vhost = optarg; break;
        case PREFIX: opt.prefix = optarg; break;
        case EXISTING: opt.existing = true; break;
        case KEYED: opt.keyed = true; break;
        case PRODUCERS: opt.producers = (int)number(name, optarg, 1, 1000); break;
        case CONSUMERS: opt.consumers = (int)number(name, optarg, 1, 1000); break;
        case QUEUES: opt.queues = (int)number(name, optarg, 1, 1000); break;
        case FANOUT: opt.fanout = (int)number(name, optarg, 1, 1000); break;
        case SIZE: opt.size = (int)number(name, optarg, STAMP_BYTES, 128 << 20); break;
        case COUNT: opt.count = (u64)number(name, optarg, 1, 1e12); break;
        case SECONDS: opt.seconds = number(name, optarg, 0.1, 3600); break;
        case WARMUP:
            opt.warmup = number(name, optarg, 0, 600);
            warmup_set = true;
            break;
        case DURABLE: opt.durable = true; break;
        case PERSISTENT: opt.persistent = true; break;
        case CONFIRM: opt.confirm = (u64)number(name, optarg, 0, 1e6); break;
        case ACK:
            if (strcmp(optarg, "manual") && strcmp(optarg, "auto"))
                usage_error("--ack is manual or auto");
            opt.manual_ack = optarg[0] == 'm';
            break;
        case ACK_EVERY: opt.ack_every = (int)number(name, optarg, 1, 1e6); break;
        case PREFETCH: opt.prefetch = (int)number(name, optarg, 0, 65535); break;
        case INFLIGHT:
            opt.inflight = (u64)number(name, optarg, 0, 1e9);
            opt.inflight_set = true;
            break;
        case RATE: opt.rate = number(name, optarg, 1, 1e7); break;
        case PUBLISH_ONLY: opt.publish_only = true; break;
        case CONSUME_ONLY: opt.consume_only = true; break;
        case IDLE: opt.idle_connections = (int)number(name, optarg, 1, 60000); break;
        case HEARTBEAT: opt.heartbeat = (int)number(name, optarg, 0, 3600); break;
        case DECLARE: opt.declare_queues = (int)number(name, optarg, 1, 1e6); break;
        case DECLARE_WINDOW: opt.declare_window = (int)number(name, optarg, 1, 10000); break;
        case PIDS: parse_pids(optarg); break;
        case TIMEOUT: opt.timeout = number(name, optarg, 1, 36000); break;
        case DRAIN_TIMEOUT: opt.drain_timeout = number(name, optarg, 1, 3600); break;
        case HELP: fputs(USAGE, stdout); exit(0);
        default: exit(2);
        }
    }
    if (optind < argc)
        usage_error("only options are taken; see --help");
    if (opt.publish_only && opt.consume_only)
        usage_error("--publish-only and --consume-only exclude each other");
    if (opt.count && opt.seconds > 0)
        usage_error("--count and --seconds exclude each other");
    if (opt.consume_only && opt.seconds > 0)
        usage_error("--consume-only takes --count, or drains what is there");
    if (opt.fanout)
        opt.queues = opt.consumers = opt.fanout;
    if (!opt.publish_only && opt.consumers < opt.queues)
        usage_error("every queue needs a consumer: --consumers must be at least --queues");
    if (!opt.consume_only && !opt.fanout && opt.producers < opt.queues)
        usage_error("every queue needs a producer: --producers must be at least --queues");
    if (opt.existing && (!opt.publish_only || opt.fanout))
        usage_error("--existing goes with --publish-only, and not with --fanout");
    if (opt.keyed && !opt.existing)
        usage_error("--keyed goes with --existing: this program declares no such exchange");
    if (opt.manual_ack && opt.prefetch && opt.ack_every > opt.prefetch)
        usage_error("--ack-every over --prefetch would wait for ever");
    if (opt.heartbeat && !opt.idle_connections)
        usage_error("--heartbeat goes with --idle-connections; a busy connection needs none");
    if (!opt.count && !opt.consume_only && opt.seconds == 0)
        opt.seconds = 5;
    if (!warmup_set)
        opt.warmup = 1;
    if (!opt.inflight_set && !opt.rate && !opt.publish_only) {
        opt.inflight = (16u << 20) / (unsigned)opt.size;
        opt.inflight = opt.inflight > 10000 ? 10000 : opt.inflight;
        opt.inflight /= (u64)(opt.fanout ? opt.fanout : 1);
        opt.inflight = opt.inflight < 10 ? 10 : opt.inflight;
    }
    if (opt.publish_only)
        opt.inflight = 0;
}

#endif
