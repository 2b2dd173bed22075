/* What the load generator measures with: clocks, the broker's CPU and memory, errors, histograms.
 *
 * The first few errors are kept and printed with the figures; `fail` is for those after which no
 * figure would mean anything.
 */
#ifndef BENCH_LOAD_MEASURE_H
#define BENCH_LOAD_MEASURE_H

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "load_options.h"

enum { ERRORS_MAX = 16 };

#define NS 1000000000ull

/* Time, CPU, errors ------------------------------------------------------------------------- */

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * NS + (u64)t.tv_nsec;
}

static double own_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* User and system time of a process: all its threads, and the children it waited for. */
static double process_cpu_s(int pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *after_name = strrchr(line, ')'); /* the name may hold blanks */
    unsigned long user, sys;
    long waited_user, waited_sys;
    if (!after_name ||
        sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &user,
               &sys, &waited_user, &waited_sys) != 4)
        return 0;
    return ((double)(user + sys) + (double)(waited_user + waited_sys)) /
           (double)sysconf(_SC_CLK_TCK);
}

/* Of all the broker's processes. */
static double broker_cpu_s(void) {
    double sum = 0;
    for (int i = 0; i < opt.n_pids; i++)
        sum += process_cpu_s(opt.pids[i]);
    return sum;
}

static u64 broker_rss_bytes(void) {
    u64 pages = 0;
    for (int i = 0; i < opt.n_pids; i++) {
        char path[64];
        unsigned long resident = 0;
        snprintf(path, sizeof path, "/proc/%d/statm", opt.pids[i]);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        if (fscanf(f, "%*u %lu", &resident) == 1)
            pages += resident;
        fclose(f);
    }
    return pages * (u64)sysconf(_SC_PAGESIZE);
}

static char errors[ERRORS_MAX][256];
static int n_errors;

__attribute__((format(printf, 1, 2))) static void note_error(const char *format, ...) {
    if (n_errors == ERRORS_MAX)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(errors[n_errors++], sizeof errors[0], format, args);
    va_end(args);
}

static void print_string(const char *s) {
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            printf("\\u%04x", *s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void print_errors(void) {
    printf("\"errors\": [");
    for (int i = 0; i < n_errors; i++) {
        if (i)
            printf(", ");
        print_string(errors[i]);
    }
    printf("]");
}

/* Something after which no figure would mean anything: say it as JSON too, and stop. */
__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
    va_list args;
    n_errors = n_errors < ERRORS_MAX ? n_errors : ERRORS_MAX - 1;
    va_start(args, format);
    vsnprintf(errors[n_errors++], sizeof errors[0], format, args);
    va_end(args);
    fprintf(stderr, "%s\n", errors[n_errors - 1]);
    printf("{");
    print_errors();
    printf("}\n");
    exit(1);
}

/* Latency histogram: 64 steps per power of two, so a percentile is at most 1.6 % too high --- */

struct hist {
    u64 bucket[42 * 64], count, max;
};

static inline void hist_add(struct hist *h, u64 ns) {
    unsigned top = ns < 128 ? 0 : 57u - (unsigned)__builtin_clzll(ns);
    h->bucket[top > 40 ? 42 * 64 - 1 : top * 64 + (unsigned)(ns >> top)]++;
    h->count++;
    if (ns > h->max)
        h->max = ns;
}

static double hist_us(const struct hist *h, double quantile) {
    u64 rank = (u64)((double)h->count * quantile), seen = 0;
    for (unsigned i = 0; i < 42 * 64; i++) {
        seen += h->bucket[i];
        if (seen > rank) {
            unsigned top = i < 64 ? 0 : i / 64 - 1;
            u64 upper = ((u64)(i - top * 64) + 1) << top;
            return (double)(upper < h->max ? upper : h->max) / 1e3;
        }
    }
    return (double)h->max / 1e3;
}

static void print_hist(const char *name, const struct hist *h) {
    if (h->count)
        printf("\"%s\": {\"count\": %llu, \"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": "
               "%.1f}, ",
               name, h->count, hist_us(h, 0.5), hist_us(h, 0.99), hist_us(h, 0.999),
               (double)h->max / 1e3);
    else
        printf("\"%s\": null, ", name);
}

#endif
